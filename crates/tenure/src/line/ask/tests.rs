//! The requests of a queue against a store in memory: what each reply means when keys change before or after it.
//!
//! Core's random worlds model these requests; only the tests here run them.

use std::time::Duration;

use tenure_core::line::{Line, Mode};

use super::*;
use crate::store::Revision;

const LINE: &str = "/locks/a/";
const EPOCH: Epoch = Epoch(1);

/// A queue in a store in memory, with one lease.
struct Queue {
    store: Store,
    line: Bytes,
    lease: LeaseId,
    terms: Terms,
    /// Replies carry it back; its value does not matter.
    ticket: Ticket,
}

impl Queue {
    async fn new() -> Queue {
        let store = Store::memory();
        let lease = store.grant(Duration::from_secs(60), None).await.unwrap().id;
        let terms = Terms { regard: Regard::Before, nonce_first: 0, guards: Bytes::from_static(b"/guards/") };
        let line = Bytes::from_static(LINE.as_bytes());
        let ticket = Line::new(0).stand(lease, Mode::Exclusive);
        Queue { store, line, lease, terms, ticket }
    }

    fn place(&self, nonce: u64) -> Place {
        Place { lease: self.lease, nonce }
    }

    async fn put(&self, nonce: u64) -> Token {
        let key = key(&self.line, self.place(nonce));
        Token(self.store.put_leased(key, "", self.lease).await.unwrap())
    }

    async fn delete(&self, nonce: u64) {
        let count = self.store.delete(Selection::key(key(&self.line, self.place(nonce)))).await.unwrap();
        assert_eq!(count, 1);
    }

    /// A key under the queue's prefix that is no place.
    async fn put_stranger(&self) -> Revision {
        self.store.put([LINE, "stranger"].concat(), "").await.unwrap()
    }

    fn enter(&self, nonce: u64, asks: Asks, may_be_there: bool) -> Action {
        let (ticket, epoch, mode, guard) = (self.ticket, EPOCH, Mode::Exclusive, EnterGuard::default());
        Action::Enter { ticket, epoch, place: self.place(nonce), mode, asks, may_be_there, guard }
    }

    fn look(&self, nonce: u64, token: Token, before: Before) -> Action {
        let (ticket, epoch) = (self.ticket, EPOCH);
        Action::Look { ticket, epoch, place: self.place(nonce), token, before }
    }

    fn leave(&self, nonce: u64, then: Then) -> Action {
        let (ticket, epoch) = (self.ticket, EPOCH);
        Action::Leave { ticket, epoch, place: self.place(nonce), then, settles: None }
    }

    async fn send(&self, action: Action) -> Result<TxnReply, StoreError> {
        self.store.txn(txn(&self.line, action, &Bytes::new(), &self.terms)).await
    }

    async fn understand(&self, action: Action, reply: Result<TxnReply, StoreError>) -> Answer {
        understand(&self.store, &self.terms, &self.line, action, reply).await
    }

    async fn ask(&self, action: Action) -> Answer {
        let reply = self.send(action).await;
        self.understand(action, reply).await
    }

    async fn looked(&self, action: Action) -> Looked {
        match self.ask(action).await {
            Answer::Looked(_, _, looked, _) => looked,
            Answer::Entered(..) | Answer::Left(..) | Answer::Recorded(..) => panic!("no reply to a look"),
        }
    }
}

/// A request that arrives late puts the key anew, behind keys that came meanwhile. Its old token is worth nothing.
#[tokio::test]
async fn own_key_at_another_create_revision_is_missing() {
    let queue = Queue::new().await;
    let token = queue.put(1).await;
    for before in [Before::Nobody, Before::Unknown, Before::Nearest(queue.place(7))] {
        let look = queue.look(1, token, before);
        assert_eq!(queue.looked(look).await, Looked::Stands { before: None }, "{before:?}");
    }
    queue.delete(1).await;
    queue.put(2).await;
    queue.put(1).await;
    for before in [Before::Nobody, Before::Unknown, Before::Nearest(queue.place(7))] {
        let look = queue.look(1, token, before);
        assert_eq!(queue.looked(look).await, Looked::Missing, "{before:?}");
    }
}

/// A stranger's key needs a second read. Between the two the own key goes, and its predecessors too.
#[tokio::test]
async fn second_read_checks_the_own_key_again() {
    let queue = Queue::new().await;
    queue.put(1).await;
    queue.put_stranger().await;
    let token = queue.put(2).await;
    let look = queue.look(2, token, Before::Unknown);
    assert_eq!(queue.looked(look).await, Looked::Stands { before: Some(queue.place(1)) });
    let first = queue.send(look).await;
    queue.delete(1).await;
    queue.delete(2).await;
    let Answer::Looked(_, _, looked, _) = queue.understand(look, first).await else { panic!("a look") };
    assert_eq!(looked, Looked::NotDone, "no predecessor, and no own key either");
}

/// The reply to the first enter was lost. The second finds the key: its token is when the key was created, not when it was found.
#[tokio::test]
async fn found_key_has_its_create_revision_as_token() {
    let queue = Queue::new().await;
    queue.put(1).await;
    let enter = queue.enter(2, Asks::All, false);
    let created = Token(queue.send(enter).await.unwrap().revision);
    queue.put(3).await;
    for asks in [Asks::All, Asks::Nobody] {
        let again = queue.enter(2, asks, true);
        let Answer::Entered(_, _, entered, _) = queue.ask(again).await else { panic!("an enter") };
        let (Entered::Stands { token, .. } | Entered::Joined { token }) = entered else {
            panic!("{entered:?}")
        };
        assert_eq!(token, created, "{asks:?}");
    }
}

#[tokio::test]
async fn predecessor_of_the_preceding_revision_is_found() {
    let queue = Queue::new().await;
    let before = queue.put(1).await;
    let token = queue.put(2).await;
    assert_eq!(token.0, before.0.next());
    let expected = Looked::Stands { before: Some(queue.place(1)) };
    for before in [Before::Unknown, Before::Nearest(queue.place(9))] {
        let look = queue.look(2, token, before);
        assert_eq!(queue.looked(look).await, expected, "{before:?}");
    }
    queue.put_stranger().await;
    let again = queue.enter(2, Asks::All, true);
    let Answer::Entered(_, _, entered, _) = queue.ask(again).await else { panic!("an enter") };
    assert!(matches!(entered, Entered::Stands { before: Some(_), .. }), "{entered:?}");
}

/// The next waiter was known by key and token. Its key was deleted and put anew: then it has another token, and others before it.
#[tokio::test]
async fn next_key_that_was_put_anew_is_not_passed_on_to() {
    let queue = Queue::new().await;
    queue.put(1).await;
    let known = queue.put(2).await;
    queue.delete(2).await;
    queue.put(3).await;
    let anew = queue.put(2).await;
    for (token, first) in [(known, vec![]), (anew, vec![(queue.place(2), anew)])] {
        let leave = queue.leave(1, Then::Next(queue.place(2), token));
        let Answer::Left(_, _, left, _) = queue.ask(leave).await else { panic!("a leave") };
        let Left::Gone { first: shown, .. } = left else { panic!("{left:?}") };
        assert_eq!(shown, first);
    }
}

/// The predecessor's key was deleted and put anew, so it is behind. The read has to search for the real predecessor.
#[tokio::test]
async fn predecessor_that_was_put_anew_is_behind() {
    let queue = Queue::new().await;
    queue.put(1).await;
    queue.put(2).await;
    let token = queue.put(3).await;
    let look = queue.look(3, token, Before::Nearest(queue.place(2)));
    assert_eq!(queue.looked(look).await, Looked::Stands { before: Some(queue.place(2)) });
    queue.delete(2).await;
    queue.put(2).await;
    assert_eq!(queue.looked(look).await, Looked::Stands { before: Some(queue.place(1)) });
}
