//! What can go wrong, named by what the caller must do next.
//!
//! A request is applied (`Ok`), not applied (every variant but one), or unknown (`Ambiguous`).
//! `Ambiguous` is settled by reading back what the request would have written. It is never a
//! failure and never a reason to send the same request again.

mod access;

use std::fmt;
use std::time::Duration;

pub use access::{Denied, KeyRange, RequiredAccess, TlsFailure};

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request itself is invalid. Nothing happened; repeating it has the same result.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The lease is unknown: it expired, was revoked, or never was. Nothing happened.
    #[error("the lease does not exist at the server: it expired, was revoked, or never was")]
    LeaseNotFound,
    /// The chosen lease id is taken. After an ambiguous grant this means that the grant was
    /// applied.
    #[error("a lease with this id exists already")]
    LeaseExists,
    /// A put that keeps the old value or lease found no key. Nothing happened.
    #[error("the key does not exist")]
    KeyNotFound,
    /// The requested revision is compacted: list again.
    #[error("the revision asked for has been compacted away; read the current state instead")]
    Compacted {
        /// The revision up to which history is gone, where the server reports it.
        at: Option<i64>,
    },
    /// The requested revision has not happened yet.
    #[error("the revision asked for lies in the future")]
    FutureRevision,
    /// The server dropped the request without applying it: try again after a pause.
    #[error("the server was busy and dropped the request")]
    Busy(#[source] Cause),
    /// The database is full. Deletes, revocations and renewals still work; puts and grants do not.
    #[error("the etcd database is full: delete or compact, defragment, then clear the alarm")]
    NoSpace,
    /// The server has too many requests in flight: try again after a pause.
    #[error("the server has too many requests in flight")]
    RateLimited,
    /// The request was certainly not applied: it never left, or no member could take it.
    #[error("no etcd member could be reached")]
    Unavailable(#[source] Cause),
    /// TLS failed: a certificate is missing, unknown, expired or for another name, or one side only speaks TLS. The request never left.
    #[error("no TLS connection to {endpoint}: {failure}")]
    Tls {
        /// The address of the server.
        endpoint: String,
        /// Why.
        failure: TlsFailure,
    },
    /// The request may or may not have been applied: read before you act.
    #[error("the answer was lost: the request may have been applied or not")]
    Ambiguous(#[source] Cause),
    /// This is not the known store any more: everything derived from it is void. Final for this
    /// client.
    #[error(transparent)]
    Replaced(#[from] ClusterReplaced),
    /// The server reports damaged data, or replied with what the protocol does not allow.
    #[error("the server's data or answer is damaged: {0}")]
    Corrupt(String),
    /// The server refuses access: wrong password, missing permission, or a user where none is
    /// needed.
    #[error("the server refuses access: {0}")]
    Denied(Denied),
    /// The client was closed. The request never left.
    #[error("the client is closed")]
    Closed,
}

impl Error {
    /// Whether the request may have been applied although no reply came.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::Ambiguous(_))
    }

    /// Whether the same request may succeed later without an operator's help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::RateLimited | Self::Unavailable(_) | Self::NoSpace)
    }
}

/// A request that no server would accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A key has no bytes.
    #[error("a key is empty; every key needs at least one byte")]
    EmptyKey,
    /// One transaction writes the same key twice.
    #[error("one transaction writes the same key twice")]
    DuplicateKey,
    /// A transaction has too many conditions or operations.
    #[error("the transaction has {count} operations, the server takes {limit}: split it")]
    TooManyOps {
        /// The longest list of the transaction, nested lists added.
        count: usize,
        /// What the server takes.
        limit: usize,
    },
    /// The request is larger than the server takes.
    #[error("the request has {bytes} bytes, the server takes {limit}: split it or store less")]
    TooLarge {
        /// Size of the encoded request.
        bytes: usize,
        /// What the server takes.
        limit: usize,
    },
    /// The reply is larger than the client takes: read fewer keys at a time.
    #[error("the answer is too large, ask for fewer keys at a time: {0}")]
    AnswerTooLarge(String),
    /// The time to live is above the server's ceiling of 9,000,000,000 seconds.
    #[error("a time to live of {ttl:?} is above the server's limit of 9,000,000,000 s")]
    TtlTooLarge {
        /// The TTL of the request.
        ttl: Duration,
    },
    /// The configuration cannot work.
    #[error("the configuration cannot work: {0}")]
    Config(String),
    /// The server has no such call: it is too old, or no member of etcd.
    #[error("the server does not know this call: {0}")]
    UnknownCall(String),
    /// Any other request that the server calls invalid.
    #[error("the server refuses the request as malformed: {0}")]
    Other(String),
}

/// How the client knows that the store behind the addresses was replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterReplaced {
    /// A member replied with another cluster id.
    #[error("the store was replaced: cluster {was:016x} became {now:016x}")]
    OtherCluster {
        /// The known cluster.
        was: u64,
        /// The cluster that replied.
        now: u64,
    },
    /// A linearizable reply was older than one seen before: a backup was restored or data was lost.
    #[error("the store went back in time: revision {was} became {now}")]
    WentBack {
        /// The highest revision seen before the request was sent.
        was: i64,
        /// The revision of the reply.
        now: i64,
    },
}

/// The cause of an error, as text, with the endpoint where it happened.
#[derive(Clone, PartialEq, Eq)]
pub struct Cause {
    endpoint: Option<String>,
    text: String,
    /// No process listens at the address, or one that is no etcd. A silent server looks different, and may only be slow.
    is_refused: bool,
}

impl Cause {
    /// A cause without an endpoint.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { endpoint: None, text: text.into(), is_refused: false }
    }

    /// A cause seen at one endpoint.
    pub(crate) fn at(endpoint: &str, text: impl Into<String>) -> Self {
        Self { endpoint: Some(endpoint.to_owned()), text: text.into(), is_refused: false }
    }

    /// The same cause, of a connection that the host refused.
    pub(crate) fn refused(mut self) -> Self {
        self.is_refused = true;
        self
    }

    /// Whether no etcd listened at any of the addresses. A server that is only silent is not refused.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The endpoint, if one was involved.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Some(endpoint) => write!(f, "{endpoint}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cause({self})")
    }
}

impl std::error::Error for Cause {}
