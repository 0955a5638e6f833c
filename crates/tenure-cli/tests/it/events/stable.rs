//! The output of `tenure events` on a history with every kind of event, byte for byte: scripts and journals read it.

use serde_json::json;

use crate::sandbox::Sandbox;

/// Writes the history into a store. Revisions differ between runs: `r3` is that of the third transaction.
struct History {
    sandbox: Sandbox,
    revisions: Vec<String>,
}

impl History {
    async fn txn(&mut self, ops: &[serde_json::Value]) -> String {
        let txn = json!({ "then": ops }).to_string();
        let ran = self.sandbox.run_with(&["kv", "txn"], txn.as_bytes()).await;
        assert_eq!(ran.code, Some(0), "{txn} {ran:?}");
        let reply: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let revision = reply["revision"].as_str().unwrap().to_owned();
        self.revisions.push(revision.clone());
        revision
    }

    /// The same text with `r1`, `r2` in place of revisions.
    fn stable(&self, text: &str) -> String {
        let word = |word: &str| {
            let known = self.revisions.iter().position(|revision| revision == word);
            known.map_or_else(|| word.to_owned(), |index| format!("r{}", index + 1))
        };
        let (mut stable, mut digits) = (String::new(), String::new());
        for letter in text.chars() {
            if letter.is_ascii_digit() {
                digits.push(letter);
                continue;
            }
            stable.push_str(&word(&std::mem::take(&mut digits)));
            stable.push(letter);
        }
        stable + &word(&digits)
    }
}

fn put(key: &str, value: &serde_json::Value) -> serde_json::Value {
    json!({"put": {"key": format!("/tenure/{key}"), "value": value.to_string()}})
}

fn delete(key: &str) -> serde_json::Value {
    json!({"delete": {"key": format!("/tenure/{key}")}})
}

/// The id of the n-th command or audit record.
fn id(n: u32) -> String {
    format!("01890000-0000-7000-8000-{n:012}")
}

fn audit(n: u32, record: &serde_json::Value) -> serde_json::Value {
    let mut record = record.clone();
    record["by"] = json!({"node": "ops", "host": "ops", "pid": 7, "user": "ann", "program": "tenure"});
    record["at"] = json!(90_000);
    put(&format!("audit/{}", id(n)), &record)
}

async fn tasks_and_nodes(history: &mut History) {
    let command = |n, word: &str| json!({"command": word, "id": id(n), "by": "ann@ops", "sent_at": 9_000});
    let ended = json!({"state": "failed", "by": "w", "updated_at": 12_000, "reason": "disk full"});
    let refused = json!({"handled_by": "w", "outcome": "refused", "at": 14_000, "why": "it does not own it"});
    for ops in [
        vec![put("nodes/w", &json!({"state": "starting", "started": 1_000}))],
        vec![put("nodes/w", &json!({"state": "ready", "started": 1_000}))],
        vec![put("nodes/w", &json!({"state": "ready", "started": 1_000, "address": "x"}))],
        vec![put("tasks/a", &json!({"submitted_at": 2_000, "kind": "mail"}))],
        vec![put("tasks/b", &json!({"ended": true}))],
        vec![put("tasks/bad", &json!("s3cret"))],
        vec![put("tasks/a/owner", &json!({"node": "w"}))],
        vec![put("tasks/bad/owner", &json!(7))],
        vec![put("state/a", &json!({"state": "paused", "by": "w", "updated_at": 3_000}))],
        vec![put("commands/a", &command(1, "pause"))],
        vec![put("commands/bad", &json!(7))],
        vec![
            put("commands/b", &command(2, "kill")),
            audit(3, &json!({"action": "kill_task", "target": "b", "reason": "wrong"})),
        ],
        vec![delete("tasks/bad/owner")],
        vec![put("state/a", &ended), delete("tasks/a"), delete("tasks/a/owner")],
        vec![delete("state/a"), audit(4, &json!({"action": "forget_task", "target": "a"}))],
        vec![
            delete("tasks/b"),
            audit(5, &json!({"action": "delete_task", "target": "b", "reason": "too late"})),
        ],
        vec![delete("tasks/bad")],
        vec![delete("commands/a"), put(&format!("results/{}", id(1)), &refused)],
        vec![put(&format!("nodes/w/commands/{}", id(6)), &command(6, "drain"))],
        vec![put("frozen/w", &json!({}))],
        vec![delete("frozen/w")],
        vec![
            delete(&format!("nodes/w/commands/{}", id(6))),
            put(&format!("results/{}", id(6)), &json!({"handled_by": "w", "outcome": "expired"})),
        ],
        vec![delete("nodes/w")],
        vec![put("tasks/a/b/c", &json!(1))],
        vec![put("nodes/w/x", &json!(1))],
        vec![put("other/w", &json!(1))],
    ] {
        history.txn(&ops).await;
    }
}

/// The queue key of the n-th waiter of a lock or an election.
fn queue_key(queue: &str, n: u32) -> String {
    format!("{queue}/{n:x}-{n:016x}")
}

async fn locks(history: &mut History) {
    let holder = |node: &str| json!({"node": node, "pid": 1, "queued": 20_000});
    history.txn(&[put(&queue_key("locks/l", 1), &holder("web-1"))]).await;
    history.txn(&[put(&queue_key("locks/l", 2), &holder("web-2"))]).await;
    history.txn(&[delete(&queue_key("locks/l", 1))]).await;
    let third = history.txn(&[put(&queue_key("locks/l", 3), &holder("web-3"))]).await;
    history.txn(&[delete(&queue_key("locks/l", 2))]).await;
    let token = third.parse::<i64>().unwrap();
    let broken = json!({"action": "break_lock", "target": "l", "token": token, "reason": "host is gone"});
    history.txn(&[delete(&queue_key("locks/l", 3)), audit(7, &broken)]).await;
    let shared = |node: &str| json!({"node": node, "mode": "shared", "queued": 20_000});
    history.txn(&[put(&queue_key("locks/s", 4), &shared("web-4"))]).await;
    history.txn(&[put(&queue_key("locks/s", 5), &shared("web-5"))]).await;
    history.txn(&[audit(8, &json!({"action": "revoke_lease", "target": "5", "reason": "moved"}))]).await;
    history.txn(&[delete(&queue_key("locks/s", 5))]).await;
    history.txn(&[audit(9, &json!({"action": "delete_keys", "target": "/x/", "count": 2}))]).await;
    history.txn(&[audit(10, &json!({"action": "paint", "target": "wall"}))]).await;
    history.txn(&[put("once/a", &json!({"started": 1}))]).await;
}

async fn elections(history: &mut History) {
    let first = json!({"candidate": "a", "queued": 100_000});
    let next = |name: &str| json!({"candidate": name, "queued": 100_000});
    let leads = |name: &str, at: u64| json!({"candidate": name, "queued": 100_000, "acquired": at, "leads": true, "ttl_ms": 6_000});
    let resigned = |token: &str, heir: Option<&str>, at: u64| {
        let number = |text: &str| text.parse::<i64>().unwrap();
        json!({"token": number(token), "heir": heir.map(number), "at": at})
    };
    let a = history.txn(&[put(&queue_key("elections/e", 1), &first)]).await;
    let b = history.txn(&[put(&queue_key("elections/e", 2), &next("b"))]).await;
    let c = history.txn(&[put(&queue_key("elections/e", 3), &next("c"))]).await;
    let end = resigned(&a, None, 110_000);
    history.txn(&[delete(&queue_key("elections/e", 1)), put("resigned/e/1", &end)]).await;
    history.txn(&[put(&queue_key("elections/e", 2), &leads("b", 110_250))]).await;
    let end = resigned(&b, Some(&c), 120_000);
    history.txn(&[delete(&queue_key("elections/e", 2)), put("resigned/e/2", &end)]).await;
    history.txn(&[put(&queue_key("elections/e", 3), &leads("c", 120_000))]).await;
    history.txn(&[put(&queue_key("elections/e", 4), &next("d"))]).await;
    history.txn(&[delete(&queue_key("elections/e", 3))]).await;
    history.txn(&[put(&queue_key("elections/e", 4), &leads("d", 130_000))]).await;
    history.txn(&[audit(11, &json!({"action": "revoke_lease", "target": "4"}))]).await;
    history.txn(&[delete(&queue_key("elections/e", 4))]).await;
    history.txn(&[put(&queue_key("elections/e", 9), &next("f"))]).await;
    history.txn(&[delete(&queue_key("elections/e", 9))]).await;
}

/// On a store file, because its revisions have sixteen digits and differ from all other numbers in the output.
#[tokio::test]
async fn events_output_is_stable() {
    let mut history = History { sandbox: Sandbox::new(), revisions: Vec::new() };
    tasks_and_nodes(&mut history).await;
    locks(&mut history).await;
    elections(&mut history).await;
    let text = history.stable(&history.sandbox.ok(&["events"]).await);
    let lines = history.stable(&history.sandbox.ok(&["events", "--json"]).await);
    assert_eq!(text, include_str!("stable.txt").trim_end(), "\n{text}");
    assert_eq!(lines, include_str!("stable.jsonl").trim_end(), "\n{lines}");
    // With --after from the middle: earlier holders and leaders are known.
    let after = history.revisions[28].clone();
    let from_there = history.stable(&history.sandbox.ok(&["events", "--after", &after]).await);
    let expected: Vec<&str> =
        include_str!("stable.txt").lines().skip_while(|line| !line.starts_with("r31\t")).collect();
    assert_eq!(from_there, expected.join("\n"));
}
