//! The worst happening to a worker: its tasks, grandchildren included, never run beside those of the next owner.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tenure_fixture::Etcd;

use super::{SOON, on_etcd, on_file, start};
use crate::ledger::{beating, beating_file, intervals, overlap};
use crate::machine::{Machine, Running};
use crate::supervise::{gone, helpers_of};

/// Short, so that a run takes seconds; asked to stop after 1.5 s without a renewal, killed after 2.5 s.
const SHORT: [&str; 2] = ["--ttl", "3s"];

/// Lets a worker run a task, does something bad, and looks at what both owners wrote when the second has begun.
async fn after(machine: &Machine, bad: impl AsyncFn(&Running)) {
    after_running(machine, &beating(machine), bad).await;
}

/// The same with a script of one's own.
async fn after_running(machine: &Machine, script: &str, bad: impl AsyncFn(&Running)) {
    let mut first = start(machine, "first", script, &SHORT).await;
    machine.ok(&["submit", "x"]).await;
    assert!(first.line().await.starts_with("up"));
    let mut second = start(machine, "second", script, &SHORT).await;
    bad(&first).await;
    assert!(second.line().await.starts_with("up"));
    // Whatever of the first were left would beat again in this time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for worker in [&mut second, &mut first] {
        let _ = kill_process(worker.pid(), Signal::KILL);
        worker.silence(SOON).await;
    }
    let intervals = intervals(machine);
    assert!(intervals.len() >= 2, "{intervals:?}");
    assert_eq!(overlap(&intervals), None);
}

#[tokio::test]
async fn a_killed_worker_lets_nobody_overlap_on_a_file() {
    after(&on_file(), async |first| first.signal(Signal::KILL)).await;
}

#[tokio::test]
async fn a_killed_worker_lets_nobody_overlap_on_etcd() {
    let etcd = Etcd::start();
    after(&on_etcd(&etcd), async |first| first.signal(Signal::KILL)).await;
}

#[tokio::test]
async fn a_stopped_worker_lets_nobody_overlap() {
    let etcd = Etcd::start();
    after(&on_etcd(&etcd), async |first| first.signal(Signal::STOP)).await;
}

/// `timeout` and `setsid` leave the task's process group.
#[tokio::test]
async fn task_outside_its_group_never_overlaps_the_next_owner() {
    for (escape, signal) in [("timeout 60", Signal::KILL), ("setsid -w", Signal::STOP)] {
        let machine = on_file();
        let script = format!("{escape} sh {}; true", beating_file(&machine, "ledger"));
        after_running(&machine, &script, async |first| first.signal(signal)).await;
    }
}

#[tokio::test]
async fn all_tasks_of_a_worker_have_one_sentinel_and_die_with_it() {
    let machine = on_file();
    let mut worker = start(&machine, "w", "echo up; sh -c 'trap \"\" TERM; sleep 25' & wait", &[]).await;
    machine.ok(&["submit", "x", "--count", "12"]).await;
    for _ in 0..12 {
        assert_eq!(worker.line().await, "up");
    }
    assert_eq!(helpers_of(&worker, "sentinel").len(), 1);
    worker.signal(Signal::KILL);
    worker.silence(SOON).await;
}

#[tokio::test]
async fn a_sentinel_that_somebody_kills_is_replaced_and_still_guards_everybody() {
    let machine = on_file();
    let mut worker = start(&machine, "w", "echo up; sleep 25 & wait", &["-v"]).await;
    machine.ok(&["submit", "x", "--count", "3"]).await;
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

/// The sentinel ends the task meanwhile, and the worker must not take that for the task's own doing.
#[tokio::test]
async fn a_worker_that_was_stopped_for_long_blames_no_task_for_it() {
    let machine = on_file();
    let mut worker = start(&machine, "w", "echo $$; exec sleep 25", &SHORT).await;
    machine.ok(&["submit", "x"]).await;
    let task = worker.line().await;
    worker.signal(Signal::STOP);
    gone(&task).await;
    worker.signal(Signal::CONT);
    assert_ne!(worker.line().await, task, "it runs again");
    let shown = super::shown(&machine, "x").await;
    assert_eq!((&shown["state"], &shown["faults"]), (&"runnable".into(), &0.into()), "{shown}");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

/// The store is away for longer than the TTL: tasks are asked first, then ended, and nothing is written about them.
#[tokio::test]
async fn an_outage_beyond_the_ttl_stops_tasks_and_changes_nothing_about_them() {
    let etcd = Etcd::start();
    let machine = on_etcd(&etcd);
    let script = "trap 'echo asked; exit 0' TERM; echo up; sleep 25 & wait";
    let mut worker = start(&machine, "w", script, &SHORT).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    etcd.member(0).pause();
    assert_eq!(worker.line().await, "asked");
    tokio::time::sleep(Duration::from_secs(3)).await;
    etcd.member(0).resume();
    let shown = super::until(&machine, "x", |shown| shown["owner"] == "w" || shown["owner"].is_null()).await;
    assert_eq!((&shown["state"], &shown["faults"]), (&"runnable".into(), &0.into()), "{shown}");
    assert_eq!(worker.line().await, "up", "and it is taken up again");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}
