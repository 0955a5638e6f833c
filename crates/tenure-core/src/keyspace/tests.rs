//! The semantics of the store, each shown in a few lines of virtual time.

use super::*;
use crate::kv::SortOrder;
use crate::txn::{Condition, Op, OpReply};

const TEST_LIMITS: Limits = Limits { ttl_min: Duration::from_millis(1), ..Limits::EMBEDDED };

fn store() -> Keyspace {
    Keyspace::new(TEST_LIMITS)
}

fn at(ms: u64) -> Moment {
    Moment::from_ms(ms)
}

fn lease(id: i64) -> LeaseId {
    LeaseId::new(id).unwrap()
}

fn put(store: &mut Keyspace, key: &'static str, ms: u64) -> Revision {
    store.apply(&Txn::new().then(Op::put(key, "v")), at(ms)).unwrap().revision
}

fn keys(store: &mut Keyspace, ms: u64) -> Vec<Bytes> {
    let page = store.get(&Get::new(Selection::everything()), at(ms)).unwrap();
    page.pairs.into_iter().map(|pair| pair.key).collect()
}

fn drain(store: &mut Keyspace, id: WatchId) -> Vec<(i64, Vec<Bytes>)> {
    std::iter::from_fn(|| store.poll_watch(id, PreviousValues::Omitted))
        .map(|item| match item.unwrap() {
            WatchItem::Batch { revision, changes } => {
                (revision.0, changes.iter().map(|change| change.key().clone()).collect())
            }
            WatchItem::Progress(_) => panic!("the keyspace reports no progress"),
        })
        .collect()
}

#[test]
fn a_deleted_key_begins_a_new_life() {
    let mut store = store();
    put(&mut store, "/k", 0);
    put(&mut store, "/k", 0);
    store.apply(&Txn::new().then(Op::delete("/k")), at(0)).unwrap();
    put(&mut store, "/k", 0);
    let pair = store.get(&Get::key("/k"), at(0)).unwrap().pairs.remove(0);
    assert_eq!((pair.created, pair.modified, pair.version), (Revision(5), Revision(5), 1));
}

#[test]
fn expired_lease_is_gone_before_the_timer() {
    let mut store = store();
    store.grant(lease(7), Duration::from_millis(100), at(0)).unwrap();
    store.apply(&Txn::new().then(Op::put_leased("/k", "v", lease(7))), at(0)).unwrap();
    assert_eq!(keys(&mut store, 99), ["/k"]);
    let taken = Txn::new().when(Condition::absent("/k")).then(Op::put("/k", "mine"));
    assert!(store.apply(&taken, at(100)).unwrap().succeeded);
    assert_eq!(store.renew(lease(7), at(100)), None);
}

#[test]
fn renewal_counts_from_arrival_and_put_renews_nothing() {
    let mut store = store();
    store.grant(lease(7), Duration::from_millis(100), at(0)).unwrap();
    store.apply(&Txn::new().then(Op::put_leased("/k", "v", lease(7))), at(60)).unwrap();
    assert_eq!(store.renew(lease(7), at(90)), Some(Duration::from_millis(100)));
    assert_eq!(keys(&mut store, 189), ["/k"]);
    assert_eq!(keys(&mut store, 190), [""; 0]);
}

#[test]
fn lease_end_is_one_revision_in_key_order() {
    let mut store = store();
    for (id, pair) in [(1, ["/d", "/a"]), (2, ["/c", "/b"])] {
        store.grant(lease(id), Duration::from_millis(100), at(0)).unwrap();
        for key in pair {
            store.apply(&Txn::new().then(Op::put_leased(key, "v", lease(id))), at(0)).unwrap();
        }
    }
    let watch = store.watch(Selection::everything(), WatchStart::Now, at(0)).unwrap();
    store.expire(at(100));
    let seen = drain(&mut store, watch);
    assert_eq!(seen, [(6, vec!["/a".into(), "/d".into()]), (7, vec!["/b".into(), "/c".into()])]);
}

#[test]
fn key_belongs_to_its_last_lease() {
    let mut store = store();
    for id in [1, 2] {
        store.grant(lease(id), Duration::from_secs(9), at(0)).unwrap();
    }
    for id in [1, 2] {
        store.apply(&Txn::new().then(Op::put_leased("/k", "v", lease(id))), at(0)).unwrap();
    }
    store.revoke(lease(1), at(0)).unwrap();
    assert_eq!(keys(&mut store, 0), ["/k"]);
    store.revoke(lease(2), at(0)).unwrap();
    assert_eq!(keys(&mut store, 0), [""; 0]);
    assert!(matches!(store.revoke(lease(2), at(0)), Err(StoreError::LeaseNotFound)));
}

/// A fencing token is a create revision, so overwriting the key must not change what the condition
/// compares.
#[test]
fn create_condition_ignores_later_puts() {
    let mut store = store();
    let created = put(&mut store, "/a", 0);
    let modified = put(&mut store, "/a", 0);
    for (revision, holds) in [(created, true), (modified, false)] {
        let txn = Txn::new().when(Condition::created_at("/a", revision)).then(Op::get("/a"));
        assert_eq!(store.apply(&txn, at(0)).unwrap().succeeded, holds, "{revision}");
        let txn = Txn::new().when(Condition::modified_at("/a", revision)).then(Op::get("/a"));
        assert_eq!(store.apply(&txn, at(0)).unwrap().succeeded, !holds, "{revision}");
    }
}

#[test]
fn a_refused_transaction_changes_nothing() {
    let mut store = store();
    let txn = Txn::new().then(Op::put("/a", "v")).then(Op::put_leased("/b", "v", lease(404)));
    assert!(matches!(store.apply(&txn, at(0)), Err(StoreError::LeaseNotFound)));
    let txn = Txn::new().then(Op::put("/a", "v")).then(Op::Get(Get::key("/a").at(Revision(2))));
    assert!(matches!(store.apply(&txn, at(0)), Err(StoreError::FutureRevision)));
    let keep = Op::Put { key: "/b".into(), value: "".into(), lease: crate::txn::LeaseChoice::Keep };
    assert!(matches!(
        store.apply(&Txn::new().then(Op::put("/a", "v")).then(keep), at(0)),
        Err(StoreError::KeyNotFound)
    ));
    assert_eq!((store.revision(), keys(&mut store, 0).len()), (Revision(1), 0));
}

#[test]
fn get_sees_earlier_puts_of_its_transaction() {
    let mut store = store();
    put(&mut store, "/k", 0);
    let txn = Txn::new().then(Op::get("/k")).then(Op::put("/k", "new")).then(Op::get("/k"));
    let reply = store.apply(&txn, at(0)).unwrap();
    let page = |n: usize| match &reply.results[n] {
        OpReply::Get(page) => (page.pairs[0].value.clone(), page.revision),
        other => panic!("{other:?}"),
    };
    assert_eq!(page(0), ("v".into(), Revision(2)));
    assert_eq!(page(2), ("new".into(), Revision(3)));
}

#[test]
fn past_revisions_are_readable_until_compaction() {
    let mut store = store();
    put(&mut store, "/a", 0);
    store.apply(&Txn::new().then(Op::delete("/a")), at(0)).unwrap();
    put(&mut store, "/b", 0);
    let past = |store: &mut Keyspace, revision| {
        store
            .get(&Get::new(Selection::everything()).at(Revision(revision)), at(0))
            .map(|page| page.pairs.len())
    };
    assert_eq!((1..=4).map(|n| past(&mut store, n).unwrap()).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert!(matches!(past(&mut store, 5), Err(StoreError::FutureRevision)));
    store.compact(Revision(3), at(0)).unwrap();
    assert!(matches!(past(&mut store, 2), Err(StoreError::Compacted { at: Some(Revision(3)) })));
    assert_eq!((past(&mut store, 3).unwrap(), past(&mut store, 4).unwrap()), (0, 1));
    assert!(matches!(store.compact(Revision(3), at(0)), Err(StoreError::Compacted { .. })));
    assert!(matches!(store.compact(Revision(9), at(0)), Err(StoreError::FutureRevision)));
}

#[test]
fn a_value_older_than_the_compaction_stays_readable() {
    let mut store = store();
    put(&mut store, "/old", 0);
    put(&mut store, "/k", 0);
    put(&mut store, "/k", 0);
    store.compact(Revision(4), at(0)).unwrap();
    let page = store.get(&Get::new(Selection::everything()).at(Revision(4)), at(0)).unwrap();
    assert_eq!(page.pairs.len(), 2);
    put(&mut store, "/k", 0);
    let page = store.get(&Get::key("/k").at(Revision(4)), at(0)).unwrap();
    assert_eq!(page.pairs[0].modified, Revision(4));
}

#[test]
fn creation_order_lists_oldest_first() {
    let mut store = store();
    for key in ["/b", "/a", "/c", "/b"] {
        put(&mut store, key, 0);
    }
    let ask = |store: &mut Keyspace, get: Get| {
        let page = store.get(&get, at(0)).unwrap();
        (page.pairs.into_iter().map(|pair| pair.key).collect::<Vec<_>>(), page.more)
    };
    let all = Get::new(Selection::everything());
    assert_eq!(
        ask(&mut store, all.clone().order(SortOrder::Created).limit(2)),
        (vec!["/b".into(), "/a".into()], true)
    );
    let before = all.order(SortOrder::CreatedDescending).created_max(Revision(3)).limit(1);
    assert_eq!(ask(&mut store, before), (vec!["/a".into()], true));
}

#[test]
fn watch_from_past_replays_then_continues() {
    let mut store = store();
    put(&mut store, "/t/1/owner", 0);
    put(&mut store, "/t/10/owner", 0);
    let watch = store.watch(Selection::prefix("/t/1/"), WatchStart::After(Revision(1)), at(0)).unwrap();
    put(&mut store, "/t/1/owner", 0);
    assert_eq!(drain(&mut store, watch), [(2, vec!["/t/1/owner".into()]), (4, vec!["/t/1/owner".into()])]);
    put(&mut store, "/t/10/owner", 0);
    put(&mut store, "/t/1/props", 0);
    assert_eq!(drain(&mut store, watch), [(6, vec!["/t/1/props".into()])]);
}

#[test]
fn a_watch_from_the_future_waits_for_it() {
    let mut store = store();
    let watch = store.watch(Selection::everything(), WatchStart::After(Revision(3)), at(0)).unwrap();
    for _ in 0..4 {
        put(&mut store, "/k", 0);
    }
    assert_eq!(drain(&mut store, watch).iter().map(|item| item.0).collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn only_watch_of_changed_key_is_woken() {
    let mut store = store();
    let one = store.watch(Selection::key("/l/1"), WatchStart::Now, at(0)).unwrap();
    let ten = store.watch(Selection::key("/l/10"), WatchStart::Now, at(0)).unwrap();
    let all = store.watch(Selection::prefix("/l/"), WatchStart::Now, at(0)).unwrap();
    put(&mut store, "/l/10", 0);
    let woken: Vec<_> = std::iter::from_fn(|| store.poll_woken()).collect();
    assert_eq!(woken, [ten, all]);
    assert_eq!(store.poll_watch(one, PreviousValues::Omitted).map(|_| ()), None);
}

#[test]
fn watch_behind_compaction_ends_with_error() {
    let mut store = store();
    let idle = store.watch(Selection::key("/other"), WatchStart::Now, at(0)).unwrap();
    let slow = store.watch(Selection::everything(), WatchStart::Now, at(0)).unwrap();
    for _ in 0..5 {
        put(&mut store, "/k", 0);
    }
    store.compact(Revision(4), at(0)).unwrap();
    let end = store.poll_watch(slow, PreviousValues::Omitted);
    assert!(matches!(end, Some(Err(WatchError::Compacted { at: Revision(4) }))), "{end:?}");
    assert!(store.poll_watch(slow, PreviousValues::Omitted).is_none());
    put(&mut store, "/other", 0);
    assert_eq!(drain(&mut store, idle), [(7, vec!["/other".into()])]);
}

#[test]
fn a_watcher_that_pauses_for_long_misses_nothing() {
    let mut store = store();
    let watch = store.watch(Selection::key("/k"), WatchStart::Now, at(0)).unwrap();
    for _ in 0..3_000 {
        put(&mut store, "/k", 0);
        put(&mut store, "/other", 0);
    }
    let seen: Vec<_> = drain(&mut store, watch).iter().map(|item| item.0).collect();
    assert_eq!(seen, (0..3_000).map(|n| 2 + 2 * n).collect::<Vec<_>>());
}

#[test]
fn history_is_kept_by_count_and_by_age() {
    let mut store = store();
    for n in 0..100 {
        put(&mut store, "/k", n);
    }
    store.retain(10, Duration::from_millis(50), at(100));
    assert_eq!(store.history_len(), 50);
    store.retain(10, Duration::from_millis(50), at(1_000));
    assert_eq!(store.history_len(), 10);
    assert_eq!(keys(&mut store, 1_000), ["/k"]);
}
