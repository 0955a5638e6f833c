//! Waits until a waiter holds, with a deadline, and reports why it does not.

use std::fmt;
use std::future::pending;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::layout::{PriorityClass, QueueKey};
use tenure_core::queue::{LockMode, Transferred};
use tenure_core::revision::Token;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::debug;

use super::{QueueArrival, QueueDriver, QueueHold, WaiterEnd, WaiterHandle, WaiterStatus};
use crate::hold::{LossReason, Lost, Subject};
use crate::identity::Identity;
use crate::session::{InvalidTtl, LeaseError};
use crate::store::StoreError;

/// How long the store may take to reply to a caller that does not wait: long enough for an election of etcd.
const STORE_WITHIN: Duration = Duration::from_secs(10);

/// How long a refused try waits for its key to be deleted, so that no reader sees it afterwards. It is deleted in the background anyway.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// How long before the end of a bounded wait the holder is read that an expired wait reports, so that the wait ends on time although the store
/// hangs; at most a quarter of the wait. Doubled, the report is twice as old; halved, a store that is far away does not reply in time.
const HOLDER_WITHIN: Duration = Duration::from_millis(250);

/// How long to wait for earlier waiters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitPolicy {
    Endless,
    UpTo(Duration),
    /// Decide on the first complete reply of the store.
    Try,
}

impl WaitPolicy {
    /// A bounded wait. A wait of zero is a try: it decides on the store's complete reply, however long that takes to arrive.
    pub(crate) fn up_to(wait: Duration) -> WaitPolicy {
        if wait.is_zero() { WaitPolicy::Try } else { WaitPolicy::UpTo(wait) }
    }
}

/// What a caller requests of a queue.
#[derive(Clone, Debug)]
pub(crate) struct AcquireOptions {
    /// What it is for, in messages.
    pub(crate) subject: Subject,
    /// The prefix of the queue.
    pub(crate) queue: Bytes,
    pub(crate) mode: LockMode,
    pub(crate) class: PriorityClass,
    /// What others read under the key.
    pub(crate) value: Bytes,
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: WaitPolicy,
    /// A key of this process from before a restart, with its create revision: its hold is taken over if it is still stored.
    pub(crate) former: Option<(QueueKey, Token)>,
    /// Called when the waiter has to wait.
    pub(crate) on_queued: Option<QueuedHook>,
}

/// The position of a waiter when its key was stored behind others.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuePosition {
    /// How many older keys the queue has: those of holders and of earlier waiters.
    pub ahead: usize,
    /// The first holder; none if the store did not reply, or its record is unreadable.
    pub holder: Option<Identity>,
}

/// A function of the caller that receives the position of its waiter.
#[derive(Clone)]
pub(crate) struct QueuedHook(Arc<Mutex<QueuedFn>>);

type QueuedFn = dyn FnMut(&QueuePosition) + Send;

impl QueuedHook {
    pub(crate) fn new(hook: impl FnMut(&QueuePosition) + Send + 'static) -> QueuedHook {
        QueuedHook(Arc::new(Mutex::new(hook)))
    }

    fn call(&self, position: &QueuePosition) {
        let mut hook = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (*hook)(position);
    }
}

impl fmt::Debug for QueuedHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueuedHook")
    }
}

/// Why nothing is held. Each operation has an error of its own with the variants that it can have.
#[derive(Debug)]
pub(crate) enum QueueError {
    /// Another holder has it, and the caller does not wait.
    Held { subject: Subject, by: Option<Identity> },
    /// Another holder had it until the wait was over.
    Timeout { subject: Subject, after: Duration, by: Option<Identity> },
    /// The lease was lost while the waiter waited.
    Lost(Lost),
    /// The session was closed.
    Closed,
    /// The store did not reply in time. What it may still apply is undone in the background.
    Unavailable { after: Duration },
    /// Other callers use a different number of permits.
    PermitsDiffer { given: NonZeroU32, stored: NonZeroU32 },
    /// The store refuses the key for good.
    Store(StoreError),
    /// No lease can have this TTL.
    InvalidTtl(InvalidTtl),
}

impl From<LeaseError> for QueueError {
    fn from(error: LeaseError) -> QueueError {
        match error {
            LeaseError::Unavailable { after } => QueueError::Unavailable { after },
            LeaseError::Store(error) => QueueError::Store(error),
            LeaseError::Closed => QueueError::Closed,
            LeaseError::InvalidTtl(invalid) => QueueError::InvalidTtl(invalid),
        }
    }
}

impl QueueDriver {
    /// Enters a queue and waits until the waiter holds.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves the queue in the background.
    pub(crate) async fn acquire(&self, options: AcquireOptions) -> Result<QueueHold, QueueError> {
        let (deadline, within) = match options.wait {
            WaitPolicy::Endless => (None, Duration::MAX),
            WaitPolicy::UpTo(wait) => (Some(Instant::now() + wait), wait),
            WaitPolicy::Try => (Some(Instant::now() + STORE_WITHIN), STORE_WITHIN),
        };
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.duration_since(Instant::now()));
            let lease_handle = self.lease(options.ttl, left).await?;
            let AcquireOptions { subject, queue, mode, class, value, .. } = &options;
            let waiter =
                self.enter(queue.clone(), (*mode, *class), value.clone(), lease_handle, subject.clone());
            match attempt(waiter, &options, deadline, within).await {
                AcquireAttempt::Decided(result) => return result,
                // The lease ended before the key was put: no turn is lost.
                AcquireAttempt::NeverEntered => {}
            }
        }
    }
}

/// What came of entering a queue once.
enum AcquireAttempt {
    Decided(Result<QueueHold, QueueError>),
    NeverEntered,
}

async fn attempt(
    waiter: WaiterHandle,
    options: &AcquireOptions,
    deadline: Option<Instant>,
    within: Duration,
) -> AcquireAttempt {
    let (mut has_entered, mut arrival, mut by) = (false, QueueArrival::Immediate, None);
    let deciding = async {
        let first = waiter.wait_for(|status| !matches!(status, WaiterStatus::Entering)).await;
        has_entered = !matches!(first, Some(WaiterStatus::Ended(_)));
        if matches!(first, Some(WaiterStatus::Waiting)) {
            arrival = QueueArrival::AfterOthers;
            if let (Some(hook), false) = (&options.on_queued, options.wait == WaitPolicy::Try) {
                // Only this option costs reads: the waiter itself needs nothing but its predecessor.
                if let Some(position) = Box::pin(waiter.position()).await {
                    hook.call(&position);
                }
            }
        }
        let is_next = match (options.former, first) {
            // In a box, as all rare futures here: each lock would have to carry it along.
            (Some(former), Some(WaiterStatus::Waiting)) => Box::pin(take_over(&waiter, former)).await,
            (Some(_) | None, _) => false,
        };
        let is_decided = |status: &WaiterStatus| match status {
            WaiterStatus::Holding { .. } | WaiterStatus::Ended(_) => true,
            WaiterStatus::Waiting => options.wait == WaitPolicy::Try && !is_next,
            WaiterStatus::Entering => false,
        };
        match (deadline, options.wait) {
            (Some(deadline), WaitPolicy::UpTo(wait)) if arrival == QueueArrival::AfterOthers => {
                let at = deadline - HOLDER_WITHIN.min(wait / 4);
                Box::pin(wait_and_read(&waiter, is_decided, at, &mut by)).await
            }
            (_, WaitPolicy::Endless | WaitPolicy::UpTo(_) | WaitPolicy::Try) => {
                waiter.wait_for(is_decided).await
            }
        }
    };
    let decided = match deadline {
        Some(deadline) => Box::pin(timeout_at(deadline, deciding)).await,
        None => Ok(deciding.await),
    };
    AcquireAttempt::Decided(match decided {
        Ok(Some(WaiterStatus::Holding { key, token, priority_waiters, .. })) => {
            Ok(QueueHold::new(waiter, (key, token), priority_waiters, arrival))
        }
        Ok(Some(WaiterStatus::Waiting)) => {
            Err(QueueError::Held { subject: options.subject.clone(), by: Box::pin(refused(&waiter)).await })
        }
        Ok(Some(WaiterStatus::Ended(WaiterEnd::Lease(reason)))) => match reason {
            LossReason::Closed => Err(QueueError::Closed),
            _ if !has_entered => return AcquireAttempt::NeverEntered,
            reason => Err(QueueError::Lost(waiter.validity.lost_by(reason))),
        },
        Ok(Some(WaiterStatus::Ended(end))) => Err(refusal(end, &waiter)),
        Ok(Some(WaiterStatus::Entering) | None) => Err(QueueError::Closed),
        Err(_) => match waiter.status() {
            WaiterStatus::Entering => Err(QueueError::Unavailable { after: within }),
            // Its hold began in the moment in which the wait ended.
            WaiterStatus::Holding { key, token, priority_waiters, .. } => {
                Ok(QueueHold::new(waiter, (key, token), priority_waiters, QueueArrival::AfterOthers))
            }
            WaiterStatus::Waiting | WaiterStatus::Ended(_) => {
                Err(QueueError::Timeout { subject: options.subject.clone(), after: within, by })
            }
        },
    })
}

/// A waiter was refused: leaves the queue, and reads the holder meanwhile.
async fn refused(waiter: &WaiterHandle) -> Option<Identity> {
    let holder = timeout(LEAVE_WITHIN, waiter.first_holder());
    let leaving = async {
        waiter.leave();
        // A key that is not deleted by then is deleted in the background.
        let _ = timeout(LEAVE_WITHIN, waiter.ended()).await;
    };
    let (holder, ()) = tokio::join!(holder, leaving);
    holder.ok().flatten()
}

/// Waits until a status decides, and reads the holder of the queue if that has not happened `at` the given time.
async fn wait_and_read(
    waiter: &WaiterHandle,
    is_decided: impl Fn(&WaiterStatus) -> bool,
    at: Instant,
    holder: &mut Option<Identity>,
) -> Option<WaiterStatus> {
    let reading = async {
        sleep_until(at).await;
        *holder = waiter.first_holder().await;
        pending().await
    };
    tokio::select! {
        biased;
        status = waiter.wait_for(is_decided) => status,
        status = reading => status,
    }
}

fn refusal(end: WaiterEnd, waiter: &WaiterHandle) -> QueueError {
    match end {
        WaiterEnd::Refused(error) => QueueError::Store(error),
        WaiterEnd::PermitsDiffer { requested, in_use } => {
            QueueError::PermitsDiffer { given: requested, stored: in_use }
        }
        WaiterEnd::Lease(reason) => QueueError::Lost(waiter.validity.lost_by(reason)),
        WaiterEnd::Deleted | WaiterEnd::Released { .. } => QueueError::Closed,
    }
}

/// Takes over the hold of a former key, ahead of the waiters between. False if it is not stored any more.
async fn take_over(waiter: &WaiterHandle, former: (QueueKey, Token)) -> bool {
    // A waiter that moves to a new key just waits.
    let Some(own) = waiter.stored() else { return false };
    let settled = tokio::select! {
        biased;
        _ = waiter.ended() => return false,
        settled = waiter.transfer(former, own) => settled,
    };
    match settled {
        Ok(Transferred::Done) => true,
        Ok(Transferred::HolderGone | Transferred::HeirGone) => false,
        Err(error) => {
            debug!(%error, "former hold not taken over");
            false
        }
    }
}
