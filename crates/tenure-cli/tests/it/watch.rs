//! Watching from the shell.

use serde_json::{Value, json};

use crate::machine::Machine;

#[tokio::test]
async fn every_change_is_one_line_with_its_revision() {
    let machine = Machine::new();
    // A watch creates no store.
    machine.ok(&["kv", "put", "/before", "1"]).await;
    let mut watch = machine.start(&["kv", "watch", "--prefix", "/w/", "--json", "--prev"]);
    watch.hear("watching").await;
    let first = machine.ok(&["kv", "put", "/w/a", "1"]).await;
    let event: Value = serde_json::from_str(&watch.line().await).unwrap();
    assert_eq!(
        event,
        json!({"schema": "tenure.kv/v1", "revision": first, "event": "put",
               "kv": {"key": "/w/a", "value": "1", "created_revision": first, "modified_revision": first, "version": 1}})
    );
    machine.ok(&["kv", "put", "/other", "x"]).await;
    machine.ok(&["kv", "del", "/w/a"]).await;
    let event: Value = serde_json::from_str(&watch.line().await).unwrap();
    assert_eq!((&event["event"], &event["kv"]), (&json!("delete"), &json!({"key": "/w/a"})));
    assert_eq!(event["previous"]["value"], "1");
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));
}

#[tokio::test]
async fn the_past_is_told_from_where_it_was_left() {
    let machine = Machine::new();
    let first = machine.ok(&["kv", "put", "/w/a", "1"]).await;
    let second = machine.ok(&["kv", "put", "/w/a", "2\tx"]).await;
    let third = machine.ok(&["kv", "put", "/w/b", "3"]).await;
    let told = machine.ok(&["kv", "watch", "--prefix", "/w/", "--after", &first, "--count", "2"]).await;
    assert_eq!(told, format!("{second}\tput\t/w/a\t2\\tx\n{third}\tput\t/w/b\t3"));
}

#[tokio::test]
async fn the_end_of_a_lease_is_a_delete() {
    let machine = Machine::new();
    let put = machine.json(&["kv", "put", "/w/leased", "1", "--ttl", "1s"]).await;
    let after = put["revision"].as_str().unwrap();
    let told =
        machine.ok(&["kv", "watch", "/w/leased", "--after", after, "--count", "1", "--wait", "30s"]).await;
    assert!(told.ends_with("\tdelete\t/w/leased"), "{told}");
    assert_eq!(machine.run(&["kv", "get", "/w/leased"]).await.code, Some(3));
}

#[tokio::test]
async fn a_reader_that_leaves_ends_the_watch_quietly() {
    let machine = Machine::new();
    // A watch creates no store.
    machine.ok(&["kv", "put", "/before", "1"]).await;
    let mut watch = machine.start(&["kv", "watch", "--prefix", "/w/"]);
    watch.hear("watching").await;
    let mut child = watch.hang_up();
    machine.ok(&["kv", "put", "/w/a", "1"]).await;
    let status = tokio::time::timeout(crate::machine::PATIENCE, child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn a_reader_that_leaves_early_hears_no_complaint() {
    let machine = Machine::new();
    let value = "v".repeat(100_000);
    for n in 0..10 {
        let ran = machine.run_with(&["kv", "put", &format!("/big/{n}"), "-"], value.as_bytes()).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let mut range = machine.command(&["kv", "range", "/big/", "--local"]).spawn().unwrap();
    drop(range.stdout.take());
    let output =
        tokio::time::timeout(crate::machine::PATIENCE, range.wait_with_output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
