//! A fault hits a holder or its store: the commands of two holders, grandchildren included, never overlap.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_fixture::Etcd;

use super::on;
use crate::ledger::{beating, intervals, overlap};
use crate::sandbox::{Running, Sandbox};

/// Short, so that a run takes seconds. Without a renewal the command gets SIGTERM after 1.5 s and SIGKILL after 2.5 s.
const TTL: &str = "3s";

/// One run in every check, fifty with `TENURE_SOAK=1`.
fn runs() -> usize {
    if std::env::var_os("TENURE_SOAK").is_some() { 50 } else { 1 }
}

fn start(sandbox: &Sandbox, script: &str) -> Running {
    sandbox.start(&["lock", "a", "--ttl", TTL, "--", "sh", "-c", script])
}

/// Starts a holder and a waiter, injects a fault, and compares the beats of both once the second holds.
async fn check_after(inject: impl AsyncFn(&Etcd, &Running)) {
    let etcd = Etcd::start();
    let (mut run, mut spoilt) = (0, 0);
    while run < runs() {
        let sandbox = on(&etcd);
        let script = beating(&sandbox);
        let mut first = start(&sandbox, &script);
        assert_eq!(first.line().await, "up");
        let mut second = start(&sandbox, &script);
        let waits = second.hear_before_line("waiting for 'a'").await;
        match &waits {
            Ok(_) => {
                inject(&etcd, &first).await;
                assert_eq!(second.line().await, "up");
            }
            Err(line) => assert_eq!(line, "up"),
        }
        // A remaining process of the first would beat again within this time.
        tokio::time::sleep(Duration::from_millis(300)).await;
        second.signal(Signal::KILL);
        second.silence(Duration::from_secs(10)).await;
        if waits.is_ok() {
            let _ = rustix::process::kill_process(first.pid(), Signal::KILL);
        }
        first.silence(Duration::from_secs(10)).await;
        let intervals = intervals(&sandbox);
        assert_eq!(intervals.len(), 2, "run {run}: {intervals:?}");
        assert_eq!(overlap(&intervals), None, "run {run}");
        // The killed holder released nothing, and the next run needs the lock free.
        sandbox.ok(&["locks", "break", "a", "--force", "--yes"]).await;
        if waits.is_ok() {
            run += 1;
            continue;
        }
        // A busy test host renewed too late: the second took the lock although no fault was injected.
        let (code, stderr) = first.end().await;
        assert_eq!(code, Some(122), "run {run}: {stderr}");
        spoilt += 1;
        assert!(spoilt <= runs(), "the test host is too busy: {spoilt} of {run} runs");
    }
}

#[tokio::test]
async fn soak_stopped_supervisor_never_overlaps() {
    check_after(async |_, first| first.signal(Signal::STOP)).await;
}

#[tokio::test]
async fn soak_killed_supervisor_never_overlaps() {
    check_after(async |_, first| first.signal(Signal::KILL)).await;
}

#[tokio::test]
async fn soak_stopped_etcd_never_overlaps() {
    check_after(async |etcd, _| {
        etcd.member(0).pause();
        tokio::time::sleep(Duration::from_secs(4)).await;
        etcd.member(0).resume();
    })
    .await;
}

#[tokio::test]
async fn soak_killed_etcd_never_overlaps() {
    check_after(async |etcd, _| {
        etcd.member(0).kill();
        tokio::time::sleep(Duration::from_secs(4)).await;
        etcd.member(0).restart();
    })
    .await;
}

/// etcd is unreachable for longer than the TTL: the command gets SIGTERM first, and the exit code is 122.
#[tokio::test]
async fn long_outage_stops_command_and_exits_122() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let mut first = start(&sandbox, "trap 'echo asked; exit 0' TERM; echo up; sleep 25 & wait");
    assert_eq!(first.line().await, "up");
    let begin = Instant::now();
    etcd.member(0).kill();
    assert_eq!(first.line().await, "asked");
    // 1.5 s after the last renewal was sent; the difference is for a busy test host.
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    first.silence(Duration::from_secs(10)).await;
    let (code, stderr) = first.end().await;
    assert_eq!(code, Some(122), "{stderr}");
    assert!(stderr.contains("not renewed in time"), "{stderr}");
}

/// etcd is unreachable for less than the TTL: the holder keeps the lock and the command its exit code.
#[tokio::test]
async fn etcd_restart_within_ttl_is_invisible() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let running = super::hold(&sandbox, &[]).await;
    etcd.member(0).kill();
    etcd.member(0).restart();
    assert!(!super::is_free(&sandbox).await);
    let (code, stderr) = super::finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
}
