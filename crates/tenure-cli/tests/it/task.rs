//! `tenure task`: listings, commands and their replies.

use serde_json::{Value, json};
use tenure_core::task::TaskState;
use tenure_fixture::Etcd;

use crate::sandbox::Sandbox;
use crate::test_cluster::{TestCluster, on_file_and_etcd, task};

#[tokio::test]
async fn task_listing_shape_and_filters_hold() {
    on_file_and_etcd(async |cluster| {
    assert_eq!(cluster.sandbox.json(&["task", "ls"]).await["tasks"], json!([]), "an empty list is a valid result");
    cluster.sandbox.ok(&["submit", "idle", "--kind", "mail"]).await;
    let mut worker = cluster.join_for("run", "w").await;
    cluster.sandbox.ok(&["submit", "busy", "--kind", "run"]).await;
    worker.started(1).await;
    let listed = cluster.sandbox.json(&["task", "ls"]).await;
    assert_eq!((&listed["schema"], listed["revision"].is_string()), (&json!("tenure.task/v1"), true));
    let busy = &listed["tasks"][0];
    assert!(busy["token"].is_string() && busy["submitted_at"].as_str().unwrap().ends_with('Z'), "{busy}");
    assert_eq!(
        *busy,
        json!({"id": "busy", "kind": "run", "state": "runnable", "owner": "w", "token": busy["token"], "attempt": 1,
               "submitted_at": busy["submitted_at"], "updated_at": null})
    );
    assert_eq!((&listed["tasks"][1]["owner"], &listed["tasks"][1]["token"]), (&Value::Null, &Value::Null));
    let ids = async |flags: &[&str]| {
        let listed = cluster.sandbox.json(&[&["task", "ls"], flags].concat()).await;
        listed["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["--kind", "mail"]).await, ["idle"]);
    assert_eq!(ids(&["--node", "w"]).await, ["busy"]);
    assert_eq!(ids(&["--node", "w", "--kind", "mail"]).await, Vec::<Value>::new());
    assert_eq!(ids(&["--state", "runnable"]).await, ["busy", "idle"]);
    assert_eq!(ids(&["--state", "paused", "--state", "killed"]).await, Vec::<Value>::new());
    cluster.sandbox.ok(&["task", "kill", "busy"]).await;
    assert_eq!(ids(&[]).await, ["idle"]);
    assert_eq!(ids(&["--state", "killed"]).await, ["busy"], "its state stays");
    assert_eq!(ids(&["--ended"]).await, ["busy", "idle"]);
    let text = cluster.sandbox.ok(&["task", "ls"]).await;
    assert!(text.starts_with("idle\tmail\trunnable\t-\t-\t1\t20"), "{text}");
    worker.end().await;
    }).await;
}

async fn commands_are_acknowledged(cluster: &TestCluster) {
    let mut worker = cluster.join("w").await;
    cluster.sandbox.ok(&["submit", "x", "--props", r#""count""#]).await;
    worker.started(1).await;
    let output = cluster.sandbox.json(&["task", "pause", "x"]).await;
    let seconds = output["ack_seconds"].as_f64().unwrap();
    assert!((0.0..10.0).contains(&seconds), "{output}");
    assert_eq!(
        output,
        json!({"schema": "tenure.task/v1", "id": "x", "message": "pause", "from": "runnable", "to": "paused",
               "acknowledged_by": "w", "ack_seconds": output["ack_seconds"], "command": output["command"]})
    );
    assert_eq!(
        cluster.sandbox.json(&["task", "show", "x"]).await["owner"],
        "w",
        "a paused task has its owner"
    );
    let ran = cluster.sandbox.run(&["task", "resume", "x"]).await;
    assert!(ran.stdout.starts_with("x\tpaused\trunnable\tw\t") && ran.stdout.ends_with(" ms\n"), "{ran:?}");
    assert!(ran.stderr.contains("run of 'x' acknowledged by w in "), "{ran:?}");
    worker.started(1).await;
    let output = cluster.sandbox.json(&["task", "checkpoint", "x"]).await;
    assert_eq!((&output["from"], &output["to"]), (&json!("runnable"), &json!("runnable")));
    let output = cluster.sandbox.json(&["task", "sleep", "x", "2h"]).await;
    assert_eq!(output["to"], "sleeping");
    let output = cluster.sandbox.json(&["task", "sleep", "x", "2050-01-01T01:00:00+01:00"]).await;
    assert_eq!((&output["from"], &output["to"]), (&json!("sleeping"), &json!("sleeping")));
    let shown = cluster.sandbox.json(&["task", "show", "x"]).await;
    assert_eq!((&shown["state"], &shown["until"]), (&json!("sleeping"), &json!("2050-01-01T00:00:00.000Z")));
    let output = cluster.sandbox.json(&["task", "kill", "x", "--reason", "enough"]).await;
    assert_eq!(
        (&output["from"], &output["to"], &output["acknowledged_by"]),
        (&json!("sleeping"), &json!("killed"), &json!("w"))
    );
    let history = cluster.sandbox.json(&["task", "history", "x"]).await;
    let steps: Vec<[&Value; 4]> = history["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| [&step["from"], &step["message"], &step["to"], &step["by"]])
        .collect();
    assert_eq!(
        json!(steps),
        json!([
            ["runnable", "pause", "paused", "w"],
            ["paused", "run", "runnable", "w"],
            ["runnable", "sleep", "sleeping", "w"],
            ["sleeping", "sleep", "sleeping", "w"],
            ["sleeping", "kill", "killed", "w"],
        ])
    );
    let shown = cluster.sandbox.json(&["task", "show", "x"]).await;
    assert_eq!((&shown["reason"], &shown["updated_by"]), (&json!("enough"), &json!("w")));
    worker.end().await;
}

#[tokio::test]
async fn commands_are_acknowledged_on_file() {
    commands_are_acknowledged(&TestCluster::new().await).await;
}

#[tokio::test]
async fn commands_are_acknowledged_on_etcd() {
    let etcd = Etcd::start();
    commands_are_acknowledged(&TestCluster::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn released_task_moves_to_another_worker() {
    let cluster = TestCluster::new().await;
    let mut first = cluster.join("first").await;
    cluster.sandbox.ok(&["submit", "x"]).await;
    first.started(1).await;
    let mut second = cluster.join("second").await;
    let output = cluster.sandbox.json(&["task", "release", "x"]).await;
    assert_eq!((&output["acknowledged_by"], &output["to"]), (&json!("first"), &json!("runnable")));
    assert_eq!(second.started(1).await, ["x"]);
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn impossible_command_exits_with_its_reason() {
    on_file_and_etcd(async |cluster| {
        let failed = async |args: &[&str], code: i32, word: &str| {
            let ran = cluster.sandbox.run(&[&["task"], args, &["--json"]].concat()).await;
            assert_eq!((ran.code, &ran.error()["code"]), (Some(code), &json!(word)), "{args:?} {ran:?}");
            let hint = ran.error()["hint"].as_str().unwrap_or_default().to_owned();
            assert!(hint.contains("tenure "), "{args:?} {ran:?}");
            ran.error()["message"].as_str().unwrap().to_owned()
        };
        for verb in
            ["show", "pause", "resume", "kill", "release", "checkpoint", "history", "wait", "rm", "forget"]
        {
            failed(&[verb, "absent"], 3, "not_found").await;
        }
        failed(&["sleep", "absent", "5m"], 3, "not_found").await;

        // No worker runs, so no command is acknowledged.
        cluster.sandbox.ok(&["submit", "x"]).await;
        let message = failed(&["pause", "x", "--wait", "300ms"], 8, "timed_out").await;
        assert!(message.contains("the task has no owner"), "{message}");
        let shown = cluster.sandbox.json(&["task", "show", "x"]).await;
        assert_eq!(
            (&shown["command"]["command"], shown["command"]["by"].as_str().unwrap().ends_with("@ops")),
            (&json!("pause"), true)
        );
        failed(&["forget", "x"], 3, "not_found").await;
        // The command stays stored: another one replaces it, and reports that.
        let output = cluster.sandbox.json(&["task", "sleep", "x", "1h", "--no-wait"]).await;
        assert_eq!(
            (&output["acknowledged_by"], &output["ack_seconds"], &output["replaced"]["command"]),
            (&Value::Null, &Value::Null, &json!("pause"))
        );

        let worker = cluster.join("w").await;
        let output = cluster.sandbox.json(&["task", "resume", "x"]).await;
        assert_eq!(output["to"], "runnable");
        cluster.sandbox.ok(&["task", "pause", "x"]).await;
        // The state machine accepts no completion from outside, and a paused task accepts no error (see the table).
        let refused = cluster
            .tenure()
            .task(task("x"))
            .command(tenure_core::task::TaskMessage::Complete)
            .no_reply()
            .await
            .unwrap();
        assert_eq!(
            refused.reply().timeout(crate::sandbox::RUN_DEADLINE).await.unwrap().from,
            Some(TaskState::Paused)
        );
        failed(&["forget", "x"], 4, "conflict").await;
        cluster.sandbox.ok(&["task", "kill", "x"]).await;
        let message = failed(&["pause", "x"], 4, "conflict").await;
        assert!(message.contains("it is killed"), "{message}");
        failed(&["rm", "x"], 3, "not_found").await;
        cluster.sandbox.ok(&["task", "forget", "x"]).await;
        failed(&["show", "x"], 3, "not_found").await;
        worker.end().await;
    })
    .await;
}

#[tokio::test]
async fn replaced_command_fails_its_sender() {
    on_file_and_etcd(async |cluster| {
        cluster.sandbox.ok(&["submit", "x"]).await;
        let first = cluster.sandbox.start(&["task", "pause", "x", "--wait", "60s"]);
        // The command is stored as soon as `show` prints it.
        while cluster.sandbox.json(&["task", "show", "x"]).await["command"].is_null() {}
        let second = cluster.sandbox.start(&["task", "kill", "x", "--wait", "60s"]);
        let (code, stderr) = first.end().await;
        assert!(code == Some(4) && stderr.contains("sent another command"), "{code:?} {stderr}");
        assert_eq!(cluster.sandbox.ok(&["task", "rm", "x"]).await, "x");
        let (code, stderr) = second.end().await;
        assert!(code == Some(4) && stderr.contains("the task was deleted"), "{code:?} {stderr}");
    })
    .await;
}

#[tokio::test]
async fn deleted_task_stops_others_continue() {
    on_file_and_etcd(async |cluster| {
        let mut worker = cluster.join("w").await;
        cluster.sandbox.ok(&["submit", "t1"]).await;
        cluster.sandbox.ok(&["submit", "t10"]).await;
        assert_eq!(worker.started(2).await, ["t1", "t10"]);
        let deleted = cluster.sandbox.json(&["task", "rm", "t1"]).await;
        assert_eq!(deleted, json!({"schema": "tenure.task/v1", "id": "t1", "owner": "w"}));
        assert_eq!(cluster.sandbox.json(&["task", "ls"]).await["tasks"][0]["id"], "t10");
        worker.end().await;
    })
    .await;
}

#[tokio::test]
async fn unreadable_record_is_named_not_shown() {
    on_file_and_etcd(async |cluster| {
        cluster.sandbox.ok(&["submit", "good"]).await;
        cluster.sandbox.ok(&["kv", "put", "/tenure/tasks/bad", "s3cret"]).await;
        cluster.sandbox.ok(&["kv", "put", "/tenure/tasks/odd", "{}"]).await;
        cluster.sandbox.ok(&["kv", "put", "/tenure/state/odd", "s3cret"]).await;
        let ran = cluster.sandbox.run(&["task", "ls"]).await;
        assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 3), "{ran:?}");
        assert!(ran.stderr.contains("task 'bad' cannot be read completely: its record: not JSON"), "{ran:?}");
        assert!(ran.stderr.contains("task 'odd' cannot be read completely: its state: not JSON"), "{ran:?}");
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
        let shown = cluster.sandbox.json(&["task", "show", "odd"]).await;
        assert_eq!(shown["state"], Value::Null);
        assert_eq!(cluster.sandbox.run(&["task", "history", "odd"]).await.code, Some(1));
        cluster.sandbox.ok(&["task", "forget", "odd"]).await;
        assert_eq!(cluster.sandbox.json(&["task", "show", "odd"]).await["state"], "runnable");
    })
    .await;
}

#[tokio::test]
async fn bad_input_exits_2_with_suggestion() {
    let sandbox = Sandbox::new().with("TENURE_ENDPOINTS", "127.0.0.1:1");
    let long = "n".repeat(300);
    for (args, expected) in [
        (&["show", ""][..], "must not be empty"),
        (&["pause", &long], "300 bytes"),
        (&["kill", "a\nb"], "control characters"),
        (&["wait"], "ID"),
        (&["wait", "a", ""], "must not be empty"),
        (
            &["ls", "--state", "dead"],
            "use one of runnable, sleeping, fault, paused, completed, failed, killed",
        ),
        (&["ls", "--node", ""], "must not be empty"),
        (&["pause", "a", "--wait", "5"], "did you mean 5s"),
        (&["pause", "a", "--wait", "5s", "--no-wait"], "exclude each other"),
        (&["sleep", "a"], "DUR|TIME"),
        (&["sleep", "a", "60"], "did you mean 60s"),
        (&["sleep", "a", "soon"], "not a duration"),
        (&["sleep", "a", "2020-01-01T00:00:00Z"], "has passed"),
        (&["sleep", "a", "2050-01-01"], "is not a time"),
        (&["sleep", "a", "0s"], "has passed"),
        (&["puase", "a"], "`tenure task pause`"),
        (&["shwo", "a"], "`tenure task show`"),
        (&["forgte", "a"], "`tenure task forget`"),
        (&[], "checkpoint"),
    ] {
        let ran = sandbox.run(&[&["task"], args].concat()).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    assert_eq!(sandbox.run(&["task", "ls"]).await.code, Some(5));
    assert_eq!(sandbox.run(&["taks", "ls"]).await.code, Some(2));
}
