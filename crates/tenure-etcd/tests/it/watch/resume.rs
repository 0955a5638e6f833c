//! Broken streams: the watch goes on, elsewhere if need be, and its consumer sees each revision once.

use std::time::{Duration, Instant};

use tenure_etcd::{Client, Error, Put, WatchFrom, Watcher};
use tenure_fixture::{Etcd, Mode, Proxy, Timers};

use crate::observe::{
    Saw, change, client, client_of, impatient, next, prefix, put, put_stubbornly, revisions, until, watch,
    within,
};

/// Writes `count` keys one after the other; all of them are revisions of their own, without a gap.
async fn write(client: &Client, count: usize) -> Vec<i64> {
    let mut written = Vec::new();
    for _ in 0..count {
        written.push(put(client, "a/1", "").await);
    }
    written
}

/// How long the watch took to see a write.
async fn time_to_see(watcher: &mut Watcher, writer: &Client) -> Duration {
    let revision = put_stubbornly(writer, "a/1").await;
    let begin = Instant::now();
    loop {
        match change(watcher).await {
            Saw::Batch(seen, _) if seen >= revision => return begin.elapsed(),
            Saw::Batch(..) => {}
            saw => panic!("unexpected: {saw:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_survives_killed_server() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let mut now = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let mut past = watch(&client, prefix("a/", WatchFrom::After(0))).await;
    let mut written = write(&client, 3).await;
    etcd.member(0).kill();
    etcd.member(0).restart();
    written.push(put_stubbornly(&client, "a/1").await);
    written.extend(write(&client, 3).await);
    let last = *written.last().unwrap();
    for watcher in [&mut now, &mut past] {
        // An ambiguous put may have been written twice, but every revision must come once.
        let all: Vec<i64> = (written[0]..=last).collect();
        assert_eq!(revisions(watcher, all.len()).await, all);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_lose_and_repeat_nothing() {
    let etcd = Etcd::start();
    let writer = client(&etcd).await;
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    let mut watchers = vec![
        watch(&client, prefix("a/", WatchFrom::Now)).await,
        watch(&client, prefix("a/", WatchFrom::After(0))).await,
    ];
    let writing = tokio::spawn(async move { write(&writer, 1_500).await });
    for mode in [Mode::CutReset, Mode::CutFin].into_iter().cycle().take(8) {
        tokio::time::sleep(Duration::from_millis(60)).await;
        proxy.set(mode);
        proxy.set(Mode::Pass);
    }
    let written = within("the writer", writing).await.unwrap();
    watchers.push(watch(&client, prefix("a/", WatchFrom::After(0))).await);
    for watcher in &mut watchers {
        assert_eq!(revisions(watcher, written.len()).await, written);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_leaves_black_hole() {
    let etcd = Etcd::start();
    let writer = client(&etcd).await;
    let proxies = [0, 1].map(|_| Proxy::to(etcd.member(0).client_addr()));
    let client = client_of(proxies.iter().map(Proxy::url).collect()).await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let first = put(&writer, "a/1", "").await;
    assert_eq!(revisions(&mut watcher, 1).await, [first]);
    let used = proxies.iter().find(|proxy| proxy.connections_open() > 0).expect("one is in use");
    used.set(Mode::BlackHole);
    let took = time_to_see(&mut watcher, &writer).await;
    assert!(took < Duration::from_secs(6), "left after {took:?}");
    // Nothing was skipped on the way.
    let second = put(&writer, "a/1", "").await;
    assert_eq!(revisions(&mut watcher, 1).await, [second]);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_leaves_stopped_member() {
    let etcd = Etcd::builder().members(3).timers(Timers::Cluster).start();
    let follower = (etcd.leader() + 1) % 3;
    let other = (etcd.leader() + 2) % 3;
    let writer = client_of(vec![etcd.member(etcd.leader()).client_url()]).await;
    let urls = vec![etcd.member(follower).client_url(), etcd.member(other).client_url()];
    let client = impatient(urls, Duration::from_millis(500)).await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let on = |member: usize| etcd.member(member).metric("etcd_debugging_mvcc_watcher_total") == 1.0;
    let used = if on(follower) { follower } else { other };
    etcd.member(used).pause();
    let took = time_to_see(&mut watcher, &writer).await;
    etcd.member(used).resume();
    assert!(took < Duration::from_secs(3), "left after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_leader_costs_no_revision() {
    let etcd = Etcd::builder().members(3).timers(Timers::Cluster).start();
    let client = client(&etcd).await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let first = put(&client, "a/1", "").await;
    etcd.member(etcd.leader()).kill();
    let last = put_stubbornly(&client, "a/1").await;
    let all: Vec<i64> = (first..=last).collect();
    assert_eq!(revisions(&mut watcher, all.len()).await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_waits_out_lost_quorum() {
    let etcd = Etcd::builder().members(3).timers(Timers::Cluster).start();
    let client = client(&etcd).await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let first = put(&client, "a/1", "").await;
    assert_eq!(revisions(&mut watcher, 1).await, [first]);
    for member in [0, 1] {
        etcd.member(member).kill();
    }
    // The last member reports that it has no leader; without `RequireLeader` the stream would just
    // be silent.
    let error = client.put(Put { key: "a/1".into(), ..Put::default() }).await.unwrap_err();
    assert!(!matches!(error, Error::Replaced(_) | Error::Denied(_)), "{error:?}");
    for member in [0, 1] {
        etcd.member(member).spawn();
    }
    let last = put_stubbornly(&client, "a/1").await;
    let all: Vec<i64> = (first + 1..=last).collect();
    assert_eq!(revisions(&mut watcher, all.len()).await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_while_cut_off_is_reported() {
    let etcd = Etcd::start();
    let writer = client(&etcd).await;
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    let mut behind = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let first = put(&writer, "a/1", "").await;
    assert_eq!(revisions(&mut behind, 1).await, [first]);
    proxy.set(Mode::CutReset);
    let last = *write(&writer, 5).await.last().unwrap();
    writer.compact(last).await.unwrap();
    proxy.set(Mode::Pass);
    assert_eq!(change(&mut behind).await, Saw::Compacted(last));
    assert_eq!(next(&mut behind).await, Saw::Over);
}

/// A watcher of a quiet range must not become a victim of compaction: progress moves its resume point.
#[tokio::test(flavor = "multi_thread")]
async fn progressed_watcher_survives_compaction_while_cut() {
    let etcd = Etcd::start();
    let writer = client(&etcd).await;
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = impatient(vec![proxy.url()], Duration::from_millis(200)).await;
    let mut idle = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let noise = put(&writer, "b/1", "").await;
    assert_eq!(next(&mut idle).await, Saw::Progress(noise));
    proxy.set(Mode::CutReset);
    writer.compact(noise).await.unwrap();
    let missed = put(&writer, "a/1", "").await;
    proxy.set(Mode::Pass);
    assert_eq!(revisions(&mut idle, 1).await, [missed]);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_watchers_resume_together() {
    let etcd = Etcd::start();
    let writer = client(&etcd).await;
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    let mut watchers =
        futures_util::future::join_all((0..1_000).map(|_| watch(&client, prefix("a/", WatchFrom::Now))))
            .await;
    proxy.set(Mode::CutReset);
    let written = write(&writer, 3).await;
    let ranges = || etcd.member(0).metric_with("grpc_server_started_total", "grpc_method=\"Range\"");
    let before = ranges();
    proxy.set(Mode::Pass);
    for watcher in &mut watchers {
        assert_eq!(revisions(watcher, 3).await, written);
    }
    let reads = ranges() - before;
    assert!(reads <= 100.0, "{reads} reads to prove a thousand starting points");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_history_ends_watch() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    write(&client, 20).await;
    let mut watcher = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let member = etcd.member(0);
    member.kill();
    for entry in std::fs::read_dir(member.folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    member.restart();
    assert!(matches!(change(&mut watcher).await, Saw::Lost(why) if why.contains("back in time")));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_dead_store_fails_in_time() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    proxy.set(Mode::BlackHole);
    let begin = Instant::now();
    let error = client.watch(prefix("a/", WatchFrom::Now)).await.unwrap_err();
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(7), "{error} after {took:?}");
    assert!(error.is_retryable(), "{error:?}");
    proxy.set(Mode::Pass);
    let _later = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let watchers = || etcd.member(0).metric("etcd_debugging_mvcc_watcher_total");
    until("only the later watcher", || watchers() == 1.0).await;
}
