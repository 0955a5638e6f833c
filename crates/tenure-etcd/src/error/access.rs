//! Why a server refuses a client, or a client a server: credentials, permissions, TLS.

use std::fmt;

use bytes::Bytes;

/// Why the server refuses access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// The user or its password, or a user where none is needed.
    #[error("{0}")]
    Credentials(String),
    /// No role of the user covers the keys of the request, or the call requires the role `root`.
    #[error("{}", permission(user.as_deref(), *access, ranges))]
    Permission {
        /// The user, where a name is configured.
        user: Option<String>,
        /// What the request needs.
        access: RequiredAccess,
        /// The keys of the request. The server does not report which of them is at fault.
        ranges: Vec<KeyRange>,
    },
}

/// What a request needs on its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAccess {
    /// To read them.
    Read,
    /// To write or delete them.
    Write,
    /// Both.
    ReadWrite,
    /// The role `root`.
    Root,
}

/// The keys from `key` up to `end`, which is not part of them; one key where `end` is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub key: Bytes,
    /// The end; empty for one key.
    pub end: Bytes,
}

fn permission(user: Option<&str>, access: RequiredAccess, ranges: &[KeyRange]) -> String {
    let user = user.map_or_else(|| "this client".to_owned(), |user| format!("user {user:?}"));
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    let access = match access {
        RequiredAccess::Root => return format!("{user} lacks the role root"),
        RequiredAccess::Read => "read",
        RequiredAccess::Write => "write",
        RequiredAccess::ReadWrite => "readwrite",
    };
    let ranges = if ranges.is_empty() { "the keys of the request".to_owned() } else { ranges.join(", ") };
    format!("{user} lacks the permission {access:?} on {ranges}")
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end.is_empty() {
            true => write!(f, "{}", self.key.escape_ascii()),
            false => write!(f, "[{}, {})", self.key.escape_ascii(), self.end.escape_ascii()),
        }
    }
}

/// Why there is no TLS connection, or why there must be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFailure {
    /// TLS is configured, and the server does not speak it.
    #[error("the server does not speak TLS")]
    ServerIsPlain,
    /// The address uses no TLS, and the server requires it.
    #[error("the server speaks TLS, and the address is in the clear")]
    ServerIsTls,
    /// No trusted authority signed the server's certificate.
    #[error("no trusted authority signed the server's certificate ({0})")]
    UnknownAuthority(String),
    /// The certificate is for other names.
    #[error("the server's certificate is for another name ({0})")]
    WrongName(String),
    /// The certificate has expired, or is not valid yet.
    #[error("the server's certificate is not valid now ({0})")]
    NotValidNow(String),
    /// The server requires a client certificate, and none is configured.
    #[error("the server requires a client certificate, and none is configured")]
    NoClientCertificate,
    /// The server refuses the client certificate.
    #[error("the server refuses the client certificate ({0})")]
    ClientCertificateRefused(String),
    /// Anything else, as the TLS library reports it.
    #[error("{0}")]
    Other(String),
}
