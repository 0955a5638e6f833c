//! A fault hits a worker: its task processes, grandchildren included, never overlap those of the next owner.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tenure_fixture::Etcd;

use super::{SOON, on_etcd, on_file, start};
use crate::ledger::{beating, beating_file, intervals, overlap};
use crate::sandbox::{Running, Sandbox};
use crate::supervise::{gone, helpers_of};

/// Short, so that a run takes seconds. Without a renewal the task gets SIGTERM after 1.5 s and SIGKILL after 2.5 s.
const SHORT: [&str; 2] = ["--ttl", "3s"];

/// Starts a task on one worker, injects a fault, and compares the beats of both owners once the second runs it.
async fn check_after(sandbox: &Sandbox, inject: impl AsyncFn(&Running)) {
    check_script_after(sandbox, &beating(sandbox), inject).await;
}

/// The same with this script.
async fn check_script_after(sandbox: &Sandbox, script: &str, inject: impl AsyncFn(&Running)) {
    let mut first = start(sandbox, "first", script, &SHORT).await;
    sandbox.ok(&["submit", "x"]).await;
    assert!(first.line().await.starts_with("up"));
    let mut second = start(sandbox, "second", script, &SHORT).await;
    inject(&first).await;
    assert!(second.line().await.starts_with("up"));
    // A remaining process of the first would beat again within this time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for worker in [&mut second, &mut first] {
        let _ = kill_process(worker.pid(), Signal::KILL);
        worker.silence(SOON).await;
    }
    let intervals = intervals(sandbox);
    assert!(intervals.len() >= 2, "{intervals:?}");
    assert_eq!(overlap(&intervals), None);
}

#[tokio::test]
async fn killed_worker_tasks_never_overlap_on_file() {
    check_after(&on_file(), async |first| first.signal(Signal::KILL)).await;
}

#[tokio::test]
async fn killed_worker_tasks_never_overlap_on_etcd() {
    let etcd = Etcd::start();
    check_after(&on_etcd(&etcd), async |first| first.signal(Signal::KILL)).await;
}

#[tokio::test]
async fn stopped_worker_tasks_never_overlap_on_etcd() {
    let etcd = Etcd::start();
    check_after(&on_etcd(&etcd), async |first| first.signal(Signal::STOP)).await;
}

/// `timeout` and `setsid` leave the task's process group.
#[tokio::test]
async fn escaped_task_never_overlaps_next_owner() {
    for (escape, signal) in [("timeout 60", Signal::KILL), ("setsid -w", Signal::STOP)] {
        let sandbox = on_file();
        let script = format!("{escape} sh {}; true", beating_file(&sandbox, "ledger"));
        check_script_after(&sandbox, &script, async |first| first.signal(signal)).await;
    }
}

#[tokio::test]
async fn all_tasks_share_one_sentinel() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", "echo up; sh -c 'trap \"\" TERM; sleep 25' & wait", &[]).await;
    sandbox.ok(&["submit", "x", "--count", "12"]).await;
    for _ in 0..12 {
        assert_eq!(worker.line().await, "up");
    }
    assert_eq!(helpers_of(&worker, "sentinel").len(), 1);
    worker.signal(Signal::KILL);
    worker.silence(SOON).await;
}

#[tokio::test]
async fn killed_sentinel_is_replaced() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", "echo up; sleep 25 & wait", &["-v"]).await;
    sandbox.ok(&["submit", "x", "--count", "3"]).await;
    for _ in 0..3 {
        assert_eq!(worker.line().await, "up");
    }
    let first = helpers_of(&worker, "sentinel")[0];
    kill_process(first, Signal::KILL).unwrap();
    worker.hear("sentinel replaced").await;
    let second = helpers_of(&worker, "sentinel");
    assert!(second.len() == 1 && second[0] != first, "{second:?}");
    worker.signal(Signal::KILL);
    worker.silence(SOON).await;
}

/// The sentinel ends the task while the worker is stopped, and the worker must not count that as a fault of the task.
#[tokio::test]
async fn paused_worker_blames_no_task() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", "echo $$; exec sleep 25", &SHORT).await;
    sandbox.ok(&["submit", "x"]).await;
    let task = worker.line().await;
    worker.signal(Signal::STOP);
    gone(&task).await;
    worker.signal(Signal::CONT);
    assert_ne!(worker.line().await, task, "it runs again");
    let shown = super::shown(&sandbox, "x").await;
    assert_eq!((&shown["state"], &shown["faults"]), (&"runnable".into(), &0.into()), "{shown}");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

/// The store is unreachable for longer than the TTL: tasks get SIGTERM, then SIGKILL, and no state of them is written.
#[tokio::test]
async fn long_outage_stops_tasks_without_faults() {
    let etcd = Etcd::start();
    let sandbox = on_etcd(&etcd);
    let script = "trap 'echo asked; exit 0' TERM; echo up; sleep 25 & wait";
    let mut worker = start(&sandbox, "w", script, &SHORT).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    etcd.member(0).pause();
    assert_eq!(worker.line().await, "asked");
    tokio::time::sleep(Duration::from_secs(3)).await;
    etcd.member(0).resume();
    let shown = super::until(&sandbox, "x", |shown| shown["owner"] == "w" || shown["owner"].is_null()).await;
    assert_eq!((&shown["state"], &shown["faults"]), (&"runnable".into(), &0.into()), "{shown}");
    assert_eq!(worker.line().await, "up", "the task is claimed again");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}
