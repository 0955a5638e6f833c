//! `tenure node`: commands to workers and their replies.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::store::{Op, Selection, Store, Txn};
use tenure::worker::balance::{AcceptAll, Fair};
use tenure_fixture::Etcd;

use crate::sandbox::{RUN_DEADLINE, Sandbox};
use crate::test_cluster::{TestCluster, on_file_and_etcd};

async fn shown(cluster: &TestCluster, id: &str) -> Value {
    cluster.sandbox.json(&["node", "show", id]).await
}

#[tokio::test]
async fn frozen_node_claims_nothing_until_unfrozen() {
    on_file_and_etcd(async |cluster| {
        let mut worker = cluster.join("w").await;
        cluster.sandbox.ok(&["submit", "first"]).await;
        worker.started(1).await;
        let output = cluster.sandbox.json(&["node", "freeze", "w"]).await;
        assert_eq!(
            output,
            json!({"schema": "tenure.node/v1", "id": "w", "message": "freeze", "acknowledged_by": "w",
               "ack_seconds": output["ack_seconds"], "command": output["command"]})
        );
        assert!(output["ack_seconds"].as_f64().unwrap() < 10.0, "{output}");
        let node = shown(&cluster, "w").await;
        assert_eq!(
            (&node["state"], &node["frozen"], &node["tasks"], &node["commands"]),
            (&json!("ready"), &json!(true), &json!(1), &json!(0))
        );
        assert_eq!((&node["owned"][0]["id"], node["owned"][0]["token"].is_string()), (&json!("first"), true));
        assert!(cluster.sandbox.ok(&["node", "ls"]).await.starts_with("w\t10.0.0.7:80\tfrozen since "));
        cluster.sandbox.ok(&["submit", "second"]).await;
        let ran = cluster.sandbox.run(&["node", "unfreeze", "w"]).await;
        assert!(ran.stdout.starts_with("w\tunfreeze\tw\t") && ran.stdout.ends_with(" ms\n"), "{ran:?}");
        assert!(ran.stderr.contains("unfreeze of node 'w' acknowledged by w in "), "{ran:?}");
        assert_eq!(worker.started(1).await, ["second"]);
        assert_eq!(shown(&cluster, "w").await["frozen"], false);
        worker.end().await;
    })
    .await;
}

async fn drain_reports_progress_until_node_leaves(cluster: &TestCluster) {
    let mut worker = cluster.join("w").await;
    cluster.sandbox.ok(&["submit", "x", "--count", "20"]).await;
    worker.started(20).await;
    let mut heir = cluster.join_as("heir", |worker| worker.match_label("zone", "nothing yet")).await;
    let ran = cluster.sandbox.run(&["node", "drain", "w", "--wait", "60s"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("draining 'w': 20 tasks left"), "{ran:?}");
    assert!(ran.stderr.contains("draining 'w': 0 tasks left"), "{ran:?}");
    assert!(ran.stderr.contains("node 'w' released 20 tasks and has left"), "{ran:?}");
    assert_eq!(cluster.sandbox.run(&["node", "show", "w"]).await.code, Some(3), "it is gone");
    assert_eq!(cluster.sandbox.json(&["task", "ls", "--node", "w"]).await["tasks"], json!([]));
    worker.close().await;
    heir.end().await;
    // The drain ends with the worker: a new worker with this id claims tasks again.
    let mut worker = cluster.join("w").await;
    assert_eq!(shown(cluster, "w").await["frozen"], false);
    heir = cluster.join("heir").await;
    let (drained, other) = tokio::join!(worker.started(1), heir.started(1));
    assert!(drained[0].starts_with("x-") && other[0].starts_with("x-"));
    worker.end().await;
    heir.end().await;
}

#[tokio::test]
async fn drain_reports_progress_until_node_leaves_on_file() {
    drain_reports_progress_until_node_leaves(&TestCluster::new().await).await;
}

#[tokio::test]
async fn drain_reports_progress_until_node_leaves_on_etcd() {
    let etcd = Etcd::start();
    drain_reports_progress_until_node_leaves(&TestCluster::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn node_releases_only_its_own_task() {
    on_file_and_etcd(async |cluster| {
        // AcceptAll releases nothing, so tasks move only by command.
        let mut worker = cluster.join_as("w", |options| options.balancer(AcceptAll)).await;
        cluster.sandbox.ok(&["submit", "t", "--count", "2"]).await;
        worker.started(2).await;
        let mut other = cluster.join_as("other", |options| options.balancer(AcceptAll)).await;
        let output = cluster.sandbox.json(&["node", "stop-task", "w", "t-0"]).await;
        assert_eq!((&output["message"], &output["acknowledged_by"]), (&json!("stop_task"), &json!("w")));
        assert_eq!(other.started(1).await, ["t-0"]);
        let output = cluster.sandbox.json(&["node", "release-task", "w", "t-1"]).await;
        assert_eq!((&output["message"], &output["acknowledged_by"]), (&json!("release_task"), &json!("w")));
        assert_eq!(other.started(1).await, ["t-1"]);
        let ran = cluster.sandbox.run(&["node", "release-task", "w", "t-1", "--json"]).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
        assert!(ran.error()["message"].as_str().unwrap().contains("does not own the task"), "{ran:?}");
        worker.end().await;
        other.end().await;
    })
    .await;
}

#[tokio::test]
async fn dry_run_lists_releases_and_changes_nothing() {
    let cluster = TestCluster::new().await;
    let claim = |node: &str, from: usize, to: usize| {
        let puts: Vec<Value> = (from..to)
            .flat_map(|n| {
                let put = |key: String, value: String| json!({"put": {"key": key, "value": value}});
                [
                    put(format!("/tenure/tasks/t{n:02}"), "{}".to_owned()),
                    put(format!("/tenure/tasks/t{n:02}/owner"), json!({"node": node}).to_string()),
                ]
            })
            .collect();
        json!({"then": puts}).to_string()
    };
    for (node, state) in [("a", "ready"), ("b", "ready"), ("c", "draining")] {
        let record = json!({"v": 1, "state": state}).to_string();
        cluster.sandbox.ok(&["kv", "put", &format!("/tenure/nodes/{node}"), &record]).await;
    }
    for txn in [claim("a", 0, 5), claim("a", 5, 10), claim("c", 20, 22)] {
        assert_eq!(cluster.sandbox.run_with(&["kv", "txn"], txn.as_bytes()).await.code, Some(0));
    }
    let before = cluster.sandbox.json(&["kv", "range", ""]).await;
    let plan = cluster.sandbox.json(&["node", "balance", "--dry-run"]).await;
    assert_eq!((&plan["balancer"], &plan["dry_run"]), (&json!("fair"), &json!(true)));
    let nodes: Vec<[&Value; 2]> =
        plan["nodes"].as_array().unwrap().iter().map(|node| [&node["id"], &node["tasks"]]).collect();
    assert_eq!(json!(nodes), json!([["a", 10], ["b", 0]]), "a draining node is left out");
    let gives = plan["nodes"][0]["gives"].as_array().unwrap();
    assert_eq!(gives.len(), 5, "{plan}");
    assert!(gives.iter().all(|given| given["task"].as_str() >= Some("t05")), "the newest: {plan}");
    assert_eq!(gives[0]["why"], "this node has 10, and the share of each of 2 is 5");
    assert_eq!(plan["nodes"][1]["gives"], json!([]));
    let text = cluster.sandbox.run(&["node", "balance", "a", "--dry-run"]).await;
    assert_eq!(text.stdout.lines().count(), 5, "{text:?}");
    assert!(text.stderr.contains("none was released now"), "{text:?}");
    let none = cluster.sandbox.json(&["node", "balance", "--dry-run", "--balance", "all"]).await;
    assert_eq!(none["nodes"][0]["gives"], json!([]));
    assert_eq!(cluster.sandbox.run(&["node", "balance", "c", "--dry-run"]).await.code, Some(4));
    assert_eq!(cluster.sandbox.run(&["node", "balance", "d", "--dry-run"]).await.code, Some(3));
    assert_eq!(cluster.sandbox.json(&["kv", "range", ""]).await["revision"], before["revision"]);
}

/// Each worker knows its own balancer, so a dry run requests the plan from each of them.
async fn dry_run_uses_each_nodes_balancer(cluster: &TestCluster) {
    let mut keeper = cluster.join_as("keeper", |options| options.balancer(AcceptAll)).await;
    cluster.sandbox.ok(&["submit", "x", "--count", "10"]).await;
    keeper.started(10).await;
    let other = cluster.join_as("other", |options| options.balancer(Fair::default())).await;
    let plan = cluster.sandbox.json(&["node", "balance", "--dry-run"]).await;
    let plan_of = |node: usize| {
        let node = &plan["nodes"][node];
        json!([node["id"], node["balancer"], node["asked"], node["gives"], node["planned"]])
    };
    assert_eq!(plan_of(0), json!(["keeper", "all", true, [], 0]), "{plan}");
    assert_eq!(plan_of(1), json!(["other", "fair", true, [], 0]), "{plan}");
    assert_eq!(plan["balancer"], Value::Null, "they differ");
    let ran = cluster.sandbox.run(&["node", "balance", "keeper", "--dry-run"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stderr.contains("by the balancer 'all', 0 tasks"), "{ran:?}");
    let fair = cluster.sandbox.json(&["node", "balance", "keeper", "--dry-run", "--balance", "fair"]).await;
    assert_eq!(
        (&fair["nodes"][0]["asked"], &fair["nodes"][0]["planned"]),
        (&json!(false), &json!(5)),
        "{fair}"
    );
    assert_eq!(shown(cluster, "keeper").await["tasks"], 10, "no task was released");
    keeper.end().await;
    other.end().await;
}

#[tokio::test]
async fn dry_run_uses_each_nodes_balancer_on_file() {
    dry_run_uses_each_nodes_balancer(&TestCluster::new().await).await;
}

#[tokio::test]
async fn dry_run_uses_each_nodes_balancer_on_etcd() {
    let etcd = Etcd::start();
    dry_run_uses_each_nodes_balancer(&TestCluster::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn unanswered_dry_run_exits_8_with_hint() {
    let cluster = TestCluster::new().await;
    cluster.store.put("/tenure/nodes/dummy", r#"{"v":1,"state":"ready","balancer":"fair"}"#).await.unwrap();
    for args in [&["balance", "dummy", "--dry-run"][..], &["balance", "--dry-run"]] {
        let ran = cluster.sandbox.run(&[&["node"], args, &["--wait", "200ms"]].concat()).await;
        assert!(ran.code == Some(8) && ran.stderr.contains("--balance fair"), "{ran:?}");
    }
}

#[tokio::test]
async fn balancing_node_reports_its_releases() {
    let cluster = TestCluster::new().await;
    let mut worker = cluster.join("w").await;
    cluster.sandbox.ok(&["submit", "x", "--count", "3"]).await;
    worker.started(3).await;
    let output = cluster.sandbox.json(&["node", "balance", "w"]).await;
    assert_eq!(
        (&output["plan"], &output["planned"], &output["released"]),
        (&json!([]), &json!(0), &json!(0))
    );
    cluster.sandbox.ok(&["node", "freeze", "w"]).await;
    let ran = cluster.sandbox.run(&["node", "balance", "w"]).await;
    assert!(ran.code == Some(4) && ran.stderr.contains("takes no tasks"), "{ran:?}");
    worker.end().await;
}

/// A node key without a process.
async fn dummy(store: &Store) {
    store.put("/tenure/nodes/dummy", r#"{"v":1,"state":"ready"}"#).await.unwrap();
}

#[tokio::test]
async fn silent_node_exits_8_missing_node_3() {
    let cluster = TestCluster::new().await;
    let failed = async |args: &[&str], code: i32, word: &str| {
        let ran = cluster.sandbox.run(&[&["node"], args, &["--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(code), &json!(word)), "{args:?} {ran:?}");
        assert!(ran.error()["hint"].is_string(), "{args:?} {ran:?}");
    };
    for verb in ["show", "freeze", "unfreeze", "balance", "drain"] {
        failed(&[verb, "dummy"], 3, "not_found").await;
    }
    failed(&["stop-task", "dummy", "x"], 3, "not_found").await;
    dummy(&cluster.store).await;
    failed(&["freeze", "dummy", "--wait", "200ms"], 8, "timed_out").await;
    failed(&["drain", "dummy", "--wait", "200ms"], 8, "timed_out").await;
    let output = cluster.sandbox.json(&["node", "freeze", "dummy", "--no-wait"]).await;
    assert_eq!((&output["acknowledged_by"], &output["ack_seconds"]), (&Value::Null, &Value::Null));
    assert_eq!(shown(&cluster, "dummy").await["commands"], 3, "the commands are stored");
    let drain = cluster.sandbox.start(&["node", "drain", "dummy"]);
    let draining = tokio::time::timeout(RUN_DEADLINE, async {
        while shown(&cluster, "dummy").await["commands"] != 4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    draining.await.unwrap();
    cluster.sandbox.ok(&["kv", "del", "/tenure/nodes/dummy"]).await;
    let (code, stderr) = drain.end().await;
    assert!(code == Some(4) && stderr.contains("has left without a reply to drain"), "{code:?} {stderr}");
}

/// Waits until a command to the dummy is stored; returns its key.
async fn command(store: &Store) -> String {
    let waiting = async {
        loop {
            let page = store.list(Selection::prefix("/tenure/nodes/dummy/commands/")).await.unwrap();
            match page.pairs.first() {
                Some(pair) => return String::from_utf8(pair.key.to_vec()).unwrap(),
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(RUN_DEADLINE, waiting).await.unwrap()
}

#[tokio::test]
async fn drain_waits_until_node_is_gone() {
    let cluster = TestCluster::new().await;
    dummy(&cluster.store).await;
    for (goes, code) in [(false, 8), (true, 0)] {
        let drain = cluster.sandbox.start(&["node", "drain", "dummy", "--wait", "3s"]);
        let command = command(&cluster.store).await;
        let id = command.rsplit('/').next().unwrap();
        let mut answer = Txn::new()
            .then(Op::delete(command.clone()))
            .then(Op::put(format!("/tenure/results/{id}"), r#"{"handled_by":"dummy","outcome":"done"}"#));
        if goes {
            answer = answer.then(Op::delete("/tenure/nodes/dummy"));
        }
        cluster.store.txn(answer).await.unwrap();
        let (ended, stderr) = drain.end().await;
        assert_eq!(ended, Some(code), "{stderr}");
    }
}

#[tokio::test]
async fn bad_input_exits_2_with_suggestion() {
    let sandbox = Sandbox::new().with("TENURE_ENDPOINTS", "127.0.0.1:1");
    let long = "n".repeat(300);
    for (args, expected) in [
        (&["show", ""][..], "must not be empty"),
        (&["freeze", &long], "300 bytes"),
        (&["drain", "a\nb"], "control characters"),
        (&["stop-task", "a"], "TASK"),
        (&["stop-task", "a", ""], "must not be empty"),
        (&["balance"], "ID"),
        (&["balance", "a", "--balance", "fair"], "--dry-run"),
        (&["balance", "--dry-run", "--balance", "unfair"], "fair"),
        (&["freeze", "a", "--wait", "5"], "did you mean 5s"),
        (&["drain", "a", "--wait", "5"], "did you mean 5s"),
        (&["freez", "a"], "`tenure node freeze`"),
        (&["drian", "a"], "`tenure node drain`"),
        (&["releasetask", "a", "b"], "`tenure node release-task`"),
        (&[], "unfreeze"),
    ] {
        let ran = sandbox.run(&[&["node"], args].concat()).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    assert_eq!(sandbox.run(&["node", "ls"]).await.code, Some(5));
}
