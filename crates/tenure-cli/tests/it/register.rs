//! Keys that live as long as a command, or until a signal: as scripts and other clients of the store see them.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::machine::{Machine, Running};

fn machine() -> Machine {
    Machine::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

fn on(etcd: &Etcd) -> Machine {
    machine().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// A command that says `up`, then waits for a line on its stdin and ends with 7.
const SCRIPT: [&str; 4] = ["--", "sh", "-c", "echo up; read x; exit 7"];

/// Starts it, and waits until it runs.
async fn start(machine: &Machine, flags: &[&str]) -> Running {
    let mut running = machine.start_with_open_stdin(&[&["register"], flags, &SCRIPT].concat());
    assert_eq!(running.line().await, "up");
    running
}

async fn finish(mut running: Running) -> (Option<i32>, String) {
    running.feed(b"end\n").await;
    running.end().await
}

async fn stored(machine: &Machine) -> String {
    machine.ok(&["kv", "range", "/tenure/registry/"]).await
}

async fn line(running: &mut Running) -> Value {
    let line = running.line().await;
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// The next line of the stream that tells this event.
async fn until(running: &mut Running, event: &str) -> Value {
    loop {
        let line = line(running).await;
        if line["event"] == event {
            return line;
        }
    }
}

async fn the_keys_live_as_long_as_the_command(machine: &Machine) {
    let running = start(machine, &["web/1=10.0.0.7:80", "empty=", "a=b=c"]).await;
    assert_eq!(
        stored(machine).await,
        "/tenure/registry/a\tb=c\n/tenure/registry/empty\t\n/tenure/registry/services/web/1\t10.0.0.7:80"
    );
    let shown = machine.json(&["service", "show", "web"]).await;
    assert_eq!(
        (&shown["instances"][0]["id"], &shown["instances"][0]["address"]),
        (&json!("1"), &json!("10.0.0.7:80"))
    );
    let leases = machine.json(&["lease", "ls"]).await["leases"].clone();
    assert_eq!((leases.as_array().unwrap().len(), &leases[0]["keys"]), (1, &json!(3)), "under one lease");
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert_eq!(stored(machine).await, "");
    assert_eq!(machine.ok(&["lease", "ls"]).await, "");
}

#[tokio::test]
async fn the_keys_live_as_long_as_the_command_on_the_embedded_store() {
    the_keys_live_as_long_as_the_command(&machine()).await;
}

#[tokio::test]
async fn the_keys_live_as_long_as_the_command_on_etcd() {
    let etcd = Etcd::start();
    the_keys_live_as_long_as_the_command(&on(&etcd)).await;
}

#[tokio::test]
async fn the_command_is_told_where_it_stands() {
    let machine = machine();
    let script = "echo $TENURE_LEASE $TENURE_TTL_SECONDS $TENURE_NAMESPACE $TENURE_NODE; read x";
    let mut running = machine.start_with_open_stdin(&[
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
    let told = running.line().await;
    let leases = machine.json(&["lease", "ls", "--namespace", "shop"]).await["leases"].clone();
    assert_eq!(told, format!("{} 20 shop web-1", leases[0]["lease"].as_str().unwrap()));
    assert_eq!(finish(running).await.0, Some(0));
}

#[tokio::test]
async fn what_cannot_be_run_is_126_or_127_and_takes_nothing() {
    let machine = machine();
    let plain = machine.file("plain", "");
    for (command, code, word) in [
        ("no-such-command", 127, "command_not_found"),
        ("/nowhere/x", 127, "command_not_found"),
        (&*plain, 126, "not_executable"),
        ("/", 126, "not_executable"),
    ] {
        let ran = machine.run(&["register", "--json", "a=1", "--", command]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{ran:?}");
        assert_eq!(ran.error()["code"], word);
    }
    assert!(!Path::new(&machine.path(".local")).exists(), "looked up before any store is opened");
}

#[tokio::test]
async fn hostile_input_is_125_or_2_and_changes_nothing() {
    let machine = machine();
    let before = machine.ok(&["kv", "put", "/a", "1"]).await;
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
        let alone = machine.run(&[&["register"], args].concat()).await;
        assert_eq!(alone.code, Some(2), "{args:?} {alone:?}");
        let marker = machine.path("marker");
        let wrapped = machine.run(&[&["register"], args, &["--", "touch", &marker]].concat()).await;
        assert_eq!(wrapped.code, Some(125), "{args:?} {wrapped:?}");
        for ran in [&alone, &wrapped] {
            assert!(ran.stdout.is_empty() && !ran.stderr.contains('\x1b'), "{args:?} {ran:?}");
        }
        assert!(!Path::new(&marker).exists(), "{args:?} ran the command");
    }
    assert_eq!(machine.json(&["kv", "range", ""]).await["revision"], before.as_str());
    assert_eq!(machine.ok(&["lease", "ls"]).await, "");
    let ran = machine.run(&["register", "/tenure/registry/a=v", "--json", "--", "true"]).await;
    assert!(ran.error()["hint"].as_str().unwrap().contains("\"a\""), "{ran:?}");
}

#[tokio::test]
async fn an_unreachable_store_is_125_or_5_within_6_seconds_and_runs_nothing() {
    let machine = machine();
    // Nothing listens at the first; the second swallows every byte, because nobody accepts.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = deaf.local_addr().unwrap().to_string();
    let marker = machine.path("marker");
    for endpoint in ["127.0.0.1:1", &deaf] {
        for (command, code) in [(&["--", "touch", &*marker][..], 125), (&[], 5)] {
            let begin = Instant::now();
            let ran =
                machine.run(&[&["register", "--endpoints", endpoint, "a=1"][..], command].concat()).await;
            assert_eq!(ran.code, Some(code), "{ran:?}");
            assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        }
    }
    assert!(!Path::new(&marker).exists() && !Path::new(&machine.path(".local")).exists());
}

#[tokio::test]
async fn a_key_of_somebody_elses_is_overwritten_unless_told_otherwise() {
    let machine = machine();
    machine.ok(&["kv", "put", "/tenure/registry/a", "theirs"]).await;
    for (command, code) in [(&["--", "true"][..], 125), (&[], 4)] {
        let ran = machine
            .run(&[&["register", "--create-only", "b=1", "a=1", "--json"][..], command].concat())
            .await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(code), &json!("conflict")), "{ran:?}");
    }
    assert_eq!(stored(&machine).await, "/tenure/registry/a\ttheirs");
    let running = start(&machine, &["a=ours"]).await;
    assert_eq!(stored(&machine).await, "/tenure/registry/a\tours");
    assert_eq!(finish(running).await.0, Some(7));
}

#[tokio::test]
async fn a_signal_reaches_the_command_and_the_keys_go_after_it() {
    let machine = machine();
    let script = "trap 'echo bye; read x; exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let mut running = machine.start_with_open_stdin(&["register", "a=1", "--", "sh", "-c", script]);
    assert_eq!(running.line().await, "up");
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "bye");
    assert_eq!(stored(&machine).await, "/tenure/registry/a\t1", "registered until the command has ended");
    assert_eq!(finish(running).await.0, Some(9));
    assert_eq!(stored(&machine).await, "");
}

#[tokio::test]
async fn killed_with_9_the_keys_go_with_the_ttl_and_the_command_at_once() {
    let machine = machine();
    let mut running = start(&machine, &["--ttl", "2s", "a=1"]).await;
    let seen = machine.json(&["kv", "get", "/tenure/registry/a"]).await;
    running.signal(Signal::KILL);
    running.silence(Duration::from_secs(10)).await;
    let after = seen["revision"].as_str().unwrap();
    let told = machine
        .ok(&["kv", "watch", "/tenure/registry/a", "--after", after, "--count", "1", "--wait", "30s"])
        .await;
    assert!(told.ends_with("\tdelete\t/tenure/registry/a"), "{told}");
}

#[tokio::test]
async fn without_a_command_a_signal_is_the_normal_end_and_the_stream_tells_everything() {
    let machine = machine();
    for signal in [Signal::TERM, Signal::INT] {
        let mut running = machine.start(&["register", "--json", "--ttl", "20s", "b=2", "a=1"]);
        let ready = line(&mut running).await;
        let (lease, revision) = (&ready["lease"], &ready["revision"]);
        assert!(lease.is_string() && revision.is_string(), "{ready}");
        // The two may be put together or one after the other.
        let key = |at: usize, key: &str| {
            let told = &ready["keys"][at]["revision"];
            assert!(told.is_string(), "{ready}");
            json!({"key": key, "lease": lease, "revision": told})
        };
        let keys = [key(0, "/tenure/registry/b"), key(1, "/tenure/registry/a")];
        assert_eq!(
            ready,
            json!({"schema": "tenure.register/v1", "event": "ready", "namespace": "tenure", "lease": lease,
                   "ttl_seconds": 20.0, "revision": revision, "keys": keys})
        );
        let now = machine.json(&["kv", "range", "/tenure/"]).await["revision"].as_str().unwrap().to_owned();
        machine.ok(&["kv", "del", "/tenure/registry/a"]).await;
        let event =
            |event: &str, key: &str| json!({"schema": "tenure.register/v1", "event": event, "key": key});
        assert_eq!(line(&mut running).await, event("missing", "/tenure/registry/a"));
        let watch = ["kv", "watch", "/tenure/registry/a", "--after", &now, "--count", "2", "--wait", "30s"];
        assert!(machine.ok(&watch).await.ends_with("\tput\t/tenure/registry/a\t1"), "it is put back");
        running.signal(signal);
        let mut gone = [until(&mut running, "unregistered").await, until(&mut running, "unregistered").await];
        gone.sort_by_key(ToString::to_string);
        let (a, b) = ("/tenure/registry/a", "/tenure/registry/b");
        assert_eq!(gone, [event("unregistered", a), event("unregistered", b)]);
        assert_eq!(running.end().await.0, Some(0), "{signal:?}");
        assert_eq!(stored(&machine).await, "");
    }
}

#[tokio::test]
async fn a_lease_revoked_by_hand_is_told_and_the_keys_come_back() {
    let machine = machine();
    let mut running = machine.start(&["register", "--json", "a=1"]);
    let ready = line(&mut running).await;
    machine.ok(&["lease", "revoke", ready["lease"].as_str().unwrap(), "--yes"]).await;
    // Its reason is missing where the loss and its end were one change to the teller.
    until(&mut running, "lost").await;
    let live = until(&mut running, "live").await;
    assert_eq!(live["incarnation"], "2", "{live}");
    assert!(live["lease"].is_string() && live["lease"] != ready["lease"], "{live}");
    running.hear("recovered").await;
    let lease = machine.json(&["lease", "ls"]).await["leases"][0].clone();
    assert_eq!((&lease["lease"], &lease["keys"]), (&live["lease"], &json!(1)), "{lease}");
    assert_eq!(stored(&machine).await, "/tenure/registry/a\t1");
    running.signal(Signal::TERM);
    let (code, stderr) = running.end().await;
    assert_eq!(code, Some(0));
    assert!(!stderr.contains("tenure: lost") && !stderr.contains("tenure: recovered"), "said once: {stderr}");
}

#[tokio::test]
async fn a_restart_of_etcd_within_the_ttl_shows_to_nobody() {
    let etcd = Etcd::start();
    let machine = on(&etcd);
    let running = start(&machine, &["a=1"]).await;
    let before = machine.json(&["kv", "get", "/tenure/registry/a"]).await;
    etcd.member(0).kill();
    etcd.member(0).restart();
    let after = machine.json(&["kv", "get", "/tenure/registry/a"]).await;
    assert_eq!(after["created_revision"], before["created_revision"], "it was never away");
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert!(!stderr.contains("tenure: lost"), "{stderr}");
    assert_eq!(stored(&machine).await, "");
}

#[tokio::test]
async fn an_outage_of_etcd_beyond_the_ttl_does_not_stop_the_command() {
    let etcd = Etcd::start();
    let machine = on(&etcd);
    let mut running = start(&machine, &["--ttl", "1500ms", "a=1"]).await;
    running.hear("granted a TTL of 2s instead of 1.5s").await;
    etcd.member(0).kill();
    running.hear("tenure: lost").await;
    etcd.member(0).restart();
    running.hear("recovered").await;
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
}

#[tokio::test]
async fn an_end_while_etcd_is_down_keeps_the_commands_code_and_says_what_is_left() {
    let etcd = Etcd::start();
    let machine = on(&etcd);
    let running = start(&machine, &["a=1"]).await;
    etcd.member(0).kill();
    let begin = Instant::now();
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert!(stderr.contains("expires in 15 s"), "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}
