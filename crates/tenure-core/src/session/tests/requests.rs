//! Single requests against a store: which keys they touch, and which they leave alone.

use bytes::Bytes;

use super::*;
use crate::error::{Cause, StoreError};
use crate::keyspace::Keyspace;
use crate::kv::Get;
use crate::lease::LeaseId;
use crate::limits::Limits;
use crate::session::{DeleteRequest, KeyOutcome, KeyPut, PutProgress, PutRequest};
use crate::txn::{Op, Txn};

const NOW: Moment = Moment::ORIGIN;

fn lease(id: i64) -> LeaseId {
    LeaseId::new(id).unwrap()
}

/// A store with the leases 1 (the session's), 2 (its former one) and 3 (another client's).
fn store() -> Keyspace {
    let mut store = Keyspace::new(Limits::EMBEDDED);
    for id in 1..=3 {
        store.grant(lease(id), Duration::from_secs(60), NOW).unwrap();
    }
    store
}

fn put(store: &mut Keyspace, key: &'static str, id: i64) {
    store.apply(&Txn::new().then(Op::put_leased(key, "old", lease(id))), NOW).unwrap();
}

fn entry(key: &'static str, mode: PutMode) -> KeyPut {
    KeyPut { key: key.into(), value: "new".into(), mode, registration: RegistrationId(1) }
}

/// Key, value and lease of all that is stored.
fn stored(store: &mut Keyspace) -> Vec<(Bytes, Bytes, Option<LeaseId>)> {
    let page = store.get(&Get::new(crate::kv::Selection::everything()), NOW).unwrap();
    page.pairs.into_iter().map(|pair| (pair.key, pair.value, pair.lease)).collect()
}

/// Sends a put; `meanwhile` happens between its two requests.
fn run(
    store: &mut Keyspace,
    entries: Vec<KeyPut>,
    meanwhile: impl FnOnce(&mut Keyspace),
) -> Vec<(Bytes, KeyOutcome)> {
    let mut requests = PutRequest::split(lease(1), vec![lease(1), lease(2)], entries, &Limits::EMBEDDED);
    assert_eq!(requests.len(), 1);
    let request = requests.remove(0);
    let reply = store.apply(&request.txn(), NOW);
    let reply = match request.handle(reply) {
        PutProgress::Done(reply) => reply,
        PutProgress::Each(each) => {
            meanwhile(store);
            let replies = each.txns().iter().map(|txn| store.apply(txn, NOW)).collect();
            each.handle(replies)
        }
    };
    reply.outcomes.into_iter().map(|(key, _, outcome)| (key, outcome)).collect()
}

/// One key of another client must not keep the others of the transaction from being put.
#[test]
fn key_of_another_client_is_not_replaced() {
    let mut store = store();
    put(&mut store, "other", 3);
    put(&mut store, "own", 2);
    let entries = ["absent", "other", "own"].map(|key| entry(key, PutMode::Create)).to_vec();
    let outcomes = run(&mut store, entries, |_| ());
    let outcome = |key: &str| outcomes.iter().find(|(found, _)| found == key).unwrap().1.clone();
    assert!(matches!(outcome("absent"), KeyOutcome::Done(_)), "{outcomes:?}");
    assert!(matches!(outcome("own"), KeyOutcome::Done(_)), "a key of the former lease is its own");
    assert!(matches!(outcome("other"), KeyOutcome::Taken(_)), "{outcomes:?}");
    assert_eq!(
        stored(&mut store),
        [
            ("absent".into(), "new".into(), Some(lease(1))),
            ("other".into(), "old".into(), Some(lease(3))),
            ("own".into(), "new".into(), Some(lease(1))),
        ]
    );
}

/// Between the two requests the own key is deleted and another client takes it.
#[test]
fn key_changed_between_requests_is_kept() {
    let mut store = store();
    put(&mut store, "a", 2);
    let outcomes = run(&mut store, vec![entry("a", PutMode::Restore)], |store| put(store, "a", 3));
    assert!(matches!(outcomes[0].1, KeyOutcome::Failed), "{outcomes:?}");
    assert_eq!(stored(&mut store), [("a".into(), "old".into(), Some(lease(3)))]);
}

#[test]
fn overwriting_keys_travel_apart_from_conditional_ones() {
    let mut store = store();
    let entries =
        vec![entry("a", PutMode::Create), entry("b", PutMode::Overwrite), entry("c", PutMode::Restore)];
    let requests = PutRequest::split(lease(1), vec![lease(1)], entries, &Limits::EMBEDDED);
    let conditions: Vec<usize> = requests.iter().map(|request| request.txn().when.len()).collect();
    assert_eq!(conditions, [0, 2]);
    let limits = Limits { txn_ops_max: 2, ..Limits::EMBEDDED };
    let entries = ["a", "b", "c", "d", "e"].map(|key| entry(key, PutMode::Overwrite)).to_vec();
    let requests = PutRequest::split(lease(1), vec![lease(1)], entries, &limits);
    assert_eq!(requests.iter().map(|request| request.txn().then.len()).collect::<Vec<_>>(), [2, 2, 1]);
    for request in requests {
        assert!(store.apply(&request.txn(), NOW).unwrap().succeeded);
    }
}

#[test]
fn delete_leaves_keys_of_other_clients() {
    let mut store = store();
    for (key, id) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&mut store, key, id);
    }
    let keys: Vec<Bytes> = ["a", "b", "c", "absent"].map(Bytes::from).to_vec();
    let mut request = DeleteRequest::new(vec![lease(1), lease(2)], keys);
    while let Some(txns) = request.txns() {
        let replies = txns.iter().map(|txn| store.apply(txn, NOW)).collect();
        request.handle(replies);
    }
    let reply = request.finish();
    assert!(reply.outcomes.iter().all(|(_, outcome)| matches!(outcome, KeyOutcome::Done(_))), "{reply:?}");
    assert_eq!(stored(&mut store), [("c".into(), "old".into(), Some(lease(3)))]);
}

/// A lost reply of one batch counts, although the next batch succeeds.
#[test]
fn failed_delete_of_one_lease_is_retried() {
    let mut request = DeleteRequest::new(vec![lease(1), lease(2)], vec!["a".into()]);
    request.handle(vec![Err(StoreError::Ambiguous(Cause::new("lost")))]);
    assert!(request.txns().is_some());
    let mut store = store();
    let replies = request.txns().unwrap().iter().map(|txn| store.apply(txn, NOW)).collect();
    request.handle(replies);
    let reply = request.finish();
    assert!(matches!(reply.outcomes[0].1, KeyOutcome::Failed) && reply.error.is_some(), "{reply:?}");
}
