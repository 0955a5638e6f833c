//! Errors of requests to a store, named by what the caller must do next.
//!
//! The most important distinction: did the request certainly have no effect, or may it have had
//! one? Only [`StoreError::Ambiguous`] means "may have". It is settled by a read, never by a blind
//! retry.

mod access;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::revision::Revision;

pub use access::{AccessKind, Denied, KeyRange, MissingGrant, TlsFailure};

/// Why a request to a store failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The request was invalid: it had no effect, and a retry is useless.
    #[error("invalid request: {0}")]
    Invalid(InvalidRequest),
    /// The lease does not exist, or has ended: no effect. Request a new lease.
    #[error("the lease does not exist or has expired")]
    LeaseNotFound,
    /// A lease with this id exists already: no effect.
    #[error("a lease with this id exists already")]
    LeaseExists,
    /// The key does not exist, and the request needs it: no effect.
    #[error("the key does not exist")]
    KeyNotFound,
    /// That part of the history was compacted: no effect. List again.
    #[error("the requested revision was compacted{}", at.map(|at| format!(" (history begins after {at})")).unwrap_or_default())]
    Compacted {
        /// History begins after this revision, where the store reports it.
        at: Option<Revision>,
    },
    /// The requested revision does not exist yet: no effect.
    #[error("the requested revision is in the future")]
    FutureRevision,
    /// Other clients were writing for too long: no effect. Retry later.
    #[error("the store is busy: {0}")]
    Busy(Cause),
    /// The store has no space left: no effect. On etcd renewals, revocations and deletes still
    /// work. On a file nothing works until there is space.
    #[error("the store has no space left")]
    NoSpace,
    /// The store limits the rate of requests: no effect. Retry later.
    #[error("the store limits the rate of requests")]
    RateLimited,
    /// The request never reached the store: no effect. Retry later.
    #[error("the store cannot be reached: {0}")]
    Unavailable(Cause),
    /// The request may or may not have been applied: read back before doing anything else.
    #[error("the store's reply was lost, so the request may or may not have been applied: {0}")]
    Ambiguous(Cause),
    /// This is not the store that the handle was opened on: all leases and holds of the handle are
    /// lost.
    #[error("the store was replaced: {0}")]
    Replaced(StoreReplaced),
    /// This program must not use what is at the address: no effect. Use another path, or another
    /// program.
    #[error("this cannot be used as a store: {0}")]
    Unusable(UnusableStore),
    /// The stored data is invalid: all leases and holds of the handle are lost.
    #[error("the store is corrupt: {0}")]
    Corrupt(String),
    /// The store denies access: check the credentials and the grants.
    #[error("access denied: {0}")]
    Denied(Denied),
    /// TLS failed before the first request: no effect. Change a certificate or the address.
    #[error("no TLS connection to {endpoint}: {failure}")]
    Tls {
        /// The address of the server.
        endpoint: String,
        /// The cause, and what to change.
        failure: TlsFailure,
    },
    /// The handle was closed.
    #[error("the store handle is closed")]
    Closed,
}

impl StoreError {
    /// Whether the request may have been applied although it failed.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, StoreError::Ambiguous(_))
    }

    /// Whether the same request may succeed later, and certainly had no effect now.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            StoreError::Busy(_) | StoreError::NoSpace | StoreError::RateLimited | StoreError::Unavailable(_)
        )
    }

    /// Whether no request will work through this handle any more. Sessions on it are lost.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            StoreError::Replaced(_)
                | StoreError::Unusable(_)
                | StoreError::Corrupt(_)
                | StoreError::Denied(_)
                | StoreError::Tls { .. }
                | StoreError::Closed
        )
    }
}

impl From<InvalidRequest> for StoreError {
    fn from(invalid: InvalidRequest) -> StoreError {
        StoreError::Invalid(invalid)
    }
}

/// Why a request is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// A key has at least one byte.
    #[error("a key must not be empty")]
    EmptyKey,
    /// Such a prefix would match other names too.
    #[error("a prefix must end in '/' or be empty, so that it cannot match another name: {0:?}")]
    OpenPrefix(Bytes),
    /// A limit of zero returns nothing.
    #[error("a limit must be at least 1")]
    LimitZero,
    /// Revisions begin at 1.
    #[error("there is no revision {0}; the first is 1")]
    NoSuchRevision(Revision),
    /// A transaction changes each key once at most.
    #[error("one transaction changes the key {0:?} twice")]
    DuplicateKey(Bytes),
    /// Too many conditions or operations in one transaction.
    #[error("{count} operations in one transaction, at most {max} are allowed")]
    TooManyOps {
        /// The number of operations.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// Too many bytes in one request.
    #[error("a request of {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// The size of the request.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The reply would be larger than one message: read fewer keys at a time.
    #[error("the reply is too large, read fewer keys at a time: {0}")]
    AnswerTooLarge(String),
    /// A TTL of zero.
    #[error("the TTL must be greater than zero")]
    TtlZero,
    /// The TTL is longer than the store keeps anything.
    #[error("a TTL of {asked:?} is too long, at most {max:?} is allowed")]
    TtlTooLarge {
        /// The requested TTL.
        asked: Duration,
        /// The limit.
        max: Duration,
    },
    /// Another reason, in the words of the store.
    #[error("{0}")]
    Other(String),
}

/// How a store turned out to be another one.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StoreReplaced {
    /// The files were removed or exchanged under the running process.
    #[error("its files were removed or exchanged while it was open")]
    Files,
    /// Another process brought the store to another format.
    #[error("it now has format {found}, this program writes format {supported}")]
    FormatChanged {
        /// The format found.
        found: u32,
        /// The format that this program writes.
        supported: u32,
    },
    /// Another store answers at this address.
    #[error("another store answers at its address (expected {expected}, found {found})")]
    Identity {
        /// The store that the handle was opened on.
        expected: String,
        /// The store that answered.
        found: String,
    },
    /// History went back, as after a restored backup: tokens may repeat.
    #[error("its revision went back from {seen} to {found}, as after a restored backup")]
    RevisionRegress {
        /// The highest revision seen.
        seen: Revision,
        /// The revision found.
        found: Revision,
    },
}

/// Why a program cannot use what is at an address.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum UnusableStore {
    /// There is something else at the address.
    #[error("there is something else at its address ({0}); choose another path")]
    NotAStore(String),
    /// A newer program brought the store to a format that this one does not know.
    #[error("it has format {found}, this program knows up to format {supported}; use a newer program")]
    NewerFormat {
        /// The format found.
        found: u32,
        /// The newest format that this program knows.
        supported: u32,
    },
    /// The engine for this kind of address is not part of the program: only another build can open
    /// it.
    #[error(
        "this program was built without the {engine} engine; build it with the feature {feature:?} of the crate tenure"
    )]
    EngineMissing {
        /// The engine that the address needs.
        engine: &'static str,
        /// The cargo feature that includes it.
        feature: &'static str,
    },
    /// Shared memory works inside one kernel only, and a network file system reaches beyond it.
    #[error(
        "it is on a network file system ({0}), where processes cannot share memory; use a local disk, or etcd"
    )]
    NetworkFileSystem(String),
    /// The file has a second name. Processes that use the other name would not share its lock
    /// files.
    #[error("its file has a second name: {0}")]
    SecondName(String),
    /// Other users of the machine can exchange the files of the store.
    #[error("its files are not safe from other users: {0}")]
    Untrusted(String),
}

/// The cause of an error, with all its sources.
///
/// Cheap to clone, so that one broken connection can be reported to all its callers.
#[derive(Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// Wraps an error.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Cause {
        Cause(Arc::from(error.into()))
    }

    /// Returns the wrapped error, if it is of this type.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
