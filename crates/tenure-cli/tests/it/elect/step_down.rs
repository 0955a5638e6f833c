//! Leaders that resign or transfer on request.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use super::{SCRIPT, finish, lead, leader_and_waiters, on, sandbox, wait};
use crate::ledger::{beating, intervals, overlap};
use crate::sandbox::Sandbox;

/// Prints `bye` on SIGTERM and continues until it reads a line.
const SLOW: &str =
    "trap 'echo bye; read x; exit 9' TERM; echo $TENURE_FENCING_TOKEN; while :; do sleep 0.1; done";

async fn resigning_leader_stops_its_command_first(sandbox: &Sandbox) {
    let (mut first, token) = lead(sandbox, "first", &[], SLOW).await;
    let mut second = wait(sandbox, "second", &[], SCRIPT).await;
    let resign = sandbox.start(&["election", "resign", "a", "--json"]);
    assert_eq!(first.line().await, "bye");
    let shown = super::show(sandbox).await;
    assert_eq!(shown["leader"]["candidate"], "first", "until the command has ended");
    assert_eq!(shown["leader"]["asked"]["what"], "resign");
    assert!(shown["leader"]["asked"]["by"].as_str().unwrap().ends_with("@web-1"), "{shown}");
    first.feed(b"end\n").await;
    let next: i64 = second.line().await.parse().unwrap();
    assert!(next > token);
    assert_eq!(resign.end().await.0, Some(0));
    first.hear("requested it; entering the queue again").await;
    // The first candidate is behind the second in the queue, and leads again after it.
    assert_eq!(finish(second).await.0, Some(7));
    let again: i64 = first.line().await.parse().unwrap();
    assert!(again > next);
    first.signal(Signal::TERM);
    assert_eq!(first.line().await, "bye");
    assert_eq!(finish(first).await.0, Some(9));
}

#[tokio::test]
async fn resigning_leader_stops_its_command_first_on_file() {
    resigning_leader_stops_its_command_first(&sandbox()).await;
}

#[tokio::test]
async fn resigning_leader_stops_its_command_first_on_etcd() {
    let etcd = Etcd::start();
    resigning_leader_stops_its_command_first(&on(&etcd)).await;
}

/// The command and its grandchild ignore SIGTERM: they are killed after the grace period, and only then another candidate leads.
#[tokio::test]
async fn deaf_command_is_killed_before_resignation() {
    let sandbox = sandbox();
    let script = beating(&sandbox);
    let mut first = super::start_candidate(&sandbox, "first", &["--grace", "1s"], &script);
    assert_eq!(first.line().await, "up");
    let mut second = wait(&sandbox, "second", &[], &script).await;
    let begin = Instant::now();
    let resigned = sandbox.json(&["election", "resign", "a"]).await;
    assert!(begin.elapsed() >= Duration::from_secs(1), "the grace period passed: {:?}", begin.elapsed());
    assert_eq!(
        (&resigned["former"]["candidate"], &resigned["leader"]["candidate"]),
        (&json!("first"), &json!("second"))
    );
    assert_eq!(second.line().await, "up");
    for running in [first, second] {
        running.signal(Signal::KILL);
        running.end().await;
    }
    let intervals = intervals(&sandbox);
    assert_eq!((intervals.len(), overlap(&intervals)), (2, None), "{intervals:?}");
}

#[tokio::test]
async fn lone_leader_resigns_and_leads_again() {
    let sandbox = sandbox();
    let (mut only, token) = lead(&sandbox, "only", &[], SCRIPT).await;
    sandbox.ok(&["election", "resign", "a"]).await;
    let again: i64 = only.line().await.parse().unwrap();
    assert!(again > token);
    assert_eq!(finish(only).await.0, Some(7));
}

#[tokio::test]
async fn resigned_only_term_exits_122() {
    let sandbox = sandbox();
    for (flags, code) in [(&["--one-term"][..], 122), (&["--one-term", "--lost-exit-code", "99"], 99)] {
        let (only, _) = lead(&sandbox, "only", flags, "echo $TENURE_FENCING_TOKEN; sleep 25").await;
        sandbox.ok(&["election", "resign", "a"]).await;
        let (got, stderr) = only.end().await;
        assert_eq!(got, Some(code), "{stderr}");
        assert!(stderr.contains("was released because"), "{stderr}");
    }
    assert_eq!(leader_and_waiters(&sandbox).await, (Value::Null, vec![]));
}

/// From the first to the last of three candidates: the transfer skips the middle one, and the election always has a leader.
async fn transfer_is_never_leaderless(sandbox: &Sandbox) {
    let (mut first, _) = lead(sandbox, "first", &[], SCRIPT).await;
    let between = wait(sandbox, "between", &[], SCRIPT).await;
    let mut heir = wait(sandbox, "heir", &[], SCRIPT).await;
    let mut watch = sandbox.start(&["election", "watch", "a", "--json", "--count", "2"]);
    let event = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    assert_eq!(event(watch.line().await)["candidate"], "first");
    let output = sandbox.json(&["election", "transfer", "a", "heir"]).await;
    assert_eq!(output["leader"]["candidate"], "heir");
    let token = heir.line().await;
    assert_eq!(output["leader"]["token"], token.as_str());
    let seen = event(watch.line().await);
    assert_eq!(
        (&seen["event"], &seen["candidate"], &seen["token"], &seen["leaderless_min_seconds"]),
        (&json!("leader"), &json!("heir"), &json!(token), &json!(0.0)),
        "no leaderless moment, and no leader between: {seen}"
    );
    // The former leader and the skipped candidate are in the queue again; one of them leads next.
    assert_eq!(finish(heir).await.0, Some(7));
    assert_eq!(event(watch.line().await)["event"], "leader");
    assert_eq!(watch.end().await.0, Some(0));
    first.hear("requested it; entering the queue again").await;
    for running in [first, between] {
        running.signal(Signal::TERM);
        running.end().await;
    }
}

#[tokio::test]
async fn transfer_is_never_leaderless_on_file() {
    transfer_is_never_leaderless(&sandbox()).await;
}

#[tokio::test]
async fn transfer_is_never_leaderless_on_etcd() {
    let etcd = Etcd::start();
    transfer_is_never_leaderless(&on(&etcd)).await;
}
