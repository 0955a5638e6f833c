//! Two under one name, and the worst happening to the first: their commands, grandchildren included, never run at the same time.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_fixture::Etcd;

use super::on;
use crate::ledger::{beating, intervals, overlap};
use crate::sandbox::{Running, Sandbox};

/// Short, so that a run takes seconds; asked to stop after 1.5 s without a renewal, killed after 2.5 s.
const TTL: &str = "3s";

/// One run in every check, fifty only when it is asked for: `TENURE_SOAK=1`.
fn runs() -> usize {
    if std::env::var_os("TENURE_SOAK").is_some() { 50 } else { 1 }
}

fn start(sandbox: &Sandbox, script: &str) -> Running {
    sandbox.start(&["lock", "a", "--ttl", TTL, "--", "sh", "-c", script])
}

/// Lets one hold and one wait, does something bad, and looks at what both wrote when the second has begun.
async fn after(bad: impl AsyncFn(&Etcd, &Running)) {
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
                bad(&etcd, &first).await;
                assert_eq!(second.line().await, "up");
            }
            Err(line) => assert_eq!(line, "up"),
        }
        // Whatever of the first were left would beat again in this time.
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
        // The next run needs the lock; nobody is left who would give it back.
        sandbox.ok(&["locks", "break", "a", "--force", "--yes"]).await;
        if waits.is_ok() {
            run += 1;
            continue;
        }
        // A busy test host renewed too late: the second took the lock although no fault was injected.
        let (code, stderr) = first.end().await;
        assert_eq!(code, Some(122), "run {run}: {stderr}");
        spoilt += 1;
        assert!(spoilt <= runs(), "too busy a sandbox: {spoilt} of {run} runs");
    }
}

#[tokio::test]
async fn soak_stopped_supervisor_never_overlaps() {
    after(async |_, first| first.signal(Signal::STOP)).await;
}

#[tokio::test]
async fn soak_killed_supervisor_never_overlaps() {
    after(async |_, first| first.signal(Signal::KILL)).await;
}

#[tokio::test]
async fn soak_stopped_etcd_never_overlaps() {
    after(async |etcd, _| {
        etcd.member(0).pause();
        tokio::time::sleep(Duration::from_secs(4)).await;
        etcd.member(0).resume();
    })
    .await;
}

#[tokio::test]
async fn soak_killed_etcd_never_overlaps() {
    after(async |etcd, _| {
        etcd.member(0).kill();
        tokio::time::sleep(Duration::from_secs(4)).await;
        etcd.member(0).restart();
    })
    .await;
}

/// etcd is away for longer than the TTL: the command is asked first, and the exit code says why.
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

/// etcd is away for less than that: nobody notices.
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
