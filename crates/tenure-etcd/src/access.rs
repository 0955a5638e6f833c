//! Users and roles: just enough to set up a cluster with authentication.

use bytes::Bytes;

use crate::call::{Call, Kind};
use crate::classify::Asked;
use crate::client::Client;
use crate::error::Error;
use crate::message::auth as message;
use crate::secret::Secret;

impl Client {
    /// Adds a user.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when it exists, [`Error::Denied`], [`Error::Ambiguous`].
    ///
    /// # Cancellation
    ///
    /// The user may still be added.
    pub async fn user_add(&self, name: &str, password: &Secret) -> Result<(), Error> {
        let message =
            message::AuthUserAddRequest { name: name.to_owned(), password: password.reveal().to_owned() };
        self.change_access("/etcdserverpb.Auth/UserAdd", message).await
    }

    /// Adds a role.
    ///
    /// # Errors
    ///
    /// As for [`Client::user_add`].
    ///
    /// # Cancellation
    ///
    /// The role may still be added.
    pub async fn role_add(&self, name: &str) -> Result<(), Error> {
        let message = message::AuthRoleAddRequest { name: name.to_owned() };
        self.change_access("/etcdserverpb.Auth/RoleAdd", message).await
    }

    /// Lets a role read and write `[key, range_end)`.
    ///
    /// # Errors
    ///
    /// As for [`Client::user_add`].
    ///
    /// # Cancellation
    ///
    /// The permission may still be granted.
    pub async fn role_grant(&self, role: &str, key: Bytes, range_end: Bytes) -> Result<(), Error> {
        let permission = message::Permission { kind: 2, key, range_end };
        let message =
            message::AuthRoleGrantPermissionRequest { name: role.to_owned(), permission: Some(permission) };
        self.change_access("/etcdserverpb.Auth/RoleGrantPermission", message).await
    }

    /// Gives a role to a user.
    ///
    /// # Errors
    ///
    /// As for [`Client::user_add`].
    ///
    /// # Cancellation
    ///
    /// The role may still be given.
    pub async fn user_grant_role(&self, user: &str, role: &str) -> Result<(), Error> {
        let message = message::AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        self.change_access("/etcdserverpb.Auth/UserGrantRole", message).await
    }

    /// Switches authentication on. There must be a user `root` with the role `root`.
    ///
    /// # Errors
    ///
    /// As for [`Client::user_add`].
    ///
    /// # Cancellation
    ///
    /// Authentication may still be switched on.
    pub async fn auth_enable(&self) -> Result<(), Error> {
        self.change_access("/etcdserverpb.Auth/AuthEnable", message::AuthEnableRequest {}).await
    }

    async fn change_access<Q>(&self, path: &'static str, message: Q) -> Result<(), Error>
    where
        Q: prost::Message + Clone + 'static,
    {
        let call = Call { path, kind: Kind::Write, message, asked: Asked::default() };
        self.endpoints().call::<_, message::AuthChangeResponse>(call).await.map(drop)
    }
}
