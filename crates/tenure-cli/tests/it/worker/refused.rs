//! Input and conditions that a worker refuses before it claims a task.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::json;

use super::{on_both, on_file, start};

#[tokio::test]
async fn bad_input_is_refused_and_claims_nothing() {
    on_both(async |sandbox| {
        sandbox.ok(&["submit", "x"]).await;
        for (flags, code, words) in [
            (&["--exec", "true", "--capacity", "0"][..], 2, "capacity of 0"),
            (&["--exec", "true", "--capacity", "many"], 2, "a number from 1"),
            (&["--exec", "true", "--match", "mail"], 2, "hint: write it as kind=mail"),
            (&["--exec", "true", "--match", "zone=eu", "--match", "zone=us"], 2, "no task matches"),
            (
                &["--exec", "true", "--balance", "clever"],
                2,
                "use one of fair, all, capacity, rendezvous, weighted",
            ),
            (
                &["--exec", "true", "--balance", "capacity", "--claim-below", "90", "--release-above", "80"],
                2,
                "claimed below 90 % and released above 80 %",
            ),
            (&["--exec", "true", "--claim-below", "50"], 2, "belong to --balance capacity"),
            (&["--exec", "true", "--retries", "8"], 2, "use 0 to 7"),
            (&["--exec", "true", "--ttl", "15s", "--grace", "14s"], 2, "too long for a TTL"),
            (&["--exec", "true", "--ttl", "15"], 2, "did you mean 15s?"),
            (&["--exec", "true", "--node", ""], 2, "invalid node id"),
            (&["--exec", "true", "--label", "zone"], 2, "has no '='"),
            (&["--exec", ""], 2, "--exec is empty"),
            (&[], 2, "--exec <CMD>"),
            (&["--exec", "./no-such-job.sh"], 127, "there is no command ./no-such-job.sh"),
            (&["--exec", "no-such-job --fast"], 127, "there is no command no-such-job"),
            (&["--exec", "/etc/passwd"], 126, "may not be executed"),
        ] {
            let ran = sandbox.run(&[&["worker"], flags].concat()).await;
            assert_eq!(ran.code, Some(code), "{flags:?} {ran:?}");
            assert!(ran.stderr.contains(words), "{flags:?} {ran:?}");
        }
        assert_eq!(sandbox.json(&["task", "show", "x"]).await["state"], "runnable");
        assert_eq!(sandbox.json(&["node", "ls"]).await["nodes"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn unmatched_selector_lists_existing_kinds() {
    on_both(async |sandbox| {
        let mut worker = sandbox.start(&["worker", "--exec", "true", "--match", "kind=mail"]);
        worker.hear("--match kind=mail matches no task, because there are none").await;
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
        sandbox.ok(&["submit", "r", "--kind", "report", "--count", "2"]).await;
        sandbox.ok(&["submit", "plain"]).await;
        let mut worker =
            sandbox.start(&["worker", "--exec", "true", "--match", "kind=mail", "--match", "zone=eu"]);
        let output = worker.hear("matches none of the 3 tasks").await;
        assert!(output.contains("--match kind=mail --match zone=eu"), "{output}");
        assert!(output.contains("1 without a kind, 2 of kind report"), "{output}");
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn live_id_conflicts_dead_id_is_awaited() {
    on_both(async |sandbox| {
        let first = start(&sandbox, "w", "true", &["--ttl", "3s"]).await;
        let ran = sandbox.run(&["worker", "--node", "w", "--exec", "true", "--json"]).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
        assert!(ran.error()["hint"].as_str().unwrap().contains("--wait"), "{ran:?}");
        first.signal(Signal::KILL);
        let mut second =
            sandbox.start(&["worker", "--node", "w", "--exec", "echo up", "--wait", "30s", "--ttl", "3s"]);
        second.hear("takes tasks").await;
        sandbox.ok(&["submit", "x"]).await;
        assert_eq!(second.line().await, "up");
        second.interrupt();
        assert_eq!(second.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn unnamed_workers_get_distinct_ids() {
    let sandbox = on_file();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let mut worker = sandbox.start(&["worker", "--exec", "true"]);
        worker.hear("takes tasks").await;
        workers.push(worker);
    }
    assert_eq!(sandbox.json(&["node", "ls"]).await["nodes"].as_array().unwrap().len(), 2);
    for worker in workers {
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    }
}

#[tokio::test]
async fn unreachable_store_exits_5_in_time() {
    let sandbox = on_file().with("TENURE_STORE", "etcd://127.0.0.1:1");
    let begin = std::time::Instant::now();
    let ran = sandbox.run(&["worker", "--exec", "true"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
}

/// The file exists when the worker starts, and is removed before a task runs.
#[tokio::test]
async fn vanished_command_fails_no_task() {
    let sandbox = on_file();
    let job = sandbox.file("job.sh", "#!/bin/sh\necho up\n");
    std::fs::set_permissions(&job, PermissionsExt::from_mode(0o755)).unwrap();
    let mut worker = start(&sandbox, "w", &job, &[]).await;
    std::fs::remove_file(&job).unwrap();
    sandbox.ok(&["submit", "x"]).await;
    let output = worker.hear("'x' was not started and is released").await;
    assert!(output.contains("job.sh"), "{output}");
    let shown = sandbox.json(&["task", "show", "x"]).await;
    assert_eq!((&shown["state"], &shown["faults"]), (&json!("runnable"), &json!(0)));
    assert_eq!(dead_children_of(worker.pid()), 0, "no child waits to be reaped");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

/// The number of children of a process that have ended and wait to be reaped.
fn dead_children_of(parent: Pid) -> usize {
    let parent = format!("PPid:\t{}\n", parent.as_raw_nonzero());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses =
        processes.map(|entry| std::fs::read_to_string(entry.path().join("status")).unwrap_or_default());
    statuses.filter(|status| status.contains(&parent) && status.contains("State:\tZ")).count()
}
