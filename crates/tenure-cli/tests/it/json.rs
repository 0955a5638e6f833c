//! JSON shapes that scripts rely on.

use serde_json::{Value, json};

use crate::sandbox::Sandbox;

#[tokio::test]
async fn revisions_and_leases_are_strings_and_durations_seconds() {
    let sandbox = Sandbox::new();
    let put = sandbox.json(&["kv", "put", "/a", "x", "--ttl", "90s"]).await;
    let (revision, lease) = (put["revision"].clone(), put["lease"].clone());
    assert!(revision.is_string() && lease.is_string(), "{put}");
    assert_eq!(
        put,
        json!({"schema": "tenure.kv/v1", "key": "/a", "revision": revision, "lease": lease, "ttl_seconds": 90.0})
    );
    assert_eq!(
        sandbox.json(&["kv", "get", "/a"]).await,
        json!({"schema": "tenure.kv/v1", "key": "/a", "value": "x", "created_revision": revision,
               "modified_revision": revision, "version": 1, "lease": lease, "revision": revision})
    );
}

#[tokio::test]
async fn listing_is_one_object_at_one_revision() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["kv", "put", "/l/a", "1"]).await;
    sandbox.ok(&["kv", "put", "/l/b", "2"]).await;
    let last = sandbox.ok(&["kv", "put", "/l/c", "3"]).await;
    let whole = sandbox.json(&["kv", "range", "/l/"]).await;
    assert_eq!(whole["kvs"].as_array().unwrap().len(), 3);
    assert_eq!((&whole["more"], &whole["revision"]), (&json!(false), &json!(last)));
    let part = sandbox.json(&["kv", "range", "/l/", "--limit", "2", "--keys-only"]).await;
    assert_eq!(part["more"], json!(true));
    assert!(part["kvs"][1].get("value").is_none(), "an omitted value is not an empty one: {part}");
    let ran = sandbox.run(&["kv", "range", "/l/", "--limit", "2"]).await;
    assert_eq!(ran.stdout, "/l/a\t1\n/l/b\t2\n");
    assert!(ran.stderr.contains("more keys"), "{ran:?}");
    let before = sandbox
        .json(&["kv", "range", "/l/", "--at", whole["kvs"][1]["modified_revision"].as_str().unwrap()])
        .await;
    assert_eq!(before["kvs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn multi_page_listing_is_complete() {
    let sandbox = Sandbox::new();
    let puts = |from: usize| {
        let puts: Vec<Value> =
            (from..from + 125).map(|n| json!({"put": {"key": format!("/p/{n:05}"), "value": ""}})).collect();
        json!({ "then": puts }).to_string()
    };
    for from in (0..2_250).step_by(125) {
        let ran = sandbox.run_with(&["kv", "txn"], puts(from).as_bytes()).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let keys = |listing: &Value| {
        listing["kvs"].as_array().unwrap().iter().map(|kv| kv["key"].clone()).collect::<Vec<_>>()
    };
    let whole = keys(&sandbox.json(&["kv", "range", "/p/"]).await);
    assert_eq!(whole.len(), 2_250);
    assert!(whole.is_sorted_by(|a, b| a.as_str() < b.as_str()));
    let everything = sandbox.json(&["kv", "range", "", "--limit", "1500"]).await;
    assert_eq!(keys(&everything), whole[..1500]);
    assert_eq!(everything["more"], json!(true));
}

#[tokio::test]
async fn binary_values_travel_as_base64() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("value", [0xff, 0x00, 0xfe]);
    sandbox.ok(&["kv", "put", "--key-b64", "AP8=", "--value-file", &file]).await;
    let found = sandbox.json(&["kv", "get", "--key-b64", "AP8="]).await;
    assert_eq!((&found["key_b64"], &found["value_b64"]), (&json!("AP8="), &json!("/wD+")));
    let ran = sandbox.run_with(&["kv", "put", "/text", "-"], b"from stdin\n").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(sandbox.json(&["kv", "get", "/text"]).await["value"], "from stdin\n");
    sandbox.ok(&["kv", "put", "/minus", "--", "--value"]).await;
    assert_eq!(sandbox.ok(&["kv", "get", "/minus"]).await, "--value");
}

#[tokio::test]
async fn transaction_reply_lists_each_operation() {
    let sandbox = Sandbox::new();
    let txn = json!({
        "when": [{"key": "/a", "absent": true}],
        "then": [{"put": {"key": "/a", "value": "1"}}, {"get": {"key": "/a"}}, {"delete": {"prefix": "/none/"}},
                 {"get": {"prefix": "", "keys_only": true}}],
    });
    let ran = sandbox.run_with(&["kv", "txn"], txn.to_string().as_bytes()).await;
    let reply: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(reply["succeeded"], json!(true));
    assert_eq!(reply["results"][0], json!({"op": "put"}));
    assert_eq!(reply["results"][1]["kvs"][0]["value"], "1");
    assert_eq!(reply["results"][2], json!({"op": "delete", "deleted": 0}));
    assert!(reply["results"][3]["kvs"][0].get("value").is_none(), "{reply}");
    assert_eq!(sandbox.json(&["kv", "del", "/a"]).await["deleted"], json!(1));
}

#[tokio::test]
async fn usage_errors_are_json() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["kv", "gett", "--json"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(2), &json!("usage")));
    let ran = sandbox.run(&["kv", "gett", "--", "--json"]).await;
    assert!(serde_json::from_str::<Value>(&ran.stderr).is_err(), "after -- it is not a flag");
}

#[tokio::test]
async fn version_reports_schema_and_number() {
    let version = Sandbox::new().json(&["version"]).await;
    assert_eq!(version["schema"], "tenure.version/v1");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn raised_ttl_is_reported_on_stderr() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["kv", "put", "/a", "1", "--ttl", "10ms", "--json"]).await;
    assert!(ran.stderr.contains("raised the TTL from 10ms to 1s"), "{ran:?}");
    let put: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(put["ttl_seconds"], json!(1.0));
}

#[tokio::test]
async fn shell_completions_are_generated() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(sandbox.ok(&["completions", shell]).await.contains("doctor"), "{shell}");
    }
}
