//! What failing commands print on stderr: each message once, and with `--json` objects only.

use serde_json::Value;
use tenure_fixture::Etcd;

use crate::sandbox::{Ran, Sandbox};

/// A failing command and its exit code.
type Row<'a> = (&'a [&'a str], i32);

/// No line is repeated, there is one error, and with `--json` every line is an object and the last one is the error.
async fn assert_reported_once(sandbox: &Sandbox, (args, code): Row<'_>) {
    let ran = sandbox.run(args).await;
    assert_eq!(ran.code, Some(code), "{args:?} {ran:?}");
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{args:?} {ran:?}");
    let mut lines: Vec<&str> = ran.stderr.lines().collect();
    let count = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), count, "{args:?} repeats a line: {ran:?}");
    assert_message_once(args, &ran);

    // A flag after `--` belongs to the wrapped command, so `--json` comes first.
    let ran = sandbox.run(&[&["--json"], args].concat()).await;
    assert_eq!(ran.code, Some(code), "{args:?} {ran:?}");
    let objects: Vec<Value> = ran
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{args:?} {error}: {ran:?}")))
        .collect();
    assert!(objects.iter().all(Value::is_object), "{args:?} {ran:?}");
    let errors = objects.iter().filter(|object| object.get("error").is_some()).count();
    assert_eq!(errors, 1, "{args:?} {ran:?}");
    let error = ran.error();
    assert!(error["code"].is_string() && error["message"].is_string(), "{args:?} {ran:?}");
}

/// A cause that is wrapped several times is still written once: no part of the message occurs twice.
fn assert_message_once(args: &[&str], ran: &Ran) {
    let line = ran.stderr.lines().find(|line| line.contains("error: ")).unwrap();
    let message = line.split_once("error: ").unwrap().1;
    let mut parts: Vec<&str> = message.split(": ").collect();
    let count = parts.len();
    parts.sort_unstable();
    parts.dedup();
    assert_eq!(parts.len(), count, "{args:?} repeats a cause: {ran:?}");
}

#[tokio::test]
async fn failure_without_a_store_is_reported_once() {
    let sandbox = Sandbox::new().with("PATH", "/usr/bin:/bin");
    let nowhere = format!("file://{}", sandbox.path("typo/deep/store.db"));
    let broken = format!("file://{}", sandbox.file("broken/store.db", "this is no database, but some text"));
    let rows: &[Row<'_>] = &[
        // Arguments.
        (&["nonsense"], 2),
        (&["kv", "put"], 2),
        (&["kv", "get", "/a", "--nonsense"], 2),
        (&["kv", "put", "/a", "1", "--ttl", "soon"], 2),
        (&["task", "ls", "--state", "asleep-ish"], 2),
        (&["lock"], 125),
        (&["lock", "ls"], 125),
        (&["lock", "a", "--ttl", "x", "--", "true"], 125),
        (&["lease", "show", "zz"], 2),
        (&["events", "--after", "x"], 2),
        (&["--store", "memory:", "lock", "a", "--", "true"], 125),
        (&["--store", "nonsense://a", "status"], 2),
        (&["--store", "file:x.db", "status"], 2),
        (&["--endpoints", "127.0.0.1:1", "--cacert", "/nowhere.pem", "status"], 2),
        (&["kv", "del", "--prefix", "/", "--store", &nowhere], 2),
        // Store files.
        (&["--store", &nowhere, "status"], 3),
        (&["--store", &nowhere, "lock", "a", "--", "true"], 125),
        (&["--store", &nowhere, "worker", "--exec", "true"], 3),
        (&["--store", &nowhere, "events", "-f"], 3),
        (&["--store", &broken, "status"], 1),
        (&["kv", "watch", "/a"], 3),
        // No process listens.
        (&["--endpoints", "127.0.0.1:1", "status"], 5),
        (&["--endpoints", "127.0.0.1:1", "kv", "put", "/a", "1"], 5),
        (&["--endpoints", "127.0.0.1:1", "lock", "a", "--", "true"], 125),
        (&["--endpoints", "127.0.0.1:1", "elect", "a", "--", "true"], 125),
        (&["--endpoints", "127.0.0.1:1", "once", "a", "--every", "1h", "--", "true"], 125),
        (&["--endpoints", "127.0.0.1:1", "register", "web/1=x", "--", "true"], 125),
        (&["--endpoints", "127.0.0.1:1", "worker", "--exec", "true"], 5),
        (&["--endpoints", "127.0.0.1:1", "submit", "a"], 5),
        (&["--endpoints", "127.0.0.1:1,127.0.0.1:2", "events"], 5),
    ];
    for &row in rows {
        assert_reported_once(&sandbox, row).await;
    }
}

async fn failure_is_reported_once(sandbox: Sandbox) {
    let sandbox = sandbox.with("PATH", "/usr/bin:/bin");
    sandbox.ok(&["kv", "put", "/tenure/a", "1"]).await;
    sandbox.ok(&["submit", "there"]).await;
    let mut held = sandbox.start(&["lock", "held", "--", "sh", "-c", "echo up; exec sleep 60"]);
    assert_eq!(held.line().await, "up");
    let rows: &[Row<'_>] = &[
        (&["kv", "get", "/tenure/none"], 3),
        (&["kv", "put", "/tenure/a", "2", "--create"], 4),
        (&["kv", "del", "--prefix", "/tenure/"], 2),
        (&["events", "--after", "4000000000000000000"], 1),
        (&["lock", "held", "--try", "--", "true"], 124),
        (&["lock", "held", "--wait", "300ms", "--", "true"], 124),
        (&["lock", "free", "--", "/nowhere/program"], 127),
        (&["locks", "break", "none", "--yes"], 3),
        (&["election", "resign", "none"], 3),
        (&["task", "show", "none"], 3),
        (&["task", "kill", "none"], 3),
        (&["task", "wait", "none"], 3),
        (&["task", "wait", "there", "--wait", "200ms"], 8),
        (&["submit", "there"], 4),
        (&["node", "show", "none"], 3),
        (&["node", "drain", "none"], 3),
        (&["service", "show", "none"], 3),
        (&["lease", "show", "1f"], 3),
        (&["lease", "revoke", "1f", "--yes"], 3),
    ];
    for &row in rows {
        assert_reported_once(&sandbox, row).await;
    }
    held.interrupt();
    held.end().await;
}

#[tokio::test]
async fn failure_is_reported_once_on_file() {
    failure_is_reported_once(Sandbox::new()).await;
}

#[tokio::test]
async fn failure_is_reported_once_on_etcd() {
    let etcd = Etcd::start();
    failure_is_reported_once(Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints())).await;
}

#[tokio::test]
async fn denied_access_is_reported_once_on_etcd() {
    let etcd = crate::least_privilege::guarded();
    let of = |user: &str| {
        let sandbox = Sandbox::without_user().with("TENURE_ENDPOINTS", etcd.endpoints());
        sandbox.with("PATH", "/usr/bin:/bin").with("ETCDCTL_USER", user)
    };
    let (eve, wrong) = (of("eve:eve"), of("ann:canary"));
    for sandbox in [&eve, &wrong] {
        for row in [
            (&["status"][..], 6),
            (&["events"], 6),
            (&["events", "-f"], 6),
            (&["kv", "watch", "--prefix", "/tenure/"], 6),
            (&["election", "watch", "a"], 6),
            (&["service", "watch", "a"], 6),
            (&["kv", "put", "/tenure/a", "1"], 6),
            (&["submit", "a"], 6),
            (&["task", "ls"], 6),
            (&["lock", "a", "--", "true"], 125),
            (&["elect", "a", "--", "true"], 125),
            (&["once", "a", "--every", "1h", "--", "true"], 125),
            (&["register", "web/1=x", "--", "true"], 125),
            (&["worker", "--node", "n", "--exec", "true"], 6),
        ] {
            assert_reported_once(sandbox, row).await;
        }
    }
}

/// `tenure -q lock` was once refused, because only `lock`, `elect`, `once` and `worker` had the flag.
#[tokio::test]
async fn quiet_and_json_work_around_the_verb() {
    let sandbox = Sandbox::new().with("PATH", "/usr/bin:/bin");
    for args in [
        &["-q", "lock", "a", "--", "true"][..],
        &["--quiet", "lock", "a", "--", "true"],
        &["lock", "-q", "a", "--", "true"],
        &["lock", "a", "-q", "--", "true"],
        &["-q", "once", "a", "--every", "1s", "--", "true"],
        &["-q", "elect", "a", "--one-term", "--", "true"],
        &["-q", "kv", "put", "/a", "1"],
        &["kv", "get", "/a", "-q"],
        &["-q", "--json", "locks", "ls"],
        &["locks", "--json", "-q", "ls"],
    ] {
        let ran = sandbox.run(args).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?} {ran:?}");
    }
    // After `--` the flag belongs to the command.
    let ran = sandbox.run(&["lock", "a", "--", "echo", "-q"]).await;
    assert_eq!(ran.stdout, "-q\n", "{ran:?}");
}
