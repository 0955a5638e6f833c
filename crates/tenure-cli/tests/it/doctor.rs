//! `tenure doctor`: the state of each check and the next step.

use serde_json::json;

use tenure_fixture::{Etcd, GrpcProxy};

use crate::sandbox::Sandbox;

/// A gRPC proxy combines renewals, so a lease of 3 s or 5 s behind it expires.
#[tokio::test]
async fn doctor_warns_of_grpc_proxy_only() {
    let etcd = Etcd::start();
    let proxy = GrpcProxy::to(&etcd);
    let sandbox = Sandbox::new().with("PATH", "/usr/bin:/bin");
    for (endpoint, warned) in [(etcd.endpoints(), false), (proxy.addr().to_string(), true)] {
        let output = sandbox.ok(&["doctor", "--endpoints", &endpoint]).await;
        let line = output.lines().find(|line| line.starts_with("warn  proxy"));
        assert_eq!(line.is_some(), warned, "{output}");
        assert!(line.is_none_or(|line| line.contains("--ttl of 15s or more")), "{output}");
        sandbox.ok(&["lock", "a", "--endpoints", &endpoint, "--", "true"]).await;
    }
}

#[tokio::test]
async fn doctor_creates_no_store() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["doctor"]).await;
    assert!(!std::path::Path::new(&sandbox.path(".local")).exists(), "doctor must not create a store");
    sandbox.ok(&["kv", "put", "/a", "1"]).await;
    let output = sandbox.json(&["doctor"]).await;
    assert_eq!((&output["schema"], &output["ok"]), (&json!("tenure.doctor/v1"), &json!(true)));
    let names: Vec<&str> =
        output["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in ["clock", "config", "folder", "disk", "format", "engine", "connection"] {
        assert!(names.contains(&name), "{name} is missing in {output}");
    }
}

#[tokio::test]
async fn doctor_warns_of_open_folder() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    sandbox.ok(&["kv", "put", "/a", "1"]).await;
    let folder = sandbox.path(".local/state/tenure/tenure");
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let output = sandbox.ok(&["doctor"]).await;
    let line = output.lines().find(|line| line.contains("folder")).unwrap();
    assert!(line.starts_with("warn") && line.contains(&format!("chmod 700 {folder}")), "{line}");
}

#[tokio::test]
async fn failed_check_names_next_step() {
    let sandbox = Sandbox::new().with("CI", "true");
    let ran = sandbox.run(&["doctor"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let line = ran.stdout.lines().find(|line| line.starts_with("fail")).unwrap();
    assert!(line.contains("next:") && line.contains("--local"), "{line}");
}

#[tokio::test]
async fn doctor_warns_of_open_cluster() {
    let sandbox = Sandbox::without_user();
    // An address reserved for documentation: no host answers there.
    let ran = sandbox.run(&["doctor", "--endpoints", "192.0.2.1:2379", "--json"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
    let output: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let state = |name: &str| {
        let checks = output["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap()["state"].clone()
    };
    assert_eq!(
        (state("tls"), state("auth"), state("connection")),
        (json!("warn"), json!("warn"), json!("fail"))
    );
}
