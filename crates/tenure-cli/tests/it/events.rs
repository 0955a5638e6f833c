//! `tenure events`: domain events derived from the store's history.

mod stable;

use serde_json::Value;
use tenure_fixture::Etcd;

use crate::sandbox::Sandbox;
use crate::test_cluster::TestCluster;

/// Subject, event and name of each line.
fn parse_events(text: &str) -> Vec<(String, String, String)> {
    let read = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(event["schema"] == "tenure.event/v1" && event["revision"].is_string(), "{event}");
        let text = |name: &str| event[name].as_str().unwrap().to_owned();
        (text("subject"), text("event"), text("name"))
    };
    text.lines().map(read).collect()
}

fn events(lines: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    lines.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect()
}

/// A broken lock once looked like an ordinary unlock by its holder, and destructive commands left no record of their author.
async fn destructive_commands_name_their_author(sandbox: Sandbox) {
    let sandbox = sandbox.with("TENURE_NODE", "host-1");
    let mut holder = sandbox.start(&["lock", "a", "--", "sh", "-c", "echo up; sleep 20"]);
    assert_eq!(holder.line().await, "up");
    sandbox.ok(&["locks", "break", "a", "--yes", "--reason", "host is gone"]).await;
    holder.end().await;
    let mut holder = sandbox.start(&["lock", "b", "--", "sh", "-c", "echo up; sleep 20"]);
    assert_eq!(holder.line().await, "up");
    let lease =
        sandbox.json(&["locks", "show", "b"]).await["holders"][0]["lease"].as_str().unwrap().to_owned();
    sandbox.ok(&["lease", "revoke", &lease, "--yes", "--reason", "moved away"]).await;
    holder.end().await;
    for key in ["/tenure/x/1", "/tenure/x/2"] {
        sandbox.ok(&["kv", "put", key, "1"]).await;
    }
    sandbox.ok(&["kv", "del", "--prefix", "/tenure/x/", "--yes", "--reason", "cleanup"]).await;
    sandbox.ok(&["submit", "job"]).await;
    sandbox.ok(&["task", "rm", "job", "--reason", "wrong"]).await;
    // A key that is not there leaves no record.
    assert_eq!(sandbox.run(&["kv", "del", "/tenure/x/3"]).await.code, Some(3));
    let text = sandbox.ok(&["events", "--json"]).await;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |subject: &str, event: &str, name: &str, reason: &str| {
        let is = |line: &&Value| line["subject"] == subject && line["event"] == event && line["name"] == name;
        let line = lines.iter().find(is).unwrap_or_else(|| panic!("{subject} {event} {name}: {text}"));
        assert_eq!(line["reason"], reason, "{line}");
        assert!(line["by"].as_str().unwrap().starts_with("host-1 pid "), "{line}");
        assert!(line["at"].as_str().unwrap().ends_with('Z'), "{line}");
    };
    of("lock", "broken", "a", "host is gone");
    of("lease", "revoked", &lease, "moved away");
    of("lock", "broken", "b", "moved away");
    of("keys", "deleted", "/tenure/x/", "cleanup");
    of("task", "deleted", "job", "wrong");
    assert!(!lines.iter().any(|line| line["event"] == "unlocked"), "{text}");
    let plain = sandbox.ok(&["events"]).await;
    let broken = plain.lines().find(|line| line.contains("\tbroken\ta\t")).unwrap();
    assert!(broken.contains("broken by ") && broken.contains(" because host is gone"), "{broken}");
    assert!(plain.contains("2 keys, deleted by "), "{plain}");
    // The audit record is under the deleted prefix as well, so it is written after the deletion.
    sandbox.ok(&["kv", "del", "--prefix", "/tenure/", "--yes"]).await;
    assert!(sandbox.ok(&["kv", "range", "/tenure/audit/"]).await.contains("delete_keys"));
}

#[tokio::test]
async fn destructive_commands_name_their_author_on_file() {
    destructive_commands_name_their_author(Sandbox::new()).await;
}

#[tokio::test]
async fn destructive_commands_name_their_author_on_etcd() {
    let etcd = Etcd::start();
    destructive_commands_name_their_author(Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints())).await;
}

async fn whole_history_is_reported(cluster: &TestCluster) {
    assert_eq!(cluster.sandbox.ok(&["events"]).await, "", "nothing has happened");
    let mut worker = cluster.join("w").await;
    cluster.sandbox.ok(&["submit", "x", "--kind", "mail"]).await;
    worker.started(1).await;
    cluster.sandbox.ok(&["task", "pause", "x"]).await;
    cluster.sandbox.ok(&["task", "kill", "x", "--reason", "enough"]).await;
    cluster.sandbox.ok(&["task", "forget", "x"]).await;
    cluster.sandbox.ok(&["submit", "y"]).await;
    worker.started(1).await;
    cluster.sandbox.ok(&["task", "rm", "y"]).await;
    cluster.sandbox.ok(&["node", "freeze", "w"]).await;
    worker.end().await;
    cluster.sandbox.ok(&["lock", "deploy", "--", "/bin/true"]).await;
    cluster.sandbox.ok(&["elect", "boss", "--candidate", "me", "--", "/bin/true"]).await;
    let text = cluster.sandbox.ok(&["events", "--json"]).await;
    // A worker announces that it leaves before it does; that event is not part of this list.
    let mut all = parse_events(&text);
    all.retain(|(subject, event, _)| !(subject == "node" && event == "moved"));
    assert_eq!(
        all,
        events(&[
            ("node", "joined", "w"),
            ("task", "submitted", "x"),
            ("task", "claimed", "x"),
            ("task", "command", "x"),
            ("task", "moved", "x"),
            ("task", "command", "x"),
            ("task", "ended", "x"),
            ("task", "forgotten", "x"),
            ("task", "submitted", "y"),
            ("task", "claimed", "y"),
            ("task", "deleted", "y"),
            ("node", "command", "w"),
            ("node", "frozen", "w"),
            ("node", "left", "w"),
            ("lock", "locked", "deploy"),
            ("lock", "unlocked", "deploy"),
            ("election", "leader", "boss"),
            ("election", "none", "boss"),
        ]),
        "{text}"
    );
    let of = |event: &str| -> Value {
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.find(|line| line["event"] == event).unwrap()
    };
    assert_eq!((of("submitted")["kind"].as_str(), of("claimed")["node"].as_str()), (Some("mail"), Some("w")));
    assert_eq!(of("claimed")["token"], of("claimed")["revision"], "the token is the revision of the claim");
    assert_eq!(
        (of("moved")["from"].as_str(), of("moved")["to"].as_str()),
        (Some("runnable"), Some("paused"))
    );
    assert_eq!(
        (of("ended")["to"].as_str(), of("ended")["detail"].as_str()),
        (Some("killed"), Some("enough"))
    );
    assert_eq!(of("deleted")["node"], "w");
    assert_eq!(of("leader")["node"], "me");
    // With --after, only later events.
    let later = cluster
        .sandbox
        .ok(&["events", "--json", "--after", of("locked")["revision"].as_str().unwrap()])
        .await;
    assert_eq!(
        parse_events(&later),
        events(&[
            ("lock", "unlocked", "deploy"),
            ("election", "leader", "boss"),
            ("election", "none", "boss")
        ]),
        "the holder from before --after is known"
    );
}

#[tokio::test]
async fn whole_history_is_reported_on_file() {
    whole_history_is_reported(&TestCluster::new().await).await;
}

#[tokio::test]
async fn whole_history_is_reported_on_etcd() {
    let etcd = Etcd::start();
    whole_history_is_reported(&TestCluster::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn follower_gets_past_and_future_events() {
    let cluster = TestCluster::new().await;
    cluster.sandbox.ok(&["submit", "a"]).await;
    let mut events = cluster.sandbox.start(&["events", "-f"]);
    assert!(events.line().await.contains("\ttask\tsubmitted\ta\t-"));
    cluster.sandbox.ok(&["submit", "b"]).await;
    assert!(events.line().await.contains("\ttask\tsubmitted\tb\t-"));
    events.interrupt();
    assert_eq!(events.end().await.0, Some(130));
}

#[tokio::test]
async fn compacted_events_are_skipped() {
    let cluster = TestCluster::new().await;
    let mut lock =
        cluster.sandbox.start_with_open_stdin(&["lock", "deploy", "--", "sh", "-c", "echo held; read x"]);
    assert_eq!(lock.line().await, "held");
    cluster.sandbox.ok(&["submit", "old"]).await;
    let now = cluster.sandbox.json(&["kv", "range", "/tenure/tasks/"]).await["revision"].clone();
    cluster.sandbox.ok(&["kv", "compact", now.as_str().unwrap()]).await;
    cluster.sandbox.ok(&["submit", "new"]).await;
    lock.feed(b"end\n").await;
    lock.end().await;
    let ran = cluster.sandbox.run(&["events", "--json"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        parse_events(&ran.stdout),
        events(&[("task", "submitted", "new"), ("lock", "unlocked", "deploy")]),
        "the holder is known although its lock event was compacted"
    );
    let ran = cluster.sandbox.run(&["events", "--after", "1"]).await;
    assert!(ran.code == Some(0) && ran.stderr.contains("was compacted"), "{ran:?}");
}

/// A handled command is reported by its effect, any other with the reason why it had none.
async fn unhandled_commands_are_explained(cluster: &TestCluster) {
    let worker = cluster.join("w").await;
    cluster.sandbox.ok(&["submit", "x"]).await;
    let dance = r#"{"command":"dance","id":"01890000-0000-7000-8000-000000000001"}"#;
    cluster.sandbox.ok(&["kv", "put", "/tenure/commands/x", dance]).await;
    assert_eq!(cluster.sandbox.run(&["node", "release-task", "w", "nothing"]).await.code, Some(4));
    cluster.sandbox.ok(&["node", "freeze", "w"]).await;
    cluster.sandbox.ok(&["submit", "y"]).await;
    cluster.sandbox.ok(&["task", "pause", "y", "--no-wait"]).await;
    cluster.sandbox.ok(&["task", "kill", "y", "--no-wait"]).await;
    cluster.sandbox.ok(&["task", "rm", "y"]).await;
    worker.end().await;
    let text = cluster.sandbox.ok(&["events", "--json"]).await;
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |event: &str| {
        let found = events
            .iter()
            .find(|found| found["event"] == event)
            .unwrap_or_else(|| panic!("no {event} in {text}"));
        let text = |name: &str| found[name].as_str().unwrap_or("-").to_owned();
        // A sender at a shell has its user's name before its host's.
        let by = text("node").rsplit('@').next().unwrap().to_owned();
        [text("subject"), text("name"), by, text("detail")]
    };
    assert_eq!(of("malformed"), ["task", "x", "w", r#"dance: there is no command "dance" to a task"#]);
    assert_eq!(of("refused"), ["node", "w", "w", "release_task: this node does not own the task"]);
    assert_eq!(of("replaced"), ["task", "y", "ops", "pause: another command was sent before it was handled"]);
    assert_eq!(of("expired"), ["task", "y", "ops", "kill: the task was deleted"]);
}

#[tokio::test]
async fn unhandled_commands_are_explained_on_file() {
    unhandled_commands_are_explained(&TestCluster::new().await).await;
}

#[tokio::test]
async fn unhandled_commands_are_explained_on_etcd() {
    let etcd = Etcd::start();
    unhandled_commands_are_explained(&TestCluster::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn unknown_key_is_reported_as_set_aside() {
    let cluster = TestCluster::new().await;
    cluster.sandbox.ok(&["kv", "put", "/other/tasks/x", "{}"]).await;
    cluster.sandbox.ok(&["kv", "put", "/tenure/tasks/x/else", "{}"]).await;
    cluster.sandbox.ok(&["kv", "put", "/tenure/tasks/x/owner", "s3cret"]).await;
    let text = cluster.sandbox.ok(&["events", "--json"]).await;
    let expected = [("task", "set_aside", "/tenure/tasks/x/else"), ("task", "claimed", "x")];
    assert_eq!(parse_events(&text), events(&expected));
    assert!(!text.contains("s3cret"), "{text}");
}

#[tokio::test]
async fn bad_input_exits_2_future_revision_1() {
    let cluster = TestCluster::new().await;
    assert_eq!(cluster.sandbox.run(&["events", "--after", "x"]).await.code, Some(2));
    assert_eq!(cluster.sandbox.run(&["event"]).await.code, Some(2));
    let ran = cluster.sandbox.run(&["events", "--after", "4000000000000000000", "--json"]).await;
    assert_eq!((ran.code, ran.error()["code"].as_str()), (Some(1), Some("future_revision")), "{ran:?}");
    let ran = Sandbox::new().run(&["--endpoints", "127.0.0.1:1", "events"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
    let ran = Sandbox::new().run(&["--endpoints", "127.0.0.1:1", "status"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
}
