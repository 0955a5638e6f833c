//! Closing a session: what is revoked, and what is reported of the rest.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tenure::CloseError;

use super::child::Process;
use super::flaky::{Flaky, Weather};
use super::*;

/// In a process of its own: descriptors and tasks are those of the whole process.
#[tokio::test]
async fn two_hundred_sessions_leave_nothing() {
    let etcd = Etcd::start();
    let mut process = Process::start("cycles", &etcd);
    process.expect("the same tasks").await;
    process.expect("the same descriptors").await;
    let store = connect(&etcd).await;
    assert_eq!((stored(&store).await.len(), store.leases().await.unwrap().len()), (0, 0));
}

#[tokio::test]
async fn close_during_outage_is_bounded_and_reports_rest() {
    let etcd = Etcd::start();
    let session = Session::open(connect(&etcd).await).unwrap();
    register_many(&session, 20).await;
    etcd.member(0).kill();
    let began = Instant::now();
    let left = session.close().await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let CloseError::NotConfirmed { leases, keys, ttl, .. } = left else { panic!("{left}") };
    assert_eq!((leases, keys), (1, 20), "{left}");
    assert!(ttl > Duration::ZERO && ttl <= Duration::from_secs(15), "{left}");
    assert_eq!(session.close().await.unwrap_err(), left, "each caller receives the same result");
}

#[tokio::test]
async fn close_during_restart_leaves_nothing() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::open(store).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    etcd.member(0).kill();
    let closing = tokio::spawn(async move { session.close().await });
    let _etcd = tokio::task::spawn_blocking(move || {
        etcd.member(0).restart();
        etcd
    })
    .await
    .unwrap();
    closing.await.unwrap().unwrap();
    assert_eq!((stored(&onlooker).await.len(), onlooker.leases().await.unwrap().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_revoke_is_retried_after_outage() {
    let (flaky, store, session) = Flaky::session();
    session.register_raw("/r/a", "v").await.unwrap();
    flaky.turn(Weather::Down);
    session.unregister("/r/a");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let tried = flaky.revocations.load(Ordering::SeqCst);
    assert!((2..40).contains(&tried), "{tried} tries in 3 s");
    flaky.turn(Weather::Works);
    session.synced().await;
    assert_eq!((stored(&store).await.len(), store.leases().await.unwrap().len()), (0, 0));
    session.close().await.unwrap();
}

#[tokio::test]
async fn store_loss_seen_by_watch_closes_session() {
    let store = Store::memory();
    let session = Session::options().ttl(Duration::from_secs(3_600)).open(store.clone()).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    let loan = session.lease().await.unwrap();
    store.close().await;
    wait_for_state(&session, |state| matches!(state, SessionState::Closed { why: Some(_) })).await;
    assert!(!loan.is_valid(), "a lease of a lost store is invalid");
}

#[tokio::test]
async fn a_dropped_session_tidies_up_in_the_background() {
    let store = Store::memory();
    let session = Session::open(store.clone()).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    drop(session);
    wait_for_keys(&store, 0, Duration::from_secs(5)).await;
    assert_eq!(store.leases().await.unwrap().len(), 0);
}

#[tokio::test]
async fn lost_store_closes_session() {
    let store = Store::memory();
    let session = Session::options().ttl(Duration::from_secs(2)).open(store.clone()).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    store.close().await;
    wait_for_state(&session, |state| matches!(state, SessionState::Closed { why: Some(_) })).await;
    assert!(matches!(session.register_raw("/r/b", "v").await, Err(RegisterError::Closed)));
}

/// Found by users: `close` reported how many lease handles were alive, and not the lock.
#[tokio::test(start_paused = true)]
async fn close_names_unreleased_holds() {
    let world = tenure::testing::World::new();
    let session =
        Session::options().clock(world.process("a").clock()).open(world.process("a").store()).unwrap();
    let namespace = tenure_core::id::Namespace::parse("t").unwrap();
    let locks = tenure::lock::Locks::new(&session, &namespace);
    let elections = tenure::election::Elections::new(&session, &namespace);
    let (_kept, released) = (locks.lock("a/b").await.unwrap(), locks.lock("x").await.unwrap());
    let _term = elections.election("boss").campaign().value("1").await.unwrap();
    released.release().await.unwrap();
    let dropped = locks.lock("y").await.unwrap();
    let closing = tokio::spawn({
        let session = session.clone();
        async move { session.close().await }
    });
    // Its owner sees that the session closes, and drops it.
    dropped.lost().await;
    drop(dropped);
    let left = closing.await.unwrap().unwrap_err();
    let CloseError::StillHeld { holds, .. } = &left else { panic!("{left}") };
    assert_eq!(*holds, ["election 'boss'", "lock 'a/b'"], "{left}");
    assert!(
        left.to_string().starts_with("election 'boss', lock 'a/b' are still held; expires within"),
        "{left}"
    );
}
