//! A waiter that holds, as the owner of a lock, a term or a barrier's place keeps it.

use std::ops::Deref;
use std::time::Duration;

use tenure_core::fence::Fence;
use tenure_core::layout::QueueKey;
use tenure_core::queue::{PriorityWaiters, Transferred};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tokio::time::{Instant, timeout_at};

use super::{QueueArrival, WaiterEnd, WaiterHandle, WaiterStatus};
use crate::hold::{Hold, LossReason, Lost, ReleaseError};
use crate::ordered_watch;
use crate::store::{KeyValue, StoreError};

/// How long a release waits for the work and for the store before it continues in the background.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// A hold of a queue. Dropping it leaves the queue in the background, once no work of [`Validity::run`](crate::Validity::run) is running under it.
pub(crate) struct QueueHold {
    /// Views of it are cloned; it does not keep the queue key.
    hold: Hold,
    waiter: WaiterHandle,
    key: QueueKey,
    priority_waiters: PriorityWaiters,
    arrival: QueueArrival,
}

impl QueueHold {
    pub(super) fn new(
        waiter: WaiterHandle,
        (key, token): (QueueKey, Token),
        priority_waiters: PriorityWaiters,
        arrival: QueueArrival,
    ) -> QueueHold {
        let fence = Fence { key: waiter.stored_key(key), token };
        let store = waiter.shared.store.clone();
        let hold = Hold::new(waiter.validity.clone(), fence, waiter.lease_handle.lease(), store);
        QueueHold { hold, waiter, key, priority_waiters, arrival }
    }

    pub(crate) fn key(&self) -> QueueKey {
        self.key
    }

    /// The preferred candidates when it was seen to be the first, if they are known.
    pub(crate) fn priority_waiters(&self) -> Option<&[KeyValue]> {
        self.priority_waiters.as_deref()
    }

    /// Records in the background that a term began: the queue key contains this from now on.
    pub(crate) fn record_term(&self) {
        self.waiter.record_term(self.arrival);
    }

    /// What another client has put under its key, now and whenever that happens.
    pub(crate) fn changes(&self) -> ordered_watch::OrderedReceiver<WaiterStatus> {
        self.waiter.changes()
    }

    /// Hands the hold to another waiter of the queue. Only the end of the lease ends the retries: that the own key is gone may be the work of
    /// this transfer.
    pub(crate) async fn hand_over(
        &self,
        heir: (QueueKey, Token),
    ) -> Result<Result<Transferred, StoreError>, Lost> {
        tokio::select! {
            biased;
            outcome = self.waiter.transfer((self.key, self.token()), heir) => Ok(outcome),
            lost = self.waiter.lease_handle.lost() => Err(self.lost_by(lost.reason)),
        }
    }

    /// The time on the clock of its session.
    pub(crate) fn now(&self) -> Moment {
        self.waiter.shared.clock.now()
    }

    /// Waits until this moment, or until the lease is lost.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost.
    pub(crate) async fn wait_until(&self, at: Moment) {
        tokio::select! {
            biased;
            _ = self.waiter.lease_handle.lost() => {}
            () = self.waiter.shared.clock.sleep_until(at) => {}
        }
    }

    /// Ends the validity; the key stays.
    pub(crate) fn withdraw(&self) {
        self.hold.end(LossReason::Released);
    }

    /// Stops the work that runs under it, then leaves the queue, and waits until the store has deleted the key. Not valid from the first poll on.
    pub(crate) async fn release(&self) -> Result<(), ReleaseError> {
        match self.loss() {
            // It may be withdrawn already.
            None | Some(LossReason::Released) => {}
            Some(reason) => return Err(ReleaseError::Lost(self.lost_by(reason))),
        }
        self.withdraw();
        let deadline = Instant::now() + RELEASE_WITHIN;
        // The next holder must not begin while work of this one is being dropped (G2). Its end releases the key then.
        if timeout_at(deadline, self.stopped()).await.is_err() {
            let subject = self.waiter.validity.subject().to_string().into();
            return Err(ReleaseError::StillRunning { subject, after: RELEASE_WITHIN });
        }
        self.waiter.leave_directly();
        let lost = match timeout_at(deadline, self.waiter.ended()).await {
            Ok(Some(WaiterStatus::Ended(WaiterEnd::Released { was_there: true }))) => return Ok(()),
            // A lease that ended before the reply explains why the key is gone.
            Ok(Some(WaiterStatus::Ended(end))) => {
                self.waiter.lease_handle.loss().unwrap_or(end.loss_reason())
            }
            Ok(Some(_) | None) => LossReason::Closed,
            Err(_) => return Err(ReleaseError::NotConfirmed { ttl: self.ttl() }),
        };
        Err(ReleaseError::Lost(self.lost_by(lost)))
    }
}

impl Deref for QueueHold {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl Drop for QueueHold {
    fn drop(&mut self) {
        self.withdraw();
    }
}
