//! Leases from the shell, on the embedded store and on etcd.

use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::sandbox::Sandbox;

async fn leases_are_listed_shown_and_revoked(sandbox: Sandbox) {
    assert_eq!(sandbox.json(&["lease", "ls"]).await, json!({"schema": "tenure.lease/v1", "leases": []}));
    let put = sandbox.json(&["kv", "put", "/tenure/l/a", "1", "--ttl", "60s"]).await;
    let lease = put["lease"].as_str().unwrap();
    sandbox.ok(&["kv", "put", "/tenure/l/b", "2", "--lease", lease]).await;
    let other = sandbox.json(&["kv", "put", "/tenure/l/c", "3", "--ttl", "90s"]).await;

    let listed = sandbox.json(&["lease", "ls"]).await;
    let rows = listed["leases"].as_array().unwrap();
    let row = rows.iter().find(|row| row["lease"] == lease).unwrap();
    assert_eq!((rows.len(), &row["keys"], &row["ttl_seconds"]), (2, &json!(2), &json!(60.0)));
    let plain = sandbox.ok(&["lease", "ls"]).await;
    assert!(
        plain.lines().any(|line| line.starts_with(&format!("{lease}\t60.0s\t")) && line.ends_with("\t2"))
    );

    let shown = sandbox.json(&["lease", "show", lease]).await;
    let remaining = shown["remaining_seconds"].as_f64().unwrap();
    assert!((0.0..=60.0).contains(&remaining), "{shown}");
    assert_eq!(
        shown,
        json!({"schema": "tenure.lease/v1", "lease": lease, "ttl_seconds": 60.0,
               "remaining_seconds": shown["remaining_seconds"], "keys": [{"key": "/tenure/l/a"}, {"key": "/tenure/l/b"}]})
    );
    assert!(sandbox.ok(&["lease", "show", lease]).await.ends_with("\n/tenure/l/a\n/tenure/l/b"));

    let revoked = sandbox.json(&["lease", "revoke", lease, "--yes"]).await;
    let now = sandbox.json(&["kv", "range", "/tenure/l/"]).await;
    assert_eq!(
        revoked,
        json!({"schema": "tenure.lease/v1", "lease": lease, "deleted": 2, "revision": now["revision"]})
    );
    assert_eq!(now["kvs"].as_array().unwrap().len(), 1, "the other lease's key stays: {now}");
    for args in [&["lease", "show", lease][..], &["lease", "revoke", lease, "--yes"]] {
        let ran = sandbox.run(&[args, &["--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(3), &Value::from("not_found")), "{ran:?}");
        assert!(ran.error()["hint"].as_str().unwrap().contains("lease ls"), "{ran:?}");
    }
    let other = other["lease"].as_str().unwrap();
    assert!(sandbox.ok(&["lease", "revoke", other, "--yes"]).await.starts_with(&format!("{other}\t1\t")));
}

#[tokio::test]
async fn leases_are_listed_shown_and_revoked_on_file() {
    leases_are_listed_shown_and_revoked(Sandbox::new()).await;
}

#[tokio::test]
async fn leases_are_listed_shown_and_revoked_on_etcd() {
    let etcd = Etcd::start();
    leases_are_listed_shown_and_revoked(Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints())).await;
}

#[tokio::test]
async fn invalid_lease_id_is_a_usage_error() {
    let sandbox = Sandbox::new();
    for id in ["", "0", "zz", "-1", "0x1f", "11111111111111111"] {
        assert_eq!(sandbox.run(&["lease", "show", id]).await.code, Some(2), "{id:?}");
        assert_eq!(sandbox.run(&["lease", "revoke", id, "--yes"]).await.code, Some(2), "{id:?}");
    }
    assert_eq!(sandbox.run(&["lease"]).await.code, Some(2));
}
