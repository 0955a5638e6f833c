//! Why a store refuses access: credentials, a missing grant, or TLS. Each names what an operator
//! must change.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

/// Why the store refuses access.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Denied {
    /// The credentials are wrong, or a file must not be used: in the words of the store.
    #[error("{0}")]
    Refused(String),
    /// No role of the user covers the keys of the request.
    #[error(transparent)]
    MissingGrant(MissingGrant),
}

impl From<String> for Denied {
    fn from(text: String) -> Denied {
        Denied::Refused(text)
    }
}

impl From<&str> for Denied {
    fn from(text: &str) -> Denied {
        Denied::Refused(text.to_owned())
    }
}

/// What a user may not do, and with which keys.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub struct MissingGrant {
    /// The user, where one signed in with a name.
    pub user: Option<String>,
    /// What the request needs.
    pub access: AccessKind,
    /// The keys of the request. The server does not report which of them is at fault.
    pub ranges: Vec<KeyRange>,
}

/// What a request needs on its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AccessKind {
    /// To read them.
    Read,
    /// To write or delete them.
    Write,
    /// Both.
    ReadWrite,
    /// The role `root`, whatever the keys.
    Root,
}

/// One key, or all keys from one up to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRange {
    /// The first key.
    pub key: Bytes,
    /// The first key that is not part of it; empty for one key.
    pub end: Bytes,
}

impl fmt::Display for MissingGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More ranges would hide the message; they share a prefix in practice.
        const SHOWN_MAX: usize = 3;
        match &self.user {
            Some(user) => write!(f, "user {user:?} ")?,
            None => f.write_str("this client ")?,
        }
        let access = match self.access {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::ReadWrite => "readwrite",
            AccessKind::Root => return f.write_str("lacks the role root, which this request requires"),
        };
        write!(f, "lacks the permission {access:?}")?;
        if self.ranges.is_empty() {
            return f.write_str(" on the keys of the request");
        }
        for (n, range) in self.ranges.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{} {range}", if n == 0 { " on" } else { "," })?;
        }
        match self.ranges.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        if self.end.is_empty() {
            return write!(f, "the key {}", text(&self.key));
        }
        if self.is_prefix() {
            return write!(f, "the prefix {}", text(&self.key));
        }
        if self.end.as_ref() == b"\0" {
            return write!(f, "all keys from {} on", text(&self.key));
        }
        write!(f, "the keys from {} up to {}", text(&self.key), text(&self.end))
    }
}

impl KeyRange {
    /// Whether it is all keys with one beginning: its end is that beginning with the last byte one
    /// higher.
    fn is_prefix(&self) -> bool {
        match (self.key.split_last(), self.end.split_last()) {
            (Some((last, first)), Some((end_last, end_first))) => {
                first == end_first && last.checked_add(1) == Some(*end_last)
            }
            _ => false,
        }
    }
}

/// Why there is no TLS connection, or why there must be one.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TlsFailure {
    /// TLS is configured, and the server does not speak it.
    #[error("the server does not speak TLS; use etcd:// for it, or enable TLS at the server")]
    ServerIsPlain,
    /// The address is in the clear, and the server speaks TLS.
    #[error("the server speaks TLS, and the address is in the clear; use etcds:// for it")]
    ServerIsTls,
    /// No trusted authority signed the server's certificate.
    #[error("no trusted authority signed the server's certificate; trust the authority that did: {0}")]
    UnknownAuthority(String),
    /// The certificate is for other names than the one in the address.
    #[error(
        "the server's certificate is not for this name; use one of its names, or issue another certificate: {0}"
    )]
    WrongName(String),
    /// The certificate is too old, or not valid yet, by the clock of this machine.
    #[error("the server's certificate is not valid now; renew it, or set this machine's clock: {0}")]
    NotValidNow(String),
    /// The server requires a client certificate, and none is configured.
    #[error("the server requires a client certificate, and none is configured")]
    NoClientCertificate,
    /// The server refuses the client certificate.
    #[error("the server refuses the client certificate; use one that its authority signed: {0}")]
    ClientCertificateRefused(String),
    /// Anything else, in the words of the TLS library.
    #[error("{0}")]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_grant_names_user_permission_and_keys() {
        let range = |key: &'static str, end: &'static str| KeyRange { key: key.into(), end: end.into() };
        let grant = |ranges| MissingGrant { user: Some("ann".to_owned()), access: AccessKind::Write, ranges };
        for (ranges, shown) in [
            (vec![range("/a/x", "")], "the key /a/x"),
            (vec![range("/a/", "/a0")], "the prefix /a/"),
            (vec![range("a", "c")], "the keys from a up to c"),
            (vec![range("a", "\0")], "all keys from a on"),
            (vec![range("a", ""), range("b", "")], "the key a, the key b"),
            (vec![range("a", ""); 5], "the key a, the key a, the key a and 2 more"),
        ] {
            let text = grant(ranges).to_string();
            assert_eq!(text, format!("user \"ann\" lacks the permission \"write\" on {shown}"));
        }
    }
}
