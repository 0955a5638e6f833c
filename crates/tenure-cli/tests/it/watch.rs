//! `tenure kv watch`, and readers that close their end.

use serde_json::{Value, json};

use crate::sandbox::Sandbox;

#[tokio::test]
async fn every_change_is_one_line_with_its_revision() {
    let sandbox = Sandbox::new();
    // A watch creates no store.
    sandbox.ok(&["kv", "put", "/before", "1"]).await;
    let mut watch = sandbox.start(&["kv", "watch", "--prefix", "/w/", "--json", "--prev"]);
    watch.hear("watching").await;
    let first = sandbox.ok(&["kv", "put", "/w/a", "1"]).await;
    let event: Value = serde_json::from_str(&watch.line().await).unwrap();
    assert_eq!(
        event,
        json!({"schema": "tenure.kv/v1", "revision": first, "event": "put",
               "kv": {"key": "/w/a", "value": "1", "created_revision": first, "modified_revision": first, "version": 1}})
    );
    sandbox.ok(&["kv", "put", "/other", "x"]).await;
    sandbox.ok(&["kv", "del", "/w/a"]).await;
    let event: Value = serde_json::from_str(&watch.line().await).unwrap();
    assert_eq!((&event["event"], &event["kv"]), (&json!("delete"), &json!({"key": "/w/a"})));
    assert_eq!(event["previous"]["value"], "1");
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));
}

#[tokio::test]
async fn watch_after_revision_replays_history() {
    let sandbox = Sandbox::new();
    let first = sandbox.ok(&["kv", "put", "/w/a", "1"]).await;
    let second = sandbox.ok(&["kv", "put", "/w/a", "2\tx"]).await;
    let third = sandbox.ok(&["kv", "put", "/w/b", "3"]).await;
    let output = sandbox.ok(&["kv", "watch", "--prefix", "/w/", "--after", &first, "--count", "2"]).await;
    assert_eq!(output, format!("{second}\tput\t/w/a\t2\\tx\n{third}\tput\t/w/b\t3"));
}

#[tokio::test]
async fn lease_end_is_a_delete() {
    let sandbox = Sandbox::new();
    let put = sandbox.json(&["kv", "put", "/w/leased", "1", "--ttl", "1s"]).await;
    let after = put["revision"].as_str().unwrap();
    let output =
        sandbox.ok(&["kv", "watch", "/w/leased", "--after", after, "--count", "1", "--wait", "30s"]).await;
    assert!(output.ends_with("\tdelete\t/w/leased"), "{output}");
    assert_eq!(sandbox.run(&["kv", "get", "/w/leased"]).await.code, Some(3));
}

#[tokio::test]
async fn closed_reader_ends_watch_quietly() {
    let sandbox = Sandbox::new();
    // A watch creates no store.
    sandbox.ok(&["kv", "put", "/before", "1"]).await;
    let mut watch = sandbox.start(&["kv", "watch", "--prefix", "/w/"]);
    watch.hear("watching").await;
    let mut child = watch.hang_up();
    sandbox.ok(&["kv", "put", "/w/a", "1"]).await;
    let status = tokio::time::timeout(crate::sandbox::RUN_DEADLINE, child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn closed_reader_causes_no_error() {
    let sandbox = Sandbox::new();
    let value = "v".repeat(100_000);
    for n in 0..10 {
        let ran = sandbox.run_with(&["kv", "put", &format!("/big/{n}"), "-"], value.as_bytes()).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let mut range = sandbox.command(&["kv", "range", "/big/", "--local"]).spawn().unwrap();
    drop(range.stdout.take());
    let output =
        tokio::time::timeout(crate::sandbox::RUN_DEADLINE, range.wait_with_output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
