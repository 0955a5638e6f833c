//! One waiter of a queue: as its caller sees it, and as its driver does.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use tenure_core::layout::QueueKey;
use tenure_core::queue::{PriorityWaiters, QueueRequests, Transfer, Transferred, WaiterId, queue_key_of};
use tenure_core::revision::Token;
use tracing::debug;

use super::QueuePosition;
use super::driver::QueueShared;
use super::local_queues::QueueSlot;
use crate::clock::wall_time;
use crate::hold::{LossReason, Validity};
use crate::identity::Identity;
use crate::ordered_watch;
use crate::retry;
use crate::session::LeaseHandle;
use crate::store::{KeyValue, LeaseId, Selection, StoreError};

/// A waiter, as its caller sees it. Dropping it leaves the queue, once the work that runs under its hold has ended.
pub(crate) struct WaiterHandle {
    pub(super) shared: Arc<QueueShared>,
    /// The prefix of the queue.
    pub(super) queue: Bytes,
    pub(super) slot: QueueSlot,
    pub(super) id: WaiterId,
    pub(super) lease_handle: LeaseHandle,
    /// The validity of its hold, once it holds.
    pub(super) validity: Validity,
    pub(super) status: ordered_watch::OrderedReceiver<WaiterStatus>,
}

/// How far a waiter has come.
#[derive(Clone, Debug)]
pub(crate) enum WaiterStatus {
    /// Its key is not known to be stored.
    Entering,
    /// Its key is stored, behind another one.
    Waiting,
    /// It holds.
    Holding {
        /// Its key.
        key: QueueKey,
        /// The create revision of that key.
        token: Token,
        /// The preferred candidates when it was seen to be the first, if they are known.
        priority_waiters: PriorityWaiters,
        /// What another client has put under its key since.
        changed: Option<KeyValue>,
    },
    /// It is not in the queue any more.
    Ended(WaiterEnd),
}

/// Why a waiter is not in the queue any more.
#[derive(Clone, Debug)]
pub(crate) enum WaiterEnd {
    /// Its lease ended.
    Lease(LossReason),
    /// Another client deleted its key while it held.
    Deleted,
    /// The store refused it.
    Refused(StoreError),
    /// Another caller uses a different number of permits.
    PermitsDiffer {
        /// The number that was requested.
        requested: NonZeroU32,
        /// The number that the oldest key of the queue carries.
        in_use: NonZeroU32,
    },
    /// Its caller left the queue.
    Released {
        /// Whether its key was still stored then.
        was_there: bool,
    },
}

/// How a hold began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueArrival {
    /// The queue was empty.
    Immediate,
    /// After a predecessor; others may have entered behind it meanwhile.
    AfterOthers,
}

impl WaiterEnd {
    /// What the machine reports, with what is known about the lease.
    pub(super) fn of(why: LossReason, lease: Option<LossReason>) -> WaiterEnd {
        match why {
            LossReason::Deleted => WaiterEnd::Deleted,
            // The machine does not know whether it lapsed or was closed.
            _ => WaiterEnd::Lease(lease.unwrap_or(why)),
        }
    }

    /// Why a holder that ended so has lost its hold.
    pub(super) fn loss_reason(&self) -> LossReason {
        match self {
            WaiterEnd::Lease(reason) => *reason,
            WaiterEnd::Deleted
            | WaiterEnd::Refused(_)
            | WaiterEnd::PermitsDiffer { .. }
            | WaiterEnd::Released { .. } => LossReason::Deleted,
        }
    }
}

impl WaiterHandle {
    /// The stored form of a key of its queue.
    pub(crate) fn stored_key(&self, key: QueueKey) -> Bytes {
        key.key_in(&self.queue)
    }

    /// Its key and that key's create revision; none if it is not stored.
    pub(crate) fn stored(&self) -> Option<(QueueKey, Token)> {
        self.shared.stored(self.slot, self.id)
    }

    pub(crate) fn status(&self) -> WaiterStatus {
        self.status.borrow().clone()
    }

    /// Its status, now and whenever that changes.
    pub(crate) fn changes(&self) -> ordered_watch::OrderedReceiver<WaiterStatus> {
        self.status.clone()
    }

    /// Waits until its status is as wanted; none if the driver has ended.
    pub(crate) async fn wait_for(&self, is_wanted: impl Fn(&WaiterStatus) -> bool) -> Option<WaiterStatus> {
        self.changes().wait_for(|status| is_wanted(status)).await.ok().map(|status| status.clone())
    }

    /// Waits until it is not in the queue any more.
    pub(crate) async fn ended(&self) -> Option<WaiterStatus> {
        self.wait_for(|status| matches!(status, WaiterStatus::Ended(_))).await
    }

    /// The first holder of its queue, read now: one key, with its value. None if the store does not reply, or the record is unreadable.
    pub(crate) async fn first_holder(&self) -> Option<Identity> {
        let QueueShared { store, requests, .. } = &*self.shared;
        let own = self.stored().map(|(key, _)| key);
        match store.get(requests.first_holder(&self.queue)).await {
            Ok(page) => requests.first_holder_in(&self.queue, own, &page),
            Err(error) => {
                debug!(%error, "holder not read");
                None
            }
        }
    }

    /// Its position, read now. None if the store does not reply, or its key is not stored any more.
    pub(super) async fn position(&self) -> Option<QueuePosition> {
        let (_, token) = self.stored()?;
        let listed = self.shared.store.list(Selection::Prefix(self.queue.clone())).await;
        let page = listed.inspect_err(|error| debug!(%error, "queue not read")).ok()?;
        let is_ahead =
            |pair: &&KeyValue| queue_key_of(&self.queue, &pair.key).is_some() && pair.created < token.0;
        let ahead = page.pairs.iter().filter(is_ahead).count();
        Some(QueuePosition { ahead, holder: self.first_holder().await })
    }

    /// Hands a hold of its queue to a later waiter.
    ///
    /// # Errors
    ///
    /// An error that no retry can mend: then it is not known whether an earlier request will still be applied.
    ///
    /// # Cancellation
    ///
    /// The transfer may have happened, or happen up to some seconds later.
    pub(crate) async fn transfer(
        &self,
        holder: (QueueKey, Token),
        heir: (QueueKey, Token),
    ) -> Result<Transferred, StoreError> {
        let QueueShared { store, clock, requests, .. } = &*self.shared;
        let requests = QueueRequests::clone(requests);
        let mut transfer = Transfer::new(requests, self.queue.clone(), holder, heir, wall_time());
        retry::run("transfer", store, clock, &mut transfer).await
    }

    /// Records in the background that a term began: the queue key contains this from now on.
    pub(crate) fn record_term(&self, arrival: QueueArrival) {
        self.shared.record_term(self.slot, self.id, arrival);
    }

    /// Starts to leave the queue. [`WaiterStatus::Ended`] reports when it has left.
    pub(crate) fn leave(&self) {
        self.shared.leave(self.slot, self.id);
    }

    /// Starts to leave without a switch to the driver's task, where that is possible. Only for callers that run in a task.
    pub(crate) fn leave_directly(&self) {
        self.shared.leave_directly(self.slot, self.id);
    }
}

impl Drop for WaiterHandle {
    fn drop(&mut self) {
        // A waiter that has ended is not in the driver any more.
        if matches!(*self.status.borrow(), WaiterStatus::Ended(_)) {
            return;
        }
        if !self.validity.is_working() {
            return self.leave();
        }
        // The next holder must not begin while work of this one is running (G2). Until then the session reports the hold as not released.
        let (shared, status) = (Arc::downgrade(&self.shared), self.status.clone());
        let (slot, id) = (self.slot, self.id);
        self.validity.when_stopped(move || {
            if let Some(shared) = shared.upgrade() {
                shared.leave(slot, id);
            }
            drop(status);
        });
    }
}

/// A waiter, as its driver sees it.
pub(super) struct LocalWaiter {
    pub(super) status: ordered_watch::OrderedSender<WaiterStatus>,
    /// What its enter puts.
    pub(super) value: Bytes,
    pub(super) lease_handle: LeaseHandle,
    /// The validity of its hold, once it holds.
    pub(super) validity: Validity,
    /// The preferred candidates when its key was seen to be the first.
    pub(super) priority_waiters: PriorityWaiters,
    /// What another client put under its key last. Kept while it waits: a request to step down counts when it leads.
    changed: Option<KeyValue>,
}

impl LocalWaiter {
    pub(super) fn new(
        status: ordered_watch::OrderedSender<WaiterStatus>,
        value: Bytes,
        lease_handle: LeaseHandle,
        validity: Validity,
    ) -> LocalWaiter {
        LocalWaiter { status, value, lease_handle, validity, priority_waiters: None, changed: None }
    }

    /// The lease of its key.
    pub(super) fn lease(&self) -> LeaseId {
        self.lease_handle.lease()
    }

    /// Its status when its hold begins.
    pub(super) fn holding(&mut self, key: QueueKey, token: Token) -> WaiterStatus {
        let changed = self.changed.take().filter(|pair| pair.created == token.0);
        let priority_waiters = self.priority_waiters.take();
        WaiterStatus::Holding { key, token, priority_waiters, changed }
    }

    pub(super) fn is_holding(&self) -> bool {
        matches!(*self.status.borrow(), WaiterStatus::Holding { .. })
    }

    /// Another client put something under its key.
    pub(super) fn handle_put(&mut self, pair: KeyValue) {
        let kept = &mut self.changed;
        self.status.send_if_modified(|status| match status {
            WaiterStatus::Holding { token, changed, .. } => {
                // A read after a broken watch may be older than what the watch delivered.
                let is_newer = changed.as_ref().is_none_or(|seen| seen.modified < pair.modified);
                let is_own = token.0 == pair.created;
                if is_own && is_newer {
                    *changed = Some(pair);
                }
                is_own && is_newer
            }
            WaiterStatus::Entering | WaiterStatus::Waiting => {
                *kept = Some(pair);
                false
            }
            WaiterStatus::Ended(_) => false,
        });
    }
}

/// Callers to wake once no lock is held: a caller that is woken earlier waits for that lock at once.
#[derive(Default)]
pub(super) struct Wakeups(Vec<Wakeup>);

enum Wakeup {
    Changed(ordered_watch::PendingWake<WaiterStatus>),
    /// The drop of its sender wakes the caller.
    Ended(Box<LocalWaiter>),
}

impl Wakeups {
    /// The status of a waiter changes; its caller is woken later.
    pub(super) fn change(&mut self, waiter: &LocalWaiter, status: WaiterStatus) {
        self.0.push(Wakeup::Changed(waiter.status.replace_quietly(status)));
    }

    /// A waiter has ended; its caller is woken later.
    pub(super) fn end(&mut self, waiter: Box<LocalWaiter>, end: WaiterEnd) {
        waiter.validity.end_quietly(end.loss_reason());
        waiter.status.replace_quietly(WaiterStatus::Ended(end));
        self.0.push(Wakeup::Ended(waiter));
    }

    /// Wakes them.
    pub(super) fn wake(&mut self) {
        for wakeup in self.0.drain(..) {
            match wakeup {
                Wakeup::Changed(pending) => pending.wake(),
                Wakeup::Ended(waiter) => {
                    waiter.validity.notify_ended();
                    drop(waiter);
                }
            }
        }
    }
}
