//! Commands to nodes, as the shell sends them.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::store::{Op, Selection, Store, Txn};
use tenure::worker::balance::{AcceptAll, Fair};
use tenure_fixture::Etcd;

use crate::crew::{Crew, on_file_and_etcd};
use crate::machine::{Machine, PATIENCE};

async fn shown(crew: &Crew, id: &str) -> Value {
    crew.machine.json(&["node", "show", id]).await
}

#[tokio::test]
async fn a_frozen_node_says_so_and_takes_nothing_until_it_is_unfrozen() {
    on_file_and_etcd(async |crew| {
        let mut worker = crew.join("w").await;
        crew.machine.ok(&["submit", "first"]).await;
        worker.started(1).await;
        let told = crew.machine.json(&["node", "freeze", "w"]).await;
        assert_eq!(
            told,
            json!({"schema": "tenure.node/v1", "id": "w", "message": "freeze", "acknowledged_by": "w",
               "ack_seconds": told["ack_seconds"], "command": told["command"]})
        );
        assert!(told["ack_seconds"].as_f64().unwrap() < 10.0, "{told}");
        let node = shown(&crew, "w").await;
        assert_eq!(
            (&node["state"], &node["frozen"], &node["tasks"], &node["commands"]),
            (&json!("ready"), &json!(true), &json!(1), &json!(0))
        );
        assert_eq!((&node["owned"][0]["id"], node["owned"][0]["token"].is_string()), (&json!("first"), true));
        assert!(crew.machine.ok(&["node", "ls"]).await.starts_with("w\t10.0.0.7:80\tfrozen since "));
        crew.machine.ok(&["submit", "second"]).await;
        let ran = crew.machine.run(&["node", "unfreeze", "w"]).await;
        assert!(ran.stdout.starts_with("w\tunfreeze\tw\t") && ran.stdout.ends_with(" ms\n"), "{ran:?}");
        assert!(ran.stderr.contains("unfreeze of node 'w' acknowledged by w in "), "{ran:?}");
        assert_eq!(worker.started(1).await, ["second"]);
        assert_eq!(shown(&crew, "w").await["frozen"], false);
        worker.end().await;
    })
    .await;
}

async fn a_drained_node_is_empty_and_gone(crew: &Crew) {
    let mut worker = crew.join("w").await;
    crew.machine.ok(&["submit", "x", "--count", "20"]).await;
    worker.started(20).await;
    let mut heir = crew.join_as("heir", |worker| worker.match_label("zone", "nothing yet")).await;
    let ran = crew.machine.run(&["node", "drain", "w", "--wait", "60s"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("draining 'w': 20 tasks left"), "{ran:?}");
    assert!(ran.stderr.contains("draining 'w': 0 tasks left"), "{ran:?}");
    assert!(ran.stderr.contains("node 'w' released 20 tasks and has left"), "{ran:?}");
    assert_eq!(crew.machine.run(&["node", "show", "w"]).await.code, Some(3), "it is gone");
    assert_eq!(crew.machine.json(&["task", "ls", "--node", "w"]).await["tasks"], json!([]));
    worker.close().await;
    heir.end().await;
    // A drain ends with the node: its id takes tasks again.
    let mut worker = crew.join("w").await;
    assert_eq!(shown(crew, "w").await["frozen"], false);
    heir = crew.join("heir").await;
    let (mine, theirs) = tokio::join!(worker.started(1), heir.started(1));
    assert!(mine[0].starts_with("x-") && theirs[0].starts_with("x-"));
    worker.end().await;
    heir.end().await;
}

#[tokio::test]
async fn a_drain_shows_how_many_are_left_and_ends_when_the_node_is_gone() {
    a_drained_node_is_empty_and_gone(&Crew::new().await).await;
}

#[tokio::test]
async fn a_drain_shows_how_many_are_left_and_ends_when_the_node_is_gone_on_etcd() {
    let etcd = Etcd::start();
    a_drained_node_is_empty_and_gone(&Crew::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn one_task_is_released_or_stopped_and_what_is_not_the_nodes_is_refused() {
    on_file_and_etcd(async |crew| {
        // Nobody gives anything away by itself here.
        let mut worker = crew.join_as("w", |options| options.balancer(AcceptAll)).await;
        crew.machine.ok(&["submit", "t", "--count", "2"]).await;
        worker.started(2).await;
        let mut other = crew.join_as("other", |options| options.balancer(AcceptAll)).await;
        let told = crew.machine.json(&["node", "stop-task", "w", "t-0"]).await;
        assert_eq!((&told["message"], &told["acknowledged_by"]), (&json!("stop_task"), &json!("w")));
        assert_eq!(other.started(1).await, ["t-0"]);
        let told = crew.machine.json(&["node", "release-task", "w", "t-1"]).await;
        assert_eq!((&told["message"], &told["acknowledged_by"]), (&json!("release_task"), &json!("w")));
        assert_eq!(other.started(1).await, ["t-1"]);
        let ran = crew.machine.run(&["node", "release-task", "w", "t-1", "--json"]).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
        assert!(ran.error()["message"].as_str().unwrap().contains("does not own the task"), "{ran:?}");
        worker.end().await;
        other.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_says_who_would_give_what_and_why_and_does_nothing() {
    let crew = Crew::new().await;
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
        crew.machine.ok(&["kv", "put", &format!("/tenure/nodes/{node}"), &record]).await;
    }
    for txn in [claim("a", 0, 5), claim("a", 5, 10), claim("c", 20, 22)] {
        assert_eq!(crew.machine.run_with(&["kv", "txn"], txn.as_bytes()).await.code, Some(0));
    }
    let before = crew.machine.json(&["kv", "range", ""]).await;
    let plan = crew.machine.json(&["node", "balance", "--dry-run"]).await;
    assert_eq!((&plan["balancer"], &plan["dry_run"]), (&json!("fair"), &json!(true)));
    let nodes: Vec<[&Value; 2]> =
        plan["nodes"].as_array().unwrap().iter().map(|node| [&node["id"], &node["tasks"]]).collect();
    assert_eq!(json!(nodes), json!([["a", 10], ["b", 0]]), "who drains does not share");
    let gives = plan["nodes"][0]["gives"].as_array().unwrap();
    assert_eq!(gives.len(), 5, "{plan}");
    assert!(gives.iter().all(|given| given["task"].as_str() >= Some("t05")), "the newest: {plan}");
    assert_eq!(gives[0]["why"], "this node has 10, and the share of each of 2 is 5");
    assert_eq!(plan["nodes"][1]["gives"], json!([]));
    let text = crew.machine.run(&["node", "balance", "a", "--dry-run"]).await;
    assert_eq!(text.stdout.lines().count(), 5, "{text:?}");
    assert!(text.stderr.contains("nothing was done"), "{text:?}");
    let none = crew.machine.json(&["node", "balance", "--dry-run", "--balance", "all"]).await;
    assert_eq!(none["nodes"][0]["gives"], json!([]));
    assert_eq!(crew.machine.run(&["node", "balance", "c", "--dry-run"]).await.code, Some(4));
    assert_eq!(crew.machine.run(&["node", "balance", "d", "--dry-run"]).await.code, Some(3));
    assert_eq!(crew.machine.json(&["kv", "range", ""]).await["revision"], before["revision"]);
}

/// Only a node knows by which balancer it works: from outside all of them look as if they shared fairly.
async fn a_dry_run_asks_each_node(crew: &Crew) {
    let mut keeper = crew.join_as("keeper", |options| options.balancer(AcceptAll)).await;
    crew.machine.ok(&["submit", "x", "--count", "10"]).await;
    keeper.started(10).await;
    let other = crew.join_as("other", |options| options.balancer(Fair::default())).await;
    let plan = crew.machine.json(&["node", "balance", "--dry-run"]).await;
    let said = |node: usize| {
        let node = &plan["nodes"][node];
        json!([node["id"], node["balancer"], node["asked"], node["gives"], node["planned"]])
    };
    assert_eq!(said(0), json!(["keeper", "all", true, [], 0]), "{plan}");
    assert_eq!(said(1), json!(["other", "fair", true, [], 0]), "{plan}");
    assert_eq!(plan["balancer"], Value::Null, "they differ");
    let ran = crew.machine.run(&["node", "balance", "keeper", "--dry-run"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stderr.contains("by the balancer 'all', 0 tasks"), "{ran:?}");
    let fair = crew.machine.json(&["node", "balance", "keeper", "--dry-run", "--balance", "fair"]).await;
    assert_eq!(
        (&fair["nodes"][0]["asked"], &fair["nodes"][0]["planned"]),
        (&json!(false), &json!(5)),
        "{fair}"
    );
    assert_eq!(shown(crew, "keeper").await["tasks"], 10, "nothing was given away");
    keeper.end().await;
    other.end().await;
}

#[tokio::test]
async fn a_dry_run_is_by_each_nodes_own_balancer() {
    a_dry_run_asks_each_node(&Crew::new().await).await;
}

#[tokio::test]
async fn a_dry_run_is_by_each_nodes_own_balancer_on_etcd() {
    let etcd = Etcd::start();
    a_dry_run_asks_each_node(&Crew::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn a_dry_run_that_a_node_does_not_answer_is_8_and_says_what_to_do_instead() {
    let crew = Crew::new().await;
    crew.store.put("/tenure/nodes/dummy", r#"{"v":1,"state":"ready","balancer":"fair"}"#).await.unwrap();
    for args in [&["balance", "dummy", "--dry-run"][..], &["balance", "--dry-run"]] {
        let ran = crew.machine.run(&[&["node"], args, &["--wait", "200ms"]].concat()).await;
        assert!(ran.code == Some(8) && ran.stderr.contains("--balance fair"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_node_that_balances_says_what_it_gives_away() {
    let crew = Crew::new().await;
    let mut worker = crew.join("w").await;
    crew.machine.ok(&["submit", "x", "--count", "3"]).await;
    worker.started(3).await;
    let told = crew.machine.json(&["node", "balance", "w"]).await;
    assert_eq!((&told["plan"], &told["planned"], &told["released"]), (&json!([]), &json!(0), &json!(0)));
    crew.machine.ok(&["node", "freeze", "w"]).await;
    let ran = crew.machine.run(&["node", "balance", "w"]).await;
    assert!(ran.code == Some(4) && ran.stderr.contains("takes no tasks"), "{ran:?}");
    worker.end().await;
}

/// A node that is in the store and does nothing.
async fn dummy(store: &Store) {
    store.put("/tenure/nodes/dummy", r#"{"v":1,"state":"ready"}"#).await.unwrap();
}

#[tokio::test]
async fn who_does_not_answer_is_8_who_is_not_there_3_and_who_goes_without_a_word_4() {
    let crew = Crew::new().await;
    let failed = async |args: &[&str], code: i32, word: &str| {
        let ran = crew.machine.run(&[&["node"], args, &["--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(code), &json!(word)), "{args:?} {ran:?}");
        assert!(ran.error()["hint"].is_string(), "{args:?} {ran:?}");
    };
    for verb in ["show", "freeze", "unfreeze", "balance", "drain"] {
        failed(&[verb, "dummy"], 3, "not_found").await;
    }
    failed(&["stop-task", "dummy", "x"], 3, "not_found").await;
    dummy(&crew.store).await;
    failed(&["freeze", "dummy", "--wait", "200ms"], 8, "timed_out").await;
    failed(&["drain", "dummy", "--wait", "200ms"], 8, "timed_out").await;
    let told = crew.machine.json(&["node", "freeze", "dummy", "--no-wait"]).await;
    assert_eq!((&told["acknowledged_by"], &told["ack_seconds"]), (&Value::Null, &Value::Null));
    assert_eq!(shown(&crew, "dummy").await["commands"], 3, "they wait in their queue");
    let drain = crew.machine.start(&["node", "drain", "dummy"]);
    let draining = tokio::time::timeout(PATIENCE, async {
        while shown(&crew, "dummy").await["commands"] != 4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    draining.await.unwrap();
    crew.machine.ok(&["kv", "del", "/tenure/nodes/dummy"]).await;
    let (code, said) = drain.end().await;
    assert!(code == Some(4) && said.contains("has left without a reply to drain"), "{code:?} {said}");
}

/// Waits until a command to the dummy lies there; gives its key.
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
    tokio::time::timeout(PATIENCE, waiting).await.unwrap()
}

#[tokio::test]
async fn a_node_that_says_it_is_drained_and_stays_is_not_gone() {
    let crew = Crew::new().await;
    dummy(&crew.store).await;
    for (goes, code) in [(false, 8), (true, 0)] {
        let drain = crew.machine.start(&["node", "drain", "dummy", "--wait", "3s"]);
        let command = command(&crew.store).await;
        let id = command.rsplit('/').next().unwrap();
        let mut answer = Txn::new()
            .then(Op::delete(command.clone()))
            .then(Op::put(format!("/tenure/results/{id}"), r#"{"handled_by":"dummy","outcome":"done"}"#));
        if goes {
            answer = answer.then(Op::delete("/tenure/nodes/dummy"));
        }
        crew.store.txn(answer).await.unwrap();
        let (ended, said) = drain.end().await;
        assert_eq!(ended, Some(code), "{said}");
    }
}

#[tokio::test]
async fn bad_input_is_2_and_misspelt_words_get_a_suggestion() {
    let machine = Machine::new().with("TENURE_ENDPOINTS", "127.0.0.1:1");
    let long = "n".repeat(300);
    for (args, said) in [
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
        let ran = machine.run(&[&["node"], args].concat()).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(said), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    assert_eq!(machine.run(&["node", "ls"]).await.code, Some(5));
}
