//! The errors of connecting and closing, the classes of errors, and one error that every operation's error converts into.

use std::time::Duration;

use tenure_core::id::InvalidName;
use thiserror::Error;

use crate::election::{AnnounceError, CampaignError, LeadError, StepDownError};
use crate::hold::{CommitError, LossReason, Lost, ReleaseError};
use crate::lock::{BarrierError, LockError};
use crate::member::JoinError;
use crate::session::{InvalidOptions, LeaseError, RegisterError};
use crate::store::{InvalidStoreUrl, StoreError};
use crate::task::{CommandError, SubmitError, TaskRequestError, WaitTaskError};

/// A result with the error [`enum@Error`], unless another one is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a [`Tenure`](crate::Tenure) was not connected. Never contains a password.
///
/// ```
/// use tenure::{ConnectError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let error = Tenure::connect("etcd://shop:open-sesame@127.0.0.1").await.unwrap_err();
/// assert!(matches!(error, ConnectError::InvalidUrl(_)));
/// assert!(!error.to_string().contains("open-sesame"));
/// # }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No store was named.
    #[error("no store: name one with `Tenure::builder().store(..)` or in TENURE_STORE")]
    NoStore,
    /// The text is not the address of a store.
    #[error(transparent)]
    InvalidUrl(#[from] InvalidStoreUrl),
    /// No namespace has such a name.
    #[error("invalid namespace: {0}")]
    InvalidNamespace(#[from] InvalidName),
    /// A user was given for a store that has no users.
    #[error("only etcd has users, not the store {engine}")]
    NoUsers {
        /// The engine.
        engine: &'static str,
    },
    /// The TTL is too short for a session.
    #[error(transparent)]
    InvalidOptions(#[from] InvalidOptions),
    /// The store was not opened.
    #[error("the store was not opened")]
    Store(#[from] StoreError),
}

impl ConnectError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            ConnectError::Store(error) => error.into(),
            ConnectError::NoStore
            | ConnectError::InvalidUrl(_)
            | ConnectError::InvalidNamespace(_)
            | ConnectError::NoUsers { .. }
            | ConnectError::InvalidOptions(_) => ErrorClass::Invalid,
        }
    }
}

/// What [`Tenure::close`](crate::Tenure::close) or [`Session::close`](crate::Session::close) could not end. It expires with its lease.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Guards, terms or lease handles were not dropped before, so their lease was not revoked.
    #[error("{} still held; expires within {ttl:?}", held(holds, *leases))]
    StillHeld {
        /// The locks and elections: `lock 'deploy'`, in the order of their names.
        holds: Vec<String>,
        /// How many lease handles of the session are still in use, those of the holds among them.
        leases: usize,
        /// When the leases have expired at the latest.
        ttl: Duration,
    },
    /// The store did not confirm in time that keys and leases are deleted.
    #[error(
        "the store did not confirm the end of {leases} leases with {keys} keys; they expire within {ttl:?}"
    )]
    NotConfirmed {
        /// How many leases may still exist.
        leases: usize,
        /// How many registered keys may still exist.
        keys: usize,
        /// When the leases have expired at the latest.
        ttl: Duration,
    },
}

impl CloseError {
    /// What the caller can do about it. The session is closed in any case.
    pub fn class(&self) -> ErrorClass {
        ErrorClass::Closed
    }
}

fn held(holds: &[String], leases: usize) -> String {
    match holds {
        [] => format!("{leases} leases are"),
        [hold] => format!("{hold} is"),
        holds => format!("{} are", holds.join(", ")),
    }
}

/// What a caller can do about an error.
///
/// ```
/// use tenure::{ErrorClass, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.lock("deploy").await?;
/// let error = tenure.lock("deploy").try_now().await.unwrap_err();
/// assert_eq!(error.class(), ErrorClass::Conflict);
/// assert_eq!(tenure.lock("").await.unwrap_err().class(), ErrorClass::Invalid);
/// guard.release().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The call is wrong. Fix it.
    Invalid,
    /// Another holder, an existing id, or a refused change. The caller decides; a retry may succeed later.
    Conflict,
    /// The bound of the request expired.
    Timeout,
    /// The store did not reply or is overloaded; certainly not applied. Retry.
    Unavailable,
    /// It may have been applied. Read before a retry.
    Ambiguous,
    /// A hold or lease was lost. Stop, then acquire again.
    Lost,
    /// The session or store is closed. Connect again.
    Closed,
    /// No retry succeeds: access is denied, or the store is corrupt or replaced.
    Fatal,
}

impl ErrorClass {
    /// Whether the same request may succeed later, and was certainly not applied now.
    pub fn is_retryable(self) -> bool {
        match self {
            ErrorClass::Conflict | ErrorClass::Timeout | ErrorClass::Unavailable | ErrorClass::Lost => true,
            ErrorClass::Invalid | ErrorClass::Ambiguous | ErrorClass::Closed | ErrorClass::Fatal => false,
        }
    }
}

impl From<&StoreError> for ErrorClass {
    fn from(error: &StoreError) -> ErrorClass {
        match error {
            StoreError::Ambiguous(_) => ErrorClass::Ambiguous,
            StoreError::Closed => ErrorClass::Closed,
            // The request itself cannot succeed: it needs another lease, key or revision.
            StoreError::Invalid(_)
            | StoreError::LeaseNotFound
            | StoreError::LeaseExists
            | StoreError::KeyNotFound
            | StoreError::Compacted { .. }
            | StoreError::FutureRevision => ErrorClass::Invalid,
            error if error.is_retryable() => ErrorClass::Unavailable,
            _ => ErrorClass::Fatal,
        }
    }
}

impl From<&Lost> for ErrorClass {
    fn from(lost: &Lost) -> ErrorClass {
        match lost.reason {
            LossReason::Closed => ErrorClass::Closed,
            _ => ErrorClass::Lost,
        }
    }
}

/// Gives an error with `class` the two questions that most callers have.
macro_rules! classified {
    ($($name:ty),+) => {$(
        impl $name {
            /// Whether the same request may succeed later, and was certainly not applied now.
            pub fn is_retryable(&self) -> bool {
                self.class().is_retryable()
            }

            /// Whether the request may have been applied: read before sending it again.
            pub fn is_ambiguous(&self) -> bool {
                self.class() == $crate::error::ErrorClass::Ambiguous
            }
        }
    )+};
}
pub(crate) use classified;

/// Any error of [`Tenure`](crate::Tenure) and its requests, for programs that handle all of them alike.
///
/// ```
/// use tenure::{Error, LockError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// async fn deploy(tenure: &Tenure) -> tenure::Result<()> {
///     let guard = tenure.lock("deploy").try_now().await?;
///     guard.release().await?;
///     Ok(())
/// }
///
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.lock("deploy").await?;
/// let error = deploy(&tenure).await.unwrap_err();
/// assert!(matches!(error, Error::Lock(LockError::Held { .. })));
/// assert!(error.is_retryable() && !error.is_ambiguous());
/// guard.release().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
#[error(transparent)]
pub enum Error {
    /// A text is not a name.
    InvalidName(#[from] InvalidName),
    /// Not connected.
    Connect(#[from] ConnectError),
    /// Not everything was ended.
    Close(#[from] CloseError),
    /// A lock or permit is not held.
    Lock(#[from] LockError),
    /// A barrier was not passed.
    Barrier(#[from] BarrierError),
    /// No term of leadership began.
    Campaign(#[from] CampaignError),
    /// Work of a leader did not complete.
    Lead(#[from] LeadError),
    /// A hold is lost.
    Lost(#[from] Lost),
    /// A release was not confirmed.
    Release(#[from] ReleaseError),
    /// A fenced transaction was not applied, or it is unknown.
    Commit(#[from] CommitError),
    /// A key is not registered.
    Register(#[from] RegisterError),
    /// A node did not join.
    Join(#[from] JoinError),
    /// No lease was granted.
    Lease(#[from] LeaseError),
    /// A request to step down has no outcome.
    StepDown(#[from] StepDownError),
    /// A value was not announced.
    Announce(#[from] AnnounceError),
    /// A task was not submitted, or it is unknown.
    Submit(#[from] SubmitError),
    /// A command was not handled, or it is unknown.
    Command(#[from] CommandError),
    /// A task was not deleted, forgotten or retried, or it is unknown.
    TaskRequest(#[from] TaskRequestError),
    /// The end of a task was not seen.
    WaitTask(#[from] WaitTaskError),
    /// The store failed.
    Store(#[from] StoreError),
}

impl Error {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::InvalidName(_) => ErrorClass::Invalid,
            Error::Connect(error) => error.class(),
            Error::Close(error) => error.class(),
            Error::Lock(error) => error.class(),
            Error::Barrier(error) => error.class(),
            Error::Campaign(error) => error.class(),
            Error::Lead(error) => error.class(),
            Error::Lost(lost) => lost.into(),
            Error::Release(error) => error.class(),
            Error::Commit(error) => error.class(),
            Error::Register(error) => error.class(),
            Error::Join(error) => error.class(),
            Error::Lease(error) => error.class(),
            Error::StepDown(error) => error.class(),
            Error::Announce(error) => error.class(),
            Error::Submit(error) => error.class(),
            Error::Command(error) => error.class(),
            Error::TaskRequest(error) => error.class(),
            Error::WaitTask(error) => error.class(),
            Error::Store(error) => error.into(),
        }
    }
}

classified!(Error, ConnectError, CloseError);
