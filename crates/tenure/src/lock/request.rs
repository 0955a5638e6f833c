//! Requests for locks and permits: the mode, the TTL, how long to wait, and why nothing was acquired.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::id::{InvalidName, LockName};
use tenure_core::layout::PriorityClass;
use tenure_core::queue::LockMode;
use tenure_core::record::{HolderRecord, Record};
use thiserror::Error;

use super::{Guard, Locks};
use crate::clock::wall_time;
use crate::error::{ErrorClass, classified};
use crate::hold::{Lost, Subject};
use crate::identity::{Identity, described};
use crate::queue::{AcquireOptions, QueueDriver, QueueError, QueuePosition, QueuedHook, WaitPolicy};
use crate::session::InvalidTtl;
use crate::store::StoreError;
use crate::tenure::request;

/// A lock or a permit that is about to be requested. Awaiting it returns a [`Guard`].
///
/// ```
/// use std::time::Duration;
/// use tenure::{LockError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.lock("deploy").reason("release 4.2").timeout(Duration::from_secs(60)).await?;
/// assert!(matches!(tenure.lock("deploy").try_now().await, Err(LockError::Held { .. })));
/// guard.release().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// Those of [`Locks`]: at most one exclusive holder of a name is valid at a time, first come, first served, and tokens only grow.
///
/// # Cancellation
///
/// Dropping the future deletes the queue key in the background.
///
/// # Errors
///
/// [`LockError`]; a wrong name and a TTL that no lease can have are reported when it is awaited.
#[must_use = "nothing is locked before this is awaited"]
pub struct LockRequest {
    queues: QueueDriver,
    holder: Arc<HolderRecord>,
    reason: Option<String>,
    /// What is requested of which queue. An error is reported when the request is awaited.
    target: Result<LockTarget, LockError>,
    ttl: Option<Duration>,
    wait_policy: WaitPolicy,
    on_queued: Option<QueuedHook>,
    min_hold: Duration,
}

struct LockTarget {
    subject: Subject,
    /// The prefix of the queue.
    queue: Bytes,
    mode: LockMode,
}

request!(LockRequest => Result<Guard, LockError>);

/// Why a lock is not held.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// No lock has such a name. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// A semaphore has at least one permit. Nothing was sent.
    #[error("a semaphore needs at least one permit")]
    InvalidPermits,
    /// No lease can have the requested TTL. Nothing was sent.
    #[error(transparent)]
    InvalidTtl(#[from] InvalidTtl),
    /// Another holder has it; only after [`LockRequest::try_now`].
    #[error("{subject} is held by {}", described(by.as_ref()))]
    Held {
        /// What was requested, such as `lock 'deploy'`.
        subject: Arc<str>,
        /// The first holder; none if the store does not show it any more, or its record is unreadable.
        by: Option<Identity>,
    },
    /// The wait of [`LockRequest::timeout`] is over.
    #[error("timed out after {after:?} waiting for {subject} (held by {})", described(by.as_ref()))]
    Timeout {
        /// What was requested, such as `lock 'deploy'`.
        subject: Arc<str>,
        /// How long it waited.
        after: Duration,
        /// The first holder shortly before the wait was over, at most 250 ms. None if the store did not reply by then, or the record is
        /// unreadable.
        by: Option<Identity>,
    },
    /// Other callers hold or wait with a different number of permits. All callers of a name must use the same.
    #[error("requested one of {given} permits, but the name is in use with {stored} permits")]
    PermitsDiffer {
        /// The number that was requested.
        given: NonZeroU32,
        /// The number that is in use.
        stored: NonZeroU32,
    },
    /// The lease was lost while the caller waited: nothing was held. Acquire again to wait again.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store did not reply in time. What it may still apply is undone in the background.
    #[error("the store did not reply within {after:?}")]
    Unavailable {
        /// How long it waited.
        after: Duration,
    },
    /// The store refuses the request for good.
    #[error("the store refuses the lock")]
    Store(#[source] StoreError),
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
}

impl LockError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            LockError::InvalidName(_)
            | LockError::InvalidPermits
            | LockError::InvalidTtl(_)
            | LockError::PermitsDiffer { .. } => ErrorClass::Invalid,
            LockError::Held { .. } => ErrorClass::Conflict,
            LockError::Timeout { .. } => ErrorClass::Timeout,
            LockError::Lost(lost) => lost.into(),
            LockError::Unavailable { .. } => ErrorClass::Unavailable,
            LockError::Store(error) => error.into(),
            LockError::Closed => ErrorClass::Closed,
        }
    }
}

classified!(LockError);

impl From<QueueError> for LockError {
    fn from(error: QueueError) -> LockError {
        match error {
            QueueError::Held { subject, by } => LockError::Held { subject: subject.to_string().into(), by },
            QueueError::Timeout { subject, after, by } => {
                LockError::Timeout { subject: subject.to_string().into(), after, by }
            }
            QueueError::Lost(lost) => LockError::Lost(lost),
            QueueError::Closed => LockError::Closed,
            QueueError::Unavailable { after } => LockError::Unavailable { after },
            QueueError::PermitsDiffer { given, stored } => LockError::PermitsDiffer { given, stored },
            QueueError::Store(error) => LockError::Store(error),
            QueueError::InvalidTtl(invalid) => LockError::InvalidTtl(invalid),
        }
    }
}

impl LockRequest {
    pub(super) fn new(locks: &Locks, name: Result<LockName, InvalidName>, mode: LockMode) -> LockRequest {
        let target = name.map(|name| {
            let (subject, queue) = locks.queue(&name);
            LockTarget { subject, queue, mode }
        });
        LockRequest {
            queues: locks.queues.clone(),
            holder: locks.holder.clone(),
            reason: None,
            target: target.map_err(LockError::InvalidName),
            ttl: None,
            wait_policy: WaitPolicy::Endless,
            on_queued: None,
            min_hold: Duration::ZERO,
        }
    }

    /// A request that fails when it is awaited.
    pub(super) fn invalid(locks: &Locks, error: LockError) -> LockRequest {
        LockRequest {
            queues: locks.queues.clone(),
            holder: locks.holder.clone(),
            reason: None,
            target: Err(error),
            ttl: None,
            wait_policy: WaitPolicy::Endless,
            on_queued: None,
            min_hold: Duration::ZERO,
        }
    }

    /// With a lease of this TTL; that of the session otherwise.
    pub fn ttl(mut self, ttl: Duration) -> LockRequest {
        self.ttl = Some(ttl);
        self
    }

    /// Waits at most this long for the current holders and for earlier waiters, then fails with [`LockError::Timeout`]. Zero is
    /// [`LockRequest::try_now`].
    pub fn timeout(mut self, timeout: Duration) -> LockRequest {
        self.wait_policy = WaitPolicy::up_to(timeout);
        self
    }

    /// Does not wait: [`LockError::Held`] if the store's complete reply shows that it cannot be acquired now.
    /// A free permit or a lock that only shared holders have is acquired.
    pub fn try_now(mut self) -> LockRequest {
        self.wait_policy = WaitPolicy::Try;
        self
    }

    /// The reason that readers of the lock see.
    pub fn reason(mut self, reason: impl Into<String>) -> LockRequest {
        self.reason = Some(reason.into());
        self
    }

    /// Calls this function once if the request has to wait, with its position in the queue. That costs two reads.
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let guard = tenure.lock("deploy").on_queued(|queued| println!("{} ahead", queued.ahead)).await?;
    /// guard.release().await?;
    /// # tenure.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_queued(mut self, hook: impl FnMut(&QueuePosition) + Send + 'static) -> LockRequest {
        self.on_queued = Some(QueuedHook::new(hook));
        self
    }

    /// Keeps the lock at least this long: a release waits, and a drop releases in the background when the time has passed.
    pub fn min_hold(mut self, min_hold: Duration) -> LockRequest {
        self.min_hold = min_hold;
        self
    }

    async fn send(self) -> Result<Guard, LockError> {
        let LockRequest { queues, holder, reason, target, ttl, wait_policy, on_queued, min_hold } = self;
        let LockTarget { subject, queue, mode } = target?;
        let options = AcquireOptions {
            subject,
            queue,
            mode,
            class: PriorityClass::Ordinary,
            value: record(&holder, mode, reason),
            ttl,
            wait: wait_policy,
            former: None,
            on_queued,
        };
        Ok(Guard::new(queues.acquire(options).await?, min_hold))
    }
}

/// The record that readers see under the queue key.
fn record(holder: &HolderRecord, mode: LockMode, reason: Option<String>) -> Bytes {
    let mut record = HolderRecord { mode, queued: wall_time(), ..holder.clone() };
    if let Some(reason) = reason {
        record.reason = reason;
    }
    record.encode()
}
