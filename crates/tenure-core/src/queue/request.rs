//! The transactions of a queue: each [`QueueOutput`] is one. [`reply`](super::reply) reads what the
//! store replies.
//!
//! **Invariant** (G4): no key is deleted but the own queue key, which no other client ever puts.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{AfterLeave, EnterGuard, Predecessor, PredecessorLookup, QueueOutput};
use crate::kv::{Get, Selection, SortOrder};
use crate::layout::{Layout, PREFERRED, PriorityClass, QueueKey};
use crate::lease::LeaseId;
use crate::record::{Record, ResignationRecord, Timestamp};
use crate::revision::Token;
use crate::txn::{Comparison, Condition, Field, Op, Txn};

/// How many keys of a queue one read returns: one read serves that many hand-offs. Doubled, every
/// such read carries twice as much. Tests use a few, so that their queues are longer than what a
/// read returns.
const SHOWN_MAX: u32 = if cfg!(test) { 3 } else { 128 };

/// How many preferred candidates are read; if there are more, the next leader reads the whole queue
/// in one more request.
const PREFERRED_MAX: u32 = 128;

/// How many released keys of this driver a read may pass over: fewer cost less than a second read
/// around them. etcd walks over each deleted key until its history is compacted.
const RELEASED_MAX: u64 = 16;

/// The purpose of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// A lock: the oldest key holds.
    Lock,
    /// An election: preferred candidates may lead before older ones, so their records are read too.
    Election,
}

/// Builds the requests of one queue driver and reads their replies.
#[derive(Clone, Debug)]
pub struct QueueRequests {
    pub(super) kind: QueueKind,
    /// Below the nonces of all queue keys of this driver.
    nonce_first: u64,
    /// The prefix of the enter guards.
    guards: Bytes,
    /// The prefix of the resignations.
    resignations: Bytes,
}

impl QueueRequests {
    /// Creates the requests of a driver with nonces above `nonce_first`.
    pub fn new(layout: &Layout, kind: QueueKind, nonce_first: u64) -> QueueRequests {
        let guards = layout.enter_guards().first().clone();
        let resignations = layout.resignations().first().clone();
        QueueRequests { kind, nonce_first, guards, resignations }
    }

    /// The purpose of the queues of this driver.
    pub fn kind(&self) -> QueueKind {
        self.kind
    }

    /// Returns the transaction of a request on the queue with this prefix. `value` is the value
    /// that an enter puts; `at` is the time of a resignation.
    pub fn txn(&self, queue: &Bytes, action: QueueOutput, value: &Bytes, at: Timestamp) -> Txn {
        match action {
            QueueOutput::Enter { queue_key, lookup, may_be_stored, guard, .. } => {
                let enter = EnterRequest { queue_key, lookup, may_be_stored, guard };
                self.enter(queue, enter, value)
            }
            QueueOutput::ReadPredecessor { queue_key, token, predecessor, .. } => {
                self.look(queue, queue_key, token, predecessor)
            }
            QueueOutput::Leave { queue_key, after, settles, held, .. } => {
                let resignation = held.filter(|_| self.kind == QueueKind::Election).map(|token| {
                    let record = ResignationRecord { token: Some(token), at, ..ResignationRecord::default() };
                    self.resignation(queue, queue_key.lease, &record)
                });
                self.leave(queue, queue_key, (after, settles), resignation.as_ref())
            }
        }
    }

    /// Records that a term ended by a request, under the lease of its leader: a session has one
    /// such key per election.
    pub fn resignation(&self, queue: &Bytes, lease: LeaseId, record: &ResignationRecord) -> Op {
        let election =
            queue[..queue.len().saturating_sub(1)].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let key = [&self.resignations[..], election, b"/", lease.to_string().as_bytes()].concat();
        Op::put_leased(key, record.encode(), lease)
    }

    /// The key of the enter guard of this driver and a lease. With one guard for all drivers of a
    /// lease, a lost request of one driver would refuse the next enter of every other.
    fn guard(&self, lease: LeaseId) -> Bytes {
        let guard = QueueKey { lease, nonce: self.nonce_first };
        [&self.guards[..], guard.to_string().as_bytes()].concat().into()
    }

    fn enter(&self, queue: &Bytes, enter: EnterRequest, value: &Bytes) -> Txn {
        let EnterRequest { queue_key, lookup, may_be_stored, guard } = enter;
        let key = queue_key.key_in(queue);
        let guard_key = self.guard(queue_key.lease);
        // If the reply to this request is lost and its key is released, the guard changes. Then
        // this request cannot be applied any more.
        let txn = Txn::new()
            .when(guard.unchanged(guard_key.clone()))
            .otherwise(Op::Get(Get::key(guard_key).keys_only()));
        // No other client puts this key. It is compared only if an earlier request may have put it.
        let txn = if may_be_stored {
            txn.when(Condition::absent(key.clone())).otherwise(own(queue, queue_key))
        } else {
            txn
        };
        // The read is before the put: the own key is not among the results, and an empty queue
        // returns nothing.
        let txn = match lookup {
            PredecessorLookup::Skip => txn,
            PredecessorLookup::All => txn.then(Op::Get(newest(queue))),
            // The preferred keys are apart from the ordinary ones, so the two ranges around this
            // key are not the whole queue.
            PredecessorLookup::Others if queue_key.rank() == PriorityClass::Preferred => {
                txn.then(Op::Get(newest(queue)))
            }
            // Few released keys: passing over them costs less than a second read.
            PredecessorLookup::Others if queue_key.nonce - self.nonce_first <= RELEASED_MAX => {
                txn.then(Op::Get(newest(queue)))
            }
            // The keys of this driver before this one are deleted. A key of another driver may lie
            // behind it, and may have been put since.
            PredecessorLookup::Others => {
                let first = QueueKey { nonce: self.nonce_first, ..queue_key }.key_in(queue);
                txn.then(Op::Get(newest_of(Selection::Range(queue.clone(), first))))
                    .then(Op::Get(newest_of(Selection::Range(key.clone(), end_of(queue)))))
            }
        };
        txn.then(Op::put_leased(key, value.clone(), queue_key.lease))
    }

    fn look(&self, queue: &Bytes, queue_key: QueueKey, token: Token, predecessor: Predecessor) -> Txn {
        let rest = || Op::Get(newest(queue).created_max(token.0.previous()));
        // All reads return the own key too: an old reply about predecessors is harmless, an old one
        // about the own key is not.
        let (predecessor, is_holder) = match predecessor {
            Predecessor::Unknown => {
                let txn = Txn::new().then(own(queue, queue_key)).then(rest());
                return self.preferred(queue).into_iter().fold(txn, Txn::then);
            }
            Predecessor::None => return Txn::new().then(own(queue, queue_key)),
            Predecessor::Nearest(predecessor) => (predecessor.key_in(queue), false),
            Predecessor::Holder(predecessor) => (predecessor.key_in(queue), true),
        };
        // The store searches the queue only if the predecessor is gone. A predecessor that was put
        // again may be behind the own key.
        let is_older =
            Condition { key: predecessor.clone(), is: Comparison::Less, field: Field::Created(token.0) };
        let txn = Txn::new()
            .when(Condition::exists(predecessor))
            .when(is_older)
            .then(own(queue, queue_key))
            .otherwise(own(queue, queue_key));
        // A holder had no other key before it. Without the holder there is no predecessor to search
        // for.
        let txn = if is_holder { txn } else { txn.otherwise(rest()) };
        self.preferred(queue).into_iter().fold(txn, Txn::otherwise)
    }

    /// The delete needs no condition: no other client has this key, and this driver puts it again
    /// only when no request for it is in flight.
    fn leave(
        &self,
        queue: &Bytes,
        queue_key: QueueKey,
        (after, settles): (AfterLeave, Option<EnterGuard>),
        resignation: Option<&Op>,
    ) -> Txn {
        let delete = || Op::delete(queue_key.key_in(queue));
        let reads: Vec<Op> = match after {
            AfterLeave::Nothing => Vec::new(),
            AfterLeave::Successor(next, _) => vec![own(queue, next)],
            AfterLeave::Queue => {
                let whole = Get::prefix(queue.clone()).order(SortOrder::Created).limit(SHOWN_MAX);
                vec![Op::Get(whole.keys_only())]
            }
        };
        // Preferred candidates matter only to a waiter that may hold next.
        let preferred = self.preferred(queue).filter(|_| !reads.is_empty());
        let ops = || resignation.into_iter().chain(&reads).chain(&preferred).cloned();
        let Some(guard) = settles else {
            return ops().fold(Txn::new().then(delete()), Txn::then);
        };
        // A guard that differs already refuses the lost enter as well as a new one. The key is
        // deleted in both branches.
        let key = self.guard(queue_key.lease);
        let txn = Txn::new()
            .when(guard.unchanged(key.clone()))
            .then(delete())
            .then(Op::put_leased(key.clone(), Bytes::new(), queue_key.lease))
            .otherwise(delete())
            .otherwise(Op::Get(Get::key(key).keys_only()));
        ops().fold(txn, |txn, op| txn.then(op.clone()).otherwise(op))
    }

    /// Reads the preferred candidates only. A queue of a thousand ordinary ones is not read for
    /// them.
    fn preferred(&self, queue: &Bytes) -> Option<Op> {
        let from = || [&queue[..], PREFERRED.as_bytes()].concat().into();
        let get = || {
            Get::new(Selection::Range(from(), end_of(queue))).order(SortOrder::Created).limit(PREFERRED_MAX)
        };
        (self.kind == QueueKind::Election).then(|| Op::Get(get()))
    }
}

/// The fields of [`QueueOutput::Enter`] that its transaction depends on.
#[derive(Clone, Copy)]
struct EnterRequest {
    queue_key: QueueKey,
    lookup: PredecessorLookup,
    may_be_stored: bool,
    guard: EnterGuard,
}

/// The own key, without its value.
fn own(queue: &Bytes, queue_key: QueueKey) -> Op {
    Op::Get(Get::key(queue_key.key_in(queue)).keys_only())
}

fn newest(queue: &Bytes) -> Get {
    newest_of(Selection::Prefix(queue.clone()))
}

/// The newest key only. If it is foreign, a second read passes over it.
fn newest_of(select: Selection) -> Get {
    Get::new(select).order(SortOrder::CreatedDescending).limit(1).keys_only()
}

fn end_of(queue: &Bytes) -> Bytes {
    Selection::Prefix(queue.clone()).end().unwrap_or_default()
}

/// Decides which requests of one driver may share a batch. `Q` identifies a queue.
///
/// **Invariant**: a batch puts at most one key of a queue. Two keys would have one create revision,
/// and none would be the older one.
///
/// **Invariant**: a read of the predecessor shares a batch with no other request of its queue: it
/// may or may not see a key that the batch deletes.
///
/// **Invariant**: a batch changes an enter guard once, because etcd refuses two changes of a key in
/// one transaction.
#[derive(Clone, Debug)]
pub struct BatchRequests<Q> {
    queues: BTreeMap<Q, BatchShare>,
    changes_guard: bool,
}

impl<Q> Default for BatchRequests<Q> {
    fn default() -> BatchRequests<Q> {
        BatchRequests { queues: BTreeMap::new(), changes_guard: false }
    }
}

impl<Q: Ord> BatchRequests<Q> {
    /// Begins an empty batch.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.changes_guard = false;
    }

    /// Adds a request, if it may share the batch. Returns whether it was added.
    pub fn takes(&mut self, queue: Q, output: QueueOutput) -> bool {
        let changes_guard = matches!(output, QueueOutput::Leave { settles: Some(_), .. });
        // Two leaves with lost enters wait for two batches.
        if changes_guard && std::mem::replace(&mut self.changes_guard, true) {
            return false;
        }
        self.queues.entry(queue).or_default().takes(output)
    }
}

/// The requests of one queue in a batch. All of them happen at one revision, in an order that the
/// engine chooses.
#[derive(Clone, Debug, Default)]
struct BatchShare {
    is_alone: bool,
    puts: bool,
    reads: bool,
    is_taken: bool,
}

impl BatchShare {
    fn takes(&mut self, output: QueueOutput) -> bool {
        let fits = !self.is_alone
            && match output {
                // It only puts. A key that the same batch deletes is older, and its reply passes
                // the hold on.
                QueueOutput::Enter { lookup: PredecessorLookup::Skip, may_be_stored: false, .. } => {
                    !std::mem::replace(&mut self.puts, true)
                }
                QueueOutput::Leave { after: AfterLeave::Nothing, .. } => true,
                // It reads the same with and without the other requests: older keys stay, and the
                // replies of deleted ones pass the hold on.
                QueueOutput::Leave { after: AfterLeave::Successor(..) | AfterLeave::Queue, .. } => {
                    !std::mem::replace(&mut self.reads, true)
                }
                QueueOutput::Enter { .. } | QueueOutput::ReadPredecessor { .. } => {
                    self.is_alone = !self.is_taken;
                    self.is_alone
                }
            };
        self.is_taken = true;
        fits
    }
}
