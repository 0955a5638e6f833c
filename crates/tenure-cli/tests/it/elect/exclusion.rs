//! A leader is killed or stopped: its command, grandchildren included, never overlaps the command of the next leader.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_fixture::Etcd;

use super::{on, sandbox, start_candidate, wait};
use crate::ledger::{beating, intervals, overlap};
use crate::sandbox::{Running, Sandbox};

/// Short, so that a run takes seconds. Without a renewal the command gets SIGTERM after 1.5 s and SIGKILL after 2.5 s.
const TTL: Duration = Duration::from_secs(3);

/// One run in every check, fifty with `TENURE_SOAK=1`.
fn runs() -> usize {
    if std::env::var_os("TENURE_SOAK").is_some() { 50 } else { 1 }
}

/// Starts a leader and a waiting candidate, injects a fault, and compares the beats of both once the second leads. Returns the failover time.
async fn check_after(sandbox: &Sandbox, inject: impl AsyncFn(&Running)) -> Duration {
    let script = beating(sandbox);
    let mut first = start_candidate(sandbox, "first", &["--ttl", "3s"], &script);
    assert_eq!(first.line().await, "up");
    let mut second = wait(sandbox, "second", &["--ttl", "3s"], &script).await;
    let begin = Instant::now();
    inject(&first).await;
    second.hear("leading 'a'").await;
    let took = begin.elapsed();
    assert_eq!(second.line().await, "up");
    // A remaining process of the first would beat again within this time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    second.signal(Signal::KILL);
    second.silence(Duration::from_secs(10)).await;
    let _ = rustix::process::kill_process(first.pid(), Signal::KILL);
    first.silence(Duration::from_secs(10)).await;
    let intervals = intervals(sandbox);
    assert_eq!(intervals.len(), 2, "{intervals:?}");
    assert_eq!(overlap(&intervals), None);
    took
}

#[tokio::test]
async fn soak_killed_leader_is_succeeded_within_ttl() {
    for run in 0..runs() {
        let took = check_after(&sandbox(), async |first| first.signal(Signal::KILL)).await;
        assert!(took < TTL + Duration::from_millis(700), "run {run}: {took:?}");
    }
}

#[tokio::test]
async fn soak_killed_leader_never_overlaps_on_etcd() {
    for _ in 0..runs() {
        let etcd = Etcd::start();
        check_after(&on(&etcd), async |first| first.signal(Signal::KILL)).await;
    }
}

#[tokio::test]
async fn soak_stopped_leader_never_overlaps_on_file() {
    for _ in 0..runs() {
        check_after(&sandbox(), async |first| first.signal(Signal::STOP)).await;
    }
}

#[tokio::test]
async fn soak_stopped_leader_never_overlaps_on_etcd() {
    for _ in 0..runs() {
        let etcd = Etcd::start();
        check_after(&on(&etcd), async |first| first.signal(Signal::STOP)).await;
    }
}
