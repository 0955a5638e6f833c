//! `tenure register`: keys that live as long as a command, or until a signal, as scripts and other clients of the store see them.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::sandbox::{Running, Sandbox};

fn sandbox() -> Sandbox {
    Sandbox::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

fn on(etcd: &Etcd) -> Sandbox {
    sandbox().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// Prints `up`, waits for a line on stdin and exits with 7.
const SCRIPT: [&str; 4] = ["--", "sh", "-c", "echo up; read x; exit 7"];

/// Registers keys for `SCRIPT` and waits until it runs.
async fn start(sandbox: &Sandbox, flags: &[&str]) -> Running {
    let mut running = sandbox.start_with_open_stdin(&[&["register"], flags, &SCRIPT].concat());
    assert_eq!(running.line().await, "up");
    running
}

async fn finish(mut running: Running) -> (Option<i32>, String) {
    running.feed(b"end\n").await;
    running.end().await
}

async fn stored(sandbox: &Sandbox) -> String {
    sandbox.ok(&["kv", "range", "/tenure/registry/"]).await
}

async fn line(running: &mut Running) -> Value {
    let line = running.line().await;
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// The next line of the stream with this event.
async fn until(running: &mut Running, event: &str) -> Value {
    loop {
        let line = line(running).await;
        if line["event"] == event {
            return line;
        }
    }
}

async fn keys_live_with_the_command(sandbox: &Sandbox) {
    let running = start(sandbox, &["web/1=10.0.0.7:80", "empty=", "a=b=c"]).await;
    assert_eq!(
        stored(sandbox).await,
        "/tenure/registry/a\tb=c\n/tenure/registry/empty\t\n/tenure/registry/services/web/1\t10.0.0.7:80"
    );
    let shown = sandbox.json(&["service", "show", "web"]).await;
    assert_eq!(
        (&shown["instances"][0]["id"], &shown["instances"][0]["address"]),
        (&json!("1"), &json!("10.0.0.7:80"))
    );
    let leases = sandbox.json(&["lease", "ls"]).await["leases"].clone();
    assert_eq!((leases.as_array().unwrap().len(), &leases[0]["keys"]), (1, &json!(3)), "under one lease");
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert_eq!(stored(sandbox).await, "");
    assert_eq!(sandbox.ok(&["lease", "ls"]).await, "");
}

#[tokio::test]
async fn keys_live_with_the_command_on_file() {
    keys_live_with_the_command(&sandbox()).await;
}

#[tokio::test]
async fn keys_live_with_the_command_on_etcd() {
    let etcd = Etcd::start();
    keys_live_with_the_command(&on(&etcd)).await;
}

#[tokio::test]
async fn command_gets_lease_in_environment() {
    let sandbox = sandbox();
    let script = "echo $TENURE_LEASE $TENURE_TTL_SECONDS $TENURE_NAMESPACE $TENURE_NODE; read x";
    let mut running = sandbox.start_with_open_stdin(&[
        "register",
        "--namespace",
        "shop",
        "--ttl",
        "20s",
        "a=1",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let output = running.line().await;
    let leases = sandbox.json(&["lease", "ls", "--namespace", "shop"]).await["leases"].clone();
    assert_eq!(output, format!("{} 20 shop web-1", leases[0]["lease"].as_str().unwrap()));
    assert_eq!(finish(running).await.0, Some(0));
}

#[tokio::test]
async fn unrunnable_command_exits_126_or_127() {
    let sandbox = sandbox();
    let plain = sandbox.file("plain", "");
    for (command, code, word) in [
        ("no-such-command", 127, "command_not_found"),
        ("/nowhere/x", 127, "command_not_found"),
        (&*plain, 126, "not_executable"),
        ("/", 126, "not_executable"),
    ] {
        let ran = sandbox.run(&["register", "--json", "a=1", "--", command]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{ran:?}");
        assert_eq!(ran.error()["code"], word);
    }
    assert!(!Path::new(&sandbox.path(".local")).exists(), "looked up before any store is opened");
}

#[tokio::test]
async fn hostile_input_changes_nothing() {
    let sandbox = sandbox();
    let before = sandbox.ok(&["kv", "put", "/a", "1"]).await;
    let long = format!("{}=v", "k".repeat(300));
    for args in [
        &["a"][..],
        &["=v"],
        &["/a=v"],
        &["/tenure/registry/a=v"],
        &["../nodes/a=v"],
        &["a//b=v"],
        &["a\nb=v"],
        &["\x1b[2J=v"],
        &[&long],
        &["a=1", "b=2", "a=3"],
        &["a=1", "--ttl", "15"],
        &["a=1", "--ttl", "0s"],
        &["a=1", "--ttl", "1ms"],
        &["a=1", "--ttl", "99999999999h"],
        &["a=1", "--namespace", "x//y"],
        &["a=1", "--frobnicate"],
        &["a=1", "--store", "redis://a"],
        &[],
    ] {
        let alone = sandbox.run(&[&["register"], args].concat()).await;
        assert_eq!(alone.code, Some(2), "{args:?} {alone:?}");
        let marker = sandbox.path("marker");
        let wrapped = sandbox.run(&[&["register"], args, &["--", "touch", &marker]].concat()).await;
        assert_eq!(wrapped.code, Some(125), "{args:?} {wrapped:?}");
        for ran in [&alone, &wrapped] {
            assert!(ran.stdout.is_empty() && !ran.stderr.contains('\x1b'), "{args:?} {ran:?}");
        }
        assert!(!Path::new(&marker).exists(), "{args:?} ran the command");
    }
    assert_eq!(sandbox.json(&["kv", "range", ""]).await["revision"], before.as_str());
    assert_eq!(sandbox.ok(&["lease", "ls"]).await, "");
    let ran = sandbox.run(&["register", "/tenure/registry/a=v", "--json", "--", "true"]).await;
    assert!(ran.error()["hint"].as_str().unwrap().contains("\"a\""), "{ran:?}");
}

#[tokio::test]
async fn unreachable_store_fails_within_6_seconds() {
    let sandbox = sandbox();
    // No process listens at the first address; the second accepts no connection, so the kernel takes every byte and no reply comes.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = deaf.local_addr().unwrap().to_string();
    let marker = sandbox.path("marker");
    for endpoint in ["127.0.0.1:1", &deaf] {
        for (command, code) in [(&["--", "touch", &*marker][..], 125), (&[], 5)] {
            let begin = Instant::now();
            let ran =
                sandbox.run(&[&["register", "--endpoints", endpoint, "a=1"][..], command].concat()).await;
            assert_eq!(ran.code, Some(code), "{ran:?}");
            assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        }
    }
    assert!(!Path::new(&marker).exists() && !Path::new(&sandbox.path(".local")).exists());
}

#[tokio::test]
async fn foreign_key_is_overwritten_unless_create_only() {
    let sandbox = sandbox();
    sandbox.ok(&["kv", "put", "/tenure/registry/a", "foreign"]).await;
    for (command, code) in [(&["--", "true"][..], 125), (&[], 4)] {
        let ran = sandbox
            .run(&[&["register", "--create-only", "b=1", "a=1", "--json"][..], command].concat())
            .await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(code), &json!("conflict")), "{ran:?}");
    }
    assert_eq!(stored(&sandbox).await, "/tenure/registry/a\tforeign");
    let running = start(&sandbox, &["a=own"]).await;
    assert_eq!(stored(&sandbox).await, "/tenure/registry/a\town");
    assert_eq!(finish(running).await.0, Some(7));
}

#[tokio::test]
async fn signal_ends_command_before_unregistration() {
    let sandbox = sandbox();
    let script = "trap 'echo bye; read x; exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let mut running = sandbox.start_with_open_stdin(&["register", "a=1", "--", "sh", "-c", script]);
    assert_eq!(running.line().await, "up");
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "bye");
    assert_eq!(stored(&sandbox).await, "/tenure/registry/a\t1", "registered until the command has ended");
    assert_eq!(finish(running).await.0, Some(9));
    assert_eq!(stored(&sandbox).await, "");
}

#[tokio::test]
async fn killed_register_ends_command_then_keys() {
    let sandbox = sandbox();
    let mut running = start(&sandbox, &["--ttl", "2s", "a=1"]).await;
    let seen = sandbox.json(&["kv", "get", "/tenure/registry/a"]).await;
    running.signal(Signal::KILL);
    running.silence(Duration::from_secs(10)).await;
    let after = seen["revision"].as_str().unwrap();
    let output = sandbox
        .ok(&["kv", "watch", "/tenure/registry/a", "--after", after, "--count", "1", "--wait", "30s"])
        .await;
    assert!(output.ends_with("\tdelete\t/tenure/registry/a"), "{output}");
}

#[tokio::test]
async fn register_without_command_reports_until_signalled() {
    let sandbox = sandbox();
    for signal in [Signal::TERM, Signal::INT] {
        let mut running = sandbox.start(&["register", "--json", "--ttl", "20s", "b=2", "a=1"]);
        let ready = line(&mut running).await;
        let (lease, revision) = (&ready["lease"], &ready["revision"]);
        assert!(lease.is_string() && revision.is_string(), "{ready}");
        // The session may put the two keys in one transaction or in two.
        let key = |at: usize, key: &str| {
            let output = &ready["keys"][at]["revision"];
            assert!(output.is_string(), "{ready}");
            json!({"key": key, "lease": lease, "revision": output})
        };
        let keys = [key(0, "/tenure/registry/b"), key(1, "/tenure/registry/a")];
        assert_eq!(
            ready,
            json!({"schema": "tenure.register/v1", "event": "ready", "namespace": "tenure", "lease": lease,
                   "ttl_seconds": 20.0, "revision": revision, "keys": keys})
        );
        let now = sandbox.json(&["kv", "range", "/tenure/"]).await["revision"].as_str().unwrap().to_owned();
        sandbox.ok(&["kv", "del", "/tenure/registry/a"]).await;
        let event =
            |event: &str, key: &str| json!({"schema": "tenure.register/v1", "event": event, "key": key});
        assert_eq!(line(&mut running).await, event("missing", "/tenure/registry/a"));
        let watch = ["kv", "watch", "/tenure/registry/a", "--after", &now, "--count", "2", "--wait", "30s"];
        assert!(
            sandbox.ok(&watch).await.ends_with("\tput\t/tenure/registry/a\t1"),
            "the session puts the key again"
        );
        running.signal(signal);
        let mut gone = [until(&mut running, "unregistered").await, until(&mut running, "unregistered").await];
        gone.sort_by_key(ToString::to_string);
        let (a, b) = ("/tenure/registry/a", "/tenure/registry/b");
        assert_eq!(gone, [event("unregistered", a), event("unregistered", b)]);
        assert_eq!(running.end().await.0, Some(0), "{signal:?}");
        assert_eq!(stored(&sandbox).await, "");
    }
}

#[tokio::test]
async fn revoked_lease_is_reported_and_recovered() {
    let sandbox = sandbox();
    let mut running = sandbox.start(&["register", "--json", "a=1"]);
    let ready = line(&mut running).await;
    sandbox.ok(&["lease", "revoke", ready["lease"].as_str().unwrap(), "--yes"]).await;
    // The reason is missing if the loss and the recovery reached the printer as one change.
    until(&mut running, "lost").await;
    let live = until(&mut running, "live").await;
    assert_eq!(live["incarnation"], "2", "{live}");
    assert!(live["lease"].is_string() && live["lease"] != ready["lease"], "{live}");
    running.hear("recovered").await;
    let lease = sandbox.json(&["lease", "ls"]).await["leases"][0].clone();
    assert_eq!((&lease["lease"], &lease["keys"]), (&live["lease"], &json!(1)), "{lease}");
    assert_eq!(stored(&sandbox).await, "/tenure/registry/a\t1");
    running.signal(Signal::TERM);
    let (code, stderr) = running.end().await;
    assert_eq!(code, Some(0));
    assert!(
        !stderr.contains("tenure: lost") && !stderr.contains("tenure: recovered"),
        "reported once: {stderr}"
    );
}

#[tokio::test]
async fn etcd_restart_within_ttl_is_invisible() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let running = start(&sandbox, &["a=1"]).await;
    let before = sandbox.json(&["kv", "get", "/tenure/registry/a"]).await;
    etcd.member(0).kill();
    etcd.member(0).restart();
    let after = sandbox.json(&["kv", "get", "/tenure/registry/a"]).await;
    assert_eq!(after["created_revision"], before["created_revision"], "the key existed all the time");
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert!(!stderr.contains("tenure: lost"), "{stderr}");
    assert_eq!(stored(&sandbox).await, "");
}

#[tokio::test]
async fn long_etcd_outage_keeps_command_running() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let mut running = start(&sandbox, &["--ttl", "1500ms", "a=1"]).await;
    running.hear("granted a TTL of 2s instead of 1.5s").await;
    etcd.member(0).kill();
    running.hear("tenure: lost").await;
    etcd.member(0).restart();
    running.hear("recovered").await;
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
}

#[tokio::test]
async fn exit_code_survives_etcd_outage() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let running = start(&sandbox, &["a=1"]).await;
    etcd.member(0).kill();
    let begin = Instant::now();
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert!(stderr.contains("expires in 15 s"), "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}
