//! `tenure elect` as scripts see it: exit codes, environment, terms that end and begin again.
//!
//! Every script ends within half a minute, so a failing test leaves no process.
//! A command line cannot contain NUL; the library's tests check such names.

mod exclusion;
mod refused;
mod step_down;
mod terms;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::sandbox::{Running, Sandbox};

pub(crate) fn sandbox() -> Sandbox {
    Sandbox::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

pub(crate) fn on(etcd: &Etcd) -> Sandbox {
    sandbox().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// Prints its fencing token, waits for a line on stdin and exits with 7.
pub(crate) const SCRIPT: &str = "echo $TENURE_FENCING_TOKEN; read x; exit 7";

/// Starts a candidate for `a` with this name, which runs a script while it leads.
pub(crate) fn start_candidate(sandbox: &Sandbox, name: &str, flags: &[&str], script: &str) -> Running {
    let args = [&["elect", "a", "--candidate", name], flags, &["--", "sh", "-c", script]].concat();
    sandbox.start_with_open_stdin(&args)
}

/// Starts a candidate and waits until it leads; returns its fencing token too.
pub(crate) async fn lead(sandbox: &Sandbox, name: &str, flags: &[&str], script: &str) -> (Running, i64) {
    let mut running = start_candidate(sandbox, name, flags, script);
    let token = running.line().await.parse().unwrap();
    (running, token)
}

/// Starts a candidate and waits until it is in the queue behind a leader.
pub(crate) async fn wait(sandbox: &Sandbox, name: &str, flags: &[&str], script: &str) -> Running {
    let mut running = start_candidate(sandbox, name, flags, script);
    running.hear("waiting to lead 'a'").await;
    running
}

pub(crate) async fn finish(mut running: Running) -> (Option<i32>, String) {
    running.feed(b"end\n").await;
    running.end().await
}

pub(crate) async fn show(sandbox: &Sandbox) -> Value {
    sandbox.json(&["election", "show", "a"]).await
}

/// The names of the leader and of the waiting candidates, in queue order.
pub(crate) async fn leader_and_waiters(sandbox: &Sandbox) -> (Value, Vec<Value>) {
    let shown = show(sandbox).await;
    let waiting = shown["candidates"].as_array().unwrap().iter().map(|one| one["candidate"].clone());
    (shown["leader"]["candidate"].clone(), waiting.collect())
}

#[tokio::test]
async fn exit_code_is_passed_on_and_candidacy_ends() {
    let sandbox = sandbox();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137)] {
        for flags in [&[][..], &["--one-term"]] {
            let args = [&["elect", "a"], flags, &["--", "sh", "-c", script]].concat();
            let ran = sandbox.run(&args).await;
            assert_eq!(ran.code, Some(code), "{script} {ran:?}");
        }
    }
    assert_eq!(leader_and_waiters(&sandbox).await, (Value::Null, vec![]));
    assert_eq!(sandbox.ok(&["lease", "ls"]).await, "");
}

#[tokio::test]
async fn flags_after_command_belong_to_it() {
    let sandbox = sandbox();
    let args = ["elect", "--ttl", "20s", "a", "printf", "%s|", "--ttl", "-v", "--json"];
    assert_eq!(sandbox.ok(&args).await, "--ttl|-v|--json|");
    let args = ["elect", "a", "--ttl", "20s", "--", "sh", "-c", "echo $TENURE_TTL_SECONDS"];
    assert_eq!(sandbox.ok(&args).await, "20");
}

#[tokio::test]
async fn command_gets_term_in_environment() {
    let sandbox = sandbox();
    let script = "echo $TENURE_ELECTION $TENURE_ELECTION_KEY $TENURE_FENCING_TOKEN $TENURE_LEASE $TENURE_TTL_SECONDS \
                  $TENURE_NAMESPACE $TENURE_NODE; cat";
    let args =
        ["elect", "a", "--namespace", "shop", "--value", "10.0.0.7:80", "--json", "--", "sh", "-c", script];
    let mut running = sandbox.start_with_open_stdin(&args);
    let output = running.line().await;
    let leading: Value = serde_json::from_str(&running.hear("leading").await).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let mut shown = Value::Null;
    // The driver records the start of a term after the command has started.
    while !shown["leader"]["since"].is_string() {
        assert!(std::time::Instant::now() < until, "{shown}");
        shown = sandbox.json(&["election", "show", "a", "--namespace", "shop"]).await;
    }
    let leader = &shown["leader"];
    let (token, lease) = (leader["token"].as_str().unwrap(), leader["lease"].as_str().unwrap());
    let key = leading["key"].as_str().unwrap();
    assert!(key.starts_with(&format!("/shop/elections/a/{lease}-")), "{key}");
    assert_eq!(output, format!("a {key} {token} {lease} 15 shop web-1"));
    assert_eq!(
        leading,
        json!({"schema": "tenure.election/v1", "event": "leading", "name": "a", "key": key, "token": token,
               "lease": lease, "ttl_seconds": 15.0, "namespace": "shop", "node": "web-1",
               "candidate": "web-1", "value": "10.0.0.7:80"})
    );
    let since = &leader["since"];
    assert!(since.as_str().unwrap().ends_with('Z'), "{shown}");
    let left = &leader["remaining_seconds"];
    assert!(left.as_f64().unwrap() <= 15.0, "{shown}");
    assert_eq!(
        shown,
        json!({"schema": "tenure.election/v1", "name": "a", "candidates": [], "backend": "file",
               "revision": shown["revision"], "leader": {
                   "candidate": "web-1", "value": "10.0.0.7:80", "token": token, "since": since,
                   "queued": leader["queued"], "host": leader["host"], "user": leader["user"],
                   "pid": running.pid().as_raw_nonzero().get(), "priority": 0, "lease": lease, "asked": null, "remaining_seconds": left}})
    );
    running.feed(b"through\n").await;
    assert_eq!(running.line().await, "through");
    running.signal(Signal::TERM);
    let stopped: Value = serde_json::from_str(&running.hear("stopped").await).unwrap();
    assert_eq!(
        stopped,
        json!({"schema": "tenure.election/v1", "event": "stopped", "name": "a", "token": token, "why": "ended"})
    );
    assert_eq!(running.end().await.0, Some(143));
}

#[tokio::test]
async fn highest_priority_leads_next() {
    let sandbox = sandbox();
    let (first, _) = lead(&sandbox, "first", &[], SCRIPT).await;
    let low = wait(&sandbox, "low", &["--priority", "-1"], SCRIPT).await;
    let mut high = wait(&sandbox, "high", &["--priority", "5"], SCRIPT).await;
    assert_eq!(leader_and_waiters(&sandbox).await, (json!("first"), vec![json!("low"), json!("high")]));
    assert_eq!(finish(first).await.0, Some(7));
    high.line().await;
    assert_eq!(leader_and_waiters(&sandbox).await, (json!("high"), vec![json!("low")]));
    for waiting in [high, low] {
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.end().await.0, Some(143));
    }
}
