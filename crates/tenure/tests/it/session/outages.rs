//! Stores that go away and come back, leases and keys that are taken from us.

use std::time::Duration;

use super::*;

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
