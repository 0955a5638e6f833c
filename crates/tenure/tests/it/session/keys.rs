//! Registering and unregistering: one lease, many keys, nothing left.

use std::time::Duration;

use super::*;

async fn three_keys_one_lease(store: Store) {
    let session = Session::open(store.clone()).unwrap();
    assert_eq!(store.leases().await.unwrap().len(), 0, "nothing is granted before the first key");
    let mut leases = Vec::new();
    for key in ["/r/a", "/r/b", "/r/c"] {
        leases.push(session.register_raw(key, "v").await.unwrap().lease);
    }
    leases.dedup();
    assert_eq!(store.leases().await.unwrap(), leases, "one lease, and the one that was returned");
    assert_eq!(store.lease(leases[0]).await.unwrap().unwrap().keys, ["/r/a", "/r/b", "/r/c"]);
    session.register_raw("/r/a", "new").await.unwrap();
    assert_eq!(store.get_key("/r/a").await.unwrap().unwrap().value, "new");
    for left in [2, 1, 0] {
        let key = session.keys().pop().unwrap();
        assert!(session.unregister(key));
        wait_for_keys(&store, left, Duration::from_secs(2)).await;
    }
    session.synced().await;
    assert_eq!(store.leases().await.unwrap().len(), 0);
    session.register_raw("/r/a", "again").await.unwrap();
    session.close().await.unwrap();
    assert_eq!((stored(&store).await.len(), store.leases().await.unwrap().len()), (0, 0));
    assert!(matches!(session.register_raw("/r/a", "v").await, Err(RegisterError::Closed)));
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

#[cfg(feature = "file")]
#[tokio::test]
async fn three_keys_share_one_lease_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store.db").display());
    three_keys_one_lease(Store::open(&url.parse().unwrap()).await.unwrap()).await;
}

/// Register and unregister of the last key, from two tasks at once.
async fn race(store: Store) {
    let session = Session::open(store.clone()).unwrap();
    for _ in 0..1_000 {
        let register = tokio::spawn(session.register_raw("/r/a", "v").into_future());
        session.unregister("/r/a");
        let answer = tokio::time::timeout(Duration::from_secs(5), register).await.expect("no hang").unwrap();
        assert!(matches!(answer, Ok(_) | Err(RegisterError::Superseded)), "{answer:?}");
    }
    session.unregister("/r/a");
    tokio::time::timeout(Duration::from_secs(10), session.synced()).await.expect("it comes to rest");
    assert_eq!((stored(&store).await.len(), store.leases().await.unwrap().len()), (0, 0));
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_last_keys_leak_nothing() {
    race(Store::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_last_keys_leak_nothing_on_etcd() {
    let etcd = Etcd::start();
    race(connect(&etcd).await).await;
}

#[tokio::test]
async fn superseded_registration_reports_it() {
    let etcd = Etcd::start();
    let session = Session::open(connect(&etcd).await).unwrap();
    etcd.member(0).kill();
    let waiting = tokio::spawn(session.register_raw("/r/a", "v").into_future());
    while session.keys().is_empty() {
        tokio::task::yield_now().await;
    }
    session.unregister("/r/a");
    let answer = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
    assert!(matches!(answer, Err(RegisterError::Superseded)), "{answer:?}");
}

#[tokio::test]
async fn foreign_key_is_refused_or_overwritten_as_requested() {
    let store = Store::memory();
    let session = Session::open(store.clone()).unwrap();
    let mut events = session.events();
    store.put("/r/a", "foreign").await.unwrap();
    let answer = session.register_raw("/r/a", "v").if_absent().await;
    assert!(matches!(answer, Err(RegisterError::Held { .. })), "{answer:?}");
    assert_eq!(events.recv().await.unwrap(), KeyEvent::Refused("/r/a".into()));
    session.register_raw("/r/a", "v").await.unwrap();
    assert!(matches!(events.recv().await.unwrap(), KeyEvent::Registered(_)));
    store.put("/r/a", "foreign again").await.unwrap();
    assert_eq!(events.recv().await.unwrap(), KeyEvent::Taken("/r/a".into()));
    assert_eq!(store.get_key("/r/a").await.unwrap().unwrap().value, "foreign again");
    store.delete(Selection::key("/r/a")).await.unwrap();
    assert_eq!(events.recv().await.unwrap(), KeyEvent::Missing("/r/a".into()));
    assert!(
        matches!(events.recv().await.unwrap(), KeyEvent::Registered(back) if back.revision > foreign_revision(&store).await)
    );
    session.unregister("/r/a");
    assert_eq!(events.recv().await.unwrap(), KeyEvent::Unregistered("/r/a".into()));
    session.close().await.unwrap();
}

/// The revision of the last put of the key by another client.
async fn foreign_revision(store: &Store) -> tenure::store::Revision {
    store.get_key("/r/a").await.unwrap().unwrap().created.previous()
}
