//! Thousands of candidates: their requests, as the server counts them.

use std::time::Duration;

use tenure_fixture::Etcd;
use tokio::task::JoinSet;

use super::child::Process;
use super::{connect, keys, process, soon, wait_for_keys};

const TXNS: (&str, &str) = ("grpc_server_started_total", "grpc_method=\"Txn\"");
const DELETES: (&str, &str) = ("grpc_server_started_total", "grpc_method=\"DeleteRange\"");
const READS: (&str, &str) = ("grpc_server_started_total", "grpc_method=\"Range\"");

fn count(etcd: &Etcd, (name, labels): (&str, &str)) -> f64 {
    etcd.member(0).metric_with(name, labels)
}

/// One process with a thousand candidates and another with twenty: one key each, and a change of leader costs the same few requests,
/// however many wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_candidates_cost_few_requests_per_change() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let (_session, election) = process(&store, "crowd");
    let term = election.campaign().value("first").await.unwrap();
    let mut crowd = JoinSet::new();
    for n in 0..1_000 {
        crowd.spawn(election.campaign().value(n.to_string()).into_future());
    }
    tokio::time::timeout(Duration::from_secs(60), wait_for_keys_slowly(&store, 1_001)).await.unwrap();
    let mut others = Process::start("candidates", &format!("etcd://{}", etcd.endpoints()));
    others.hear().await;
    wait_for_keys(&store, 1_021).await;
    let watchers = count(&etcd, ("etcd_debugging_mvcc_watcher_total", ""));
    assert!(watchers <= 6.0, "{watchers} watches for 1,021 candidates of two processes");
    let writes = || count(&etcd, TXNS) + count(&etcd, DELETES);
    let (written, reads) = (writes(), count(&etcd, READS));
    let changes = 20;
    let mut term = term;
    for _ in 0..changes {
        term.resign().await.unwrap();
        term = soon(crowd.join_next()).await.unwrap().unwrap().unwrap();
    }
    let (written, reads) = (writes() - written, count(&etcd, READS) - reads);
    let changes = f64::from(changes);
    // Each leader that resigns sends one request, and its successor reads the priorities once, a page of 1,000 keys at a time.
    assert!(written <= 1.5 * changes + 5.0, "{written} writes for {changes} changes");
    assert!(reads <= 2.5 * changes + 5.0, "{reads} reads for {changes} changes");
    assert_eq!(keys(&store).await, 1_001);
}

async fn wait_for_keys_slowly(store: &tenure::store::Store, count: usize) {
    while keys(store).await != count {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
