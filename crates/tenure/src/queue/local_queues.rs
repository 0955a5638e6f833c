//! The queues in which this process waits: one machine per name, and its local waiters.
//!
//! A queue is found by its name once, when a caller enters it, and then by the number of its slot: most locks are held for less than a
//! millisecond, and a name that is hashed and cloned at each step would be a good part of that work.
//!
//! **Invariant**: a slot that is reused counts its waiter ids and epochs on from the largest number of all queues that were left. So a handle or
//! a reply that arrives late, with the slot of a queue that was left, finds no waiter there.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use tenure_core::layout::QueueKey;
use tenure_core::lease::LeaseId;
use tenure_core::queue::{
    AcquiredMark, EnterGuard, LeaveReply, PriorityWaiters, QueueEvent, QueueKind, QueueReply, WaitQueue,
    WaiterId,
};
use tenure_core::record::{CandidateRecord, Timestamp};
use tenure_core::revision::Token;
use tenure_core::time::Moment;

use super::requests::{
    AcquiredHold, PendingRequests, QueuedRequest, RECORD_AFTER, Response, UnrecordedHolds,
};
use super::waiter::{LocalWaiter, Wakeups};
use super::watches::{ObservedKey, OwnKeyWatches, QueueWatches};
use super::{WaiterEnd, WaiterStatus};
use crate::clock::wall_time;
use crate::hold::LossReason;
use crate::rng;

/// How many queues that were left keep their memory for those that are entered next. Each is about a kilobyte; more locks than this are
/// seldom acquired in one round trip.
const SPARE_MAX: usize = 64;

/// Where a queue is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct QueueSlot(usize);

/// All queues in which this process waits.
pub(super) struct LocalQueues {
    slots: Vec<Option<Box<LocalQueue>>>,
    /// Slots of queues that were left.
    free: Vec<QueueSlot>,
    /// How many of those kept their memory.
    spare_len: usize,
    names: HashMap<Bytes, QueueSlot>,
    /// Queues that may have outputs, each once.
    ready: VecDeque<QueueSlot>,
    /// When machines see the time. An entry that is too early is cheaper than one that moves with each lock.
    wakes: BTreeSet<(Moment, QueueSlot)>,
    /// From which nonce a queue that is entered next counts on: no late request for it can touch what was left before.
    nonce_floor: u64,
    /// The largest number of all queues that were left.
    counter: u64,
    /// The newest enter guard of each lease, as queues that were left have seen it.
    guards: BTreeMap<LeaseId, EnterGuard>,
}

impl LocalQueues {
    pub(super) fn new(nonce_first: u64) -> LocalQueues {
        LocalQueues {
            slots: Vec::new(),
            free: Vec::new(),
            spare_len: 0,
            names: HashMap::new(),
            ready: VecDeque::new(),
            wakes: BTreeSet::new(),
            nonce_floor: nonce_first,
            counter: 0,
            guards: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The queue with this name, for a caller that enters it.
    pub(super) fn enter(&mut self, name: &Bytes) -> QueueSlot {
        if let Some(&slot) = self.names.get(name) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            QueueSlot(self.slots.len() - 1)
        });
        let local = &mut self.slots[slot.0];
        self.spare_len -= usize::from(local.is_some());
        let numbers = (self.nonce_floor, self.counter);
        local.get_or_insert_default().begin(name.clone(), numbers, &self.guards);
        self.names.insert(name.clone(), slot);
        slot
    }

    /// The slot of the queue with this name; none if this process does not wait in it.
    pub(super) fn slot(&self, name: &Bytes) -> Option<QueueSlot> {
        self.names.get(name).copied()
    }

    /// The queue in a slot; none if it was left.
    pub(super) fn get(&self, slot: QueueSlot) -> Option<&LocalQueue> {
        self.slots[slot.0].as_deref().filter(|local| local.is_entered())
    }

    pub(super) fn get_mut(&mut self, slot: QueueSlot) -> Option<&mut LocalQueue> {
        self.slots[slot.0].as_deref_mut().filter(|local| local.is_entered())
    }

    /// All queues, in the order of their slots.
    pub(super) fn all(&self) -> Vec<QueueSlot> {
        (0..self.slots.len()).map(QueueSlot).filter(|&slot| self.get(slot).is_some()).collect()
    }

    /// Feeds an input to a queue, which may have outputs then. None if it was left.
    pub(super) fn feed<T>(&mut self, slot: QueueSlot, input: impl FnOnce(&mut LocalQueue) -> T) -> Option<T> {
        let local = self.slots[slot.0].as_deref_mut().filter(|local| local.is_entered())?;
        let result = input(local);
        if !std::mem::replace(&mut local.is_ready, true) {
            self.ready.push_back(slot);
        }
        Some(result)
    }

    /// A lease was lost, with all keys under it and its enter guard.
    pub(super) fn lose_lease(&mut self, lease: LeaseId, now: Moment) {
        for slot in self.all() {
            self.feed(slot, |local| local.machine.handle_lease_lost(lease, now));
        }
        self.guards.remove(&lease);
    }

    /// How many queues may have outputs.
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// The next queue that may have outputs.
    pub(super) fn next_ready(&mut self) -> Option<QueueSlot> {
        let slot = self.ready.pop_front()?;
        if let Some(local) = self.get_mut(slot) {
            local.is_ready = false;
        }
        Some(slot)
    }

    /// Shows the time to the machines that wait for it.
    pub(super) fn handle_time(&mut self, now: Moment) {
        while let Some(&(at, slot)) = self.wakes.first()
            && at <= now
        {
            self.wakes.pop_first();
            if let Some(local) = &mut self.slots[slot.0] {
                local.wake = None;
            }
            self.feed(slot, |local| local.machine.handle_time(now));
        }
    }

    /// When the first machine waits for the time.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// All outputs of a queue were taken: it sees the time when it has to, or is left if this process does not wait in it any more.
    pub(super) fn settle(&mut self, slot: QueueSlot) {
        let Some(local) = self.slots[slot.0].as_deref_mut().filter(|local| local.is_entered()) else {
            return;
        };
        if local.machine.is_empty() {
            return self.leave(slot);
        }
        if let Some(wake) = local.next_wake()
            && !local.is_woken_by(wake)
        {
            if let Some(later) = local.wake.replace(wake) {
                self.wakes.remove(&(later, slot));
            }
            self.wakes.insert((wake, slot));
        }
    }

    fn leave(&mut self, slot: QueueSlot) {
        let Some(local) = &mut self.slots[slot.0] else { return };
        self.nonce_floor = local.machine.nonce_floor().max(self.nonce_floor);
        self.counter = local.machine.counter().max(self.counter);
        for (&lease, &guard) in local.machine.guards() {
            let newest = self.guards.entry(lease).or_default();
            *newest = guard.max(*newest);
        }
        if let Some(name) = local.name.take() {
            self.names.remove(&name);
        }
        self.free.push(slot);
        if self.spare_len < SPARE_MAX {
            self.spare_len += 1;
        } else if let Some(wake) = self.slots[slot.0].take().and_then(|local| local.wake) {
            self.wakes.remove(&(wake, slot));
        }
    }
}

/// One queue: its machine, and the waiters of this process.
#[derive(Default)]
pub(super) struct LocalQueue {
    /// The prefix of its keys; none if it was left.
    name: Option<Bytes>,
    pub(super) machine: WaitQueue,
    /// In boxes, because a map has room for eleven values at once and most queues have one.
    pub(super) waiters: BTreeMap<WaiterId, Box<LocalWaiter>>,
    own: OwnKeyWatches,
    unrecorded: UnrecordedHolds,
    /// The key of another process that is watched.
    predecessor: Option<QueueKey>,
    /// Whether the whole queue is watched.
    needs_snapshot: bool,
    /// When it sees the time; never later than it has to. Belongs to the slot, and stays when the queue is left.
    wake: Option<Moment>,
    /// Whether it is among those that may have outputs.
    is_ready: bool,
}

impl LocalQueue {
    /// An empty queue becomes the one with this name. Its numbers are counted on from those that are given.
    fn begin(&mut self, name: Bytes, (nonce, counter): (u64, u64), guards: &BTreeMap<LeaseId, EnterGuard>) {
        assert!(self.name.is_none() && self.waiters.is_empty(), "a queue is left when it has no waiter");
        self.machine.begin(nonce, counter, guards);
        self.name = Some(name);
        self.is_ready = false;
    }

    fn is_entered(&self) -> bool {
        self.name.is_some()
    }

    /// The prefix of its keys.
    fn name(&self) -> Bytes {
        self.name.clone().unwrap_or_default()
    }

    /// Begins and ends watches as the machine requires.
    pub(super) fn watch(&mut self, watches: &mut QueueWatches, now: Moment) {
        let LocalQueue { name: Some(name), machine, own, predecessor, needs_snapshot, .. } = self else {
            return;
        };
        for key in own.set(machine.own_keys(), now) {
            watches.end_own(name, key);
        }
        while let Some((key, token)) = own.next_due(now) {
            watches.begin_own(name, key, token);
        }
        let wanted = machine.watched_predecessor();
        if *predecessor != wanted {
            *predecessor = wanted;
            watches.change_predecessor(name, wanted);
        }
        let wanted = machine.needs_snapshot();
        if *needs_snapshot != wanted {
            *needs_snapshot = wanted;
            watches.change_snapshot(name, wanted);
        }
    }

    /// Whether the watch of an own key may have begun, or is about to.
    pub(super) fn may_be_watched(&self, now: Moment) -> bool {
        self.own.may_be_watched(now)
    }

    /// When it has to see the time.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        [self.machine.next_wake(), self.own.next_wake(), self.unrecorded.next_wake()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether it sees the time by then anyway.
    pub(super) fn is_woken_by(&self, wake: Moment) -> bool {
        self.wake.is_some_and(|at| at <= wake)
    }

    pub(super) fn handle(&mut self, response: Response, now: Moment) {
        let reply = match response {
            Response::Queue(reply) => reply,
            Response::Recorded(id, recorded) => return self.unrecorded.handle(id, recorded, now),
        };
        let jitter = if reply.is_failure() { rng::jitter() } else { 0.0 };
        match reply {
            QueueReply::Enter(id, epoch, reply, priority) => {
                self.note_priority(id, priority);
                self.machine.handle_entered(id, epoch, reply, jitter, now);
            }
            QueueReply::Predecessor(id, epoch, reply, priority) => {
                self.note_priority(id, priority);
                self.machine.handle_predecessor(id, epoch, reply, jitter, now);
            }
            QueueReply::Leave(id, epoch, reply, priority) => {
                // The waiter that is the first now was shown the queue at the same revision.
                if let LeaveReply::Gone { first, .. } = &reply
                    && let Some(next) = first.first().and_then(|(key, _)| self.machine.id(*key))
                {
                    self.note_priority(next, priority);
                }
                self.machine.handle_left(id, epoch, reply, jitter, now);
            }
        }
    }

    /// A watch has delivered something.
    pub(super) fn observe(&mut self, observed: ObservedKey, kind: QueueKind, now: Moment) {
        match observed {
            ObservedKey::Watched(key) => self.machine.handle_watched(key, now),
            ObservedKey::Deleted(key, revision) => self.machine.handle_gone(key, revision, now),
            ObservedKey::Put(key, pair) => {
                if kind == QueueKind::Election && CandidateRecord::leads_by(&pair.value) {
                    self.machine.handle_holder(key, Token(pair.created), pair.modified);
                }
                let waiter = self.machine.id(key).and_then(|id| self.waiters.get_mut(&id));
                if let Some(waiter) = waiter {
                    waiter.handle_put(pair);
                }
            }
            ObservedKey::Snapshot(snapshot) => self.machine.handle_snapshot(snapshot, now),
        }
    }

    /// A waiter leaves the queue.
    pub(super) fn leave(&mut self, id: WaiterId, now: Moment) {
        self.unrecorded.remove(id);
        self.machine.leave(id, now);
    }

    /// Records in the queue key of a holder when its hold began, at `due` if it lasts that long.
    pub(super) fn record_acquired(&mut self, id: WaiterId, now: Moment, due: Moment) {
        if self.waiters.contains_key(&id) {
            self.unrecorded.add(id, now, due);
        }
    }

    /// A hold with a beginning that is to be recorded now.
    pub(super) fn next_unrecorded(
        &mut self,
        slot: QueueSlot,
        kind: QueueKind,
        now: Moment,
    ) -> Option<AcquiredHold> {
        while let Some((id, began)) = self.unrecorded.next_due(now) {
            let Some((key, Some(token))) = self.machine.queue_key(id) else {
                self.unrecorded.remove(id);
                continue;
            };
            let waiter = self.waiters.get(&id)?;
            let (value, ttl) = (waiter.value.clone(), waiter.lease_handle.ttl());
            let lasted_ms = u64::try_from(now.since(began).as_millis()).unwrap_or(u64::MAX);
            let at = Timestamp(wall_time().0.saturating_sub(lasted_ms));
            let mark = AcquiredMark { kind, at, ttl };
            let key = key.key_in(&self.name());
            return Some(AcquiredHold { slot, id, key, token, value, mark });
        }
        None
    }

    /// Takes the outputs of the machine: events for callers, and requests.
    pub(super) fn take_outputs(
        &mut self,
        slot: QueueSlot,
        (kind, now): (QueueKind, Moment),
        requests: &mut PendingRequests,
        wakeups: &mut Wakeups,
    ) {
        while let Some(event) = self.machine.poll_event() {
            // The first candidate of an election may still yield to a higher priority: a campaign decides when its term begins.
            if let (QueueEvent::Held { id, .. }, QueueKind::Lock) = (&event, kind) {
                self.record_acquired(*id, now, now + RECORD_AFTER);
            }
            self.publish(event, wakeups);
        }
        while let Some(output) = self.machine.poll_output() {
            requests.push(QueuedRequest { slot, queue: self.name(), output });
        }
    }

    fn publish(&mut self, event: QueueEvent, wakeups: &mut Wakeups) {
        let (id, end) = match event {
            QueueEvent::Waits { id } => {
                if let Some(waiter) = self.waiters.get(&id) {
                    wakeups.change(waiter, WaiterStatus::Waiting);
                }
                return;
            }
            QueueEvent::Held { id, token } => {
                if let (Some((key, _)), Some(waiter)) =
                    (self.machine.queue_key(id), self.waiters.get_mut(&id))
                {
                    let status = waiter.holding(key, token);
                    wakeups.change(waiter, status);
                }
                return;
            }
            QueueEvent::Lost { id, why } => {
                let Some(waiter) = self.waiters.get(&id) else { return };
                let lease_end = waiter.lease_handle.loss();
                if why != LossReason::Deleted && lease_end.is_none() {
                    // The store has reported it here first.
                    waiter.lease_handle.lease_not_found();
                }
                (id, WaiterEnd::of(why, lease_end))
            }
            QueueEvent::PermitsDiffer { id, requested, in_use } => {
                (id, WaiterEnd::PermitsDiffer { requested, in_use })
            }
            QueueEvent::Refused { id, why } => (id, WaiterEnd::Refused(why)),
            QueueEvent::Released { id, was_there } => (id, WaiterEnd::Released { was_there }),
        };
        self.unrecorded.remove(id);
        let Some(waiter) = self.waiters.remove(&id) else { return };
        if matches!(end, WaiterEnd::Lease(LossReason::Closed)) && waiter.is_holding() {
            // Its guard may be alive: `close` of the session names it then.
            waiter
                .lease_handle
                .report_unreleased(waiter.validity.subject().to_string(), waiter.status.liveness());
        }
        wakeups.end(waiter, end);
    }

    fn note_priority(&mut self, id: WaiterId, priority: PriorityWaiters) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.priority_waiters = priority;
        }
    }
}

#[cfg(test)]
mod tests;
