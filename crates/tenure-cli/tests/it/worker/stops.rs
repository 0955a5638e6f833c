//! Tasks that are told to stop, and workers that are.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::json;
use tenure_fixture::Etcd;

use super::{SOON, is, on_both, on_etcd, on_file, shown, start, until};
use crate::machine::Machine;

/// Says that it is up and that it was asked, and ends with 0 as most programs do.
const POLITE: &str = "trap 'echo asked; exit 0' TERM; echo up; sleep 25 & wait";

/// Hears nothing, and neither does what it starts.
const DEAF: &str = "trap '' TERM; sh -c 'trap \"\" TERM; echo up; sleep 25' & wait; wait";

async fn a_paused_task_has_stopped_and_goes_on_when_it_is_told(machine: &Machine) {
    let mut worker = start(machine, "w", POLITE, &[]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    let ran = machine.run(&["task", "pause", "x"]).await;
    assert!(ran.stdout.starts_with("x\trunnable\tpaused\tw\t") && ran.stdout.ends_with(" ms\n"), "{ran:?}");
    assert!(ran.stderr.contains("pause of 'x' acknowledged by w in "), "{ran:?}");
    assert_eq!(worker.line().await, "asked");
    let paused = shown(machine, "x").await;
    assert_eq!(
        (&paused["state"], &paused["owner"], &paused["faults"]),
        (&json!("paused"), &json!("w"), &json!(0)),
        "stopped with 0 is not completed"
    );
    machine.ok(&["task", "resume", "x"]).await;
    assert_eq!(worker.line().await, "up");
    machine.ok(&["task", "sleep", "x", "1h"]).await;
    assert_eq!(worker.line().await, "asked");
    machine.ok(&["task", "kill", "x"]).await;
    assert_eq!(shown(machine, "x").await["state"], "killed");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn a_paused_task_has_stopped_on_a_file() {
    a_paused_task_has_stopped_and_goes_on_when_it_is_told(&on_file()).await;
}

#[tokio::test]
async fn a_paused_task_has_stopped_on_etcd() {
    a_paused_task_has_stopped_and_goes_on_when_it_is_told(&on_etcd(&Etcd::start())).await;
}

#[tokio::test]
async fn a_task_that_hears_nothing_is_killed_with_everything_it_started() {
    let machine = on_file();
    let mut worker = start(&machine, "w", DEAF, &["--grace", "500ms"]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    let begin = Instant::now();
    machine.ok(&["task", "kill", "x"]).await;
    assert!(begin.elapsed().as_millis() >= 500, "it had its grace: {:?}", begin.elapsed());
    assert_eq!(shown(&machine, "x").await["state"], "killed");
    worker.interrupt();
    // Whoever were left would hold stdout.
    worker.silence(SOON).await;
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn a_deleted_task_stops() {
    on_both(async |machine| {
        let mut worker = start(&machine, "w", POLITE, &[]).await;
        machine.ok(&["submit", "x"]).await;
        assert_eq!(worker.line().await, "up");
        machine.ok(&["task", "rm", "x"]).await;
        assert_eq!(worker.line().await, "asked");
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn a_released_task_goes_to_another_worker() {
    on_both(async |machine| {
        let mut first = start(&machine, "first", POLITE, &[]).await;
        machine.ok(&["submit", "x"]).await;
        assert_eq!(first.line().await, "up");
        let mut second = start(&machine, "second", POLITE, &[]).await;
        machine.ok(&["task", "release", "x"]).await;
        assert_eq!(first.line().await, "asked");
        assert_eq!(second.line().await, "up");
        assert_eq!(shown(&machine, "x").await["owner"], "second");
        for worker in [first, second] {
            worker.interrupt();
            assert_eq!(worker.end().await.0, Some(0));
        }
    })
    .await;
}

async fn a_worker_that_is_told_to_end_leaves_its_tasks_to_others(machine: &Machine) {
    let mut first = start(machine, "first", POLITE, &[]).await;
    machine.ok(&["submit", "x", "--count", "3"]).await;
    for _ in 0..3 {
        assert_eq!(first.line().await, "up");
    }
    let mut second = start(machine, "second", POLITE, &["--balance", "all"]).await;
    first.signal(Signal::TERM);
    for _ in 0..3 {
        assert_eq!(second.line().await, "up");
    }
    let (code, stderr) = first.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("stopping 3 tasks and leaving") && stderr.contains("has left"), "{stderr}");
    assert_eq!(machine.run(&["node", "show", "first"]).await.code, Some(3), "it is gone");
    second.signal(Signal::TERM);
    assert_eq!(second.end().await.0, Some(0));
    assert_eq!(
        machine.json(&["task", "ls", "--node", "second"]).await["tasks"],
        json!([]),
        "all are released"
    );
}

#[tokio::test]
async fn a_worker_that_is_told_to_end_leaves_its_tasks_to_others_on_a_file() {
    a_worker_that_is_told_to_end_leaves_its_tasks_to_others(&on_file()).await;
}

#[tokio::test]
async fn a_worker_that_is_told_to_end_leaves_its_tasks_to_others_on_etcd() {
    a_worker_that_is_told_to_end_leaves_its_tasks_to_others(&on_etcd(&Etcd::start())).await;
}

#[tokio::test]
async fn a_second_signal_kills_at_once_and_the_task_is_released_all_the_same() {
    let machine = on_file();
    let mut worker = start(&machine, "w", DEAF, &["--ttl", "60s", "--grace", "20s"]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    let begin = Instant::now();
    worker.signal(Signal::TERM);
    worker.hear("a second signal").await;
    worker.signal(Signal::TERM);
    worker.silence(SOON).await;
    let (code, stderr) = worker.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(shown(&machine, "x").await["owner"], json!(null));
}

#[tokio::test]
async fn a_drained_worker_is_seen_to_empty_and_ends_by_itself() {
    on_both(async |machine| {
        let mut worker = start(&machine, "w", POLITE, &[]).await;
        machine.ok(&["submit", "x", "--count", "5"]).await;
        for _ in 0..5 {
            assert_eq!(worker.line().await, "up");
        }
        let ran = machine.run(&["node", "drain", "w", "--wait", "60s"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("draining 'w': 5 tasks left"), "{ran:?}");
        assert!(ran.stderr.contains("node 'w' released 5 tasks and has left"), "{ran:?}");
        assert_eq!(worker.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn what_a_task_leaves_running_is_waited_for_before_it_is_over() {
    let machine = on_file();
    let mut worker = start(&machine, "w", "sleep 2 & echo up; exit 0", &[]).await;
    machine.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "up");
    worker.hear("waiting for the processes that it left running").await;
    assert_eq!(shown(&machine, "x").await["state"], "runnable");
    is(&machine, "x", "completed").await;
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn freezing_a_worker_keeps_what_it_has_and_takes_nothing_new() {
    let machine = on_file();
    let mut worker = start(&machine, "w", POLITE, &[]).await;
    machine.ok(&["submit", "first"]).await;
    assert_eq!(worker.line().await, "up");
    machine.ok(&["node", "freeze", "w"]).await;
    machine.ok(&["submit", "second"]).await;
    machine.ok(&["node", "unfreeze", "w"]).await;
    until(&machine, "second", |shown| shown["owner"] == "w").await;
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}
