//! Terms that end, and begin again.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use super::{SCRIPT, finish, lead, leader_and_waiters, on, sandbox, show, start_candidate, wait};
use crate::sandbox::Sandbox;

/// Revokes the leader's lease.
async fn revoke(sandbox: &Sandbox) {
    let lease = show(sandbox).await["leader"]["lease"].as_str().unwrap().to_owned();
    sandbox.ok(&["lease", "revoke", &lease, "--yes"]).await;
}

/// The old command has ended before the next one starts, even if it ignores SIGTERM.
async fn revoked_leader_stops_and_leads_again(sandbox: &Sandbox) {
    for script in [
        "echo $TENURE_FENCING_TOKEN; sleep 25; exit 1",
        "trap '' TERM; echo $TENURE_FENCING_TOKEN; sleep 25; exit 1",
    ] {
        let (mut running, token) = lead(sandbox, "web-1", &[], script).await;
        revoke(sandbox).await;
        let again: i64 = running.line().await.parse().unwrap();
        assert!(again > token, "{again} after {token}");
        assert_eq!(show(sandbox).await["leader"]["token"], again.to_string());
        let line = running.hear("'a' was lost").await;
        assert!(line.contains("and the command was stopped; entering the queue again"), "{line}");
        running.signal(Signal::KILL);
        running.silence(Duration::from_secs(10)).await;
        // The killed process released nothing, and the next round needs the election free.
        revoke(sandbox).await;
    }
}

#[tokio::test]
async fn revoked_leader_stops_and_leads_again_on_file() {
    revoked_leader_stops_and_leads_again(&sandbox()).await;
}

#[tokio::test]
async fn revoked_leader_stops_and_leads_again_on_etcd() {
    let etcd = Etcd::start();
    revoked_leader_stops_and_leads_again(&on(&etcd)).await;
}

/// An operator deletes the queue key; the lease stays alive.
#[tokio::test]
async fn leader_without_queue_key_leads_again() {
    let sandbox = sandbox();
    let (mut running, token) = lead(&sandbox, "web-1", &[], SCRIPT).await;
    let page = sandbox.json(&["kv", "range", "/tenure/elections/"]).await;
    let key = page["kvs"][0]["key"].as_str().unwrap_or_else(|| panic!("{page}")).to_owned();
    sandbox.ok(&["kv", "del", &key]).await;
    let again: i64 = running.line().await.parse().unwrap();
    assert!(again > token, "{again} after {token}");
    assert_eq!(finish(running).await.0, Some(7));
}

#[tokio::test]
async fn lost_only_term_exits_122() {
    let sandbox = sandbox();
    for (flags, script, code) in [
        (&["--one-term"][..], SCRIPT, 122),
        (&["--one-term", "--lost-exit-code", "99"], SCRIPT, 99),
        (&["--one-term"], "trap 'exit 0' TERM; echo $TENURE_FENCING_TOKEN; sleep 25 & wait", 122),
    ] {
        let (mut running, _) = lead(&sandbox, "web-1", flags, script).await;
        revoke(&sandbox).await;
        running.silence(Duration::from_secs(10)).await;
        let (got, stderr) = running.end().await;
        assert_eq!(got, Some(code), "{script} {stderr}");
        assert!(stderr.contains("'a' was lost"), "{stderr}");
    }
    assert_eq!(leader_and_waiters(&sandbox).await, (Value::Null, vec![]));
}

/// A leader that received SIGTERM and then loses its lease exits instead of queueing again.
#[tokio::test]
async fn stopped_candidate_stays_out_after_loss() {
    let sandbox = sandbox();
    let script = "trap 'echo bye; sleep 4' TERM; echo $TENURE_FENCING_TOKEN; sleep 25 & wait; wait";
    let (mut running, _) = lead(&sandbox, "web-1", &[], script).await;
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "bye");
    revoke(&sandbox).await;
    let (code, stderr) = running.end().await;
    assert_eq!(code, Some(122), "{stderr}");
    assert_eq!(leader_and_waiters(&sandbox).await, (Value::Null, vec![]));
}

#[tokio::test]
async fn signal_ends_term_and_next_leads() {
    let sandbox = sandbox();
    let script =
        "trap 'echo bye; read x; exit 9' TERM; echo $TENURE_FENCING_TOKEN; while :; do sleep 0.1; done";
    let (mut first, token) = lead(&sandbox, "first", &[], script).await;
    let mut second = wait(&sandbox, "second", &[], SCRIPT).await;
    first.signal(Signal::TERM);
    assert_eq!(first.line().await, "bye");
    assert_eq!(leader_and_waiters(&sandbox).await.0, json!("first"), "until the command has ended");
    let begin = Instant::now();
    assert_eq!(finish(first).await.0, Some(9));
    second.hear("leading 'a'").await;
    // Far below the TTL of 15 s: the successor does not wait for a lease to expire.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(second.line().await.parse::<i64>().unwrap() > token);
    assert_eq!(finish(second).await.0, Some(7));
}

#[tokio::test]
async fn election_without_command_prints_each_term() {
    let sandbox = sandbox();
    let mut running = sandbox.start(&["elect", "a", "--json"]);
    let object = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    let leading = object(running.line().await);
    assert_eq!((&leading["event"], &leading["candidate"]), (&json!("leading"), &json!("web-1")));
    assert_eq!(show(&sandbox).await["leader"]["token"], leading["token"]);
    revoke(&sandbox).await;
    let stopped = object(running.line().await);
    assert_eq!(
        stopped,
        json!({"schema": "tenure.election/v1", "event": "stopped", "name": "a", "token": leading["token"],
               "why": "lost"})
    );
    let again = object(running.line().await);
    let number = |value: &Value| value["token"].as_str().unwrap().parse::<i64>().unwrap();
    assert!(again["event"] == "leading" && number(&again) > number(&leading), "{again}");
    sandbox.ok(&["election", "resign", "a"]).await;
    assert_eq!(object(running.line().await)["why"], "asked");
    assert_eq!(object(running.line().await)["event"], "leading");
    running.signal(Signal::TERM);
    assert_eq!(object(running.line().await)["why"], "ended");
    assert_eq!(running.end().await.0, Some(0));
    assert_eq!(leader_and_waiters(&sandbox).await, (Value::Null, vec![]));

    let mut running = sandbox.start(&["elect", "a", "--one-term"]);
    let output = running.line().await;
    assert!(output.starts_with("leading\ta\t") && output.contains("\t/tenure/elections/a/"), "{output}");
    revoke(&sandbox).await;
    assert!(running.line().await.ends_with("\tlost"));
    assert_eq!(running.end().await.0, Some(122));
}

/// etcd is unreachable for longer than the TTL: the command gets SIGTERM first, and runs again once etcd is back.
#[tokio::test]
async fn long_outage_ends_term_then_another_begins() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let script = "trap 'echo asked; exit 0' TERM; echo $TENURE_FENCING_TOKEN; sleep 25 & wait";
    let (mut running, token) = lead(&sandbox, "web-1", &["--ttl", "3s"], script).await;
    etcd.member(0).kill();
    assert_eq!(running.line().await, "asked");
    running.hear("entering the queue again").await;
    // Longer than the limit for connecting at the start: a candidate that is connected keeps trying.
    tokio::time::sleep(Duration::from_secs(7)).await;
    etcd.member(0).restart();
    let again: i64 = running.line().await.parse().unwrap();
    assert!(again > token, "{again} after {token}");
    running.signal(Signal::KILL);
}

#[tokio::test]
async fn exit_code_survives_etcd_outage() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let (running, _) = lead(&sandbox, "web-1", &[], SCRIPT).await;
    etcd.member(0).kill();
    let begin = Instant::now();
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert!(stderr.contains("expires within 15 s"), "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn quiet_election_prints_only_problems() {
    let sandbox = sandbox();
    let (first, _) = lead(&sandbox, "first", &["-q"], SCRIPT).await;
    let mut second = start_candidate(&sandbox, "second", &["-q"], SCRIPT);
    let (code, stderr) = finish(first).await;
    assert_eq!(code, Some(7));
    assert!(!stderr.contains("leading"), "{stderr}");
    second.line().await;
    let (code, stderr) = finish(second).await;
    assert_eq!(code, Some(7));
    assert!(!stderr.contains("leading") && !stderr.contains("waiting"), "{stderr}");
}
