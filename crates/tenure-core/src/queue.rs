//! One queue, ordered by create revision: locks and elections share it.
//!
//! A waiter puts a *queue key* of its own under the name's prefix. The key with the lowest create revision holds; that revision is the
//! fencing token. Every other waiter watches only its predecessor, so that a release wakes one waiter and not all.
//! This machine is the queue of one name with the waiters of one process.
//!
//! Intuition: the predecessors of a key only become fewer. So a read of the queue, however old, errs on the safe side: it may make a waiter wait
//! longer, but never hold too early. Only the own key must not be old, and every read returns it too.
//!
//! ```text
//!   enter          stored, with a predecessor             without a predecessor
//!  ───────► Entering ────────────────────────► Waiting ────────────────────────► Holding
//!               └────────────── without a predecessor ──────────────────────────►  │ leave
//!                                                                  Leaving ◄───────┘
//! ```
//!
//! The waiters of one process help each other: the request that deletes one key also reads what the next local waiter must know. If that one is the
//! first now, it holds at once, without a watch and a second read. No key can come between two keys that were read as neighbours, so one
//! read of the queue serves many hand-offs, and of the next waiter only its own key has to be read.
//!
//! Between processes a holder may mark its key. The waiter behind it then knows that it has no other predecessor, and when the marked key is deleted
//! it reads its own key instead of a queue of a thousand.
//!
//! **Invariant**: a waiter holds only after a reply that showed its key, at its token, without a predecessor; or with one predecessor that
//! held and is deleted.
//!
//! **Invariant**: the key of a waiter that has left is deleted again and again until the store confirms that it is gone, or its lease ended.
//!
//! **Invariant**: an enter with a lost reply cannot be applied after its key was left. Every enter requires that the *enter
//! guard* of this driver and lease, a key outside the queue, is as the driver last saw it. Leaving a key with such an enter
//! changes the guard in the same transaction. No bound on the age of a request could do this: a paused member of etcd
//! applies it whenever it continues.
//!
//! **Invariant**: a key is reused only when every request that named it was certainly answered. So
//! a request that arrives late can only touch its own key.

mod barrier;
mod break_hold;
mod first_holder;
mod messages;
mod reply;
mod request;
mod rewrite;
mod steps;
mod transfer;
mod waiter;

use std::collections::{BTreeMap, VecDeque};

use crate::layout::{PriorityClass, QueueKey};
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::revision::{RequestId, Revision, Token};
use crate::sabotage::{SabotageRule, is_broken};
use crate::time::Moment;

use waiter::{NextRequest, PredecessorRead, Waiter, WaiterIndex, WaiterState};

pub use barrier::BarrierRound;
pub use break_hold::{BreakHold, Broken};
pub use messages::{
    AfterLeave, EnterGuard, EnterReply, HolderCount, LeaveReply, LockMode, Predecessor, PredecessorLookup,
    PredecessorReply, QueueEvent, QueueOutput,
};
pub use reply::{PriorityWaiters, QueueReply, ReplyProgress, SecondRead, queue_key_of};
pub use request::{BatchRequests, QueueKind, QueueRequests};
pub use rewrite::{
    AcquiredMark, CandidateChange, CandidateUpdate, PassedMark, RecordChange, Rewrite, RewriteError,
    RewriteLimit, Rewritten,
};
pub use transfer::{Transfer, Transferred};

/// How many keys a queue reuses. An enter reads past the older keys of this driver but not past
/// newer ones, and a store walks over every deleted key until its history is compacted.
const USED_AGAIN_MAX: u64 = 8;

/// One waiter of this process, from `enter` to the event that it has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaiterId(u64);

/// The queue of one name, with the waiters of one process.
#[derive(Clone, Debug, Default)]
pub struct WaitQueue {
    /// Boxed, because a map node has room for eleven values and most queues have one waiter.
    waiters: BTreeMap<WaiterId, Box<Waiter>>,
    /// The waiter of each key.
    queue_keys: BTreeMap<QueueKey, WaiterId>,
    index: WaiterIndex,
    counter: u64,
    /// The nonce of the newest key.
    nonce: u64,
    /// A request with a lost reply may still touch a key with this nonce or a smaller one.
    nonce_floor: u64,
    /// The enter guard of each lease, as it was last seen.
    guards: BTreeMap<LeaseId, EnterGuard>,
    /// The newest snapshot of the queue. Kept because it can arrive before the reply to the enter that it shows.
    snapshot: BTreeMap<Token, LockMode>,
    actions: VecDeque<QueueOutput>,
    notices: VecDeque<QueueEvent>,
}

impl WaitQueue {
    /// Creates a queue without waiters. `nonce` is random: it separates these keys from those of
    /// other drivers on the same lease.
    pub fn new(nonce: u64) -> WaitQueue {
        WaitQueue { nonce, nonce_floor: nonce, ..WaitQueue::default() }
    }

    /// Turns a queue without waiters into the queue of another name. It keeps its memory; its ids
    /// continue from `counter`.
    ///
    /// The reply to a request of the former queue may still arrive. If both queues counted from the
    /// same number, that reply would match a request of this queue, and a waiter would hold with
    /// the token of a deleted key.
    ///
    /// `guards` are the enter guards that other queues of this process have seen. Without them the
    /// first enter would be refused as stale.
    pub fn begin(&mut self, nonce: u64, counter: u64, guards: &BTreeMap<LeaseId, EnterGuard>) {
        assert!(self.is_empty() && self.actions.is_empty() && self.notices.is_empty(), "it has no waiters");
        (self.nonce, self.nonce_floor, self.counter) = (nonce, nonce, counter);
        self.snapshot.clear();
        self.guards.clone_from(guards);
    }

    /// The enter guards that this queue has seen.
    pub fn guards(&self) -> &BTreeMap<LeaseId, EnterGuard> {
        &self.guards
    }

    /// The newest id that was used.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Adds a waiter, with a key under this lease.
    pub fn enter(&mut self, lease: LeaseId, mode: LockMode) -> WaiterId {
        self.enter_ranked(lease, mode, PriorityClass::Ordinary)
    }

    /// Adds a waiter with a key of this priority class. The order of keys is the same for all
    /// classes.
    pub fn enter_ranked(&mut self, lease: LeaseId, mode: LockMode, rank: PriorityClass) -> WaiterId {
        let id = WaiterId(self.count());
        let queue_key = self.new_key(lease, rank);
        let epoch = RequestId(self.count());
        let guard = self.guard(lease);
        let waiter = Waiter::new(queue_key, mode, WaiterState::Entering { epoch, guard });
        self.waiters.insert(id, Box::new(waiter));
        self.queue_keys.insert(queue_key, id);
        // A new key of this process cannot be stored yet, so the first enter need not compare it.
        let (lookup, may_be_stored) = (self.lookup(mode, false), false);
        self.actions.push_back(QueueOutput::Enter {
            id,
            epoch,
            queue_key,
            mode,
            lookup,
            may_be_stored,
            guard,
        });
        id
    }

    /// Ends a waiter. [`QueueEvent::Released`] reports when its key is deleted.
    pub fn leave(&mut self, id: WaiterId, now: Moment) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        waiter.is_wanted = false;
        match waiter.state {
            // The reply to the request in flight decides what has to be undone.
            WaiterState::Entering { .. } | WaiterState::Leaving { .. } => {}
            WaiterState::BackingOff { .. } if waiter.may_be_stored() => self.send_leave(id, None),
            WaiterState::BackingOff { .. } => self.end(id),
            WaiterState::Waiting { token, .. } | WaiterState::Holding { token, .. } => {
                self.send_leave(id, Some(token));
            }
        }
        self.send_due_reads(now);
    }

    /// Handles the reply to [`QueueOutput::Enter`].
    pub fn handle_entered(
        &mut self,
        id: WaiterId,
        epoch: RequestId,
        answer: EnterReply,
        jitter: f64,
        now: Moment,
    ) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        // A late reply to an earlier enter of this waiter: a later request decides.
        let WaiterState::Entering { epoch: sent, guard } = waiter.state else { return };
        if sent != epoch {
            return;
        }
        if matches!(answer, EnterReply::Unknown) && !is_broken(SabotageRule::UnknownMayBeThere) {
            // Guards only grow, so the newest that was sent covers all earlier enters of this key.
            waiter.unsettled = waiter.unsettled.max(Some(guard));
            self.nonce_floor = self.nonce;
        }
        // The caller has left while the enter was in flight. What the enter may have put is
        // deleted.
        let (is_wanted, may_be_stored) = (waiter.is_wanted, waiter.may_be_stored());
        match answer {
            EnterReply::Stored { token, .. } | EnterReply::Joined { token } if !is_wanted => {
                self.send_leave(id, Some(token));
            }
            EnterReply::Stored { token, predecessor: None } => self.hold(id, token),
            EnterReply::Stored { token, predecessor } => {
                waiter.note_success();
                let is_exclusive = waiter.mode == LockMode::Exclusive;
                self.change(id, WaiterState::Waiting { token, predecessor, read: PredecessorRead::Idle });
                if is_exclusive {
                    self.notices.push_back(QueueEvent::Waits { id });
                } else {
                    // A predecessor alone decides nothing for a mode with several holders: only the
                    // modes of all predecessors do.
                    self.admit();
                }
                // A local predecessor left after the store read it. No watch reports its delete, so
                // the waiter reads again.
                if let Some(predecessor) = predecessor
                    && self.lease_of(id) == Some(predecessor.lease)
                    && !self.queue_keys.contains_key(&predecessor)
                {
                    self.wake(id, now);
                }
            }
            // The predecessor is local: it was skipped by this enter, and passes the hold on when
            // it leaves.
            EnterReply::Joined { token } => {
                debug_assert!(waiter.mode == LockMode::Exclusive, "shareable modes read their predecessors");
                waiter.note_success();
                self.change(
                    id,
                    WaiterState::Waiting { token, predecessor: None, read: PredecessorRead::Idle },
                );
                self.notices.push_back(QueueEvent::Waits { id });
            }
            EnterReply::LeaseGone => self.lose(id, LossReason::Revoked),
            EnterReply::Refused(why) => {
                let (queue_key, unsettled) = (waiter.queue_key, waiter.unsettled);
                self.abandon(id);
                self.settle_key(queue_key, unsettled, now);
                self.notices.push_back(QueueEvent::Refused { id, why });
            }
            EnterReply::Stale { guard } => {
                let lease = waiter.queue_key.lease;
                self.record_guard(lease, guard);
                // The guard was changed by the leave of another key. The enter is sent again with
                // the new guard.
                match (is_wanted, may_be_stored) {
                    (true, _) => self.send_enter(id),
                    (false, true) => self.send_leave(id, None),
                    (false, false) => self.end(id),
                }
            }
            EnterReply::NotDone | EnterReply::Unknown if is_wanted => {
                let until = waiter.back_off(jitter, now);
                self.change(id, WaiterState::BackingOff { until });
            }
            EnterReply::NotDone | EnterReply::Unknown if may_be_stored => self.send_leave(id, None),
            EnterReply::NotDone | EnterReply::Unknown => self.end(id),
        }
        self.send_due_reads(now);
    }

    /// Handles the reply to [`QueueOutput::ReadPredecessor`].
    pub fn handle_predecessor(
        &mut self,
        id: WaiterId,
        epoch: RequestId,
        answer: PredecessorReply,
        jitter: f64,
        now: Moment,
    ) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let mut state = waiter.state;
        let (WaiterState::Waiting { read, .. } | WaiterState::Holding { read, .. }) = &mut state else {
            return;
        };
        let PredecessorRead::Sent { epoch: sent, again } = *read else { return };
        if sent != epoch {
            return;
        }
        *read = match answer {
            PredecessorReply::NotDone => PredecessorRead::NeededAt(waiter.back_off(jitter, now)),
            // A change during the read may not be in its reply, so the read is repeated.
            PredecessorReply::Stored { .. } | PredecessorReply::Missing => {
                waiter.note_success();
                if again { PredecessorRead::NeededAt(now) } else { PredecessorRead::Idle }
            }
        };
        match (answer, &mut state) {
            (PredecessorReply::Missing, WaiterState::Waiting { token, .. })
                if is_broken(SabotageRule::OwnPlace) =>
            {
                self.hold(id, *token);
            }
            (PredecessorReply::Missing, _) => self.vanish(id, now),
            (PredecessorReply::Stored { predecessor: None }, WaiterState::Waiting { token, .. }) => {
                self.hold(id, *token);
            }
            (PredecessorReply::Stored { predecessor: seen }, WaiterState::Waiting { predecessor, .. }) => {
                *predecessor = seen;
                self.change(id, state);
            }
            (PredecessorReply::Stored { .. } | PredecessorReply::NotDone, _) => self.change(id, state),
        }
        self.send_due_reads(now);
    }

    /// Handles the reply to [`QueueOutput::Leave`].
    pub fn handle_left(
        &mut self,
        id: WaiterId,
        epoch: RequestId,
        answer: LeaveReply,
        jitter: f64,
        now: Moment,
    ) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let WaiterState::Leaving { token, next: NextRequest::Sent { epoch: sent } } = waiter.state else {
            return;
        };
        if sent != epoch {
            return;
        }
        match answer {
            LeaveReply::NotDone | LeaveReply::Unknown => {
                // An earlier leave may be applied later. Reusing its key before that would delete
                // the new one.
                if matches!(answer, LeaveReply::Unknown) {
                    waiter.may_have_left = true;
                    self.nonce_floor = self.nonce;
                }
                let next = NextRequest::At(waiter.back_off(jitter, now));
                self.change(id, WaiterState::Leaving { token, next });
            }
            LeaveReply::Gone { was_there, first, guard } => {
                let queue_key = waiter.queue_key;
                let is_news = !std::mem::replace(&mut waiter.was_reported, true);
                // A key that an earlier request of this waiter may have deleted counts as stored.
                let was_there = was_there || waiter.may_have_left;
                // The same transaction has changed the guard if an enter was unsettled: the key cannot come back.
                self.forget(id);
                if let Some(guard) = guard {
                    self.record_guard(queue_key.lease, guard);
                }
                if is_news {
                    self.notices.push_back(QueueEvent::Released { id, was_there });
                }
                self.pass_on((queue_key, token), &first);
            }
        }
        self.send_due_reads(now);
    }

    /// Reports that a key named by [`WaitQueue::watched_predecessor`] is watched from now on.
    /// Earlier changes must be read.
    pub fn handle_watched(&mut self, queue_key: QueueKey, now: Moment) {
        let behind = self.first_successor(queue_key);
        for id in self.queue_keys.get(&queue_key).copied().into_iter().chain(behind) {
            self.wake(id, now);
        }
        self.send_due_reads(now);
    }

    /// Reports that a key was deleted at this revision.
    pub fn handle_gone(&mut self, queue_key: QueueKey, revision: Revision, now: Moment) {
        let behind = self.first_successor(queue_key);
        // A retried request may have put the key again since.
        let token = |id| self.waiters.get(id).and_then(|waiter| waiter.token());
        if let Some(&id) = self.queue_keys.get(&queue_key)
            && token(&id).is_none_or(|token| token.0 <= revision)
        {
            self.vanish(id, now);
        }
        if let Some(id) = behind {
            self.wake(id, now);
        }
        self.send_due_reads(now);
    }

    /// Reports that the key with this token was marked as holder at `revision`.
    ///
    /// The mark counts for the first local waiter behind it, if its own key was stored at that
    /// time. Keys are reused, and the mark of an earlier hold does not count for this one.
    pub fn handle_holder(&mut self, queue_key: QueueKey, token: Token, revision: Revision) {
        let Some(waiter) = self.first_successor(queue_key).and_then(|id| self.waiters.get_mut(&id)) else {
            return;
        };
        if waiter.token().is_some_and(|own| token < own && own.0 < revision) {
            waiter.holder = Some(queue_key);
        }
    }

    /// Whether a local waiter is known to be the successor of a local key. The release then passes
    /// the hold on, and the key needs no mark.
    pub fn has_local_successor(&self, queue_key: QueueKey) -> bool {
        self.queue_keys.contains_key(&queue_key) && self.first_successor(queue_key).is_some()
    }

    /// Handles a snapshot of the whole queue with the mode of each key. It decides for the
    /// shareable modes (shared and permit).
    pub fn handle_snapshot(&mut self, snapshot: BTreeMap<Token, LockMode>, now: Moment) {
        self.snapshot = snapshot;
        self.admit();
        self.send_due_reads(now);
    }

    /// Reports that a lease ended, and every key under it with it.
    pub fn handle_lease_lost(&mut self, lease: LeaseId, now: Moment) {
        let under = QueueKey { lease, nonce: 0 }..=QueueKey { lease, nonce: u64::MAX };
        let lost: Vec<WaiterId> = self.queue_keys.range(under).map(|(_, &id)| id).collect();
        for id in lost {
            let token = self.waiters.get(&id).and_then(|waiter| waiter.token());
            self.lose(id, LossReason::Revoked);
            self.wake_successor(token, now);
        }
        self.guards.remove(&lease);
        self.send_due_reads(now);
    }

    /// Advances to the current time.
    pub fn handle_time(&mut self, now: Moment) {
        while let Some(&(at, id)) = self.index.due.first()
            && at <= now
        {
            let Some(waiter) = self.waiters.get(&id) else { return };
            match waiter.state {
                WaiterState::BackingOff { .. } => self.send_enter(id),
                WaiterState::Leaving { token, .. } => self.send_leave(id, token),
                WaiterState::Entering { .. } | WaiterState::Waiting { .. } | WaiterState::Holding { .. } => {
                    unreachable!("no request is due while one is in flight or the key is stored")
                }
            }
        }
        self.send_due_reads(now);
    }

    /// The next request.
    pub fn poll_output(&mut self) -> Option<QueueOutput> {
        self.actions.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<QueueEvent> {
        self.notices.pop_front()
    }

    /// When to call [`WaitQueue::handle_time`] if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        let reads = self.index.reads.iter().filter(|id| self.may_read(**id));
        let reads = reads.filter_map(|id| self.waiters.get(id)?.read_at());
        self.index.due.first().map(|(at, _)| *at).into_iter().chain(reads).min()
    }

    /// The own keys that must be watched, each from its token on.
    pub fn own_keys(&self) -> impl Iterator<Item = (QueueKey, Option<Token>)> + Clone {
        let first = self.index.queue.values().next();
        let waiters = self.index.holding.iter().chain(first);
        let waiters = waiters.filter_map(|id| self.waiters.get(id));
        waiters.map(|waiter| (waiter.queue_key, waiter.token()))
    }

    /// The predecessor of the first local waiter, if it must be watched. A local one passes the
    /// hold on by itself.
    pub fn watched_predecessor(&self) -> Option<QueueKey> {
        let first = self.index.queue.values().next().and_then(|id| self.waiters.get(id))?;
        first.predecessor().filter(|&predecessor| !self.will_pass_on(predecessor, first.token()))
    }

    /// Whether the whole queue must be watched, because a local waiter has a shareable mode.
    pub fn needs_snapshot(&self) -> bool {
        !self.index.shareable.is_empty()
    }

    /// Whether this process has no waiter in the queue.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The nonce from which the next machine of this queue continues.
    pub fn nonce_floor(&self) -> u64 {
        if self.nonce - self.nonce_floor > USED_AGAIN_MAX { self.nonce } else { self.nonce_floor }
    }

    /// Returns the waiter of a key; none if the key is not local.
    pub fn id(&self, queue_key: QueueKey) -> Option<WaiterId> {
        self.queue_keys.get(&queue_key).copied()
    }

    /// Returns the key of a waiter, and its token if it is stored.
    pub fn queue_key(&self, id: WaiterId) -> Option<(QueueKey, Option<Token>)> {
        self.waiters.get(&id).map(|waiter| (waiter.queue_key, waiter.token()))
    }
}

#[cfg(test)]
mod tests;
