//! Stopping tasks and workers: signals, grace periods and commands.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::json;
use tenure_fixture::Etcd;

use super::{SOON, is, on_both, on_etcd, on_file, shown, start, until};
use crate::sandbox::Sandbox;

/// Prints `up` and, on SIGTERM, `asked`; exits with 0 as most programs do.
const POLITE: &str = "trap 'echo asked; exit 0' TERM; echo up; sleep 25 & wait";

/// Ignores SIGTERM, and so does its child.
const DEAF: &str = "trap '' TERM; sh -c 'trap \"\" TERM; echo up; sleep 25' & wait; wait";

async fn paused_task_stops_and_resumes(sandbox: &Sandbox) {
    let mut worker = start(sandbox, "w", POLITE, &[]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    let ran = sandbox.run(&["task", "pause", "x"]).await;
    assert!(ran.stdout.starts_with("x\trunnable\tpaused\tw\t") && ran.stdout.ends_with(" ms\n"), "{ran:?}");
    assert!(ran.stderr.contains("pause of 'x' acknowledged by w in "), "{ran:?}");
    assert_eq!(worker.line().await, "asked");
    let paused = shown(sandbox, "x").await;
    assert_eq!(
        (&paused["state"], &paused["owner"], &paused["faults"]),
        (&json!("paused"), &json!("w"), &json!(0)),
        "a stopped task with exit code 0 is not completed"
    );
    sandbox.ok(&["task", "resume", "x"]).await;
    assert_eq!(worker.line().await, "up");
    sandbox.ok(&["task", "sleep", "x", "1h"]).await;
    assert_eq!(worker.line().await, "asked");
    sandbox.ok(&["task", "kill", "x"]).await;
    assert_eq!(shown(sandbox, "x").await["state"], "killed");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn paused_task_stops_and_resumes_on_file() {
    paused_task_stops_and_resumes(&on_file()).await;
}

#[tokio::test]
async fn paused_task_stops_and_resumes_on_etcd() {
    paused_task_stops_and_resumes(&on_etcd(&Etcd::start())).await;
}

#[tokio::test]
async fn deaf_task_is_killed_with_its_children() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", DEAF, &["--grace", "500ms"]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    let begin = Instant::now();
    sandbox.ok(&["task", "kill", "x"]).await;
    assert!(begin.elapsed().as_millis() >= 500, "the grace period passed: {:?}", begin.elapsed());
    assert_eq!(shown(&sandbox, "x").await["state"], "killed");
    worker.interrupt();
    // A remaining process would keep stdout open.
    worker.silence(SOON).await;
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn deleted_task_stops() {
    on_both(async |sandbox| {
        let mut worker = start(&sandbox, "w", POLITE, &[]).await;
        sandbox.ok(&["submit", "x"]).await;
        assert_eq!(worker.line().await, "up");
        sandbox.ok(&["task", "rm", "x"]).await;
        assert_eq!(worker.line().await, "asked");
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn released_task_moves_to_another_worker() {
    on_both(async |sandbox| {
        let mut first = start(&sandbox, "first", POLITE, &[]).await;
        sandbox.ok(&["submit", "x"]).await;
        assert_eq!(first.line().await, "up");
        let mut second = start(&sandbox, "second", POLITE, &[]).await;
        sandbox.ok(&["task", "release", "x"]).await;
        assert_eq!(first.line().await, "asked");
        assert_eq!(second.line().await, "up");
        assert_eq!(shown(&sandbox, "x").await["owner"], "second");
        for worker in [first, second] {
            worker.interrupt();
            assert_eq!(worker.end().await.0, Some(0));
        }
    })
    .await;
}

async fn ended_worker_releases_all_tasks(sandbox: &Sandbox) {
    let mut first = start(sandbox, "first", POLITE, &[]).await;
    sandbox.ok(&["submit", "x", "--count", "3"]).await;
    for _ in 0..3 {
        assert_eq!(first.line().await, "up");
    }
    let mut second = start(sandbox, "second", POLITE, &["--balance", "all"]).await;
    first.signal(Signal::TERM);
    for _ in 0..3 {
        assert_eq!(second.line().await, "up");
    }
    let (code, stderr) = first.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("stopping 3 tasks and leaving") && stderr.contains("has left"), "{stderr}");
    assert_eq!(sandbox.run(&["node", "show", "first"]).await.code, Some(3), "it is gone");
    second.signal(Signal::TERM);
    assert_eq!(second.end().await.0, Some(0));
    assert_eq!(
        sandbox.json(&["task", "ls", "--node", "second"]).await["tasks"],
        json!([]),
        "all are released"
    );
}

#[tokio::test]
async fn ended_worker_releases_all_tasks_on_file() {
    ended_worker_releases_all_tasks(&on_file()).await;
}

#[tokio::test]
async fn ended_worker_releases_all_tasks_on_etcd() {
    ended_worker_releases_all_tasks(&on_etcd(&Etcd::start())).await;
}

#[tokio::test]
async fn second_signal_kills_and_releases_task() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", DEAF, &["--ttl", "60s", "--grace", "20s"]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    let begin = Instant::now();
    worker.signal(Signal::TERM);
    worker.hear("a second signal").await;
    worker.signal(Signal::TERM);
    worker.silence(SOON).await;
    let (code, stderr) = worker.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(shown(&sandbox, "x").await["owner"], json!(null));
}

#[tokio::test]
async fn drained_worker_empties_and_exits() {
    on_both(async |sandbox| {
        let mut worker = start(&sandbox, "w", POLITE, &[]).await;
        sandbox.ok(&["submit", "x", "--count", "5"]).await;
        for _ in 0..5 {
            assert_eq!(worker.line().await, "up");
        }
        let ran = sandbox.run(&["node", "drain", "w", "--wait", "60s"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("draining 'w': 5 tasks left"), "{ran:?}");
        assert!(ran.stderr.contains("node 'w' released 5 tasks and has left"), "{ran:?}");
        assert_eq!(worker.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn remaining_process_delays_task_completion() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", "sleep 2 & echo up; exit 0", &[]).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    worker.hear("waiting for the processes that it left running").await;
    assert_eq!(shown(&sandbox, "x").await["state"], "runnable");
    is(&sandbox, "x", "completed").await;
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn frozen_worker_keeps_tasks_claims_none() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", POLITE, &[]).await;
    sandbox.ok(&["submit", "first"]).await;
    assert_eq!(worker.line().await, "up");
    sandbox.ok(&["node", "freeze", "w"]).await;
    sandbox.ok(&["submit", "second"]).await;
    sandbox.ok(&["node", "unfreeze", "w"]).await;
    until(&sandbox, "second", |shown| shown["owner"] == "w").await;
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}
