//! Single requests against a store, and what each reply means when keys change before or after it.

use bytes::Bytes;

use super::*;
use crate::id::{ElectionName, LockName, Namespace};
use crate::keyspace::Keyspace;
use crate::kv::{Get, Selection};
use crate::layout::Layout;
use crate::limits::Limits;
use crate::record::{Record, ResignationRecord, Timestamp};
use crate::txn::{Op, Txn, TxnReply};

const EPOCH: RequestId = RequestId(1);

/// A queue in a store, with one lease.
struct Queue {
    store: Keyspace,
    layout: Layout,
    prefix: Bytes,
    lease: LeaseId,
    requests: QueueRequests,
    /// Replies carry it back; its value does not matter.
    id: WaiterId,
}

impl Queue {
    fn new(kind: QueueKind) -> Queue {
        let layout = Layout::new(&Namespace::parse("t").unwrap());
        let prefix = match kind {
            QueueKind::Lock => layout.waiters(&LockName::parse("a").unwrap()),
            QueueKind::Election => layout.candidates(&ElectionName::parse("a").unwrap()),
        };
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let lease = lease(1);
        store.grant(lease, Duration::from_secs(60), NOW).unwrap();
        let requests = QueueRequests::new(&layout, kind, 0);
        let id = WaitQueue::new(0).enter(lease, LockMode::Exclusive);
        Queue { store, prefix: prefix.first().clone(), layout, lease, requests, id }
    }

    fn queue_key(&self, nonce: u64) -> QueueKey {
        QueueKey { lease: self.lease, nonce }
    }

    fn apply(&mut self, op: Op) -> Token {
        Token(self.store.apply(&Txn::new().then(op), NOW).unwrap().revision)
    }

    fn put(&mut self, nonce: u64) -> Token {
        let key = self.queue_key(nonce).key_in(&self.prefix);
        self.apply(Op::put_leased(key, "", self.lease))
    }

    fn delete(&mut self, nonce: u64) {
        let key = self.queue_key(nonce).key_in(&self.prefix);
        self.apply(Op::delete(key));
    }

    fn put_foreign(&mut self) {
        let key = [&self.prefix[..], b"foreign"].concat();
        self.apply(Op::put(key, ""));
    }

    fn enter(&self, nonce: u64, lookup: PredecessorLookup, may_be_stored: bool) -> QueueOutput {
        let (id, mode, guard) = (self.id, LockMode::Exclusive, EnterGuard::default());
        QueueOutput::Enter {
            id,
            epoch: EPOCH,
            queue_key: self.queue_key(nonce),
            mode,
            lookup,
            may_be_stored,
            guard,
        }
    }

    fn look(&self, nonce: u64, token: Token, predecessor: Predecessor) -> QueueOutput {
        QueueOutput::ReadPredecessor {
            id: self.id,
            epoch: EPOCH,
            queue_key: self.queue_key(nonce),
            token,
            predecessor,
        }
    }

    fn leave(&self, nonce: u64, after: AfterLeave) -> QueueOutput {
        let (id, queue_key) = (self.id, self.queue_key(nonce));
        QueueOutput::Leave { id, epoch: EPOCH, queue_key, after, settles: None, held: None }
    }

    fn send(&mut self, action: QueueOutput) -> TxnReply {
        let txn = self.requests.txn(&self.prefix, action, &Bytes::new(), Timestamp(7));
        self.store.apply(&txn, NOW).unwrap()
    }

    fn handle(&mut self, action: QueueOutput, reply: TxnReply) -> QueueReply {
        match self.requests.handle(&self.prefix, action, Ok(reply)) {
            ReplyProgress::Done(reply) => reply,
            ReplyProgress::Read(read) => {
                let page = self.store.get(&read.get(), NOW);
                read.handle(page)
            }
        }
    }

    fn exchange(&mut self, action: QueueOutput) -> QueueReply {
        let reply = self.send(action);
        self.handle(action, reply)
    }

    fn looked(&mut self, action: QueueOutput) -> PredecessorReply {
        match self.exchange(action) {
            QueueReply::Predecessor(_, _, looked, _) => looked,
            other => panic!("{other:?} is no reply to a read"),
        }
    }
}

/// A request that arrives late puts the key anew, behind keys that came meanwhile. Its old token is
/// worth nothing.
#[test]
fn own_key_at_another_create_revision_is_missing() {
    let mut queue = Queue::new(QueueKind::Lock);
    let token = queue.put(1);
    let reads = [Predecessor::None, Predecessor::Unknown, Predecessor::Nearest(queue.queue_key(7))];
    for predecessor in reads {
        let look = queue.look(1, token, predecessor);
        assert_eq!(queue.looked(look), PredecessorReply::Stored { predecessor: None }, "{predecessor:?}");
    }
    queue.delete(1);
    queue.put(2);
    queue.put(1);
    for predecessor in reads {
        let look = queue.look(1, token, predecessor);
        assert_eq!(queue.looked(look), PredecessorReply::Missing, "{predecessor:?}");
    }
}

/// A foreign key needs a second read. Between the two the own key goes, and its predecessors too.
#[test]
fn second_read_checks_the_own_key_again() {
    let mut queue = Queue::new(QueueKind::Lock);
    queue.put(1);
    queue.put_foreign();
    let token = queue.put(2);
    let look = queue.look(2, token, Predecessor::Unknown);
    assert_eq!(queue.looked(look), PredecessorReply::Stored { predecessor: Some(queue.queue_key(1)) });
    let first = queue.send(look);
    queue.delete(1);
    queue.delete(2);
    let QueueReply::Predecessor(_, _, looked, _) = queue.handle(look, first) else { panic!("a look") };
    assert_eq!(looked, PredecessorReply::NotDone, "no predecessor, and no own key either");
}

/// The reply to the first enter was lost. The second finds the key: its token is when the key was
/// created, not when it was found.
#[test]
fn found_key_has_its_create_revision_as_token() {
    let mut queue = Queue::new(QueueKind::Lock);
    queue.put(1);
    let enter = queue.enter(2, PredecessorLookup::All, false);
    let created = Token(queue.send(enter).revision);
    queue.put(3);
    for lookup in [PredecessorLookup::All, PredecessorLookup::Skip] {
        let again = queue.enter(2, lookup, true);
        let QueueReply::Enter(_, _, entered, _) = queue.exchange(again) else { panic!("an enter") };
        let (EnterReply::Stored { token, .. } | EnterReply::Joined { token }) = entered else {
            panic!("{entered:?}")
        };
        assert_eq!(token, created, "{lookup:?}");
    }
}

#[test]
fn predecessor_of_the_preceding_revision_is_found() {
    let mut queue = Queue::new(QueueKind::Lock);
    let predecessor = queue.put(1);
    let token = queue.put(2);
    assert_eq!(token.0, predecessor.0.next());
    let expected = PredecessorReply::Stored { predecessor: Some(queue.queue_key(1)) };
    for predecessor in [Predecessor::Unknown, Predecessor::Nearest(queue.queue_key(9))] {
        let look = queue.look(2, token, predecessor);
        assert_eq!(queue.looked(look), expected, "{predecessor:?}");
    }
    queue.put_foreign();
    let again = queue.enter(2, PredecessorLookup::All, true);
    let QueueReply::Enter(_, _, entered, _) = queue.exchange(again) else { panic!("an enter") };
    assert!(matches!(entered, EnterReply::Stored { predecessor: Some(_), .. }), "{entered:?}");
}

/// The next waiter was known by key and token. Its key was deleted and put anew: then it has
/// another token, and others before it.
#[test]
fn successor_put_again_does_not_inherit_hold() {
    let mut queue = Queue::new(QueueKind::Lock);
    queue.put(1);
    let known = queue.put(2);
    queue.delete(2);
    queue.put(3);
    let anew = queue.put(2);
    for (token, first) in [(known, vec![]), (anew, vec![(queue.queue_key(2), anew)])] {
        let leave = queue.leave(1, AfterLeave::Successor(queue.queue_key(2), token));
        let QueueReply::Leave(_, _, left, _) = queue.exchange(leave) else { panic!("a leave") };
        let LeaveReply::Gone { first: shown, .. } = left else { panic!("{left:?}") };
        assert_eq!(shown, first);
    }
}

/// The predecessor's key was deleted and put anew, so it is behind. The read has to search for the
/// real predecessor.
#[test]
fn predecessor_that_was_put_anew_is_behind() {
    let mut queue = Queue::new(QueueKind::Lock);
    queue.put(1);
    queue.put(2);
    let token = queue.put(3);
    let look = queue.look(3, token, Predecessor::Nearest(queue.queue_key(2)));
    assert_eq!(queue.looked(look), PredecessorReply::Stored { predecessor: Some(queue.queue_key(2)) });
    queue.delete(2);
    queue.put(2);
    assert_eq!(queue.looked(look), PredecessorReply::Stored { predecessor: Some(queue.queue_key(1)) });
}

/// The history of a store shows a resignation and an expiry as the same delete.
#[test]
fn resignation_is_recorded_for_terms_alone() {
    for kind in [QueueKind::Lock, QueueKind::Election] {
        let mut queue = Queue::new(kind);
        let token = queue.put(1);
        for (nonce, held) in [(2, None), (1, Some(token))] {
            queue.put(2);
            let QueueOutput::Leave { id, epoch, queue_key, after, settles, .. } =
                queue.leave(nonce, AfterLeave::Nothing)
            else {
                panic!("a leave")
            };
            queue.send(QueueOutput::Leave { id, epoch, queue_key, after, settles, held });
            let page = queue.store.get(&Get::new(queue.layout.resignations()), NOW).unwrap();
            let recorded: Vec<Option<Token>> =
                page.pairs.iter().map(|pair| ResignationRecord::decode(&pair.value).unwrap().token).collect();
            let expected = held.filter(|_| kind == QueueKind::Election).map(Some);
            assert_eq!(recorded, expected.into_iter().collect::<Vec<_>>(), "{kind:?}");
        }
        // It goes with the lease.
        queue.store.revoke(queue.lease, NOW).unwrap();
        assert!(queue.store.get(&Get::new(Selection::everything()), NOW).unwrap().pairs.is_empty());
    }
}
