//! Asking for a lock: how long to wait, on which terms, and how it can end.

use std::future::{Future, IntoFuture};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::id::InvalidName;
use tenure_core::layout::PriorityClass;
use tenure_core::queue::LockMode;
use tenure_core::record::{HolderRecord, Record};
use thiserror::Error;

use super::Guard;
use crate::clock::wall_time;
use crate::hold::{Lost, Subject};
use crate::identity::{Identity, described};
use crate::queue::{AcquireOptions, QueueDriver, QueueError, WaitPolicy};
use crate::session::InvalidTtl;
use crate::store::StoreError;

/// A lock that is about to be asked for.
#[must_use = "nothing is locked before this is awaited"]
pub struct Acquire {
    queues: QueueDriver,
    holder: Arc<HolderRecord>,
    mode: LockMode,
    reason: Option<String>,
    queue: Result<(Subject, Bytes), InvalidName>,
    ttl: Option<Duration>,
    wait_policy: WaitPolicy,
}

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
    /// Another holder has it; only after [`Acquire::try_once`].
    #[error("{subject} is held by {}", described(by.as_ref()))]
    Held {
        /// What was requested, such as `lock 'deploy'`.
        subject: Arc<str>,
        /// The first holder; none if the store does not show it any more, or its record is unreadable.
        by: Option<Identity>,
    },
    /// The wait of [`Acquire::wait_up_to`] is over.
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
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            LockError::Held { .. }
            | LockError::Timeout { .. }
            | LockError::Lost(_)
            | LockError::Unavailable { .. } => true,
            LockError::Store(error) => error.is_retryable(),
            LockError::InvalidName(_)
            | LockError::InvalidPermits
            | LockError::InvalidTtl(_)
            | LockError::PermitsDiffer { .. }
            | LockError::Closed => false,
        }
    }
}

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

impl Acquire {
    pub(super) fn new(
        queues: QueueDriver,
        (holder, mode): (Arc<HolderRecord>, LockMode),
        queue: Result<(Subject, Bytes), InvalidName>,
    ) -> Acquire {
        Acquire { queues, holder, mode, reason: None, queue, ttl: None, wait_policy: WaitPolicy::Endless }
    }

    /// With a lease of its own length; the session's otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Acquire {
        self.ttl = Some(ttl);
        self
    }

    /// Waits this long for the current holders and for earlier waiters. A wait of zero is [`Acquire::try_once`].
    pub fn wait_up_to(mut self, wait: Duration) -> Acquire {
        self.wait_policy = WaitPolicy::up_to(wait);
        self
    }

    /// Does not wait: [`LockError::Held`] if the store's complete reply shows that it cannot be acquired now.
    /// A free permit or a lock that only shared holders have is acquired.
    pub fn try_once(mut self) -> Acquire {
        self.wait_policy = WaitPolicy::Try;
        self
    }

    /// Why it is locked, for those who look.
    pub fn reason(mut self, reason: impl Into<String>) -> Acquire {
        self.reason = Some(reason.into());
        self
    }

    async fn ask(self) -> Result<Guard, LockError> {
        let value = self.record();
        let Acquire { queues, mode, ttl, wait_policy, queue, .. } = self;
        let (subject, queue) = queue?;
        let options = AcquireOptions {
            subject,
            queue,
            mode,
            class: PriorityClass::Ordinary,
            value,
            ttl,
            wait: wait_policy,
            former: None,
        };
        Ok(Guard::new(queues.acquire(options).await?))
    }

    /// What others see of us.
    fn record(&self) -> Bytes {
        let mut holder = (*self.holder).clone();
        (holder.mode, holder.queued) = (self.mode, wall_time());
        if let Some(reason) = &self.reason {
            holder.reason.clone_from(reason);
        }
        holder.encode()
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}
