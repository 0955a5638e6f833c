//! The end of a session: what is tidied up, and what is said of the rest.

use std::time::{Duration, Instant};

use super::*;

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
