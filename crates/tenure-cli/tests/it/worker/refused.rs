//! What a worker does not do, and how it says so: before any task is taken.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::json;

use super::{on_both, on_file, start};

#[tokio::test]
async fn bad_input_is_refused_with_its_own_words_and_takes_nothing() {
    on_both(async |machine| {
        machine.ok(&["submit", "x"]).await;
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
            let ran = machine.run(&[&["worker"], flags].concat()).await;
            assert_eq!(ran.code, Some(code), "{flags:?} {ran:?}");
            assert!(ran.stderr.contains(words), "{flags:?} {ran:?}");
        }
        assert_eq!(machine.json(&["task", "show", "x"]).await["state"], "runnable");
        assert_eq!(machine.json(&["node", "ls"]).await["nodes"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn a_match_that_nothing_has_is_told_with_the_kinds_there_are() {
    on_both(async |machine| {
        let mut worker = machine.start(&["worker", "--exec", "true", "--match", "kind=mail"]);
        worker.hear("--match kind=mail matches no task, because there are none").await;
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
        machine.ok(&["submit", "r", "--kind", "report", "--count", "2"]).await;
        machine.ok(&["submit", "plain"]).await;
        let mut worker =
            machine.start(&["worker", "--exec", "true", "--match", "kind=mail", "--match", "zone=eu"]);
        let told = worker.hear("matches none of the 3 tasks").await;
        assert!(told.contains("--match kind=mail --match zone=eu"), "{told}");
        assert!(told.contains("1 without a kind, 2 of kind report"), "{told}");
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn an_id_that_lives_is_a_conflict_and_one_that_is_dead_can_be_waited_for() {
    on_both(async |machine| {
        let first = start(&machine, "w", "true", &["--ttl", "3s"]).await;
        let ran = machine.run(&["worker", "--node", "w", "--exec", "true", "--json"]).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
        assert!(ran.error()["hint"].as_str().unwrap().contains("--wait"), "{ran:?}");
        first.signal(Signal::KILL);
        let mut second =
            machine.start(&["worker", "--node", "w", "--exec", "echo up", "--wait", "30s", "--ttl", "3s"]);
        second.hear("takes tasks").await;
        machine.ok(&["submit", "x"]).await;
        assert_eq!(second.line().await, "up");
        second.interrupt();
        assert_eq!(second.end().await.0, Some(0));
    })
    .await;
}

#[tokio::test]
async fn without_a_name_every_worker_is_a_node_of_its_own() {
    let machine = on_file();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let mut worker = machine.start(&["worker", "--exec", "true"]);
        worker.hear("takes tasks").await;
        workers.push(worker);
    }
    assert_eq!(machine.json(&["node", "ls"]).await["nodes"].as_array().unwrap().len(), 2);
    for worker in workers {
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    }
}

#[tokio::test]
async fn a_store_that_is_not_there_is_told_in_time() {
    let machine = on_file().with("TENURE_STORE", "etcd://127.0.0.1:1");
    let begin = std::time::Instant::now();
    let ran = machine.run(&["worker", "--exec", "true"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
}

/// It was there when the worker started.
#[tokio::test]
async fn a_command_that_vanishes_makes_no_task_fail() {
    let machine = on_file();
    let job = machine.file("job.sh", "#!/bin/sh\necho up\n");
    std::fs::set_permissions(&job, PermissionsExt::from_mode(0o755)).unwrap();
    let mut worker = start(&machine, "w", &job, &[]).await;
    std::fs::remove_file(&job).unwrap();
    machine.ok(&["submit", "x"]).await;
    let told = worker.hear("'x' was not started and is released").await;
    assert!(told.contains("job.sh"), "{told}");
    let shown = machine.json(&["task", "show", "x"]).await;
    assert_eq!((&shown["state"], &shown["faults"]), (&json!("runnable"), &json!(0)));
    assert_eq!(dead_children_of(worker.pid()), 0, "nobody is left to be reaped");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

/// How many children of a process have ended and wait to be reaped.
fn dead_children_of(parent: Pid) -> usize {
    let parent = format!("PPid:\t{}\n", parent.as_raw_nonzero());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses =
        processes.map(|entry| std::fs::read_to_string(entry.path().join("status")).unwrap_or_default());
    statuses.filter(|status| status.contains(&parent) && status.contains("State:\tZ")).count()
}
