//! Messages of the `Auth` service: signing in, and the little that sets up users and roles.

use bytes::Bytes;

use crate::message::header::{ResponseHeader, headed};

/// Carries a password: it is encoded at once and must never reach a log.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Carries the token: the same care as for the password.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateResponse").field("header", &self.header).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct AuthEnableRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct AuthUserAddRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

impl std::fmt::Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthUserAddRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AuthUserGrantRoleRequest {
    #[prost(string, tag = "1")]
    pub(crate) user: String,
    #[prost(string, tag = "2")]
    pub(crate) role: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AuthRoleAddRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Permission {
    /// 0 read, 1 write, 2 both.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) range_end: Bytes,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AuthRoleGrantPermissionRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) permission: Option<Permission>,
}

/// The answer of every call that changes users and roles: nothing but a header.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct AuthChangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

headed!(AuthenticateResponse, AuthChangeResponse);
