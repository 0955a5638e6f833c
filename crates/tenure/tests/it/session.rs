//! Sessions on memory and on real etcd: what other clients of the store see of them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use tenure::session::{RegisterError, Session, SessionState};
use tenure::store::{Change, Op, Previous, Selection, Start, Store, Txn, WatchItem, WatchStream};
use tenure_fixture::Etcd;

async fn connect(etcd: &Etcd) -> Store {
    Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap()
}

async fn stored(store: &Store) -> Vec<Bytes> {
    store.list(Selection::everything()).await.unwrap().pairs.into_iter().map(|pair| pair.key).collect()
}

/// Waits until the store's keys are as wanted, looking again at each change; the answer must come within a bounded time.
async fn wait_until(store: &Store, within: Duration, is_wanted: impl Fn(&[Bytes]) -> bool) {
    let mut watch = store.watch(Selection::everything(), Start::Now, Previous::Omitted).await.unwrap();
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let keys = stored(store).await;
        if is_wanted(&keys) {
            return;
        }
        let change = tokio::time::timeout_at(deadline, watch.next()).await;
        assert!(change.is_ok(), "{} keys after {within:?}", keys.len());
    }
}

async fn wait_for_keys(store: &Store, count: usize, within: Duration) {
    wait_until(store, within, |keys| keys.len() == count).await;
}

/// Waits until the session says so, within a bounded time.
async fn wait_for_state(session: &Session, is_wanted: impl Fn(&SessionState) -> bool) {
    let mut state = session.state();
    let waited =
        tokio::time::timeout(Duration::from_secs(20), state.wait_for(|state| is_wanted(state))).await;
    assert!(waited.is_ok(), "the session stays {:?}", *session.state().borrow());
}

/// How many deletes a watch has shown up to a marker key that is put now.
async fn deletes_so_far(store: &Store, watch: &mut WatchStream) -> usize {
    let marker = store.put("/marker", "").await.unwrap();
    let mut deletes = 0;
    while let Some(item) = watch.next().await {
        if let WatchItem::Batch { revision, changes } = item.unwrap() {
            deletes += changes.iter().filter(|change| matches!(change, Change::Delete { .. })).count();
            if revision >= marker {
                break;
            }
        }
    }
    deletes
}

async fn three_keys_one_lease(store: Store) {
    let session = Session::open(store.clone()).unwrap();
    assert_eq!(store.leases().await.unwrap().len(), 0, "nothing is granted before the first key");
    let mut leases = Vec::new();
    for key in ["/r/a", "/r/b", "/r/c"] {
        leases.push(session.register(key, "v").await.unwrap().lease);
    }
    leases.dedup();
    assert_eq!(store.leases().await.unwrap(), leases, "one lease, and the one that was returned");
    assert_eq!(store.lease(leases[0]).await.unwrap().unwrap().keys, ["/r/a", "/r/b", "/r/c"]);
    session.register("/r/a", "new").await.unwrap();
    assert_eq!(store.get_key("/r/a").await.unwrap().unwrap().value, "new");
    for left in [2, 1, 0] {
        let key = session.keys().pop().unwrap();
        assert!(session.unregister(key));
        wait_for_keys(&store, left, Duration::from_secs(2)).await;
    }
    session.settled().await;
    assert_eq!(store.leases().await.unwrap().len(), 0);
    session.register("/r/a", "again").await.unwrap();
    session.close().await.unwrap();
    assert_eq!((stored(&store).await.len(), store.leases().await.unwrap().len()), (0, 0));
    assert!(matches!(session.register("/r/a", "v").await, Err(RegisterError::Closed)));
}

#[tokio::test]
async fn three_keys_share_one_lease_on_memory() {
    three_keys_one_lease(Store::memory()).await;
}

#[tokio::test]
async fn three_keys_share_one_lease_on_etcd() {
    let etcd = Etcd::start();
    three_keys_one_lease(connect(&etcd).await).await;
}

#[tokio::test]
async fn a_restart_of_etcd_within_the_ttl_shows_to_nobody() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::options().ttl(Duration::from_secs(8)).open(store).unwrap();
    for n in 0..20 {
        session.register(format!("/r/{n}"), "v").await.unwrap();
    }
    let mut watch = onlooker.watch(Selection::prefix("/"), Start::Now, Previous::Omitted).await.unwrap();
    etcd.member(0).kill();
    tokio::time::sleep(Duration::from_secs(4)).await;
    etcd.member(0).restart();
    wait_for_state(&session, |state| matches!(state, SessionState::Live { .. })).await;
    tokio::time::timeout(Duration::from_secs(10), session.settled()).await.unwrap();
    assert_eq!(deletes_so_far(&onlooker, &mut watch).await, 0);
    assert_eq!(session.incarnation(), 1);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_lease_revoked_by_hand_is_replaced_within_a_second() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::open(store).unwrap();
    let wishes = (0..1_000).map(|n| session.register(format!("/r/{n:04}"), "v").into_future());
    for answer in futures_util::future::join_all(wishes).await {
        answer.unwrap();
    }
    let lease = session.lease_id().unwrap();
    onlooker.revoke(lease).await.unwrap();
    wait_for_keys(&onlooker, 1_000, Duration::from_secs(1)).await;
    assert_ne!(session.lease_id(), Some(lease));
    session.close().await.unwrap();
    assert_eq!(onlooker.leases().await.unwrap().len(), 0);
}

#[tokio::test]
async fn an_outage_longer_than_the_ttl_ends_with_every_key_back() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::options().ttl(Duration::from_secs(2)).open(store).unwrap();
    session.register("/r/a", "v").await.unwrap();
    session.register("/r/b", "v").await.unwrap();
    etcd.member(0).kill();
    wait_for_state(&session, |state| matches!(state, SessionState::Lost { .. })).await;
    session.unregister("/r/a");
    etcd.member(0).restart();
    wait_for_state(&session, |state| matches!(state, SessionState::Live { incarnation: 2.. })).await;
    wait_until(&onlooker, Duration::from_secs(4), |keys| keys == ["/r/b"]).await;
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_key_deleted_by_hand_comes_back() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::open(store).unwrap();
    session.register("/r/a", "v").await.unwrap();
    onlooker.txn(Txn::new().then(Op::delete("/r/a"))).await.unwrap();
    wait_for_keys(&onlooker, 1, Duration::from_secs(2)).await;
    session.close().await.unwrap();
}

#[tokio::test]
async fn registering_and_unregistering_the_last_key_a_thousand_times_leaks_nothing() {
    let store = Store::memory();
    let session = Session::open(store.clone()).unwrap();
    for _ in 0..1_000 {
        let register = tokio::spawn(session.register("/r/a", "v").into_future());
        session.unregister("/r/a");
        let answer = tokio::time::timeout(Duration::from_secs(5), register).await.expect("no hang").unwrap();
        assert!(matches!(answer, Ok(_) | Err(RegisterError::Superseded)), "{answer:?}");
    }
    session.close().await.unwrap();
    assert_eq!((stored(&store).await.len(), store.leases().await.unwrap().len()), (0, 0));
}

#[tokio::test]
async fn a_store_that_is_down_leaves_the_key_wanted() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::open(store).unwrap();
    etcd.member(0).kill();
    let answer = session.register("/r/a", "v").within(Duration::from_millis(300)).await;
    assert!(matches!(answer, Err(RegisterError::NotYet { .. })), "{answer:?}");
    etcd.member(0).restart();
    wait_for_keys(&onlooker, 1, Duration::from_secs(5)).await;
    session.close().await.unwrap();
}

#[tokio::test]
async fn two_hundred_sessions_leave_nothing_behind() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    // The streams of the client are opened by the first session and stay for the others.
    let cycle = async || {
        let session = Session::open(store.clone()).unwrap();
        session.register("/r/a", "v").await.unwrap();
        session.close().await.unwrap();
    };
    cycle().await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..200 {
        cycle().await;
    }
    assert_eq!((stored(&store).await.len(), store.leases().await.unwrap().len()), (0, 0));
    let begin = Instant::now();
    while tokio::runtime::Handle::current().metrics().num_alive_tasks() > tasks {
        assert!(begin.elapsed() < Duration::from_secs(5), "tasks are left");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_dropped_session_tidies_up_in_the_background() {
    let store = Store::memory();
    let session = Session::open(store.clone()).unwrap();
    session.register("/r/a", "v").await.unwrap();
    drop(session);
    wait_for_keys(&store, 0, Duration::from_secs(5)).await;
    assert_eq!(store.leases().await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_store_that_can_never_be_used_again_ends_the_session() {
    let store = Store::memory();
    let session = Session::options().ttl(Duration::from_secs(2)).open(store.clone()).unwrap();
    session.register("/r/a", "v").await.unwrap();
    store.close().await;
    wait_for_state(&session, |state| matches!(state, SessionState::Closed { why: Some(_) })).await;
    assert!(matches!(session.register("/r/b", "v").await, Err(RegisterError::Closed)));
}

#[tokio::test]
async fn whoever_waits_for_a_wish_that_is_withdrawn_is_told() {
    let etcd = Etcd::start();
    let session = Session::open(connect(&etcd).await).unwrap();
    etcd.member(0).kill();
    let waiting = tokio::spawn(session.register("/r/a", "v").into_future());
    while session.keys().is_empty() {
        tokio::task::yield_now().await;
    }
    session.unregister("/r/a");
    let answer = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
    assert!(matches!(answer, Err(RegisterError::Superseded)), "{answer:?}");
}
