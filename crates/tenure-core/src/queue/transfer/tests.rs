//! Transfers against a store, with lost and late requests.

use std::time::Duration;

use super::*;
use crate::error::Cause;
use crate::id::{ElectionName, Namespace};
use crate::keyspace::Keyspace;
use crate::kv::Selection;
use crate::layout::Layout;
use crate::lease::LeaseId;
use crate::limits::Limits;
use crate::time::Moment;

const NOW: Moment = Moment::ORIGIN;

/// An election with queue keys put in this order, by nonce.
struct Election {
    store: Keyspace,
    queue: Bytes,
    requests: QueueRequests,
    keys: Vec<(QueueKey, Token)>,
}

impl Election {
    fn new(len: u64) -> Election {
        let layout = Layout::new(&Namespace::parse("t").unwrap());
        let queue = layout.candidates(&ElectionName::parse("a").unwrap()).first().clone();
        let lease = LeaseId::new(1).unwrap();
        let mut store = Keyspace::new(Limits::EMBEDDED);
        store.grant(lease, Duration::from_secs(60), NOW).unwrap();
        let mut put = |nonce| {
            let queue_key = QueueKey { lease, nonce };
            let txn = Txn::new().then(Op::put_leased(queue_key.key_in(&queue), "", lease));
            (queue_key, Token(store.apply(&txn, NOW).unwrap().revision))
        };
        let keys = (1..=len).map(&mut put).collect();
        Election { requests: QueueRequests::new(&layout, QueueKind::Election, 0), queue, store, keys }
    }

    fn transfer(&self, heir: usize) -> Transfer {
        let (holder, heir) = (self.keys[0], self.keys[heir]);
        Transfer::new(self.requests.clone(), self.queue.clone(), holder, heir, Timestamp(7))
    }

    fn send(&mut self, transfer: &Transfer) -> Result<StoreReply, StoreError> {
        match transfer.request() {
            StoreRequest::Get(get) => self.store.get(&get, NOW).map(StoreReply::Page),
            StoreRequest::Txn(txn) => self.store.apply(&txn, NOW).map(StoreReply::Txn),
        }
    }

    /// Sends requests until there is a result. Returns the number of transactions.
    fn run(&mut self, transfer: &mut Transfer) -> (Transferred, usize) {
        let mut txns = 0;
        loop {
            txns += usize::from(matches!(transfer.request(), StoreRequest::Txn(_)));
            let reply = self.send(transfer);
            match transfer.handle(reply) {
                ExchangeStep::Send | ExchangeStep::Retry(_) => {}
                ExchangeStep::Done(result) => return (result.unwrap(), txns),
            }
        }
    }

    fn delete(&mut self, n: usize) {
        let key = self.keys[n].0.key_in(&self.queue);
        self.store.apply(&Txn::new().then(Op::delete(key)), NOW).unwrap();
    }

    /// The nonces of the keys in the queue.
    fn left(&mut self) -> Vec<u64> {
        let page = self.store.get(&Get::prefix(self.queue.clone()), NOW).unwrap();
        page.pairs.iter().filter_map(|pair| Some(queue_key_of(&self.queue, &pair.key)?.nonce)).collect()
    }
}

fn lost() -> StoreError {
    StoreError::Ambiguous(Cause::new("the reply was lost"))
}

#[test]
fn transfer_deletes_all_keys_before_the_heir() {
    let mut election = Election::new(5);
    let mut transfer = election.transfer(3);
    assert_eq!(election.run(&mut transfer), (Transferred::Done, 1));
    assert_eq!(election.left(), [4, 5]);
}

/// One transaction takes 120 keys. While the first of two is applied, the holder is still the
/// first.
#[test]
fn long_transfer_deletes_the_holder_last() {
    let mut election = Election::new(302);
    let mut transfer = election.transfer(300);
    let read = election.send(&transfer);
    assert!(matches!(transfer.handle(read), ExchangeStep::Send));
    for _ in 0..2 {
        let reply = election.send(&transfer);
        assert!(matches!(transfer.handle(reply), ExchangeStep::Send));
        assert_eq!(election.left().first(), Some(&1), "the holder leads until the last transaction");
    }
    assert_eq!(election.run(&mut transfer), (Transferred::Done, 1));
    assert_eq!(election.left(), [301, 302]);
}

#[test]
fn missing_key_refuses_the_transfer_and_changes_nothing() {
    for (gone, expected) in [(0, Transferred::HolderGone), (3, Transferred::HeirGone)] {
        let mut election = Election::new(5);
        election.delete(gone);
        let before = election.store.revision();
        let mut transfer = election.transfer(3);
        assert_eq!(election.run(&mut transfer).0, expected);
        assert_eq!(election.store.revision(), before);
    }
}

/// The transaction was applied and its reply lost: the transfer itself deleted the holder's key.
#[test]
fn lost_reply_is_settled_as_done() {
    let mut election = Election::new(3);
    let mut transfer = election.transfer(2);
    let read = election.send(&transfer);
    transfer.handle(read);
    election.send(&transfer).unwrap();
    assert!(matches!(transfer.handle(Err(lost())), ExchangeStep::Retry(_)));
    assert_eq!(election.run(&mut transfer).0, Transferred::Done);
    assert_eq!(election.left(), [3]);
}

/// A request that is applied after a later one finds the holder's key deleted.
#[test]
fn late_request_changes_nothing() {
    let mut election = Election::new(4);
    let mut transfer = election.transfer(2);
    let read = election.send(&transfer);
    transfer.handle(read);
    let StoreRequest::Txn(late) = transfer.request() else { panic!("a transaction") };
    transfer.handle(Err(lost()));
    assert_eq!(election.run(&mut transfer).0, Transferred::Done);
    let before = election.store.get(&Get::new(Selection::everything()), NOW).unwrap().pairs;
    assert!(!election.store.apply(&late, NOW).unwrap().succeeded);
    assert_eq!(election.store.get(&Get::new(Selection::everything()), NOW).unwrap().pairs, before);
}

/// An error that no retry can mend ends it; others are retried from the read on.
#[test]
fn only_permanent_errors_end_a_transfer() {
    let election = Election::new(3);
    let mut transfer = election.transfer(2);
    let unavailable = StoreError::Unavailable(Cause::new("no connection"));
    assert!(matches!(transfer.handle(Err(unavailable)), ExchangeStep::Retry(_)));
    assert!(matches!(transfer.request(), StoreRequest::Get(_)));
    assert!(matches!(transfer.handle(Err(StoreError::Closed)), ExchangeStep::Done(Err(_))));
}
