//! `tenure election`: listings, `watch`, and requests to resign or transfer.

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::elect::{SCRIPT, finish, lead, leader_and_waiters, on, sandbox, start_candidate, wait};
use crate::sandbox::Sandbox;

#[tokio::test]
async fn listings_show_leaders_and_ordered_candidates() {
    let sandbox = sandbox();
    let vacant = sandbox.json(&["election", "show", "a"]).await;
    assert!(vacant["revision"].is_string(), "{vacant}");
    assert_eq!(
        vacant,
        json!({"schema": "tenure.election/v1", "name": "a", "leader": null, "candidates": [], "backend": "file",
               "revision": vacant["revision"]})
    );
    assert_eq!(
        sandbox.json(&["election", "ls"]).await,
        json!({"schema": "tenure.election/v1", "elections": [], "backend": "file",
               "revision": vacant["revision"]})
    );
    assert_eq!(sandbox.ok(&["election", "ls"]).await, "");
    let (first, token) = lead(&sandbox, "first", &["--value", "10.0.0.7:80"], SCRIPT).await;
    let second = wait(&sandbox, "second", &["--priority", "3"], SCRIPT).await;
    let shown = sandbox.json(&["election", "show", "a"]).await;
    let waiting = &shown["candidates"][0];
    assert_eq!(
        shown["candidates"],
        json!([{"candidate": "second", "value": "web-1", "token": waiting["token"], "since": waiting["since"],
                "queued": waiting["since"], "host": waiting["host"], "user": waiting["user"],
                "pid": second.pid().as_raw_nonzero().get(), "priority": 3, "lease": waiting["lease"], "asked": null}])
    );
    let listed = sandbox.json(&["election", "ls"]).await;
    assert_eq!(listed["elections"][0]["leader"]["token"], token.to_string());
    assert_eq!(listed["elections"][0]["candidates"], shown["candidates"]);
    assert_eq!(sandbox.ok(&["election", "ls"]).await, format!("a\t{token}\tfirst\t10.0.0.7:80\t1"));
    let text = sandbox.ok(&["election", "show", "a"]).await;
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[0].starts_with(&format!("leads\t{token}\tfirst\t10.0.0.7:80\t0\t")), "{text}");
    assert!(rows[1].starts_with("waits\t") && rows[1].contains("\tsecond\tweb-1\t3\t"), "{text}");
    second.signal(Signal::TERM);
    second.end().await;
    assert_eq!(finish(first).await.0, Some(7));
}

async fn watch_reports_leaders_and_gaps(sandbox: &Sandbox) {
    // A watch creates no store.
    sandbox.ok(&["kv", "put", "/tenure/before", "1"]).await;
    let mut watch = sandbox.start(&["election", "watch", "a", "--json", "--count", "3"]);
    let event = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    let none = event(watch.line().await);
    assert_eq!(
        none,
        json!({"schema": "tenure.election/v1", "revision": none["revision"], "event": "none", "name": "a",
               "token": null, "candidate": null, "value": null, "since": null, "reason": "unseen",
               "leaderless_min_seconds": null, "leaderless_min_if_cut_off_seconds": null, "leaderless_max_seconds": null,
               "blind_seconds": null})
    );
    let (first, token) = lead(sandbox, "first", &["--value", "here"], SCRIPT).await;
    let leader = event(watch.line().await);
    assert_eq!(
        leader,
        json!({"schema": "tenure.election/v1", "revision": token.to_string(), "event": "leader", "name": "a",
               "token": token.to_string(), "candidate": "first", "value": "here", "since": leader["since"],
               "reason": "unseen", "leaderless_min_seconds": leader["leaderless_min_seconds"],
               "leaderless_min_if_cut_off_seconds": leader["leaderless_min_seconds"], "leaderless_max_seconds": null,
               "blind_seconds": 0.0})
    );
    assert!(leader["leaderless_min_seconds"].as_f64().unwrap() > 0.0, "{leader}");
    assert_eq!(finish(first).await.0, Some(7));
    let none = event(watch.line().await);
    assert_eq!((&none["event"], &none["token"]), (&json!("none"), &Value::Null));
    assert_eq!(none["reason"], "resigned", "{none}");
    let (second, _) = lead(sandbox, "second", &[], SCRIPT).await;
    let leader = event(watch.line().await);
    assert_eq!(leader["candidate"], "second");
    let bound = |which: &str| leader[which].as_f64().unwrap();
    assert!(0.0 < bound("leaderless_min_seconds"), "{leader}");
    assert!(bound("leaderless_min_seconds") <= bound("leaderless_max_seconds"), "{leader}");
    assert_eq!(watch.end().await.0, Some(0), "three changes were seen");
    assert_eq!(finish(second).await.0, Some(7));
}

#[tokio::test]
async fn watch_reports_leaders_and_gaps_on_file() {
    watch_reports_leaders_and_gaps(&sandbox()).await;
}

#[tokio::test]
async fn watch_reports_leaders_and_gaps_on_etcd() {
    let etcd = Etcd::start();
    watch_reports_leaders_and_gaps(&on(&etcd)).await;
}

/// A leader killed with `kill -9` is succeeded about a TTL later: the gap was once reported as 0.000 s. The candidate between them is
/// killed too, and never led.
async fn killed_leader_is_reported_lapsed(sandbox: &Sandbox) {
    let (first, _) = lead(sandbox, "first", &["--ttl", "3s"], SCRIPT).await;
    let dead = wait(sandbox, "dead", &["--ttl", "3s"], SCRIPT).await;
    let heir = wait(sandbox, "heir", &["--ttl", "3s"], SCRIPT).await;
    let mut watch = sandbox.start(&["election", "watch", "a", "--json"]);
    let event = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    assert_eq!(event(watch.line().await)["candidate"], "first");
    // The watch must have read the lease before the kill, or it knows no TTL.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let killed = std::time::Instant::now();
    dead.signal(Signal::KILL);
    first.signal(Signal::KILL);
    let mut seen = event(watch.line().await);
    if seen["event"] == "none" {
        assert_eq!(seen["reason"], "lapsed", "{seen}");
        seen = event(watch.line().await);
    }
    let gap = killed.elapsed().as_secs_f64();
    assert_eq!((&seen["candidate"], &seen["reason"]), (&json!("heir"), &json!("lapsed")), "{seen}");
    let bound = |which: &str| seen[which].as_f64().unwrap();
    assert!(bound("leaderless_min_seconds") >= 1.9, "two thirds of the TTL: {seen}");
    assert!(
        bound("leaderless_min_seconds") <= gap && gap <= bound("leaderless_max_seconds") + 0.5,
        "{gap} {seen}"
    );
    watch.interrupt();
    watch.end().await;
    // The store's history yields the same bounds without a watcher that was connected.
    let events = term_events(sandbox).await;
    let leader = events.iter().find(|event| event["event"] == "leader" && event["node"] == "heir").unwrap();
    assert_eq!(leader["end"], "lapsed", "{leader}");
    let bound = |which: &str| leader[which].as_f64().unwrap();
    assert!(bound("leaderless_min_seconds") >= 1.9, "two thirds of the TTL: {leader}");
    assert!(
        bound("leaderless_min_seconds") <= gap && gap <= bound("leaderless_max_seconds") + 0.5,
        "{gap} {leader}"
    );
    heir.signal(Signal::TERM);
    heir.end().await;
    first.end().await;
    dead.end().await;
    let last = term_events(sandbox).await.pop().unwrap();
    assert_eq!((&last["event"], &last["end"]), (&json!("none"), &json!("resigned")), "{last}");
}

/// The election events that `events` prints.
async fn term_events(sandbox: &Sandbox) -> Vec<Value> {
    let text = sandbox.ok(&["events", "--json"]).await;
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["subject"] == "election").collect()
}

/// A resignation, a handover and a revoked lease were the same delete in the history, with a gap of 0.000 s.
async fn events_name_how_each_term_ended(sandbox: &Sandbox) {
    let (first, _) = lead(sandbox, "first", &[], SCRIPT).await;
    let mut second = wait(sandbox, "second", &[], SCRIPT).await;
    let passed = wait(sandbox, "passed", &[], SCRIPT).await;
    let mut third = wait(sandbox, "third", &[], SCRIPT).await;
    sandbox.ok(&["election", "resign", "a"]).await;
    second.line().await;
    sandbox.ok(&["election", "transfer", "a", "third"]).await;
    third.line().await;
    let lease =
        sandbox.json(&["election", "show", "a"]).await["leader"]["lease"].as_str().unwrap().to_owned();
    sandbox.ok(&["lease", "revoke", &lease, "--yes", "--reason", "moved"]).await;
    // The candidates that resigned wait again, and one of them leads next.
    let mut events = term_events(sandbox).await;
    let is_led = |event: &Value| event["event"] == "leader" && event["end"] == "revoked";
    for _ in 0..600 {
        if events.iter().any(is_led) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        events = term_events(sandbox).await;
    }
    let revoked = events.iter().find(|event| is_led(event)).unwrap_or_else(|| panic!("{events:#?}"));
    assert!(revoked["leaderless_max_seconds"].as_f64().unwrap() < 5.0, "{revoked}");
    let leader = |events: &[Value], name: &str| {
        let is = |event: &&Value| event["event"] == "leader" && event["node"] == name;
        events.iter().find(is).cloned().unwrap_or_else(|| panic!("{name}: {events:#?}"))
    };
    let resigned = leader(&events, "second");
    assert_eq!(resigned["end"], "resigned", "{resigned}");
    let seconds = resigned["leaderless_max_seconds"].as_f64().unwrap();
    assert!(seconds < 5.0 && resigned["leaderless_min_seconds"] == seconds, "{resigned}");
    assert_eq!(leader(&events, "third")["end"], "transferred", "{events:#?}");
    assert!(!events.iter().any(|event| event["end"] == "lapsed"), "{events:#?}");
    let text = sandbox.ok(&["events"]).await;
    assert!(text.contains(" resigned, no leader for ") && text.contains(" was transferred"), "{text}");
    for running in [passed, first, second, third] {
        running.signal(Signal::TERM);
        running.end().await;
    }
}

#[tokio::test]
async fn events_name_how_each_term_ended_on_file() {
    events_name_how_each_term_ended(&sandbox()).await;
}

#[tokio::test]
async fn events_name_how_each_term_ended_on_etcd() {
    let etcd = Etcd::start();
    events_name_how_each_term_ended(&on(&etcd)).await;
}

#[tokio::test]
async fn killed_leader_is_reported_lapsed_on_file() {
    killed_leader_is_reported_lapsed(&sandbox()).await;
}

#[tokio::test]
async fn killed_leader_is_reported_lapsed_on_etcd() {
    let etcd = Etcd::start();
    killed_leader_is_reported_lapsed(&on(&etcd)).await;
}

#[tokio::test]
async fn watch_text_has_one_record_per_line() {
    let sandbox = sandbox();
    let (first, token) = lead(&sandbox, "first", &["--value", "two\nlines"], SCRIPT).await;
    let ran = sandbox.run(&["election", "watch", "a", "--count", "1", "--wait", "1s"]).await;
    assert_eq!(ran.code, Some(8), "{ran:?}");
    // The revision is that of the last change of the record, which may already contain the begin of the term.
    let (revision, rest) = ran.stdout.split_once('\t').unwrap();
    assert!(revision.parse::<i64>().unwrap() >= token, "{ran:?}");
    assert_eq!(rest, format!("leader\t{token}\tfirst\ttwo\\nlines\t-\n"));
    let mut watch = sandbox.start(&["election", "watch", "a"]);
    watch.hear("watching").await;
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));
    assert_eq!(finish(first).await.0, Some(7));
}

#[tokio::test]
async fn missing_leader_exits_3_wrong_token_4() {
    let sandbox = sandbox();
    let refused = async |args: &[&str], code: i32, word: &str| {
        let ran = sandbox.run(&[&["election"], args, &["--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(code), &json!(word)), "{args:?} {ran:?}");
        assert!(ran.error()["hint"].as_str().unwrap().contains("tenure election"), "{ran:?}");
    };
    refused(&["resign", "a"], 3, "not_found").await;
    refused(&["transfer", "a", "first"], 3, "not_found").await;
    let (first, token) = lead(&sandbox, "first", &[], SCRIPT).await;
    let twins = [wait(&sandbox, "twin", &[], SCRIPT).await, wait(&sandbox, "twin", &[], SCRIPT).await];
    refused(&["resign", "a", "--token", "1"], 4, "conflict").await;
    refused(&["transfer", "a", "absent"], 3, "not_found").await;
    refused(&["transfer", "a", "twin"], 4, "conflict").await;
    refused(&["transfer", "a", "twin", "--token", "1"], 3, "not_found").await;
    // A transfer to the current leader sends no request.
    let events = sandbox.json(&["election", "transfer", "a", "first"]).await;
    assert_eq!(events["leader"]["token"], token.to_string());
    let shown = sandbox.json(&["election", "show", "a"]).await;
    assert_eq!(shown["leader"]["asked"], Value::Null, "no request was stored: {shown}");
    let second = shown["candidates"][1]["token"].as_str().unwrap();
    let events = sandbox.json(&["election", "transfer", "a", "twin", "--token", second]).await;
    assert_eq!(events["leader"]["token"], second);
    for running in twins.into_iter().chain([first]) {
        running.signal(Signal::TERM);
        running.end().await;
    }
}

#[tokio::test]
async fn low_priority_transfer_exits_4() {
    let sandbox = sandbox();
    let (first, _) = lead(&sandbox, "first", &[], SCRIPT).await;
    let low = wait(&sandbox, "low", &[], SCRIPT).await;
    let mut high = wait(&sandbox, "high", &["--priority", "2"], SCRIPT).await;
    let ran = sandbox.run(&["election", "transfer", "a", "low", "--json"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
    assert!(ran.error()["message"].as_str().unwrap().contains("high waits with priority 2"), "{ran:?}");
    assert_eq!(sandbox.json(&["election", "show", "a"]).await["leader"]["asked"], Value::Null);
    sandbox.ok(&["election", "transfer", "a", "high"]).await;
    high.line().await;
    for running in [low, high, first] {
        running.signal(Signal::TERM);
        running.end().await;
    }
}

#[tokio::test]
async fn slow_resignation_exits_8() {
    let sandbox = sandbox();
    let (mut first, _) = lead(&sandbox, "first", &[], SCRIPT).await;
    let second = wait(&sandbox, "second", &[], SCRIPT).await;
    first.signal(Signal::STOP);
    for args in [&["resign", "a"][..], &["transfer", "a", "second"]] {
        let ran = sandbox.run(&[&["election"], args, &["--wait", "300ms", "--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(8), &json!("timed_out")), "{ran:?}");
        assert!(ran.error()["message"].as_str().unwrap().contains("still led by first"), "{ran:?}");
    }
    first.signal(Signal::CONT);
    first.hear("requested it; entering the queue again").await;
    assert_eq!(leader_and_waiters(&sandbox).await.0, json!("second"));
    for running in [first, second] {
        running.signal(Signal::TERM);
        running.end().await;
    }
}

/// The target of the transfer exits while the leader's command is still stopping.
#[tokio::test]
async fn vanished_transfer_target_exits_4() {
    let sandbox = sandbox();
    let slow =
        "trap 'echo bye; read x; exit 9' TERM; echo $TENURE_FENCING_TOKEN; while :; do sleep 0.1; done";
    let (mut first, _) = lead(&sandbox, "first", &[], slow).await;
    let mut second = wait(&sandbox, "second", &[], SCRIPT).await;
    let heir = wait(&sandbox, "heir", &[], SCRIPT).await;
    let transfer = sandbox.start(&["election", "transfer", "a", "heir", "--json"]);
    assert_eq!(first.line().await, "bye");
    heir.signal(Signal::TERM);
    assert_eq!(heir.end().await.0, Some(143));
    first.feed(b"end\n").await;
    second.line().await;
    let (code, stderr) = transfer.end().await;
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("is led by second"), "{stderr}");
    second.signal(Signal::TERM);
    second.end().await;
    first.line().await;
    first.signal(Signal::KILL);
}

#[tokio::test]
async fn bad_input_exits_2_with_suggestion() {
    let sandbox = sandbox();
    let long = "n".repeat(300);
    for (args, expected) in [
        (&["show", ""][..], "must not be empty"),
        (&["watch", ""], "must not be empty"),
        (&["resign", &long], "300 bytes"),
        (&["transfer", "a\nb", "c"], "control characters"),
        (&["transfer", "a", ""], "name is empty"),
        (&["transfer", "a"], "CANDIDATE"),
        (&["resign", "a", "--wait", "5"], "did you mean 5s"),
        (&["resign", "a", "--token", "x"], "x"),
        (&["watch", "a", "--count", "0"], "0"),
        (&["show"], "NAME"),
        (&["shwo", "a"], "`tenure election show`"),
        (&["resing", "a"], "`tenure election resign`"),
        (&["trasnfer", "a", "b"], "`tenure election transfer`"),
        (&[], "transfer"),
    ] {
        let ran = sandbox.run(&[&["election"], args].concat()).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    for (word, meant) in [("elct", "elect"), ("electoin", "election")] {
        let ran = sandbox.run(&[word, "a"]).await;
        assert!(ran.code == Some(2) && ran.stderr.contains(&format!("`tenure {meant}`")), "{ran:?}");
    }
    let ran = sandbox.run(&["--endpoints", "127.0.0.1:1", "election", "ls"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
}

/// A foreign key with an unreadable record is ignored.
#[tokio::test]
async fn foreign_key_is_no_candidate() {
    let sandbox = sandbox();
    sandbox.ok(&["kv", "put", "/tenure/elections/a/stranger", "x"]).await;
    assert_eq!(leader_and_waiters(&sandbox).await, (Value::Null, vec![]));
    let running = start_candidate(&sandbox, "first", &[], "exit 3");
    assert_eq!(running.end().await.0, Some(3));
}
