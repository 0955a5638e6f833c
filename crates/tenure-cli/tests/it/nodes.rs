//! `tenure node ls` and `tenure service`: listings and changes.

use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::sandbox::Sandbox;

const NODE: &str =
    r#"{"v":1,"address":"10.0.0.7:80","started":1798761599123,"state":"ready","incarnation":3}"#;

#[tokio::test]
async fn node_listing_shape_is_stable() {
    let etcd = Etcd::start();
    let on_etcd = Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    for sandbox in [Sandbox::new(), on_etcd] {
        assert_eq!(
            sandbox.json(&["node", "ls"]).await["nodes"],
            json!([]),
            "an empty list is a valid result"
        );
        let put = sandbox.json(&["kv", "put", "/tenure/nodes/web%2F1", NODE, "--ttl", "60s"]).await;
        sandbox.ok(&["kv", "put", "/tenure/nodes/bare", "{}"]).await;
        sandbox.ok(&["kv", "put", "/tenure/nodes/broken", "oh no"]).await;
        for task in ["t1", "t2", "t%2F3"] {
            sandbox.ok(&["kv", "put", &format!("/tenure/tasks/{task}"), "{}"]).await;
            sandbox.ok(&["kv", "put", &format!("/tenure/tasks/{task}/owner"), r#"{"node":"web/1"}"#]).await;
        }
        sandbox.ok(&["kv", "put", "/tenure/tasks/t4/owner", r#"{"node":"elsewhere"}"#]).await;
        // The embedded store has a file per namespace, so the key is put into the file that the listing reads.
        sandbox.ok(&["kv", "put", "/tenure/other/nodes/x", "{}", "--namespace", "tenure/other"]).await;
        let listed = sandbox.json(&["node", "ls"]).await;
        assert_eq!(listed["schema"], "tenure.node/v1");
        assert!(listed["revision"].is_string());
        assert_eq!(listed["set_aside"], json!([{"id": "broken", "why": "not JSON from line 1 column 1 on"}]));
        let nodes = listed["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2, "{listed}");
        let left = nodes[1]["lease_remaining_seconds"].as_f64().unwrap();
        assert!((30.0..=60.0).contains(&left), "{left}");
        assert_eq!(
            nodes[1],
            json!({"id": "web/1", "address": "10.0.0.7:80", "state": "ready", "frozen": false, "tasks": 3, "commands": 0,
                   "lease_remaining_seconds": left, "incarnation": put["revision"], "started": "2026-12-31T23:59:59.123Z",
                   "version": "", "labels": {}, "lease": put["lease"]})
        );
        assert_eq!(
            (&nodes[0]["address"], &nodes[0]["lease"], &nodes[0]["started"]),
            (&json!(null), &json!(null), &json!(null))
        );
        let ran = sandbox.run(&["node", "ls"]).await;
        let cells: Vec<&str> = ran.stdout.lines().nth(1).unwrap().split('\t').collect();
        assert_eq!((cells[0], cells[1], cells[2], cells[3]), ("web/1", "10.0.0.7:80", "ready", "3"));
        assert!(ran.stderr.contains("node broken is not listed"), "{ran:?}");
        assert_eq!(sandbox.json(&["node", "ls", "--namespace", "tenure/other"]).await["nodes"][0]["id"], "x");
    }
}

#[tokio::test]
async fn services_of_any_client_are_listed() {
    let etcd = Etcd::start();
    let on_etcd = Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    for sandbox in [Sandbox::new(), on_etcd] {
        assert_eq!(sandbox.json(&["service", "ls"]).await["services"], json!([]));
        let ran = sandbox.run(&["service", "show", "web", "--json"]).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(3), &json!("not_found")), "{ran:?}");
        let record = r#"{"v":1,"address":"10.0.0.1:80","metadata":{"zone":"eu"},"started":1000}"#;
        let put =
            sandbox.json(&["kv", "put", "/tenure/registry/services/web/a", record, "--ttl", "60s"]).await;
        sandbox.ok(&["kv", "put", "/tenure/registry/services/web/b", "10.0.0.2:80"]).await;
        let bytes = sandbox.file("bytes", [0xff]);
        sandbox.ok(&["kv", "put", "/tenure/registry/services/web/c", "--value-file", &bytes]).await;
        sandbox.ok(&["kv", "put", "/tenure/registry/services/web%2Fapi/a", "x"]).await;
        sandbox.ok(&["kv", "put", "/tenure/registry/services/web/d", r#"{"v":2}"#]).await;
        assert_eq!(
            sandbox.json(&["service", "ls"]).await["services"],
            json!([{"name": "web", "instances": 3}, {"name": "web/api", "instances": 1}])
        );
        assert_eq!(sandbox.ok(&["service", "ls"]).await, "web\t3\nweb/api\t1");
        let shown = sandbox.json(&["service", "show", "web"]).await;
        assert_eq!((&shown["schema"], &shown["name"]), (&json!("tenure.service/v1"), &json!("web")));
        let left = shown["instances"][0]["lease_remaining_seconds"].clone();
        assert_eq!(
            shown["instances"][0],
            json!({"id": "a", "address": "10.0.0.1:80", "metadata": {"zone": "eu"}, "token": put["revision"],
                   "started": "1970-01-01T00:00:01.000Z", "lease": put["lease"], "lease_remaining_seconds": left})
        );
        assert_eq!(shown["instances"][1]["address"], "10.0.0.2:80", "a plain value is an address");
        assert_eq!(
            (&shown["instances"][2]["address"], &shown["instances"][2]["value_b64"]),
            (&json!(null), &json!("/w=="))
        );
        assert_eq!(shown["set_aside"][0]["id"], "d");
        let text = sandbox.ok(&["service", "show", "web"]).await;
        assert!(text.lines().nth(1).unwrap().starts_with("b\t10.0.0.2:80\t-\t-\t"), "{text}");
        let ran = sandbox.run(&["service", "show", ""]).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

#[tokio::test]
async fn service_watch_reports_snapshot_then_changes() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["kv", "put", "/tenure/registry/services/web/a", "one"]).await;
    let mut watch = sandbox.start(&["service", "watch", "web", "--json"]);
    let mut next = async || serde_json::from_str::<Value>(&watch.line().await).unwrap();
    let first = next().await;
    assert_eq!((&first["event"], &first["instances"][0]["address"]), (&json!("snapshot"), &json!("one")));
    let joined = sandbox.ok(&["kv", "put", "/tenure/registry/services/web/b", "two"]).await;
    let event = next().await;
    assert_eq!(
        (&event["event"], &event["revision"], &event["instance"]["id"]),
        (&json!("joined"), &json!(joined), &json!("b"))
    );
    sandbox.ok(&["kv", "put", "/tenure/registry/services/web/b", "three"]).await;
    let event = next().await;
    assert_eq!((&event["event"], &event["instance"]["address"]), (&json!("updated"), &json!("three")));
    assert_eq!(event["instance"]["token"], json!(joined), "an update is no new incarnation");
    sandbox.ok(&["kv", "del", "/tenure/registry/services/web/b"]).await;
    assert_eq!(next().await["event"], "left");
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));

    let mut watch = sandbox.start(&["service", "watch", "web", "--count", "1", "--wait", "30s"]);
    watch.hear("watching").await;
    let put = sandbox.ok(&["kv", "put", "/tenure/registry/services/web/c", "two\tcells"]).await;
    assert!(watch.line().await.ends_with("\tpresent\ta\tone"));
    assert_eq!(watch.line().await, format!("{put}\tjoined\tc\ttwo\\tcells"));
    assert_eq!(watch.end().await.0, Some(0));
    let ran = sandbox.run(&["service", "watch", "web", "--count", "1", "--wait", "200ms"]).await;
    assert_eq!(ran.code, Some(8), "{ran:?}");
}
