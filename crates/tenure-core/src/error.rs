//! What can go wrong with a request to a store, named by what the caller must do next.
//!
//! The one distinction that matters: did the request certainly have no effect, or may it have had one?
//! [`StoreError::Ambiguous`] alone says "may have", and is settled by reading back, never by trying again blindly.

mod access;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::revision::Revision;

pub use access::{AccessKind, Denied, KeyRange, MissingGrant, TlsFailure};

/// What went wrong with a request to a store.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The request was wrong: nothing happened, and trying again is useless.
    #[error("invalid request: {0}")]
    Invalid(InvalidRequest),
    /// The lease does not exist (any more): nothing happened; ask for a new one.
    #[error("the lease does not exist or has expired")]
    LeaseNotFound,
    /// A lease with this id exists already: nothing happened.
    #[error("a lease with this id exists already")]
    LeaseExists,
    /// The key does not exist, and the request needs it to: nothing happened.
    #[error("the key does not exist")]
    KeyNotFound,
    /// That part of history was compacted away: nothing happened; list again.
    #[error("the revision asked for was compacted away{}", at.map(|at| format!(" (history begins after {at})")).unwrap_or_default())]
    Compacted {
        /// History begins after this revision, where the store said so.
        at: Option<Revision>,
    },
    /// The revision asked for does not exist yet: nothing happened.
    #[error("the revision asked for lies in the future")]
    FutureRevision,
    /// Others were writing for too long: nothing happened; try again later.
    #[error("the store is busy: {0}")]
    Busy(Cause),
    /// The store has no space left: nothing happened. On etcd renewals, revocations and deletes still work; on a file nothing does
    /// until there is space.
    #[error("the store has no space left")]
    NoSpace,
    /// The store asks for fewer requests: nothing happened; try again later.
    #[error("the store refuses more requests just now")]
    RateLimited,
    /// The request never reached the store: nothing happened; try again later.
    #[error("the store cannot be reached: {0}")]
    Unavailable(Cause),
    /// The request may or may not have been applied: read back before doing anything else.
    #[error("the store's answer was lost, so the request may or may not have been applied: {0}")]
    Ambiguous(Cause),
    /// This is not the store that the handle was opened on: everything held through it is lost.
    #[error("the store was replaced: {0}")]
    Replaced(StoreReplaced),
    /// This program must not use what is at the address: nothing happened; take another place, or another program.
    #[error("this cannot be used as a store: {0}")]
    Unusable(UnusableStore),
    /// What the store holds makes no sense: everything held through it is lost.
    #[error("the store is corrupt: {0}")]
    Corrupt(String),
    /// The store does not let us: check the credentials and the rights.
    #[error("access denied: {0}")]
    Denied(Denied),
    /// TLS failed before the first request: nothing happened; change a certificate or the address.
    #[error("no TLS connection to {endpoint}: {failure}")]
    Tls {
        /// The address of the server.
        endpoint: String,
        /// Why, and what to change.
        failure: TlsFailure,
    },
    /// The handle was closed.
    #[error("the store handle is closed")]
    Closed,
}

impl StoreError {
    /// The request may have been applied although it failed.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, StoreError::Ambiguous(_))
    }

    /// The same request may succeed later, and certainly had no effect now.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            StoreError::Busy(_) | StoreError::NoSpace | StoreError::RateLimited | StoreError::Unavailable(_)
        )
    }

    /// Nothing will work through this handle any more; sessions on it are lost.
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

/// How a request was wrong.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// A key has at least one byte.
    #[error("a key must not be empty")]
    EmptyKey,
    /// Such a prefix would match other names too.
    #[error("a prefix must end in '/' or be empty, so that it cannot match another name: {0:?}")]
    OpenPrefix(Bytes),
    /// A limit of nothing asks for nothing.
    #[error("a limit must be at least 1")]
    LimitZero,
    /// Revisions begin at 1.
    #[error("there is no revision {0}; the first is 1")]
    NoSuchRevision(Revision),
    /// One transaction changes a key once.
    #[error("one transaction changes the key {0:?} twice")]
    DuplicateKey(Bytes),
    /// Too many conditions or operations in one transaction.
    #[error("{count} operations in one transaction, at most {max} are allowed")]
    TooManyOps {
        /// How many there were.
        count: usize,
        /// How many may be.
        max: usize,
    },
    /// Too many bytes in one request.
    #[error("a request of {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// How many there were.
        bytes: usize,
        /// How many may be.
        max: usize,
    },
    /// What was asked for is there, and is more than one answer carries: ask for fewer keys at a time.
    #[error("the answer is too large, ask for fewer keys at a time: {0}")]
    AnswerTooLarge(String),
    /// A lease lives for some time.
    #[error("a TTL must be longer than nothing")]
    TtlZero,
    /// The TTL is longer than the store keeps anything.
    #[error("a TTL of {asked:?}, at most {max:?} are allowed")]
    TtlTooLarge {
        /// What was asked for.
        asked: Duration,
        /// What may be asked for.
        max: Duration,
    },
    /// The store said so, in its own words.
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
    #[error("it now has format {found}, this program writes format {ours}")]
    FormatChanged {
        /// The format found.
        found: u32,
        /// The format that this program writes.
        ours: u32,
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

/// Why something is no store for this program.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum UnusableStore {
    /// There is something else at the address.
    #[error("there is something else at its address ({0}); choose another path")]
    NotAStore(String),
    /// A newer program brought the store to a format that this one does not know.
    #[error("it has format {found}, this program knows up to format {ours}; use a newer program")]
    NewerFormat {
        /// The format found.
        found: u32,
        /// The newest format that this program knows.
        ours: u32,
    },
    /// The engine for this kind of address is not part of the program: only another build can open it.
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
    /// The file has a second name. Processes that use the other name would not share its lock files.
    #[error("its file has a second name: {0}")]
    SecondName(String),
    /// Other users of the machine can exchange the files of the store.
    #[error("its files are not safe from other users: {0}")]
    Untrusted(String),
}

/// Why something failed, down to its root, in words.
///
/// Cheap to clone, so that one broken connection can be told to everyone who used it.
#[derive(Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// The cause as the error that was caught.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Cause {
        Cause(Arc::from(error.into()))
    }

    /// The error that was caught, if it is of this type.
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
