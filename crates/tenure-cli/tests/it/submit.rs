//! `tenure submit`: accepted and refused input, and the exit code for the end of a task.

use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::sandbox::Sandbox;
use crate::test_cluster::{TestCluster, on_file_and_etcd, task};

#[tokio::test]
async fn task_is_submitted_once_with_all_fields() {
    on_file_and_etcd(async |cluster| {
        let args = ["submit", "mail/1", "--kind", "mail", "--props", r#"{"to": "a"}"#, "--label", "weight=3"];
        assert_eq!(cluster.sandbox.ok(&args).await, "mail/1");
        let details = cluster.tenure().task(task("mail/1")).details().await.unwrap().unwrap();
        let record = details.record().unwrap();
        assert_eq!((record.kind.as_deref(), record.labels["weight"].as_str()), (Some("mail"), "3"));
        assert_eq!(details.props.unwrap(), r#"{"to": "a"}"#, "byte for byte");
        let ran = cluster.sandbox.run(&[&args[..], &["--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
        let hint = ran.error()["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains("tenure task show mail/1") && hint.contains("tenure task rm mail/1"), "{hint}");
        assert_eq!(ran.stdout, "", "nothing was submitted");
    })
    .await;
}

#[tokio::test]
async fn missing_id_is_generated_and_printed() {
    let cluster = TestCluster::new().await;
    let output = cluster.sandbox.json(&["submit"]).await;
    let id = output["ids"][0].as_str().unwrap();
    assert_eq!(output, json!({"schema": "tenure.submit/v1", "submitted": 1, "ids": [id], "ended": []}));
    assert_eq!(cluster.sandbox.json(&["task", "show", id]).await["id"], id);
    let many = cluster.sandbox.ok(&["submit", "--count", "30"]).await;
    let mut ids: Vec<&str> = many.lines().collect();
    assert!(ids.is_sorted(), "{many}");
    ids.dedup();
    assert_eq!(ids.len(), 30);
}

#[tokio::test]
async fn counted_submit_numbers_ids_and_names_conflicts() {
    on_file_and_etcd(async |cluster| {
        cluster.sandbox.ok(&["submit", "x-2"]).await;
        let ran = cluster.sandbox.run(&["submit", "x", "--count", "4", "--json"]).await;
        assert_eq!(ran.code, Some(4), "{ran:?}");
        let output: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(output["ids"], json!(["x-0", "x-1", "x-3"]), "the others are submitted");
        let message = ran.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("1 of 4 tasks were not submitted (x-2)"), "{message}");
    })
    .await;
}

#[tokio::test]
async fn invalid_task_file_submits_nothing() {
    on_file_and_etcd(async |cluster| {
    let good = "{\"id\":\"a\",\"kind\":\"mail\",\"props\":{\"n\":1},\"labels\":{\"weight\":\"2\"}}\n\n{\"id\":\"b\"}\n{}\n";
    let path = cluster.sandbox.file("tasks.jsonl", good);
    let output = cluster.sandbox.json(&["submit", "--file", &path]).await;
    assert_eq!((&output["submitted"], &output["ids"][0], &output["ids"][1]), (&json!(3), &json!("a"), &json!("b")));
    let shown = cluster.sandbox.json(&["task", "show", "a"]).await;
    assert_eq!(
        (&shown["kind"], &shown["props"], &shown["labels"]["weight"]),
        (&json!("mail"), &json!({"n": 1}), &json!("2"))
    );

    let bad = "{\"id\":\"c\"}\n{\"id\":\"d\",\"prop\":1}\n{\"id\":\"c\"}\n{\"id\":\"\"}\nnot json\n{\"id\":\"a\\u0000\"}\n";
    let path = cluster.sandbox.file("bad.jsonl", bad);
    let ran = cluster.sandbox.run(&["submit", "--file", &path]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    for expected in [
        "line 2: unknown field `prop`",
        "line 3: the id 'c' is on line 1 already",
        "line 4: ",
        "line 5: ",
        "line 6: invalid id: a name must not contain control characters",
        "nothing was submitted",
    ] {
        assert!(ran.stderr.contains(expected), "{expected}: {ran:?}");
    }
    assert_eq!(cluster.sandbox.run(&["task", "show", "c"]).await.code, Some(3), "not even the good line");
    let ran = cluster.sandbox.run_with(&["submit", "--file", "-"], b"{\"id\":\"from stdin\"}").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "from stdin\n"), "{ran:?}");
    for empty in ["", "\n \n"] {
        let ran = cluster.sandbox.run_with(&["submit", "--file", "-"], empty.as_bytes()).await;
        assert!(ran.code == Some(2) && ran.stderr.contains("the file has no task"), "{ran:?}");
    }
    }).await;
}

async fn exit_code_reports_task_end(cluster: &TestCluster) {
    let worker = cluster.join("w").await;
    let submit = async |id: &str, props: &str| {
        cluster.sandbox.run(&["submit", id, "--props", props, "--wait", "--json"]).await
    };
    let ran = submit("good", r#""done""#).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let last: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        last,
        json!({"schema": "tenure.task/v1", "tasks": [{"id": "good", "state": "completed", "by": "w", "reason": null}]})
    );
    let ran = submit("bad", r#""fault""#).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(10), &json!("task_failed")), "{ran:?}");
    assert!(ran.error()["hint"].as_str().unwrap().contains("tenure task history bad"), "{ran:?}");
    let ran = cluster.sandbox.run(&["submit", "slow", "--wait=200ms"]).await;
    assert_eq!(ran.code, Some(8), "{ran:?}");
    let mut waiting = cluster.sandbox.start(&["task", "wait", "slow"]);
    cluster.sandbox.ok(&["task", "kill", "slow", "--reason", "enough"]).await;
    assert_eq!(waiting.line().await, "slow\tkilled\tw");
    let (code, stderr) = waiting.end().await;
    assert!(code == Some(11) && stderr.contains("killed: enough"), "{code:?} {stderr}");
    worker.end().await;
}

#[tokio::test]
async fn exit_code_reports_task_end_on_file() {
    exit_code_reports_task_end(&TestCluster::new().await).await;
}

#[tokio::test]
async fn exit_code_reports_task_end_on_etcd() {
    let etcd = Etcd::start();
    exit_code_reports_task_end(&TestCluster::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn worst_end_decides_exit_code() {
    let cluster = TestCluster::new().await;
    let worker = cluster.join("w").await;
    let ran =
        cluster.sandbox.run(&["submit", "x", "--count", "150", "--props", r#""done""#, "--wait=60s"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().filter(|line| line.ends_with("\tcompleted\tw")).count(), 150);
    let lines = "{\"id\":\"a\",\"props\":\"done\"}\n{\"id\":\"b\",\"props\":\"fault\"}\n";
    let ran = cluster.sandbox.run_with(&["submit", "--file", "-", "--wait=60s"], lines.as_bytes()).await;
    assert_eq!(ran.code, Some(10), "{ran:?}");
    let ran = cluster.sandbox.run(&["task", "wait", "a", "b", "absent", "--wait", "60s"]).await;
    assert_eq!(ran.code, Some(3), "an unknown task cannot end: {ran:?}");
    worker.end().await;
}

#[tokio::test]
async fn finished_id_is_refused_until_forget() {
    on_file_and_etcd(async |cluster| {
        let mut worker = cluster.join("w").await;
        let done = ["submit", "once", "--props", r#""done""#];
        cluster.sandbox.ok(&[&done[..], &["--wait"]].concat()).await;
        worker.started(1).await;
        let ran = cluster.sandbox.run(&[&done[..], &["--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
        let hint = ran.error()["hint"].as_str().unwrap().to_owned();
        assert!(
            hint.contains("`tenure task retry once`") && hint.contains("`tenure task forget once`"),
            "{hint}"
        );
        cluster.sandbox.ok(&["task", "forget", "once"]).await;
        cluster.sandbox.ok(&done).await;
        assert_eq!(worker.started(1).await, ["once"]);
        assert_eq!(cluster.sandbox.ok(&["task", "wait", "once"]).await, "once\tcompleted\tw");
        worker.end().await;
    })
    .await;
}

#[tokio::test]
async fn bad_input_exits_2_without_store() {
    // No process listens at this address: a command that connects exits with 5.
    let sandbox = Sandbox::new().with("TENURE_ENDPOINTS", "127.0.0.1:1");
    let long = "n".repeat(300);
    let large = format!("\"{}\"", "x".repeat(70_000));
    for (args, expected) in [
        (&["submit", ""][..], "must not be empty"),
        (&["submit", &long], "300 bytes"),
        (&["submit", "a\nb"], "control characters"),
        (&["submit", "a", "--props", "{"], "line 1 column 1"),
        (&["submit", "a", "--props", ""], "props are JSON"),
        (&["submit", "a", "--count", "0"], "0"),
        (&["submit", "a", "--count", "-1"], "-1"),
        (&["submit", "a", "--count", "many"], "many"),
        (&["submit", "a", "--label", "x"], "x=VALUE"),
        (&["submit", "a", "--label", "=x"], "before '=' is missing"),
        (&["submit", "a", "--label", "x=1", "--label", "x=2"], "twice"),
        (&["submit", "a", "--wait=5"], "did you mean 5s"),
        (&["submit", "a", "--file", "x"], "exclude each other"),
        (&["submit", "--file", "/nowhere/tasks.jsonl"], "cannot be read"),
        (&["submit", "a", "--prop", "1"], "--props"),
        (&["submti", "a"], "`tenure submit`"),
    ] {
        let ran = sandbox.run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    let ran = sandbox.run(&["submit", "a", "--props", &large]).await;
    assert_eq!(ran.code, Some(5), "70 kB are not too much: {ran:?}");
    let file = sandbox.file("large.jsonl", format!("{{\"props\":\"{}\"}}", "x".repeat(300_000)));
    let ran = sandbox.run(&["submit", "--file", &file]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("line 1: props of 300002 bytes"), "{ran:?}");
}
