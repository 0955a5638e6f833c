//! `tenure status`: one screen for a namespace.

use serde_json::{Value, json};

use crate::test_cluster::TestCluster;

/// The kinds of warnings, in order.
fn kinds(status: &Value) -> Vec<&str> {
    status["warnings"].as_array().unwrap().iter().map(|warning| warning["kind"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn empty_namespace_has_no_warnings() {
    let cluster = TestCluster::new().await;
    let status = cluster.sandbox.json(&["status"]).await;
    assert_eq!(
        status,
        json!({"schema": "tenure.status/v1", "backend": "file", "namespace": "tenure", "sessions": 0, "elections": [],
               "locks": [], "nodes": [], "tasks": {"total": 0, "by_state": {}, "unclaimed": 0}, "warnings": [],
               "revision": status["revision"]})
    );
    assert_eq!(
        cluster.sandbox.ok(&["status"]).await,
        "backend\tfile\nnamespace\ttenure\nsessions\t0\ntasks\t0; 0 unclaimed"
    );
}

#[tokio::test]
async fn status_counts_objects_and_names_problems() {
    let cluster = TestCluster::new().await;
    let mut worker = cluster.join("w").await;
    cluster.sandbox.ok(&["submit", "x", "--count", "3"]).await;
    worker.started(3).await;
    cluster.sandbox.ok(&["task", "pause", "x-1"]).await;
    let status = cluster.sandbox.json(&["status"]).await;
    assert_eq!(
        status["tasks"],
        json!({"total": 3, "by_state": {"paused": 1, "runnable": 2}, "unclaimed": 0})
    );
    let node = &status["nodes"][0];
    assert_eq!(
        *node,
        json!({"id": "w", "address": "10.0.0.7:80", "state": "ready", "frozen": false, "tasks": 3,
               "incarnation": node["incarnation"]})
    );
    assert!(status["sessions"].as_u64().unwrap() >= 1, "{status}");
    assert_eq!(status["warnings"], json!([]), "no warnings");

    cluster.sandbox.ok(&["node", "freeze", "w"]).await;
    cluster.sandbox.ok(&["submit", "idle"]).await;
    cluster.sandbox.ok(&["kv", "put", "/tenure/tasks/lost", "{}"]).await;
    cluster.sandbox.ok(&["kv", "put", "/tenure/tasks/lost/owner", r#"{"node":"ghost"}"#]).await;
    cluster.sandbox.ok(&["kv", "put", "/tenure/tasks/bad", "s3cret"]).await;
    cluster.sandbox.ok(&["kv", "put", "/tenure/nodes/odd", "s3cret"]).await;
    cluster.sandbox.ok(&["kv", "put", "/tenure/frozen/away", "{}"]).await;
    let mut lock =
        cluster.sandbox.start_with_open_stdin(&["lock", "deploy", "--", "sh", "-c", "echo held; read x"]);
    assert_eq!(lock.line().await, "held");
    let status = cluster.sandbox.json(&["status"]).await;
    assert_eq!(
        kinds(&status),
        [
            "unreadable_node",
            "frozen_node",
            "frozen_node",
            "unclaimed_tasks",
            "absent_owner",
            "unreadable_tasks"
        ]
    );
    let message = |kind: &str| {
        let warnings = status["warnings"].as_array().unwrap();
        let found = warnings.iter().find(|warning| warning["kind"] == kind).unwrap();
        found["message"].as_str().unwrap().to_owned()
    };
    assert!(
        message("unclaimed_tasks").contains("one task without an owner, while no node claims tasks: idle"),
        "{status}"
    );
    assert!(message("absent_owner").contains("owned by node ghost, which is not alive: lost"), "{status}");
    assert!(message("unreadable_tasks").ends_with("bad"), "{status}");
    assert_eq!((&status["tasks"]["total"], &status["tasks"]["unclaimed"]), (&json!(6), &json!(1)));
    assert_eq!((&status["locks"][0]["name"], &status["locks"][0]["holders"]), (&json!("deploy"), &json!(1)));
    assert!(!status.to_string().contains("s3cret"), "{status}");
    let text = cluster.sandbox.ok(&["status"]).await;
    assert!(text.contains("node\tw: frozen, 3 tasks\n"), "{text}");
    assert!(
        text.contains("warning\tnode w is frozen and claims no tasks (tenure node unfreeze w)"),
        "{text}"
    );
    assert!(text.contains("lock\tdeploy: held by ops pid "), "{text}");
    lock.feed(b"end\n").await;
    lock.end().await;
    worker.end().await;
}
