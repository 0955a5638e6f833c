//! Progress through a file: to the next owner, and when somebody asks for it.

use rustix::process::Signal;
use serde_json::json;
use tenure_fixture::Etcd;

use super::{on_etcd, on_file, shown, start, until};
use crate::machine::Machine;

/// Counts its runs in its checkpoint, when it is told to stop.
const COUNTING: &str = "n=$(cat $TENURE_CHECKPOINT); n=${n:-0}; \
    trap 'echo $((n+1)) >$TENURE_CHECKPOINT; exit 0' TERM; echo at $n; sleep 25 & wait";

/// Writes down what it has when it is asked.
const ASKED: &str = "n=$(cat $TENURE_CHECKPOINT); n=${n:-0}; \
    trap 'echo $((n+7)) >$TENURE_CHECKPOINT; echo kept' USR1; echo at $n; sleep 25 & wait; wait";

async fn the_next_owner_goes_on_where_the_last_one_stopped(machine: &Machine) {
    let mut first = start(machine, "first", COUNTING, &[]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(first.line().await, "at 0");
    let mut second = start(machine, "second", COUNTING, &[]).await;
    machine.ok(&["task", "release", "x"]).await;
    assert_eq!(second.line().await, "at 1");
    machine.ok(&["task", "pause", "x"]).await;
    machine.ok(&["task", "resume", "x"]).await;
    assert_eq!(second.line().await, "at 2", "also if it is the same one");
    for worker in [first, second] {
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    }
    assert_eq!(shown(machine, "x").await["checkpoint_bytes"], json!(2));
}

#[tokio::test]
async fn the_next_owner_goes_on_where_the_last_one_stopped_on_a_file() {
    the_next_owner_goes_on_where_the_last_one_stopped(&on_file()).await;
}

#[tokio::test]
async fn the_next_owner_goes_on_where_the_last_one_stopped_on_etcd() {
    the_next_owner_goes_on_where_the_last_one_stopped(&on_etcd(&Etcd::start())).await;
}

#[tokio::test]
async fn what_was_kept_when_asked_survives_a_worker_that_is_killed() {
    let machine = on_file();
    let mut first = start(&machine, "first", ASKED, &["--ttl", "3s"]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(first.line().await, "at 0");
    machine.ok(&["task", "checkpoint", "x"]).await;
    assert_eq!(first.line().await, "kept");
    until(&machine, "x", |shown| shown["checkpoint_bytes"] == json!(2)).await;
    let mut second = start(&machine, "second", ASKED, &["--ttl", "3s"]).await;
    first.signal(Signal::KILL);
    assert_eq!(second.line().await, "at 7");
    second.interrupt();
    assert_eq!(second.end().await.0, Some(0));
}

#[tokio::test]
async fn asking_for_progress_ends_nobody_who_is_not_prepared_for_it() {
    let machine = on_file();
    let script = "echo half >$TENURE_CHECKPOINT; echo up; sleep 25";
    let mut worker = start(&machine, "w", script, &[]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    machine.ok(&["task", "checkpoint", "x"]).await;
    until(&machine, "x", |shown| shown["checkpoint_bytes"] == json!(5)).await;
    let shown = shown(&machine, "x").await;
    assert_eq!((&shown["state"], &shown["faults"]), (&json!("runnable"), &json!(0)));
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn progress_that_is_too_large_is_told_and_the_task_goes_its_way() {
    let machine = on_file();
    let script = "head -c 300000 /dev/zero >$TENURE_CHECKPOINT";
    let mut worker = start(&machine, "w", script, &[]).await;
    assert_eq!(machine.run(&["submit", "x", "--wait=60s"]).await.code, Some(0));
    let told = worker.hear("the checkpoint of 'x' was not saved").await;
    assert!(told.contains("262144"), "{told}");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

/// The folders of workers that are there.
fn folders(machine: &Machine) -> usize {
    let entries = std::fs::read_dir(machine.path("tmp")).unwrap().map(|entry| entry.unwrap().file_name());
    entries.filter(|name| name.to_string_lossy().starts_with("tenure-worker-")).count()
}

#[tokio::test]
async fn what_a_killed_worker_leaves_goes_when_the_next_one_starts() {
    let machine = on_file();
    let mut alive = start(&machine, "alive", COUNTING, &[]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(alive.line().await, "at 0");
    let killed = start(&machine, "killed", COUNTING, &[]).await;
    killed.signal(Signal::KILL);
    killed.end().await;
    assert_eq!(folders(&machine), 2, "one that is killed removes nothing");
    let next = start(&machine, "next", COUNTING, &[]).await;
    assert_eq!(folders(&machine), 2, "those of the living");
    machine.ok(&["node", "freeze", "next"]).await;
    machine.ok(&["task", "pause", "x"]).await;
    assert_eq!(shown(&machine, "x").await["checkpoint_bytes"], json!(2), "whoever lives keeps its own");
    for worker in [alive, next] {
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    }
    assert_eq!(folders(&machine), 0);
}
