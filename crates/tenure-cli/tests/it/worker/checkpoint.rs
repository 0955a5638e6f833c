//! Checkpoints through a file: for the next owner, and on request.

use rustix::process::Signal;
use serde_json::json;
use tenure_fixture::Etcd;

use super::{on_etcd, on_file, shown, start, until};
use crate::sandbox::Sandbox;

/// Counts its runs in its checkpoint on SIGTERM.
const COUNTING: &str = "n=$(cat $TENURE_CHECKPOINT); n=${n:-0}; \
    trap 'echo $((n+1)) >$TENURE_CHECKPOINT; exit 0' TERM; echo at $n; sleep 25 & wait";

/// Writes its checkpoint on SIGUSR1.
const SAVES_ON_REQUEST: &str = "n=$(cat $TENURE_CHECKPOINT); n=${n:-0}; \
    trap 'echo $((n+7)) >$TENURE_CHECKPOINT; echo kept' USR1; echo at $n; sleep 25 & wait; wait";

async fn next_owner_continues_from_checkpoint(sandbox: &Sandbox) {
    let mut first = start(sandbox, "first", COUNTING, &[]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(first.line().await, "at 0");
    let mut second = start(sandbox, "second", COUNTING, &[]).await;
    sandbox.ok(&["task", "release", "x"]).await;
    assert_eq!(second.line().await, "at 1");
    sandbox.ok(&["task", "pause", "x"]).await;
    sandbox.ok(&["task", "resume", "x"]).await;
    assert_eq!(second.line().await, "at 2", "the same owner continues too");
    for worker in [first, second] {
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    }
    assert_eq!(shown(sandbox, "x").await["checkpoint_bytes"], json!(2));
}

#[tokio::test]
async fn next_owner_continues_from_checkpoint_on_file() {
    next_owner_continues_from_checkpoint(&on_file()).await;
}

#[tokio::test]
async fn next_owner_continues_from_checkpoint_on_etcd() {
    next_owner_continues_from_checkpoint(&on_etcd(&Etcd::start())).await;
}

#[tokio::test]
async fn requested_checkpoint_survives_killed_worker() {
    let sandbox = on_file();
    let mut first = start(&sandbox, "first", SAVES_ON_REQUEST, &["--ttl", "3s"]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(first.line().await, "at 0");
    sandbox.ok(&["task", "checkpoint", "x"]).await;
    assert_eq!(first.line().await, "kept");
    until(&sandbox, "x", |shown| shown["checkpoint_bytes"] == json!(2)).await;
    let mut second = start(&sandbox, "second", SAVES_ON_REQUEST, &["--ttl", "3s"]).await;
    first.signal(Signal::KILL);
    assert_eq!(second.line().await, "at 7");
    second.interrupt();
    assert_eq!(second.end().await.0, Some(0));
}

#[tokio::test]
async fn checkpoint_request_spares_unprepared_task() {
    let sandbox = on_file();
    let script = "echo half >$TENURE_CHECKPOINT; echo up; sleep 25";
    let mut worker = start(&sandbox, "w", script, &[]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    sandbox.ok(&["task", "checkpoint", "x"]).await;
    until(&sandbox, "x", |shown| shown["checkpoint_bytes"] == json!(5)).await;
    let shown = shown(&sandbox, "x").await;
    assert_eq!((&shown["state"], &shown["faults"]), (&json!("runnable"), &json!(0)));
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn oversized_checkpoint_is_reported_and_task_completes() {
    let sandbox = on_file();
    let script = "head -c 300000 /dev/zero >$TENURE_CHECKPOINT";
    let mut worker = start(&sandbox, "w", script, &[]).await;
    assert_eq!(sandbox.run(&["submit", "x", "--wait=60s"]).await.code, Some(0));
    let output = worker.hear("the checkpoint of 'x' was not saved").await;
    assert!(output.contains("262144"), "{output}");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

/// The number of checkpoint folders.
fn folders(sandbox: &Sandbox) -> usize {
    let entries = std::fs::read_dir(sandbox.path("tmp")).unwrap().map(|entry| entry.unwrap().file_name());
    entries.filter(|name| name.to_string_lossy().starts_with("tenure-worker-")).count()
}

#[tokio::test]
async fn next_worker_removes_orphaned_folders() {
    let sandbox = on_file();
    let mut alive = start(&sandbox, "alive", COUNTING, &[]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(alive.line().await, "at 0");
    let killed = start(&sandbox, "killed", COUNTING, &[]).await;
    killed.signal(Signal::KILL);
    killed.end().await;
    assert_eq!(folders(&sandbox), 2, "a killed worker removes nothing");
    let next = start(&sandbox, "next", COUNTING, &[]).await;
    assert_eq!(folders(&sandbox), 2, "the folders of running workers");
    sandbox.ok(&["node", "freeze", "next"]).await;
    sandbox.ok(&["task", "pause", "x"]).await;
    assert_eq!(shown(&sandbox, "x").await["checkpoint_bytes"], json!(2), "a running worker keeps its folder");
    for worker in [alive, next] {
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    }
    assert_eq!(folders(&sandbox), 0);
}
