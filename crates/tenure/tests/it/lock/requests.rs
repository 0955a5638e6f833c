//! What locks cost, counted at the server.

use std::time::{Duration, Instant};

use tenure::lock::Locks;
use tenure::session::Session;
use tenure_fixture::Etcd;

use super::{connect, process, soon, wait_for_keys};

/// A hold is recorded once it has lasted this long.
const RECORDED_AFTER: Duration = Duration::from_millis(100);

/// How many requests the server received in all: those that put, read and delete queue keys, and all others.
fn requests(etcd: &Etcd) -> (f64, f64) {
    let started = |method: &str| {
        etcd.member(0).metric_with("grpc_server_started_total", &format!("grpc_method=\"{method}\""))
    };
    (started("Txn") + started("DeleteRange"), started("Range") + started("Put"))
}

fn watchers(etcd: &Etcd) -> f64 {
    etcd.member(0).metric("etcd_debugging_mvcc_watcher_total")
}

/// Waits until the server has so many watchers.
async fn wait_for_watchers(etcd: &Etcd, count: f64) {
    soon(async {
        while watchers(etcd) != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncontended_lock_and_release_are_two_requests() {
    let etcd = Etcd::start();
    let (_session, locks) = process(&connect(&etcd).await);
    locks.lock("warm").await.unwrap().release().await.unwrap();
    let before = requests(&etcd);
    let guard = locks.lock("x").await.unwrap();
    let locked = requests(&etcd);
    guard.release().await.unwrap();
    let released = requests(&etcd);
    assert_eq!((locked.0 - before.0, released.0 - locked.0), (1.0, 1.0));
    assert_eq!(released.1, before.1, "nothing else was asked");
    // A hold that lasts costs one more: when it began.
    let guard = locks.lock("x").await.unwrap();
    super::since::recorded(&locks, "x").await;
    let recorded = requests(&etcd);
    assert_eq!(recorded.0 - released.0, 2.0);
    guard.release().await.unwrap();
}

/// A try and a bounded wait that succeed read no holder, as an unbounded wait does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successful_bounded_requests_read_no_holder() {
    let etcd = Etcd::start();
    let (_session, locks) = process(&connect(&etcd).await);
    locks.lock("warm").await.unwrap().release().await.unwrap();
    let before = requests(&etcd);
    for acquire in [locks.lock("x").try_now(), locks.lock("x").timeout(Duration::from_secs(5))] {
        acquire.await.unwrap().release().await.unwrap();
    }
    assert_eq!(requests(&etcd).1, before.1, "nothing but enters and leaves");
}

/// Each in a process of its own, so nothing is shared: a waiter watches its own key and its predecessor, and no other waiter reads
/// when a lock is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_adds_two_watches_release_wakes_one() {
    let etcd = Etcd::start();
    let onlooker = connect(&etcd).await;
    let mut processes: Vec<(Session, Locks)> = Vec::new();
    for _ in 0..6 {
        processes.push(process(&connect(&etcd).await));
    }
    let begun = requests(&etcd).0;
    let mut guard = processes[0].1.lock("x").await.unwrap();
    wait_for_watchers(&etcd, 1.0).await;
    let mut waiting = Vec::new();
    for (n, (_, locks)) in processes.iter().enumerate().skip(1) {
        waiting.push(tokio::spawn(locks.lock("x").into_future()));
        wait_for_keys(&onlooker, n + 1).await;
    }
    wait_for_watchers(&etcd, 1.0 + 2.0 * 5.0).await;
    // Each has entered, and has read the queue once more after the watch of its predecessor began.
    soon(async {
        while requests(&etcd).0 < begun + 1.0 + 2.0 * 5.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    for (n, next) in waiting.into_iter().enumerate() {
        // A hold that lasts is recorded once, in the background.
        super::since::recorded(&processes[0].1, "x").await;
        let (before, begun) = (requests(&etcd), Instant::now());
        guard.release().await.unwrap();
        guard = soon(next).await.unwrap().unwrap();
        let after = requests(&etcd);
        // On a busy machine the record of the new hold may be among them: it costs a read and a write.
        if begun.elapsed() < RECORDED_AFTER {
            assert_eq!(after.0 - before.0, 2.0, "one leaves and one reads the queue");
            assert_eq!(after.1, before.1, "no other request is sent");
        }
        // The one that left watches nothing any more, and the one that holds only its own place.
        wait_for_watchers(&etcd, 1.0 + 2.0 * (4.0 - n as f64)).await;
    }
}
