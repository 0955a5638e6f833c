//! The meaning of the store's replies to a queue's requests.
//!
//! A reply becomes a [`QueueReply`] for the machine, or leads to a second read: a foreign key under
//! the queue's prefix may hide the predecessor. Then the whole queue up to the own key is read.
//!
//! **Invariant** (G6): a request with an unknown outcome is reported as unknown, never as failed.
//!
//! **Invariant** (G5): a predecessor, or that there is none, is reported only together with the own
//! key at its token, from one revision.

use std::sync::Arc;

use bytes::Bytes;

use super::request::{QueueKind, QueueRequests};
use super::{
    AfterLeave, EnterGuard, EnterReply, LeaveReply, Predecessor, PredecessorLookup, PredecessorReply,
    QueueOutput, WaiterId,
};
use crate::error::StoreError;
use crate::kv::{Get, KeyValue, Page};
use crate::layout::QueueKey;
use crate::revision::{RequestId, Token};
use crate::txn::{OpReply, TxnReply};

/// The preferred candidates at the revision at which an own key was the first; none if they were
/// not read, or are too many.
pub type PriorityWaiters = Option<Arc<[KeyValue]>>;

/// The reply to a request, in the machine's terms.
#[derive(Clone, Debug)]
pub enum QueueReply {
    /// To [`QueueOutput::Enter`].
    Enter(WaiterId, RequestId, EnterReply, PriorityWaiters),
    /// To [`QueueOutput::ReadPredecessor`].
    Predecessor(WaiterId, RequestId, PredecessorReply, PriorityWaiters),
    /// To [`QueueOutput::Leave`].
    Leave(WaiterId, RequestId, LeaveReply, PriorityWaiters),
}

impl QueueReply {
    /// Whether the request must be sent again after a backoff.
    pub fn is_failure(&self) -> bool {
        match self {
            QueueReply::Enter(_, _, reply, _) => matches!(reply, EnterReply::NotDone | EnterReply::Unknown),
            QueueReply::Predecessor(_, _, reply, _) => matches!(reply, PredecessorReply::NotDone),
            QueueReply::Leave(_, _, reply, _) => matches!(reply, LeaveReply::NotDone | LeaveReply::Unknown),
        }
    }
}

/// The result of reading a reply.
#[derive(Clone, Debug)]
pub enum ReplyProgress {
    /// The reply is complete.
    Done(QueueReply),
    /// One more read is needed.
    Read(SecondRead),
}

/// A read of the whole queue up to an own key, because foreign keys hide its predecessor.
#[derive(Clone, Debug)]
pub struct SecondRead {
    queue: Bytes,
    own: QueueKey,
    token: Token,
    purpose: SecondReadPurpose,
}

#[derive(Clone, Debug)]
enum SecondReadPurpose {
    Enter(Entering),
    Read(PredecessorReading),
}

impl SecondRead {
    fn new(queue: &Bytes, (own, token): (QueueKey, Token), purpose: SecondReadPurpose) -> SecondRead {
        SecondRead { queue: queue.clone(), own, token, purpose }
    }

    /// The read.
    pub fn get(&self) -> Get {
        Get::prefix(self.queue.clone()).created_max(self.token.0).keys_only()
    }

    /// Reads its reply.
    ///
    /// The own key is read again with the others. The first reply may be old. If the own key was
    /// deleted since, and its predecessors too, there would be no predecessor, and the waiter would
    /// hold without its key.
    pub fn handle(self, reply: Result<Page, StoreError>) -> QueueReply {
        let SecondRead { queue, own, token, purpose } = self;
        let predecessor = reply.ok().and_then(|page| {
            let is_own =
                |pair: &KeyValue| pair.created == token.0 && queue_key_of(&queue, &pair.key) == Some(own);
            page.pairs.iter().any(is_own).then(|| {
                let older = page.pairs.iter().filter(|pair| pair.created < token.0);
                let queue_keys =
                    older.filter_map(|pair| Some((pair.created, queue_key_of(&queue, &pair.key)?)));
                queue_keys.max_by_key(|(created, _)| *created).map(|(_, queue_key)| queue_key)
            })
        });
        match (purpose, predecessor) {
            (SecondReadPurpose::Enter(entering), Some(predecessor)) => {
                entering.reply(EnterReply::Stored { token, predecessor })
            }
            // The key is stored, but its predecessor is unknown: a second enter reads it.
            (SecondReadPurpose::Enter(entering), None) => entering.reply(EnterReply::Unknown),
            (SecondReadPurpose::Read(looking), Some(predecessor)) => {
                looking.reply(PredecessorReply::Stored { predecessor })
            }
            (SecondReadPurpose::Read(looking), None) => looking.reply(PredecessorReply::NotDone),
        }
    }
}

/// An enter, while its reply is read.
#[derive(Clone, Debug)]
struct Entering {
    id: WaiterId,
    epoch: RequestId,
    kind: QueueKind,
    /// Whether this very request put the key. Otherwise an earlier one did.
    is_new: bool,
}

impl Entering {
    fn reply(self, entered: EnterReply) -> QueueReply {
        // A key put into an empty queue has no preferred candidate before it.
        let is_alone = matches!(entered, EnterReply::Stored { predecessor: None, .. }) && self.is_new;
        let priority: PriorityWaiters =
            (is_alone && self.kind == QueueKind::Election).then(|| Arc::new([]) as Arc<[KeyValue]>);
        QueueReply::Enter(self.id, self.epoch, entered, priority)
    }

    fn done(self, entered: EnterReply) -> ReplyProgress {
        ReplyProgress::Done(self.reply(entered))
    }
}

/// A read of the predecessor, while its reply is read.
#[derive(Clone, Debug)]
struct PredecessorReading {
    id: WaiterId,
    epoch: RequestId,
    /// The preferred candidates in the first reply.
    priority: PriorityWaiters,
}

impl PredecessorReading {
    fn reply(self, looked: PredecessorReply) -> QueueReply {
        let priority =
            self.priority.filter(|_| matches!(looked, PredecessorReply::Stored { predecessor: None }));
        QueueReply::Predecessor(self.id, self.epoch, looked, priority)
    }

    fn done(self, looked: PredecessorReply) -> ReplyProgress {
        ReplyProgress::Done(self.reply(looked))
    }
}

impl QueueRequests {
    /// Reads the reply to the transaction of a request.
    pub fn handle(
        &self,
        queue: &Bytes,
        action: QueueOutput,
        reply: Result<TxnReply, StoreError>,
    ) -> ReplyProgress {
        match action {
            QueueOutput::Enter { id, epoch, queue_key, lookup, guard, .. } => {
                let is_new = reply.as_ref().is_ok_and(|reply| reply.succeeded);
                let entering = Entering { id, epoch, kind: self.kind, is_new };
                match reply {
                    Ok(reply) => entered(queue, (queue_key, lookup, guard), reply, entering),
                    Err(error) => entering.done(not_entered(error)),
                }
            }
            QueueOutput::ReadPredecessor { id, epoch, queue_key, token, predecessor } => {
                let looking = PredecessorReading { id, epoch, priority: None };
                match reply {
                    Ok(reply) => looked(queue, (queue_key, token, predecessor), reply, looking),
                    Err(_) => looking.done(PredecessorReply::NotDone),
                }
            }
            QueueOutput::Leave { id, epoch, after, settles, .. } => {
                let (left, priority) = left(queue, (after, settles), reply);
                ReplyProgress::Done(QueueReply::Leave(id, epoch, left, priority))
            }
        }
    }
}

/// Returns the queue key of a stored key; none if it is foreign.
pub fn queue_key_of(queue: &[u8], key: &[u8]) -> Option<QueueKey> {
    std::str::from_utf8(key.strip_prefix(queue)?).ok().and_then(QueueKey::parse)
}

fn not_entered(error: StoreError) -> EnterReply {
    match error {
        StoreError::LeaseNotFound => EnterReply::LeaseGone,
        StoreError::Ambiguous(_) => EnterReply::Unknown,
        StoreError::Invalid(_) | StoreError::Denied(_) => EnterReply::Refused(error),
        // A store that has ended for good takes no further request. All other errors may be over
        // after a backoff.
        error if error.is_fatal() => EnterReply::Refused(error),
        _ => EnterReply::NotDone,
    }
}

fn entered(
    queue: &Bytes,
    (own, lookup, guard): (QueueKey, PredecessorLookup, EnterGuard),
    reply: TxnReply,
    entering: Entering,
) -> ReplyProgress {
    let is_new = reply.succeeded;
    let mut pages = pages(reply.results).into_iter();
    // Without the put, the first read shows the guard that refused it.
    let guard_now = if is_new { guard } else { guard_in(pages.next()) };
    let found: Vec<KeyValue> = pages.flat_map(|page| page.pairs).collect();
    let token = if is_new {
        // The create revision is the token, and a put of this request has the revision of its
        // reply.
        Token(reply.revision)
    } else {
        let key = own.key_in(queue);
        match found.iter().find(|pair| pair.key == key) {
            Some(mine) => Token(mine.created),
            None if guard_now != guard => return entering.done(EnterReply::Stale { guard: guard_now }),
            // This request was applied twice, and its first key was deleted before the second was
            // applied.
            None => return entering.done(EnterReply::NotDone),
        }
    };
    let second_read = |entering| {
        ReplyProgress::Read(SecondRead::new(queue, (own, token), SecondReadPurpose::Enter(entering)))
    };
    match lookup {
        PredecessorLookup::Skip => entering.done(EnterReply::Joined { token }),
        // The read was in the transaction that put the key, so a predecessor that it shows is
        // older.
        PredecessorLookup::Others | PredecessorLookup::All if is_new => match nearest(queue, &found) {
            Ok(predecessor) => entering.done(EnterReply::Stored { token, predecessor }),
            Err(Foreign) => second_read(entering),
        },
        // The key was put by an earlier request, and keys behind it may be stored by now. Only a
        // read up to its token shows the predecessor.
        PredecessorLookup::Others | PredecessorLookup::All => second_read(entering),
    }
}

fn looked(
    queue: &Bytes,
    (own, token, seen): (QueueKey, Token, Predecessor),
    reply: TxnReply,
    looking: PredecessorReading,
) -> ReplyProgress {
    let is_still_there = reply.succeeded;
    let mut pages = pages(reply.results).into_iter();
    let is_own = |page: Page| {
        page.pairs.first().is_some_and(|pair| pair.created == token.0 && pair.key == own.key_in(queue))
    };
    // The own key decides first: without it the waiter has lost its turn, whatever the predecessors
    // are.
    match pages.next().map(is_own) {
        None => return looking.done(PredecessorReply::NotDone),
        Some(false) => return looking.done(PredecessorReply::Missing),
        Some(true) => {}
    }
    let rest = match seen {
        Predecessor::Nearest(predecessor) | Predecessor::Holder(predecessor) if is_still_there => {
            return looking.done(PredecessorReply::Stored { predecessor: Some(predecessor) });
        }
        Predecessor::Unknown | Predecessor::Nearest(_) => match pages.next() {
            Some(rest) => rest.pairs,
            None => return looking.done(PredecessorReply::NotDone),
        },
        // A holder had no other key before it, and a holder of the queue has no predecessor.
        Predecessor::Holder(_) | Predecessor::None => Vec::new(),
    };
    let looking = PredecessorReading { priority: preferred(pages.next()), ..looking };
    match nearest(queue, &rest) {
        Ok(predecessor) => looking.done(PredecessorReply::Stored { predecessor }),
        Err(Foreign) => {
            ReplyProgress::Read(SecondRead::new(queue, (own, token), SecondReadPurpose::Read(looking)))
        }
    }
}

fn left(
    queue: &Bytes,
    (after, settles): (AfterLeave, Option<EnterGuard>),
    reply: Result<TxnReply, StoreError>,
) -> (LeaveReply, PriorityWaiters) {
    let gone = |was_there, first, guard| LeaveReply::Gone { was_there, first, guard };
    let reply = match reply {
        Ok(reply) => reply,
        // Every key under the lease was deleted with it, and no lost enter can be applied any more.
        Err(StoreError::LeaseNotFound) => return (gone(false, Vec::new(), None), None),
        // Such a store takes no further request. The key is deleted with its lease.
        Err(error) if error.is_fatal() => return (gone(false, Vec::new(), None), None),
        Err(StoreError::Ambiguous(_)) => return (LeaveReply::Unknown, None),
        Err(_) => return (LeaveReply::NotDone, None),
    };
    let was_there = matches!(reply.results.first(), Some(OpReply::Delete { count }) if *count > 0);
    let mut pages = pages(reply.results).into_iter();
    // Success means that the guard was put by this transaction, so its revision is the reply's.
    let guard = settles
        .map(|_| if reply.succeeded { EnterGuard(Some(reply.revision)) } else { guard_in(pages.next()) });
    let Some(page) = pages.next() else { return (gone(was_there, Vec::new(), guard), None) };
    let mut first = queue_keys(queue, &page);
    if let AfterLeave::Successor(next, token) = after
        && first.first() != Some(&(next, token))
    {
        // The successor was deleted, or put again with another token.
        first.clear();
    }
    (gone(was_there, first, guard), preferred(pages.next()))
}

/// The enter guard that a page contains.
fn guard_in(page: Option<Page>) -> EnterGuard {
    EnterGuard(page.and_then(|page| Some(page.pairs.first()?.modified)))
}

/// The preferred candidates, if they were read and the page contains all.
fn preferred(page: Option<Page>) -> PriorityWaiters {
    page.filter(|page| !page.more).map(|page| page.pairs.into())
}

/// The queue keys of a page, in its order; foreign keys are left out.
fn queue_keys(queue: &Bytes, page: &Page) -> Vec<(QueueKey, Token)> {
    page.pairs
        .iter()
        .filter_map(|pair| Some((queue_key_of(queue, &pair.key)?, Token(pair.created))))
        .collect()
}

/// A foreign key is among those that were read, and others may be hidden behind it.
struct Foreign;

/// Returns the newest of the keys read before the own one.
fn nearest(queue: &Bytes, found: &[KeyValue]) -> Result<Option<QueueKey>, Foreign> {
    let mut nearest = None;
    for pair in found {
        let queue_key = queue_key_of(queue, &pair.key).ok_or(Foreign)?;
        nearest = nearest.max(Some((pair.created, queue_key)));
    }
    Ok(nearest.map(|(_, queue_key)| queue_key))
}

fn pages(results: Vec<OpReply>) -> Vec<Page> {
    let page = |result| match result {
        OpReply::Get(page) => Some(page),
        OpReply::Put | OpReply::Delete { .. } => None,
    };
    results.into_iter().filter_map(page).collect()
}
