//! Registrations, members and services.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tenure_core::id::{InstanceId, InvalidName, NodeId, RegistryKey, ServiceName};
use tenure_core::layout::{Key, Layout};

use super::{Shared, request};
use crate::error::Error;
use crate::id::IntoId;
use crate::membership::{self, Cluster, JoinError, MemberView, MemberWatch, Membership, NewNode};
use crate::service::{
    self, InstanceError, InstanceList, InstanceRegistration, NewInstance, Picker, Services,
};
use crate::session::{self, RegisterError, Registration, Session};
use crate::store::StoreError;

/// How much longer than the TTL a key of the former process of a restarted program is waited for.
const OWNER_MARGIN: Duration = Duration::from_secs(5);

/// A key that is about to be registered. Awaiting it gives a [`Registration`].
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::builder().store("memory:").namespace("shop").connect().await?;
/// let registration = tenure.register("api/web-1", "10.0.0.7:80").if_absent().await?;
/// assert_eq!(&registration.key[..], b"/shop/registry/api/web-1");
/// tenure.session().unregister(registration.key);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// The key stays registered, through outages and lost leases, until [`Session::unregister`] or the end of the session.
///
/// # Cancellation
///
/// Dropping the future leaves the key wanted; [`Session::unregister`] withdraws it.
///
/// # Errors
///
/// [`RegisterError`]; a wrong name is reported when it is awaited.
#[must_use = "nothing is registered before this is awaited"]
pub struct Register {
    register: Result<session::Register, InvalidName>,
}

request!(Register => Result<Registration, RegisterError>);

impl Register {
    pub(super) fn new(
        session: &Session,
        layout: &Layout,
        key: Result<RegistryKey, InvalidName>,
        value: Bytes,
    ) -> Register {
        Register { register: key.map(|key| session.register(layout.encode(&Key::Registration(key)), value)) }
    }

    /// With a lease of this TTL; that of the session otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Register {
        self.register = self.register.map(|register| register.ttl(ttl));
        self
    }

    /// Only if no other process has the key; it is overwritten otherwise.
    pub fn if_absent(mut self) -> Register {
        self.register = self.register.map(session::Register::create_only);
        self
    }

    /// Waits at most this long for the store; 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Register {
        self.register = self.register.map(|register| register.within(timeout));
        self
    }

    async fn send(self) -> Result<Registration, RegisterError> {
        self.register?.await
    }
}

/// A node that is about to join. Awaiting it gives a [`Membership`].
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let membership = tenure.join("web-1").address("10.0.0.7:80").label("zone", "eu").await?;
/// assert_eq!(tenure.members().list().await?.members()[0].token, membership.incarnation());
/// # drop(membership);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// It waits for another process with the same id for the TTL and 5 s, so a restarted program joins when the key of its former process has
/// expired.
///
/// # Cancellation
///
/// Dropping the future withdraws the node.
///
/// # Errors
///
/// [`JoinError`]; a wrong name is reported when it is awaited.
#[must_use = "nothing joins before this is awaited"]
pub struct Join {
    cluster: Cluster,
    session: Session,
    node: Result<NewNode, InvalidName>,
    wait: Duration,
    timeout: Option<Duration>,
}

request!(Join => Result<Membership, JoinError>);

impl Join {
    pub(super) fn new(cluster: Cluster, shared: &Shared, id: Result<NodeId, InvalidName>) -> Join {
        let (session, wait) = (shared.session.clone(), owner_wait(shared));
        Join { cluster, session, node: id.map(NewNode::new), wait, timeout: None }
    }

    /// Where it can be reached.
    pub fn address(mut self, address: impl Into<String>) -> Join {
        self.node = self.node.map(|node| node.address(address));
        self
    }

    /// The version of its program.
    pub fn version(mut self, version: impl Into<String>) -> Join {
        self.node = self.node.map(|node| node.version(version));
        self
    }

    /// A label.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Join {
        self.node = self.node.map(|node| node.label(name, value));
        self
    }

    /// Waits at most this long, for the store and for another process with the same id.
    pub fn timeout(mut self, timeout: Duration) -> Join {
        (self.wait, self.timeout) = (timeout, Some(timeout));
        self
    }

    /// Fails at once with [`JoinError::Alive`] instead of waiting for another process with the same id.
    pub fn try_now(mut self) -> Join {
        self.wait = Duration::ZERO;
        self
    }

    async fn send(self) -> Result<Membership, JoinError> {
        let join = self.cluster.join(&self.session, self.node?).wait_up_to(self.wait);
        match self.timeout {
            Some(timeout) => join.within(timeout).await,
            None => join.await,
        }
    }
}

/// The members of a namespace. Cheap to clone.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// assert!(tenure.members().list().await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Members {
    cluster: Cluster,
}

impl Members {
    pub(super) fn new(cluster: Cluster) -> Members {
        Members { cluster }
    }

    /// All members, at one revision.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn list(&self) -> Result<membership::Members, StoreError> {
        self.cluster.members().await
    }

    /// All members, then every change.
    pub fn watch(&self) -> MemberWatch {
        self.cluster.watch()
    }

    /// A picture that many tasks can look at while one watch keeps it up to date. Must be called inside a tokio runtime.
    pub fn view(&self) -> MemberView {
        self.cluster.view()
    }
}

/// One service. Cheap to clone.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let web = tenure.service("web");
/// let registration = web.register("web-1", "10.0.0.7:80").await?;
/// let picker = web.picker().await?;
/// assert_eq!(picker.for_key("customer-4711").unwrap().record.address(), Some("10.0.0.7:80"));
/// # drop(registration);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Service {
    services: Services,
    session: Session,
    wait: Duration,
    name: Result<ServiceName, InvalidName>,
}

impl Service {
    pub(super) fn new(
        services: Services,
        shared: &Shared,
        name: Result<ServiceName, InvalidName>,
    ) -> Service {
        Service { services, session: shared.session.clone(), wait: owner_wait(shared), name }
    }

    /// An instance that is about to be registered.
    pub fn register(&self, id: impl IntoId<InstanceId>, address: impl Into<String>) -> RegisterInstance {
        let instance = id.into_id().map(|id| NewInstance::new(id).address(address));
        RegisterInstance { service: self.clone(), instance, timeout: None }
    }

    /// All instances, at one revision.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn list(&self) -> Result<InstanceList, Error> {
        Ok(self.services.instances(self.name()?).await?)
    }

    /// Picks instances from a picture that one watch keeps up to date. Waits for the first picture.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn picker(&self) -> Result<Picker, Error> {
        let mut view = self.services.view(self.name()?);
        view.ready().await?;
        Ok(Picker::new(view))
    }

    fn name(&self) -> Result<&ServiceName, InvalidName> {
        self.name.as_ref().map_err(Clone::clone)
    }
}

/// An instance of a service that is about to be registered. Awaiting it gives an [`InstanceRegistration`].
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::connect("memory:").await?;
/// let web = tenure.service("web");
/// let registration = web.register("web-1", "10.0.0.7:80").metadata(&"eu")?.try_now().await?;
/// assert_eq!(web.list().await?.members()[0].record.metadata::<String>()?, "eu");
/// # drop(registration);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// It waits for another process with the same id for the TTL and 5 s.
///
/// # Cancellation
///
/// Dropping the future withdraws the instance.
///
/// # Errors
///
/// [`InstanceError`]; a wrong name is reported when it is awaited.
#[must_use = "nothing is registered before this is awaited"]
pub struct RegisterInstance {
    service: Service,
    instance: Result<NewInstance, InvalidName>,
    timeout: Option<Duration>,
}

request!(RegisterInstance => Result<InstanceRegistration, InstanceError>);

impl RegisterInstance {
    /// What the users of the service want to know of it.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn metadata(mut self, metadata: &impl Serialize) -> Result<RegisterInstance, serde_json::Error> {
        self.instance = match self.instance {
            Ok(instance) => Ok(instance.metadata(metadata)?),
            Err(invalid) => Err(invalid),
        };
        Ok(self)
    }

    /// Waits at most this long, for the store and for another process with the same id.
    pub fn timeout(mut self, timeout: Duration) -> RegisterInstance {
        (self.service.wait, self.timeout) = (timeout, Some(timeout));
        self
    }

    /// Fails at once with [`InstanceError::Alive`] instead of waiting for another process with the same id.
    pub fn try_now(mut self) -> RegisterInstance {
        self.service.wait = Duration::ZERO;
        self
    }

    async fn send(self) -> Result<InstanceRegistration, InstanceError> {
        let Service { services, session, wait, name } = self.service;
        let register: service::RegisterInstance = services.register(&session, &name?, self.instance?);
        match self.timeout {
            Some(timeout) => register.wait_up_to(wait).within(timeout).await,
            None => register.wait_up_to(wait).await,
        }
    }
}

/// How long another process with the same id is waited for: until the key of one that was killed has expired.
pub(super) fn owner_wait(shared: &Shared) -> Duration {
    shared.ttl.saturating_add(OWNER_MARGIN)
}
