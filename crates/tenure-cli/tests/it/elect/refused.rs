//! Input that is refused, and waits that end without a term.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use super::{SCRIPT, finish, lead, leader_and_waiters, sandbox, wait};

#[tokio::test]
async fn unrunnable_command_exits_126_or_127() {
    let sandbox = sandbox();
    let plain = sandbox.file("plain", "");
    for (command, code, word) in [
        ("no-such-command", 127, "command_not_found"),
        (&*plain, 126, "not_executable"),
        ("/", 126, "not_executable"),
    ] {
        let ran = sandbox.run(&["elect", "a", "--json", "--", command]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{ran:?}");
        assert_eq!(ran.error()["code"], word);
    }
    assert!(!Path::new(&sandbox.path(".local")).exists(), "looked up before any store is opened");
}

#[tokio::test]
async fn bad_input_exits_125_and_runs_nothing() {
    let sandbox = sandbox();
    let before = sandbox.ok(&["kv", "put", "/a", "1"]).await;
    let marker = sandbox.path("marker");
    let long = "n".repeat(300);
    for (args, expected) in [
        (&[""][..], "must not be empty"),
        (&[&long], "300 bytes"),
        (&["a\nb"], "control characters"),
        (&["a", "--ttl", "0s"], "the TTL is zero"),
        (&["a", "--ttl", "15"], "did you mean 15s"),
        (&["a", "--grace", "9s"], "a grace of 9s is too long for a TTL of 15s"),
        (&["a", "--margin", "10ms"], "a margin of 10ms is too short"),
        (&["a", "--candidate", ""], "must not be empty"),
        (&["a", "--candidate", &long], "300 bytes"),
        (&["a", "--priority", "high"], "high"),
        (&["a", "--wait", "5"], "did you mean 5s"),
        (&["a", "--signal", "WINCH"], "use TERM"),
        (&["a", "--namespace", "x//y"], "namespace"),
        (&["a", "--frobnicate"], "--frobnicate"),
        (&["a", "--try"], "--try"),
        (&["a", "--store", "redis://a"], "redis"),
        (&["a", "extra"], "extra"),
        (&[], "NAME"),
    ] {
        let ran = sandbox.run(&[&["elect"], args, &["--", "touch", &marker]].concat()).await;
        assert_eq!(ran.code, Some(125), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
        assert!(ran.stdout.is_empty(), "{args:?} {ran:?}");
    }
    let grace = sandbox.run(&["elect", "a", "--grace", "9s", "--", "touch", &marker]).await;
    for number in ["750ms", "5.25s", "6.25s", "--grace 8000ms"] {
        assert!(grace.stderr.contains(number), "{grace:?} lacks {number}");
    }
    for (args, expected) in [
        (&["elect", "a", "--"][..], "no command after --"),
        (&["elect", "a", "--frobnicate"], "has no flag"),
        (&["elect"], "NAME"),
    ] {
        let ran = sandbox.run(args).await;
        assert_eq!(ran.code, Some(125), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
    }
    assert_eq!(sandbox.json(&["kv", "range", ""]).await["revision"], before.as_str());
    assert!(!Path::new(&marker).exists());
    assert_eq!(leader_and_waiters(&sandbox).await, (Value::Null, vec![]));
}

#[tokio::test]
async fn unreachable_store_exits_125_within_6_seconds() {
    let sandbox = sandbox();
    // No process listens at the first address; the second accepts no connection, so the kernel takes every byte and no reply comes.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = deaf.local_addr().unwrap().to_string();
    let marker = sandbox.path("marker");
    for endpoint in ["127.0.0.1:1", &deaf] {
        for flags in [&[][..], &["--wait", "1s"]] {
            let begin = Instant::now();
            let args = [&["--endpoints", endpoint, "elect", "a"], flags, &["--", "touch", &marker]].concat();
            let ran = sandbox.run(&args).await;
            assert_eq!(ran.code, Some(125), "{ran:?}");
            assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        }
    }
    assert!(!Path::new(&marker).exists() && !Path::new(&sandbox.path(".local")).exists());
}

/// One member of three is alive and has no quorum. With authentication, signing in is part of connecting, so the test sets its limit.
#[tokio::test]
async fn etcd_without_majority_exits_125_within_6_seconds() {
    let etcd = Etcd::cluster(3);
    let sandbox = sandbox().with("TENURE_ENDPOINTS", etcd.member(0).client_addr().to_string());
    etcd.member(1).kill();
    etcd.member(2).kill();
    let marker = sandbox.path("marker");
    for flags in [&[][..], &["--wait", "60s", "--connect-timeout", "5s"]] {
        let begin = Instant::now();
        let ran = sandbox.run(&[&["elect", "a"], flags, &["--", "touch", &marker]].concat()).await;
        assert_eq!(ran.code, Some(125), "{ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(6), "{flags:?} {:?} {ran:?}", begin.elapsed());
    }
    assert!(!Path::new(&marker).exists());
}

#[tokio::test]
async fn expired_wait_exits_124_and_runs_nothing() {
    let sandbox = sandbox();
    let (first, token) = lead(&sandbox, "web-7", &[], SCRIPT).await;
    for (flags, code) in [
        (&["--wait", "300ms"][..], 124),
        (&["--wait", "0s"], 124),
        (&["--wait", "300ms", "-E", "9"], 9),
        (&["--wait", "300ms", "--priority", "9"], 124),
    ] {
        let ran = sandbox.run(&[&["elect", "a", "--json"], flags, &["--", "echo", "ran"]].concat()).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{flags:?} {ran:?}");
        assert_eq!(ran.error()["code"], "not_acquired");
        let by = format!("led by web-7, token {token}");
        assert!(ran.error()["message"].as_str().unwrap().contains(&by), "{ran:?}");
    }
    assert_eq!(
        leader_and_waiters(&sandbox).await,
        (json!("web-7"), vec![]),
        "an expired wait leaves no candidate"
    );
    assert_eq!(finish(first).await.0, Some(7));
    let ran = sandbox.run(&["elect", "a", "--wait", "0s", "--", "true"]).await;
    assert_eq!(ran.code, Some(0), "the election is free: {ran:?}");
}

#[tokio::test]
async fn waiting_candidate_names_leader_and_obeys_signals() {
    let sandbox = sandbox();
    let (first, token) = lead(&sandbox, "web-7", &[], SCRIPT).await;
    let second = wait(&sandbox, "b", &[], SCRIPT).await;
    let mut third = super::start_candidate(&sandbox, "c", &[], SCRIPT);
    let output = third.hear("waiting to lead").await;
    assert!(
        output.ends_with(&format!("waiting to lead 'a': led by web-7, token {token}, 1 ahead of you")),
        "{output}"
    );
    for (waiting, signal, code) in [(second, Signal::INT, 130), (third, Signal::TERM, 143)] {
        waiting.signal(signal);
        assert_eq!(waiting.end().await.0, Some(code), "a signal ends the wait");
    }
    assert_eq!(leader_and_waiters(&sandbox).await, (json!("web-7"), vec![]));
    assert_eq!(finish(first).await.0, Some(7));
}
