//! Watches on real etcd: what is delivered, from when, and when it ends.

mod access;
mod resume;
mod slow;

use std::time::Duration;

use bytes::Bytes;
use tenure_etcd::{Delete, Error, Invalid, Op, Put, WatchEvent, WatchFrom, WatchItem, WatchSpec};
use tenure_fixture::Etcd;

use crate::observe::{
    Saw, change, client, delete, impatient, item, next, one_key, prefix, put, revisions, txn, until, watch,
    within,
};

fn batch(revision: i64, events: &[&str]) -> Saw {
    Saw::Batch(revision, events.iter().map(|event| (*event).to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_from_now_delivers_later_changes() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let before = put(&client, "a/1", "old").await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    assert_eq!(watcher.start_revision(), before);
    let after = put(&client, "a/2", "new").await;
    assert_eq!(change(&mut watcher).await, batch(after, &["+a/2"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_from_now_misses_nothing() {
    let etcd = Etcd::start();
    let (client, writer) = (client(&etcd).await, client(&etcd).await);
    // A writer that never pauses makes the read and the creation race.
    let noise = tokio::spawn({
        let writer = writer.clone();
        async move {
            loop {
                put(&writer, "noise/x", "").await;
            }
        }
    });
    for _ in 0..100 {
        let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
        let revision = put(&writer, "a/1", "").await;
        assert!(watcher.start_revision() < revision);
        assert_eq!(change(&mut watcher).await, batch(revision, &["+a/1"]));
    }
    noise.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_from_past_delivers_every_version() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let first = put(&client, "a/1", "1").await;
    for value in ["2", "3"] {
        put(&client, "a/1", value).await;
    }
    delete(&client, "a/1").await;
    let mut from_first = watch(&client, prefix("a/", WatchFrom::After(first))).await;
    let mut from_beginning = watch(&client, prefix("a/", WatchFrom::After(0))).await;
    assert_eq!(revisions(&mut from_first, 3).await, [first + 1, first + 2, first + 3]);
    assert_eq!(revisions(&mut from_beginning, 4).await, [first, first + 1, first + 2, first + 3]);
    put(&client, "a/1", "4").await;
    for watcher in [&mut from_first, &mut from_beginning] {
        assert_eq!(change(watcher).await, batch(first + 4, &["+a/1"]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_from_future_waits() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let now = put(&client, "a/0", "").await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::After(now + 2))).await;
    for key in ["a/1", "a/2", "a/3", "a/4"] {
        put(&client, key, "").await;
    }
    assert_eq!(change(&mut watcher).await, batch(now + 3, &["+a/3"]));
    assert_eq!(change(&mut watcher).await, batch(now + 4, &["+a/4"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_is_one_ordered_batch() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    put(&client, "a/gone", "").await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let write =
        |key: &'static str| Op::Put(Put { key: Bytes::from_static(key.as_bytes()), ..Put::default() });
    let remove = Op::Delete(Delete { key: Bytes::from_static(b"a/gone"), ..Delete::default() });
    let revision = txn(&client, vec![write("a/2"), remove, write("a/1"), write("b/1")]).await;
    assert_eq!(change(&mut watcher).await, batch(revision, &["+a/2", "-a/gone", "+a/1"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_carry_previous_values_and_leases() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let lease = client.lease_grant(0, Duration::from_secs(60)).await.unwrap();
    let mut watcher = watch(&client, WatchSpec { prev: true, ..one_key("a", WatchFrom::Now) }).await;
    let write = |value: &'static str, lease: i64| Put {
        key: Bytes::from_static(b"a"),
        value: Bytes::from_static(value.as_bytes()),
        lease,
        ..Put::default()
    };
    client.put(write("1", lease.id)).await.unwrap();
    client.put(write("2", 0)).await.unwrap();
    let last = delete(&client, "a").await;

    let mut seen = Vec::new();
    while seen.len() < 3 {
        if let Some(Ok(WatchItem::Batch { events, .. })) = item(&mut watcher).await {
            seen.extend(events);
        }
    }
    match &seen[..] {
        [
            WatchEvent::Put { kv: first, prev: None },
            WatchEvent::Put { kv: second, prev: Some(before) },
            WatchEvent::Delete { key, revision, prev: Some(at_last) },
        ] => {
            assert_eq!((first.lease, first.version), (lease.id, 1));
            assert_eq!((second.lease, second.version, before), (0, 2, first));
            assert_eq!((&key[..], *revision, at_last), (&b"a"[..], last, second));
        }
        other => panic!("unexpected: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_range_matches_key_prefix_or_all() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let mut one = watch(&client, one_key("a", WatchFrom::Now)).await;
    let zero = Bytes::from_static(b"\0");
    let mut all =
        watch(&client, WatchSpec { key: zero.clone(), range_end: zero, start: WatchFrom::Now, prev: false })
            .await;
    let first = put(&client, "ab", "").await;
    let second = put(&client, "a", "").await;
    // Deleting nothing is no change.
    delete(&client, "nothing").await;
    let third = put(&client, "b", "").await;
    assert_eq!(change(&mut one).await, batch(second, &["+a"]));
    assert_eq!(revisions(&mut all, 3).await, [first, second, third]);
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_replayed_completely() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let start = put(&client, "a/0", "").await;
    for _ in 0..300 {
        put(&client, "a/1", "").await;
    }
    let mut watcher = watch(&client, prefix("a/", WatchFrom::After(start))).await;
    assert_eq!(revisions(&mut watcher, 300).await, (start + 1..=start + 300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_watch_is_refused_locally() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let refused = |spec: WatchSpec| {
        let client = client.clone();
        async move { client.watch(spec).await.unwrap_err() }
    };
    assert_eq!(refused(one_key("", WatchFrom::Now)).await, Error::Invalid(Invalid::EmptyKey));
    assert!(matches!(refused(one_key("a", WatchFrom::After(-1))).await, Error::Invalid(Invalid::Other(_))));
    let upside_down = WatchSpec { range_end: Bytes::from_static(b"a"), ..one_key("b", WatchFrom::Now) };
    assert!(matches!(refused(upside_down).await, Error::Invalid(Invalid::Other(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_below_compaction_ends() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let start = put(&client, "a/0", "").await;
    let mut standing = watch(&client, prefix("a/", WatchFrom::Now)).await;
    for _ in 0..10 {
        put(&client, "a/1", "").await;
    }
    client.compact(start + 5).await.unwrap();
    let mut below = watch(&client, prefix("a/", WatchFrom::After(start))).await;
    assert_eq!(change(&mut below).await, Saw::Compacted(start + 5));
    assert_eq!(next(&mut below).await, Saw::Over);
    let mut above = watch(&client, prefix("a/", WatchFrom::After(start + 5))).await;
    assert_eq!(revisions(&mut above, 5).await, (start + 6..=start + 10).collect::<Vec<_>>());
    put(&client, "a/2", "").await;
    assert_eq!(revisions(&mut standing, 11).await, (start + 1..=start + 11).collect::<Vec<_>>());
}

/// etcd before 3.4.36 and 3.5.18 accepts a watch at exactly the compact revision and loses a
/// deletion there. Whatever the version, the watcher must either deliver it or report that history
/// is gone.
#[tokio::test(flavor = "multi_thread")]
async fn deletion_at_compact_revision_is_reported() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let written = put(&client, "a/1", "").await;
    let deleted = delete(&client, "a/1").await;
    put(&client, "a/2", "").await;
    client.compact(deleted).await.unwrap();
    let mut watcher = watch(&client, prefix("a/", WatchFrom::After(written))).await;
    assert_eq!(change(&mut watcher).await, Saw::Compacted(deleted));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_delete_revision_arrives_whole() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let value = "x".repeat(2_048);
    for hundred in 0..30 {
        let ops = (0..100).map(|n| {
            let key = format!("a/{:04}", hundred * 100 + n).into();
            Op::Put(Put { key, value: value.clone().into(), ..Put::default() })
        });
        txn(&client, ops.collect()).await;
    }
    let mut watcher = watch(&client, WatchSpec { prev: true, ..prefix("a/", WatchFrom::Now) }).await;
    let all = Delete { key: "a/".into(), range_end: "a0".into(), ..Delete::default() };
    let revision = txn(&client, vec![Op::Delete(all)]).await;
    // Live, and once more out of history.
    let mut replayed =
        watch(&client, WatchSpec { prev: true, ..prefix("a/", WatchFrom::After(revision - 1)) }).await;
    for watcher in [&mut watcher, &mut replayed] {
        let Some(Ok(WatchItem::Batch { revision: seen, events })) = item(watcher).await else {
            panic!("no batch")
        };
        assert_eq!((seen, events.len()), (revision, 3_000));
        let has_value = |event: &WatchEvent| matches!(event, WatchEvent::Delete { prev: Some(prev), .. } if prev.value.len() == 2_048);
        assert!(events.iter().all(has_value));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_share_one_stream_and_are_cancelled() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let member = etcd.member(0);
    let spec = |n: usize| {
        if n.is_multiple_of(2) { one_key("a", WatchFrom::Now) } else { prefix("a/", WatchFrom::After(0)) }
    };
    let opening = (0..2_000).map(|n| watch(&client, spec(n)));
    let mut watchers = futures_util::future::join_all(opening).await;
    assert_eq!(member.metric("etcd_debugging_mvcc_watcher_total"), 2_000.0);
    assert_eq!(member.metric("etcd_debugging_mvcc_watch_stream_total"), 1.0);
    let one = put(&client, "a", "").await;
    let under = put(&client, "a/1", "").await;
    for (n, watcher) in watchers.iter_mut().enumerate() {
        let wanted = if n.is_multiple_of(2) { batch(one, &["+a"]) } else { batch(under, &["+a/1"]) };
        assert_eq!(change(watcher).await, wanted);
    }
    watchers.truncate(1);
    until("the watchers to be cancelled", || member.metric("etcd_debugging_mvcc_watcher_total") == 1.0).await;
    let again = put(&client, "a", "").await;
    assert_eq!(change(&mut watchers[0]).await, batch(again, &["+a"]));
    watchers.clear();
    until("the stream to be closed", || member.metric("etcd_debugging_mvcc_watch_stream_total") == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_call_leaves_no_watch() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let kept = watch(&client, one_key("kept", WatchFrom::Now)).await;
    for n in 0..200_u64 {
        let call = client.watch(one_key("a", WatchFrom::Now));
        // Cancelled before the request was sent, while it is in flight, or just after.
        let _ = tokio::time::timeout(Duration::from_micros(n * 10), call).await;
    }
    let watchers = || etcd.member(0).metric("etcd_debugging_mvcc_watcher_total");
    until("only the kept watcher to remain", || watchers() == 1.0).await;
    drop(kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_watchers_and_tasks() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let mut watcher = watch(&client, one_key("a", WatchFrom::Now)).await;
    within("the client to close", client.close()).await;
    assert_eq!(next(&mut watcher).await, Saw::Lost(Error::Closed.to_string()));
    assert_eq!(next(&mut watcher).await, Saw::Over);
    assert_eq!(client.watch(one_key("a", WatchFrom::Now)).await.unwrap_err(), Error::Closed);
    let streams = || etcd.member(0).metric("etcd_debugging_mvcc_watch_stream_total");
    until("the stream to be closed", || streams() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_client_drop_ends_watchers() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let mut watcher = watch(&client, one_key("a", WatchFrom::Now)).await;
    drop(client);
    assert_eq!(next(&mut watcher).await, Saw::Lost(Error::Closed.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_watchers_get_progress() {
    let etcd = Etcd::start();
    let client = impatient(etcd.client_urls(), Duration::from_millis(200)).await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let revision = put(&client, "b/1", "").await;
    assert_eq!(next(&mut watcher).await, Saw::Progress(revision));
}

/// Newer servers do not answer a request for progress while any watcher of the stream starts in the future, and
/// `After(now)` does. A watchdog that relied on that answer would leave a healthy server again and again.
#[tokio::test(flavor = "multi_thread")]
async fn future_watcher_keeps_stream_alive() {
    let etcd = Etcd::start();
    let client = impatient(etcd.client_urls(), Duration::from_millis(100)).await;
    let now = put(&client, "a/1", "").await;
    let _after_now = watch(&client, prefix("a/", WatchFrom::After(now))).await;
    let _future = watch(&client, prefix("a/", WatchFrom::After(now + 1_000))).await;
    let of_watch = |name: &str| etcd.member(0).metric_with(name, "grpc_method=\"Watch\"");
    // Two creations, then two messages for every question of the watchdog.
    until("the watchdog to ask ten times", || of_watch("grpc_server_msg_received_total") >= 22.0).await;
    assert_eq!(of_watch("grpc_server_started_total"), 1.0);
}
