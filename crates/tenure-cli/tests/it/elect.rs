//! Commands that run while leading, as scripts see them: exit codes, environment, terms that end and begin again.
//!
//! Every script ends by itself within half a minute, so that a failing test leaves nothing behind either.
//! A name with NUL cannot be given on a command line; the library's tests refuse it.

mod asked;
mod exclusion;
mod refused;
mod terms;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::machine::{Machine, Running};

pub(crate) fn machine() -> Machine {
    Machine::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

pub(crate) fn on(etcd: &Etcd) -> Machine {
    machine().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// A command that says its fence, then waits for a line on its stdin and ends with 7.
pub(crate) const SCRIPT: &str = "echo $TENURE_FENCING_TOKEN; read x; exit 7";

/// A candidate for `a` with this name, which runs a script while it leads.
pub(crate) fn stand(machine: &Machine, name: &str, flags: &[&str], script: &str) -> Running {
    let args = [&["elect", "a", "--candidate", name], flags, &["--", "sh", "-c", script]].concat();
    machine.start_with_open_stdin(&args)
}

/// One that leads; gives its fence too.
pub(crate) async fn lead(machine: &Machine, name: &str, flags: &[&str], script: &str) -> (Running, i64) {
    let mut running = stand(machine, name, flags, script);
    let token = running.line().await.parse().unwrap();
    (running, token)
}

/// One that is in the line and does not lead.
pub(crate) async fn wait(machine: &Machine, name: &str, flags: &[&str], script: &str) -> Running {
    let mut running = stand(machine, name, flags, script);
    running.hear("waiting to lead 'a'").await;
    running
}

pub(crate) async fn finish(mut running: Running) -> (Option<i32>, String) {
    running.feed(b"end\n").await;
    running.end().await
}

pub(crate) async fn show(machine: &Machine) -> Value {
    machine.json(&["election", "show", "a"]).await
}

/// The names of the leader and of those who wait.
pub(crate) async fn line(machine: &Machine) -> (Value, Vec<Value>) {
    let shown = show(machine).await;
    let waiting = shown["candidates"].as_array().unwrap().iter().map(|one| one["candidate"].clone());
    (shown["leader"]["candidate"].clone(), waiting.collect())
}

#[tokio::test]
async fn the_exit_code_is_the_commands_own_and_ends_the_candidacy() {
    let machine = machine();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137)] {
        for flags in [&[][..], &["--one-term"]] {
            let args = [&["elect", "a"], flags, &["--", "sh", "-c", script]].concat();
            let ran = machine.run(&args).await;
            assert_eq!(ran.code, Some(code), "{script} {ran:?}");
        }
    }
    assert_eq!(line(&machine).await, (Value::Null, vec![]));
    assert_eq!(machine.ok(&["lease", "ls"]).await, "");
}

#[tokio::test]
async fn without_a_separator_everything_from_the_commands_name_on_is_its_own() {
    let machine = machine();
    let args = ["elect", "--ttl", "20s", "a", "printf", "%s|", "--ttl", "-v", "--json"];
    assert_eq!(machine.ok(&args).await, "--ttl|-v|--json|");
    let args = ["elect", "a", "--ttl", "20s", "--", "sh", "-c", "echo $TENURE_TTL_SECONDS"];
    assert_eq!(machine.ok(&args).await, "20");
}

#[tokio::test]
async fn the_command_is_told_where_it_stands_and_everybody_who_leads() {
    let machine = machine();
    let script = "echo $TENURE_ELECTION $TENURE_ELECTION_KEY $TENURE_FENCING_TOKEN $TENURE_LEASE $TENURE_TTL_SECONDS \
                  $TENURE_NAMESPACE $TENURE_NODE; cat";
    let args =
        ["elect", "a", "--namespace", "shop", "--value", "10.0.0.7:80", "--json", "--", "sh", "-c", script];
    let mut running = machine.start_with_open_stdin(&args);
    let told = running.line().await;
    let leading: Value = serde_json::from_str(&running.hear("leading").await).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let mut shown = Value::Null;
    // The beginning of a term is recorded after a moment.
    while !shown["leader"]["since"].is_string() {
        assert!(std::time::Instant::now() < until, "{shown}");
        shown = machine.json(&["election", "show", "a", "--namespace", "shop"]).await;
    }
    let leader = &shown["leader"];
    let (token, lease) = (leader["token"].as_str().unwrap(), leader["lease"].as_str().unwrap());
    let key = leading["key"].as_str().unwrap();
    assert!(key.starts_with(&format!("/shop/elections/a/{lease}-")), "{key}");
    assert_eq!(told, format!("a {key} {token} {lease} 15 shop web-1"));
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
async fn the_highest_priority_leads_next() {
    let machine = machine();
    let (first, _) = lead(&machine, "first", &[], SCRIPT).await;
    let low = wait(&machine, "low", &["--priority", "-1"], SCRIPT).await;
    let mut high = wait(&machine, "high", &["--priority", "5"], SCRIPT).await;
    assert_eq!(line(&machine).await, (json!("first"), vec![json!("low"), json!("high")]));
    assert_eq!(finish(first).await.0, Some(7));
    high.line().await;
    assert_eq!(line(&machine).await, (json!("high"), vec![json!("low")]));
    for waiting in [high, low] {
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.end().await.0, Some(143));
    }
}
