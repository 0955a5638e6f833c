//! The environment and stdin of a task, and the meaning of its exit code.

use std::time::Duration;

use serde_json::json;
use tenure_fixture::Etcd;

use super::{is, on_both, on_etcd, on_file, start, until};
use crate::sandbox::Sandbox;

/// Runs its props as a shell command.
const OBEDIENT: &str = "eval \"$(tr -d '\"')\"";

async fn exit_codes_decide_task_state(sandbox: &Sandbox) {
    let worker = start(sandbox, "w", OBEDIENT, &["--retry-after", "1h"]).await;
    for (id, does) in [
        ("done", "exit 0"),
        ("later", "exit 75"),
        ("enough", "exit 99"),
        ("broken", "echo first >&2; echo no disk >&2; exit 3"),
        ("silent", "exit 255"),
        ("shot", "kill -9 $$"),
    ] {
        sandbox.ok(&["submit", id, "--props", &json!(does).to_string()]).await;
    }
    is(sandbox, "done", "completed").await;
    let paused = is(sandbox, "enough", "paused").await;
    assert_eq!(
        (&paused["owner"], &paused["attempt"]),
        (&json!("w"), &json!(1)),
        "a paused task keeps its owner"
    );
    let later = is(sandbox, "later", "sleeping").await;
    assert_eq!(
        (&later["faults"], &later["errors"]),
        (&json!(0), &json!([])),
        "a requested sleep is no fault"
    );
    for (id, message) in [
        ("broken", "exit code 3: no disk"),
        ("silent", "exit code 255"),
        ("shot", "killed by signal 9 (SIGKILL)"),
    ] {
        let shown = is(sandbox, id, "sleeping").await;
        assert_eq!((&shown["faults"], &shown["errors"][0]["message"]), (&json!(1), &json!(message)), "{id}");
    }
    worker.interrupt();
    let (code, stderr) = worker.end().await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("'broken' failed in attempt 1: exit code 3: no disk"), "{stderr}");
    assert!(stderr.contains("\nno disk\n"), "stderr is passed on: {stderr}");
}

#[tokio::test]
async fn exit_codes_decide_task_state_on_file() {
    exit_codes_decide_task_state(&on_file()).await;
}

#[tokio::test]
async fn exit_codes_decide_task_state_on_etcd() {
    exit_codes_decide_task_state(&on_etcd(&Etcd::start())).await;
}

#[tokio::test]
async fn waiting_submit_reports_task_end() {
    let sandbox = on_file();
    let worker = start(&sandbox, "w", OBEDIENT, &["--retries", "0"]).await;
    let submit = async |id: &str, does: &str| {
        sandbox.run(&["submit", id, "--props", &json!(does).to_string(), "--wait=60s"]).await
    };
    assert_eq!(submit("good", "exit 0").await.code, Some(0));
    let ran = submit("bad", "echo why >&2; exit 1").await;
    assert_eq!(ran.code, Some(10), "{ran:?}");
    let mut waiting = sandbox.start(&["submit", "killed", "--props", r#""sleep 25""#, "--wait=60s"]);
    assert_eq!(waiting.line().await, "killed");
    until(&sandbox, "killed", |shown| shown["owner"] == "w").await;
    sandbox.ok(&["task", "kill", "killed"]).await;
    assert_eq!(waiting.end().await.0, Some(11));
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn task_fails_after_its_retries() {
    let sandbox = on_file();
    let worker = start(&sandbox, "w", "echo x; exit 4", &["--retries", "2", "--retry-after", "100ms"]).await;
    sandbox.ok(&["submit", "x"]).await;
    let shown = is(&sandbox, "x", "failed").await;
    assert_eq!((&shown["faults"], shown["errors"].as_array().unwrap().len()), (&json!(3), 3), "{shown}");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn task_gets_details_in_environment() {
    let sandbox = on_file();
    let script = "echo $TENURE_TASK_ID; echo $TENURE_TASK_KIND; echo $TENURE_TASK_PROPS; cat; echo; \
                  echo $TENURE_ATTEMPT $TENURE_NODE $TENURE_NAMESPACE $TENURE_TTL_SECONDS; echo $TENURE_FENCING_TOKEN; \
                  [ -f $TENURE_CHECKPOINT ] && [ ! -s $TENURE_CHECKPOINT ] && echo empty; [ $TENURE_ATTEMPT = 2 ]";
    let mut worker = start(&sandbox, "w", script, &["--retry-after", "100ms"]).await;
    let props = r#"{"to": "a b", "n": 7}"#;
    sandbox.ok(&["submit", "mail/1", "--kind", "mail", "--props", props]).await;
    for attempt in ["1", "2"] {
        for expected in [
            "mail/1".to_owned(),
            "mail".to_owned(),
            props.to_owned(),
            props.to_owned(),
            format!("{attempt} w tenure 10"),
        ] {
            assert_eq!(worker.line().await, expected);
        }
        let fence: i64 = worker.line().await.parse().unwrap();
        assert!(fence > 1);
        assert_eq!(worker.line().await, "empty");
    }
    is(&sandbox, "mail/1", "completed").await;
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn long_props_arrive_on_stdin() {
    let sandbox = on_file();
    let mut worker = start(&sandbox, "w", "echo ${TENURE_TASK_PROPS-none}; wc -c", &[]).await;
    let props = format!("\"{}\"", "x".repeat(200_000));
    sandbox.file("task", format!(r#"{{"id":"long","props":{props}}}"#));
    sandbox.ok(&["submit", "--file", &sandbox.path("task")]).await;
    assert_eq!(worker.line().await, "none");
    assert_eq!(worker.line().await.trim(), "200002");
    sandbox.ok(&["submit", "none"]).await;
    assert_eq!(
        (worker.line().await.as_str(), worker.line().await.trim()),
        ("", "0"),
        "no props, nothing to read"
    );
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn worker_claims_matching_kind_up_to_capacity() {
    let sandbox = on_file();
    let script = "echo $TENURE_TASK_ID; exec sleep 25";
    let mut worker = start(&sandbox, "w", script, &["--match", "kind=mail", "--capacity", "2"]).await;
    sandbox.ok(&["submit", "other", "--kind", "video"]).await;
    sandbox.ok(&["submit", "m", "--kind", "mail", "--count", "3"]).await;
    let mut ran = [worker.line().await, worker.line().await];
    ran.sort();
    let listed = sandbox.json(&["task", "ls", "--node", "w"]).await;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 2, "{listed}");
    sandbox.ok(&["task", "kill", &ran[0]]).await;
    let third = worker.line().await;
    assert!(third.starts_with("m-") && !ran.contains(&third), "{third} after {ran:?}");
    assert_eq!(sandbox.json(&["task", "show", "other"]).await["owner"], json!(null));
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn worker_events_leave_stdout_to_tasks() {
    let sandbox = on_file();
    let mut worker = sandbox.start(&["worker", "--node", "w", "--exec", "echo hello", "--json"]);
    worker.hear(r#""event":"joined""#).await;
    sandbox.ok(&["submit", "x"]).await;
    assert_eq!(worker.line().await, "hello");
    let ended: serde_json::Value = serde_json::from_str(&worker.hear(r#""event":"ended""#).await).unwrap();
    assert_eq!(
        (&ended["schema"], &ended["node"], &ended["task"], &ended["to"]),
        (&json!("tenure.worker/v1"), &json!("w"), &json!("x"), &json!("completed"))
    );
    assert!(ended["at"].as_str().unwrap().ends_with('Z'), "{ended}");
    worker.interrupt();
    worker.silence(Duration::from_secs(10)).await;
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn every_balancer_serves_lone_worker() {
    let sandbox = on_file();
    for how in ["fair", "all", "capacity", "rendezvous", "weighted"] {
        // The memory of a test host may be nearly full.
        let limits: &[&str] = match how {
            "capacity" => &["--claim-below", "99", "--release-above", "100"],
            _ => &[],
        };
        let worker = start(&sandbox, how, "true", &[&["--balance", how], limits].concat()).await;
        let ran = sandbox.run(&["submit", how, "--wait=60s"]).await;
        assert_eq!(ran.code, Some(0), "{how}: {ran:?}");
        worker.interrupt();
        assert_eq!(worker.end().await.0, Some(0));
    }
}

/// Keys of another client: a task without a value, a command with another id, and invalid records among them.
#[tokio::test]
async fn foreign_tasks_run_and_garbage_is_skipped() {
    on_both(async |sandbox| {
        let mut worker = start(&sandbox, "w", "true", &[]).await;
        sandbox.ok(&["kv", "put", "/tenure/tasks/bad", "not JSON"]).await;
        worker.hear("'bad' cannot be run: its record cannot be read").await;
        sandbox.ok(&["kv", "put", "/tenure/nodes/w/commands/a/b", "{}"]).await;
        worker.hear("the command under /tenure/nodes/w/commands/a/b is not handled").await;
        sandbox.ok(&["kv", "put", "/tenure/tasks/plain", ""]).await;
        is(&sandbox, "plain", "completed").await;
        sandbox.ok(&["task", "retry", "plain"]).await;
        sandbox.ok(&["kv", "put", "/tenure/nodes/w/commands/hold on", r#"{"command":"freeze"}"#]).await;
        worker.hear("frozen: no new tasks are claimed").await;
        sandbox.ok(&["kv", "put", "/tenure/nodes/w/commands/nonsense", "not JSON"]).await;
        let events = until_events(&sandbox, "malformed").await;
        for event in ["set_aside\tbad\t", "set_aside\t/tenure/nodes/w/commands/a/b\t"] {
            assert!(events.contains(event), "no {event:?} in {events}");
        }
        worker.interrupt();
        let (code, stderr) = worker.end().await;
        assert_eq!(code, Some(0), "{stderr}");
    })
    .await;
}

async fn until_events(sandbox: &Sandbox, event: &str) -> String {
    let begin = std::time::Instant::now();
    loop {
        let events = sandbox.ok(&["events"]).await;
        if events.contains(event) {
            return events;
        }
        assert!(begin.elapsed() < crate::sandbox::RUN_DEADLINE, "{events}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
