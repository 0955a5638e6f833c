//! Consumers that do not keep up: they delay no other consumer, memory stays bounded, and no
//! revision is skipped.

use futures_util::StreamExt;
use tenure_etcd::{Client, Op, Put, Txn, WatchFrom};
use tenure_fixture::Etcd;

use crate::observe::{Saw, change, client, prefix, revisions, until, watch};

/// Writes `count` revisions, several at a time, and returns the last one.
async fn write(client: &Client, count: i64) -> i64 {
    let writes = futures_util::stream::iter(0..count).map(|n| {
        let put =
            Put { key: format!("a/{}", n % 10).into(), value: vec![b'x'; 100].into(), ..Put::default() };
        client.txn(Txn { then: vec![Op::Put(put)], ..Txn::default() })
    });
    writes
        .buffer_unordered(64)
        .map(|reply| reply.unwrap().revision)
        .fold(0, async |last: i64, seen| last.max(seen))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_consumer_catches_up_without_gap() {
    const REVISIONS: usize = 12_000;
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let mut slow = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let mut quick = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let first = slow.start_revision() + 1;
    let reading = tokio::spawn(async move { revisions(&mut quick, REVISIONS).await });
    let last = write(&client, i64::try_from(REVISIONS).unwrap()).await;
    let all: Vec<i64> = (first..=last).collect();
    assert_eq!(all.len(), REVISIONS);
    // The quick one has everything before the slow one has read anything.
    assert_eq!(reading.await.unwrap(), all);
    // Both cancellations are in flight when the last revision has arrived, and no event reports
    // when they are done.
    until("the slow one to be cancelled and the quick one to be gone", || {
        etcd.member(0).metric("etcd_debugging_mvcc_watcher_total") == 0.0
    })
    .await;
    assert_eq!(revisions(&mut slow, REVISIONS).await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn compacted_slow_consumer_drains_then_ends() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let mut slow = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let first = slow.start_revision() + 1;
    let last = write(&client, 6_000).await;
    client.compact(last).await.unwrap();
    let mut seen = first - 1;
    let end = loop {
        match change(&mut slow).await {
            Saw::Batch(revision, _) => {
                assert_eq!(revision, seen + 1, "no gap before the end");
                seen = revision;
            }
            saw => break saw,
        }
    };
    assert_eq!(end, Saw::Compacted(last));
    assert!(seen < last, "the queue is bounded");
}
