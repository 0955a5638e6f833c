//! The driver of all queues of a process on one session.
//!
//! A caller that enters or leaves a queue changes the queue's machine and waits. It wakes the driver only if the driver would not see the
//! change by itself: a driver at work steps all changed queues before it waits, and while batches are in flight their replies wake it.
//! If nothing else is waiting or in flight, the caller sends the one request itself and saves a switch to the driver's task.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::layout::{Layout, PriorityClass, QueueKey};
use tenure_core::queue::{LockMode, QueueKind, QueueOutput, QueueRequests, WaiterId};
use tenure_core::revision::Token;
use tenure_core::time::Moment;

use super::local_queues::{LocalQueue, LocalQueues, QueueSlot};
use super::requests::{self, AcquiredHold, PendingRequests, QueuedRequest, RECORD_AFTER, Request, Responses};
use super::waiter::{LocalWaiter, Wakeups};
use super::watches::{QueueChange, QueueWatches};
use super::{QueueArrival, WaiterHandle, WaiterStatus};
use crate::clock::Clock;
use crate::driver::requests::{BatchId, DirectSend, Inbox};
use crate::driver::{self, Drive, DriverEvent, NextStep};
use crate::hold::Subject;
use crate::ordered_watch;
use crate::rng;
use crate::session::{LeaseError, LeaseHandle, Session};
use crate::store::{LeaseId, Store};

/// The queues of a process, of one kind. Cheap to clone; all clones are one driver.
#[derive(Clone)]
pub(crate) struct QueueDriver {
    handle: Arc<QueueDriverHandle>,
}

/// Ends the driver's task when the last clone is dropped; it leaves every queue first.
struct QueueDriverHandle {
    shared: Arc<QueueShared>,
}

impl Drop for QueueDriverHandle {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.is_closing = true;
        self.shared.wake(&mut inner);
    }
}

/// Whether other callers are about to enter a queue in the same moment. A caller that had to wait for a lease did not wait alone, and the
/// order in which such callers are woken is left to chance: they go through the driver's task, and their requests travel together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BatchHint {
    Alone,
    Together,
}

/// What handles, waiters and the driver's task share.
pub(super) struct QueueShared {
    session: Session,
    pub(super) store: Store,
    pub(super) clock: Arc<dyn Clock>,
    kind: QueueKind,
    pub(super) requests: Arc<QueueRequests>,
    inner: Mutex<QueueInner>,
    /// A task that has locked `inner` must not wait for the lock of this.
    inbox: Inbox<AnsweredBatch>,
}

/// A batch that was answered.
type AnsweredBatch = (BatchId, Responses);

struct QueueInner {
    kind: QueueKind,
    queues: LocalQueues,
    /// How many waiters all queues have.
    waiters_len: usize,
    pending: PendingRequests,
    /// The lease of each TTL.
    leases: BTreeMap<Option<Duration>, LeaseHandle>,
    /// Leases that the driver has yet to watch for their end.
    new_leases: Vec<LeaseHandle>,
    /// Whether the driver was woken, or is at work: it handles every change here before it waits.
    is_awake: bool,
    is_closing: bool,
}

impl QueueDriver {
    /// Starts a driver. Sends nothing yet.
    pub(crate) fn open(session: &Session, layout: &Layout, kind: QueueKind) -> QueueDriver {
        let shared = Arc::new(QueueShared::new(session, layout, kind));
        tokio::spawn(drive(shared.clone()));
        QueueDriver { handle: Arc::new(QueueDriverHandle { shared }) }
    }

    /// The clock of the session.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.handle.shared.clock
    }

    /// A lease for a queue key; sends nothing if there is one already.
    pub(super) async fn lease(
        &self,
        ttl: Option<Duration>,
        within: Duration,
    ) -> Result<(LeaseHandle, BatchHint), LeaseError> {
        let shared = &self.handle.shared;
        if let Some(lease_handle) =
            shared.lock().leases.get(&ttl).filter(|lease_handle| lease_handle.is_valid())
        {
            return Ok((lease_handle.clone(), BatchHint::Alone));
        }
        let lend = shared.session.lease().timeout(within);
        let lease_handle = match ttl {
            Some(ttl) => lend.ttl(ttl).await?,
            None => lend.await?,
        };
        let mut inner = shared.lock();
        inner.leases.insert(ttl, lease_handle.clone());
        inner.new_leases.push(lease_handle.clone());
        shared.wake(&mut inner);
        Ok((lease_handle, BatchHint::Together))
    }

    /// Enters the queue with this prefix; `value` is what others read under the key.
    pub(super) fn enter(
        &self,
        queue: Bytes,
        (mode, class): (LockMode, PriorityClass),
        value: Bytes,
        (lease_handle, hint): (LeaseHandle, BatchHint),
        subject: Subject,
    ) -> WaiterHandle {
        let shared = &self.handle.shared;
        let (sender, status) = ordered_watch::channel(WaiterStatus::Entering);
        let validity = lease_handle.validity_of(subject);
        let waiter = Box::new(LocalWaiter::new(sender, value, lease_handle.clone(), validity.clone()));
        let mut inner = shared.lock();
        let (slot, id) = inner.enter(&queue, (mode, class), waiter);
        match hint {
            BatchHint::Alone => shared.send_or_wake(inner, slot, shared.clock.now()),
            BatchHint::Together => shared.wake(&mut inner),
        }
        WaiterHandle { shared: shared.clone(), queue, slot, id, lease_handle, validity, status }
    }
}

impl QueueShared {
    fn new(session: &Session, layout: &Layout, kind: QueueKind) -> QueueShared {
        // Half of all numbers is left to count upwards.
        let nonce_first = rng::nonce() / 2;
        let inner = QueueInner {
            kind,
            queues: LocalQueues::new(nonce_first),
            waiters_len: 0,
            pending: PendingRequests::default(),
            leases: BTreeMap::new(),
            new_leases: Vec::new(),
            is_awake: true,
            is_closing: false,
        };
        QueueShared {
            store: session.store().clone(),
            clock: session.clock().clone(),
            session: session.clone(),
            kind,
            requests: Arc::new(QueueRequests::new(layout, kind, nonce_first)),
            inner: Mutex::new(inner),
            inbox: Inbox::default(),
        }
    }

    /// The key of a waiter and its create revision; none if it is not stored.
    pub(super) fn stored(&self, slot: QueueSlot, id: WaiterId) -> Option<(QueueKey, Token)> {
        let inner = self.lock();
        let (key, token) = inner.queues.get(slot)?.machine.queue_key(id)?;
        Some((key, token?))
    }

    /// Leaves a queue in the background. May be called outside a task.
    pub(super) fn leave(&self, slot: QueueSlot, id: WaiterId) {
        let now = self.clock.now();
        let mut inner = self.lock();
        if inner.queues.feed(slot, |local| local.leave(id, now)).is_some() {
            self.wake(&mut inner);
        }
    }

    /// Leaves a queue, without a switch to the driver's task where that is possible. Only for callers that run in a task.
    pub(super) fn leave_directly(&self, slot: QueueSlot, id: WaiterId) {
        let now = self.clock.now();
        let mut inner = self.lock();
        if inner.queues.feed(slot, |local| local.leave(id, now)).is_some() {
            self.send_or_wake(inner, slot, now);
        }
    }

    /// Records in a queue key when its term began. Immediately if a candidate of another process may wait behind it: the mark saves that one
    /// from reading the queue. No caller waits for the reply.
    pub(super) fn record_term(&self, slot: QueueSlot, id: WaiterId, arrival: QueueArrival) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let has_followers = |local: &LocalQueue| {
            let key = local.machine.queue_key(id).map(|(key, _)| key);
            key.is_some_and(|key| !local.machine.has_local_successor(key))
        };
        let is_urgent =
            arrival == QueueArrival::AfterOthers && inner.queues.get(slot).is_some_and(has_followers);
        let due = if is_urgent { now } else { now + RECORD_AFTER };
        if inner.queues.feed(slot, |local| local.record_acquired(id, now, due)).is_some() {
            self.wake(&mut inner);
        }
    }

    /// Wakes the driver, unless it is awake.
    fn wake(&self, inner: &mut QueueInner) {
        if !std::mem::replace(&mut inner.is_awake, true) {
            self.inbox.notify();
        }
    }

    /// Sends the request of a queue here and now if no other request could travel with it; otherwise the driver does.
    fn send_or_wake(&self, mut inner: MutexGuard<'_, QueueInner>, slot: QueueSlot, now: Moment) {
        // The driver steps the queue before it waits; or a reply wakes it, or the timer that is set while requests wait for a reply.
        if inner.is_awake || inner.waits_for_reply(now) {
            return;
        }
        let may_send = inner.is_alone(slot, now) && tokio::runtime::Handle::try_current().is_ok();
        match self.inbox.direct() {
            Some(direct) if may_send => self.send_directly(inner, direct, slot, now),
            Some(_) | None => self.wake(&mut inner),
        }
    }

    /// Sends the request of the only waiter of this driver. The driver has nothing to do until the reply: then it steps the queue, and watches
    /// can begin as late as that.
    fn send_directly(
        &self,
        mut inner: MutexGuard<'_, QueueInner>,
        direct: DirectSend<'_, AnsweredBatch>,
        slot: QueueSlot,
        now: Moment,
    ) {
        let mut wakeups = Wakeups::default();
        let is_on_time = inner.take_outputs(slot, &mut wakeups, now);
        let batch = inner.next_batch(now);
        if batch.is_none() || !is_on_time {
            self.wake(&mut inner);
        }
        drop(inner);
        wakeups.wake();
        if let Some((id, batch)) = batch
            && let Some(replied) = direct.send(self.request(id, batch))
        {
            self.handle_replies(replied);
            self.inbox.notify();
        }
    }

    /// Sends all batches that may be sent.
    fn send(&self) {
        let now = self.clock.now();
        loop {
            let batch = self.lock().next_batch(now);
            let Some((id, batch)) = batch else { break };
            self.inbox.send(self.request(id, batch));
        }
    }

    fn request(
        &self,
        id: BatchId,
        batch: Vec<Request>,
    ) -> impl Future<Output = AnsweredBatch> + Send + 'static {
        let sending = requests::send(self.session.clone(), self.requests.clone(), batch);
        async move { (id, sending.await) }
    }

    /// Records when holds began that have lasted. No caller waits for the reply.
    fn record(&self, holds: Vec<AcquiredHold>, now: Moment) {
        let id = self.lock().pending.begin(0, now);
        let recording = requests::record(self.store.clone(), self.clock.clone(), holds);
        self.inbox.send(async move { (id, recording.await) });
    }

    /// Shows the time to the machines and takes their outputs. Returns whether a batch will be sent that other callers could still join.
    fn step(&self, watches: &mut QueueWatches, wakeups: &mut Wakeups) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.queues.handle_time(now);
        let mut holds = Vec::new();
        while let Some(slot) = inner.queues.next_ready() {
            inner.take_outputs(slot, wakeups, now);
            if let Some(local) = inner.queues.get_mut(slot) {
                local.watch(watches, now);
                holds.extend(std::iter::from_fn(|| local.next_unrecorded(slot, self.kind, now)));
            }
            inner.queues.settle(slot);
        }
        let may_grow = inner.waiters_len > 1 && inner.pending.allowance(now) > 0;
        drop(inner);
        wakeups.wake();
        if !holds.is_empty() {
            self.record(holds, now);
        }
        may_grow
    }

    /// What the driver does now. No caller wakes it before it has returned [`NextStep::Wait`].
    fn next(&self) -> NextStep {
        let now = self.clock.now();
        let mut inner = self.lock();
        let has_outputs = inner.queues.ready_len() > 0 && !inner.waits_for_reply(now);
        if has_outputs || !inner.new_leases.is_empty() || inner.pending.allowance(now) > 0 {
            return NextStep::Step;
        }
        if inner.is_closing && inner.pending.is_idle() && inner.queues.is_empty() {
            return NextStep::End;
        }
        inner.is_awake = false;
        let wakes = [inner.queues.next_wake(), inner.pending.next_wake(now)];
        NextStep::Wait(wakes.into_iter().flatten().min())
    }

    fn handle_replies(&self, (id, responses): AnsweredBatch) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.is_awake = true;
        inner.pending.end(id);
        for (slot, response) in responses {
            inner.queues.feed(slot, |local| local.handle(response, now));
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueInner {
    fn enter(
        &mut self,
        queue: &Bytes,
        (mode, class): (LockMode, PriorityClass),
        waiter: Box<LocalWaiter>,
    ) -> (QueueSlot, WaiterId) {
        let slot = self.queues.enter(queue);
        let lease = waiter.lease();
        let id = self.queues.feed(slot, |local| {
            let id = local.machine.enter_ranked(lease, mode, class);
            local.waiters.insert(id, waiter);
            id
        });
        self.waiters_len += 1;
        (slot, id.expect("the queue was just entered"))
    }

    /// Takes the outputs of a queue. Returns whether the driver wakes early enough for it.
    fn take_outputs(&mut self, slot: QueueSlot, wakeups: &mut Wakeups, now: Moment) -> bool {
        let Some(local) = self.queues.get_mut(slot) else { return true };
        let waiters_len = local.waiters.len();
        local.take_outputs(slot, (self.kind, now), &mut self.pending, wakeups);
        self.waiters_len -= waiters_len - local.waiters.len();
        local.next_wake().is_none_or(|wake| local.is_woken_by(wake))
    }

    /// Whether the waiter of a queue is the only one of this driver, and nothing is in flight.
    fn is_alone(&self, slot: QueueSlot, now: Moment) -> bool {
        // The driver ends a watch before its key is deleted; otherwise the server sends the event, and the driver reads the key for it.
        let is_unwatched = || self.queues.get(slot).is_some_and(|local| !local.may_be_watched(now));
        self.waiters_len == 1 && self.pending.is_idle() && is_unwatched()
    }

    /// Whether the requests of all queues with outputs would have to wait for a reply.
    fn waits_for_reply(&self, now: Moment) -> bool {
        self.pending.would_wait(self.queues.ready_len(), now)
    }

    /// The next batch, if there is one and it may be sent.
    fn next_batch(&mut self, now: Moment) -> Option<(BatchId, Vec<Request>)> {
        loop {
            if self.pending.allowance(now) == 0 {
                return None;
            }
            let taken = self.pending.next_batch(now);
            let mut batch = Vec::with_capacity(taken.len());
            batch.extend(taken.into_iter().filter_map(|request| self.with_value(request)));
            if !batch.is_empty() {
                return Some((self.pending.begin(batch.len(), now), batch));
            }
        }
    }

    /// A request with what it puts.
    fn with_value(&self, request: QueuedRequest) -> Option<Request> {
        let value = match request.output {
            // If its lease was lost while it waited to be sent, no waiter would ever delete its key.
            QueueOutput::Enter { id, .. } => self.queues.get(request.slot)?.waiters.get(&id)?.value.clone(),
            QueueOutput::ReadPredecessor { .. } | QueueOutput::Leave { .. } => Bytes::new(),
        };
        Some(Request { request, value })
    }
}

/// The end of a lease.
type LeaseEnd = Pin<Box<dyn Future<Output = LeaseId> + Send>>;

/// The driver's task.
struct QueueTask {
    shared: Arc<QueueShared>,
    lease_ends: FuturesUnordered<LeaseEnd>,
    watches: QueueWatches,
    wakeups: Wakeups,
}

/// What happens outside.
enum QueueInput {
    LeaseLost(LeaseId),
    Changed(QueueChange),
}

/// Runs until the driver is closed and every queue is left.
async fn drive(shared: Arc<QueueShared>) {
    let mut task = QueueTask {
        watches: QueueWatches::new(shared.store.clone(), shared.clock.clone()),
        lease_ends: FuturesUnordered::new(),
        wakeups: Wakeups::default(),
        shared: shared.clone(),
    };
    driver::run(&mut task, &shared.inbox, &shared.clock).await;
}

impl Drive for QueueTask {
    type Input = QueueInput;
    type Reply = AnsweredBatch;

    async fn step(&mut self) -> NextStep {
        let QueueTask { shared, lease_ends, watches, wakeups } = self;
        if shared.step(watches, wakeups) {
            // A caller that was woken and enters or leaves a queue now joins the batch.
            tokio::task::yield_now().await;
            shared.step(watches, wakeups);
        }
        shared.send();
        let new_leases = std::mem::take(&mut shared.lock().new_leases);
        for lease_handle in new_leases {
            lease_ends.push(Box::pin(async move {
                lease_handle.lost().await;
                lease_handle.lease()
            }));
        }
        shared.next()
    }

    fn inputs(
        &mut self,
    ) -> (impl Future<Output = QueueInput> + Send, impl Future<Output = QueueInput> + Send) {
        let QueueTask { lease_ends, watches, .. } = self;
        let lost = async move {
            match lease_ends.next().await {
                Some(lease) => QueueInput::LeaseLost(lease),
                None => std::future::pending().await,
            }
        };
        (lost, async move { QueueInput::Changed(watches.next().await) })
    }

    fn handle(&mut self, event: DriverEvent<QueueInput, AnsweredBatch>) {
        let shared = &self.shared;
        let input = match event {
            DriverEvent::Reply(batch) => return shared.handle_replies(batch),
            DriverEvent::Input(input) => Some(input),
            DriverEvent::Wake => None,
        };
        let now = shared.clock.now();
        let mut inner = shared.lock();
        inner.is_awake = true;
        match input {
            None => {}
            Some(QueueInput::LeaseLost(lease)) => {
                inner.leases.retain(|_, lease_handle| lease_handle.lease() != lease);
                inner.queues.lose_lease(lease, now);
            }
            Some(QueueInput::Changed(QueueChange { queue, observed })) => {
                // The queue may be left since, and another one be in its slot.
                if let Some(slot) = inner.queues.slot(&queue) {
                    inner.queues.feed(slot, |local| local.observe(observed, shared.kind, now));
                }
            }
        }
    }
}
