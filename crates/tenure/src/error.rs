//! The errors of the front door: connecting, closing, and one error that every operation's error converts into.

use std::time::Duration;

use tenure_core::id::InvalidName;
use thiserror::Error;

use crate::client::SubmitError;
use crate::election::{CampaignError, LeadError};
use crate::hold::{CommitError, LossReason, Lost, ReleaseError};
use crate::lock::{BarrierError, LockError};
use crate::membership::JoinError;
use crate::service::InstanceError;
use crate::session::{InvalidOptions, LeftBehind, RegisterError};
use crate::store::{InvalidStoreUrl, StoreError};

/// A result whose error is [`enum@Error`] unless another one is named.
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
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, ConnectError::Store(error) if error.is_retryable())
    }
}

/// What [`Tenure::close`](crate::Tenure::close) could not end. It expires with its lease.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Guards, terms or leases were not dropped before, so their lease was not revoked.
    #[error("{} still held; expires within {ttl:?}", held(holds, *leases))]
    StillHeld {
        /// The locks and elections: `lock 'deploy'`, in the order of their names.
        holds: Vec<String>,
        /// How many leases of the session are still in use.
        leases: usize,
        /// When the leases have expired at the latest.
        ttl: Duration,
    },
    /// The store did not confirm that keys and leases are gone.
    #[error(transparent)]
    NotConfirmed(LeftBehind),
}

impl From<LeftBehind> for CloseError {
    fn from(left: LeftBehind) -> CloseError {
        if left.loans == 0 && left.holds.is_empty() {
            return CloseError::NotConfirmed(left);
        }
        CloseError::StillHeld { holds: left.holds, leases: left.loans, ttl: left.within }
    }
}

fn held(holds: &[String], leases: usize) -> String {
    match holds {
        [] => format!("{leases} leases are"),
        [hold] => format!("{hold} is"),
        holds => format!("{} are", holds.join(", ")),
    }
}

/// Any error of the front door, for programs that do not tell them apart.
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
    /// An instance of a service is not registered.
    Instance(#[from] InstanceError),
    /// A task was not submitted, or it is unknown.
    Submit(#[from] SubmitError),
    /// The store failed.
    Store(#[from] StoreError),
}

impl Error {
    /// Whether the same request may succeed later, and was certainly not applied now.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::InvalidName(_) | Error::Close(_) | Error::Release(_) => false,
            Error::Connect(error) => error.is_retryable(),
            Error::Lock(error) => error.is_retryable(),
            Error::Barrier(error) => match error {
                BarrierError::Timeout { .. } | BarrierError::Lost(_) | BarrierError::Unavailable { .. } => {
                    true
                }
                BarrierError::Store(error) => error.is_retryable(),
                BarrierError::InvalidName(_)
                | BarrierError::InvalidParties
                | BarrierError::InvalidTtl(_)
                | BarrierError::PartiesDiffer { .. }
                | BarrierError::Closed => false,
            },
            Error::Campaign(error) | Error::Lead(LeadError::Campaign(error)) => error.is_retryable(),
            Error::Lead(LeadError::Lost(lost)) | Error::Lost(lost) => lost.reason != LossReason::Closed,
            Error::Lead(LeadError::Asked(_)) => true,
            Error::Commit(error) => error.is_retryable(),
            Error::Register(error) => match error {
                RegisterError::Taken | RegisterError::NotYet { .. } => true,
                RegisterError::Refused(error) => error.is_retryable(),
                RegisterError::InvalidName(_)
                | RegisterError::Invalid(_)
                | RegisterError::Ttl(_)
                | RegisterError::Superseded
                | RegisterError::Closed => false,
            },
            Error::Join(error) => match error {
                JoinError::Alive(_) | JoinError::NotYet { .. } => true,
                JoinError::Store(error) => error.is_retryable(),
                JoinError::InvalidName(_)
                | JoinError::OurOwn(_)
                | JoinError::NoHandler
                | JoinError::Closed => false,
            },
            Error::Instance(error) => match error {
                InstanceError::Alive(_) | InstanceError::NotYet { .. } => true,
                InstanceError::Store(error) => error.is_retryable(),
                InstanceError::Name(_) | InstanceError::OurOwn(_) | InstanceError::Closed => false,
            },
            Error::Submit(error) => matches!(error, SubmitError::Store(error) if error.is_retryable()),
            Error::Store(error) => error.is_retryable(),
        }
    }

    /// Whether the request may have been applied: read before sending it again.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Error::Commit(error) => error.is_ambiguous(),
            Error::Submit(error) => matches!(error, SubmitError::Unknown(_)),
            Error::Store(error) => error.is_ambiguous(),
            Error::InvalidName(_)
            | Error::Connect(_)
            | Error::Close(_)
            | Error::Lock(_)
            | Error::Barrier(_)
            | Error::Campaign(_)
            | Error::Lead(_)
            | Error::Lost(_)
            | Error::Release(_)
            | Error::Register(_)
            | Error::Join(_)
            | Error::Instance(_) => false,
        }
    }
}
