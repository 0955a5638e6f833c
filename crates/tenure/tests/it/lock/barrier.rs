//! Barriers: when parties pass.

use std::time::Duration;

use tenure::store::Store;
use tenure_fixture::Etcd;

use super::{connect, keys, on_every_engine, wait_for_keys};
use crate::election::child::Process;

on_every_engine! {
    barrier_rounds_pass_only_when_complete;
    a_party_that_waited_in_vain_leaves_nothing_behind;
    barrier_party_with_deleted_key_fails;
}

mod claims {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tenure::lock::BarrierError;
    use tenure::store::Store;
    use tokio::task::JoinSet;

    use super::super::{keys, process, soon, wait_for_keys};

    const THREE: u32 = 3;

    pub(super) async fn barrier_rounds_pass_only_when_complete(store: Store) {
        let arrived = Arc::new(AtomicU32::new(0));
        let mut parties = JoinSet::new();
        for _ in 0..3 {
            let (store, arrived) = (store.clone(), arrived.clone());
            parties.spawn(async move {
                let (session, locks) = process(&store);
                for round in 1..=5 {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    locks.barrier("x", THREE).wait().await.unwrap();
                    let arrived = arrived.load(Ordering::SeqCst);
                    assert!(arrived >= 3 * round, "{arrived} had come when round {round} was passed");
                }
                session.close().await.unwrap();
            });
        }
        soon(parties.join_all()).await;
        assert_eq!(keys(&store).await, 0);
    }

    pub(super) async fn a_party_that_waited_in_vain_leaves_nothing_behind(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let dropped = tokio::spawn(first.barrier("x", THREE).wait().into_future());
        wait_for_keys(&store, 1).await;
        let waited = second.barrier("x", THREE).wait().timeout(Duration::from_millis(300)).await;
        assert!(matches!(waited, Err(BarrierError::Timeout { arrived: 2, .. })), "{waited:?}");
        wait_for_keys(&store, 1).await;
        dropped.abort();
        wait_for_keys(&store, 0).await;
        assert!(matches!(first.barrier("", THREE).wait().await, Err(BarrierError::InvalidName(_))));
    }

    pub(super) async fn barrier_party_with_deleted_key_fails(store: Store) {
        let (session, locks) = process(&store);
        let waiting = tokio::spawn(locks.barrier("x", THREE).wait().into_future());
        wait_for_keys(&store, 1).await;
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        let waited = soon(waiting).await.unwrap();
        assert!(matches!(waited, Err(BarrierError::Lost(_) | BarrierError::Closed)), "{waited:?}");
        assert_eq!(keys(&store).await, 0);
    }
}

/// One of three processes is killed while it waits: the others wait for another, and go on with it.
async fn one_that_dies_is_waited_for_no_longer(url: &str, store: Store) {
    let mut first = Process::start("party", url);
    let mut killed = Process::start("party", url);
    assert_eq!((first.hear().await, killed.hear().await), ("comes".into(), "comes".into()));
    wait_for_keys(&store, 2).await;
    killed.kill().await;
    // Its place goes with its lease.
    wait_for_keys(&store, 1).await;
    let mut second = Process::start("party", url);
    assert_eq!(second.hear().await, "comes");
    wait_for_keys(&store, 2).await;
    let early = tokio::time::timeout(Duration::from_millis(300), first.hear()).await;
    assert!(early.is_err(), "two are not three: {early:?}");
    let mut third = Process::start("party", url);
    assert_eq!(third.hear().await, "comes");
    for party in [&mut first, &mut second, &mut third] {
        assert_eq!(party.hear().await, "passed");
    }
    wait_for_keys(&store, 0).await;
    assert_eq!(keys(&store).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_barrier_party_is_replaced_on_etcd() {
    let etcd = Etcd::start();
    one_that_dies_is_waited_for_no_longer(&format!("etcd://{}", etcd.endpoints()), connect(&etcd).await)
        .await;
}

#[tokio::test]
async fn dead_barrier_party_is_replaced_on_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store.db", folder.path().display());
    one_that_dies_is_waited_for_no_longer(&url, Store::open(&url.parse().unwrap()).await.unwrap()).await;
}
