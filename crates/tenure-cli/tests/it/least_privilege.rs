//! Every verb under an etcd user with one grant: `readwrite` on the prefix of the namespace. And what a read-only user may do.

use serde_json::Value;
use tenure_fixture::{Etcd, Permission};

use crate::sandbox::{Ran, Sandbox};

/// An etcd with authentication: `ann` and `ben` may read and write `/tenure/`, `bob` may read it, `eve` may use `/other/`. Passwords are the names.
pub(crate) fn guarded() -> Etcd {
    let etcd = Etcd::builder().without_auth().bcrypt_cost(4).start();
    let access = etcd.access();
    access.add_root("root");
    for (role, permission, prefix) in [
        ("app", Permission::ReadWrite, "/tenure/"),
        ("reader", Permission::Read, "/tenure/"),
        ("other", Permission::ReadWrite, "/other/"),
    ] {
        access.add_role(role).grant(role, permission, prefix);
    }
    for (user, role) in [("ann", "app"), ("ben", "app"), ("bob", "reader"), ("eve", "other")] {
        access.add_user(user, user).give_role(user, role);
    }
    access.enable();
    etcd
}

fn user(etcd: &Etcd, name: &str) -> Sandbox {
    Sandbox::without_user()
        .with("TENURE_ENDPOINTS", etcd.endpoints())
        .with("ETCDCTL_USER", format!("{name}:{name}"))
        .with("PATH", "/usr/bin:/bin")
}

#[tokio::test]
async fn locks_elections_and_runs_need_one_grant() {
    let etcd = guarded();
    let (ann, ben) = (user(&etcd, "ann"), user(&etcd, "ben"));
    // Two users exclude each other.
    let mut held = ann.start_with_open_stdin(&["lock", "deploy", "--", "sh", "-c", "echo held; read x"]);
    assert_eq!(held.line().await, "held");
    assert_eq!(ben.run(&["lock", "deploy", "--try", "--", "true"]).await.code, Some(124));
    assert!(ben.ok(&["locks", "ls"]).await.contains("deploy"));
    assert_eq!(ben.json(&["locks", "show", "deploy"]).await["held"], true);
    let mut waiting = ben.start(&["lock", "deploy", "--wait", "60s", "--", "echo", "mine"]);
    waiting.hear("held by").await;
    held.feed(b"end\n").await;
    assert_eq!(held.end().await.0, Some(0));
    assert_eq!(waiting.line().await, "mine");
    assert_eq!(waiting.end().await.0, Some(0));

    let mut leads = ann.start_with_open_stdin(&["elect", "main", "--", "sh", "-c", "echo leads; read x"]);
    assert_eq!(leads.line().await, "leads");
    let mut next = ben.start(&["elect", "main", "--one-term", "--", "echo", "next"]);
    assert!(ben.ok(&["election", "ls"]).await.contains("main"));
    ben.ok(&["election", "show", "main"]).await;
    let resigned = ben.run(&["election", "resign", "main", "--wait", "20s"]).await;
    assert_eq!(resigned.code, Some(0), "{resigned:?}");
    assert_eq!(next.line().await, "next");
    assert_eq!(next.end().await.0, Some(0));
    leads.interrupt();
    leads.end().await;

    ann.ok(&["once", "daily", "--every", "1d", "--", "true"]).await;
    assert_eq!(ben.run(&["once", "daily", "--every", "1d", "--", "true"]).await.code, Some(124));
    assert!(ben.ok(&["once", "ls"]).await.contains("daily"));

    // The third of three permits, and a lock that is taken away.
    let lost = ann.start(&["lock", "stuck", "--", "sleep", "60"]);
    while ann.json(&["locks", "show", "stuck"]).await["held"] != true {}
    ben.ok(&["locks", "break", "stuck", "--yes"]).await;
    assert_eq!(lost.end().await.0, Some(122));
}

#[tokio::test]
async fn registrations_leases_and_keys_need_one_grant() {
    let etcd = guarded();
    let (ann, root) = (user(&etcd, "ann"), user(&etcd, "root"));
    let mut kept =
        ann.start_with_open_stdin(&["register", "web/1=10.0.0.7:80", "--", "sh", "-c", "echo on; read x"]);
    assert_eq!(kept.line().await, "on");
    assert!(ann.ok(&["service", "ls"]).await.contains("web"));
    assert!(ann.ok(&["service", "show", "web"]).await.contains("10.0.0.7:80"));

    // A lease of the namespace is shown; one with keys that ann may not read is not, and that is reported.
    let leases = ann.json(&["lease", "ls"]).await;
    assert_eq!(
        (leases["leases"].as_array().unwrap().len(), &leases["complete"]),
        (1, &Value::Null),
        "{leases}"
    );
    root.ok(&["kv", "put", "/other/x", "1", "--ttl", "60s"]).await;
    let leases = ann.json(&["lease", "ls"]).await;
    assert_eq!(
        (leases["leases"].as_array().unwrap().len(), &leases["complete"]),
        (1, &false.into()),
        "{leases}"
    );
    let lease = leases["leases"][0]["lease"].as_str().unwrap();
    assert!(ann.ok(&["lease", "show", lease]).await.contains("/tenure/registry/services/web/1"));
    let ran = ann.run(&["lease", "ls"]).await;
    assert!(ran.code == Some(0) && ran.stderr.contains("outside of /tenure/"), "{ran:?}");
    let put = ann.json(&["kv", "put", "/tenure/leased", "1", "--ttl", "60s"]).await;
    ann.ok(&["lease", "revoke", put["lease"].as_str().unwrap(), "--yes"]).await;
    assert_eq!(ann.run(&["kv", "get", "/tenure/leased"]).await.code, Some(3));
    kept.feed(b"end\n").await;
    assert_eq!(kept.end().await.0, Some(0));

    let revision = ann.ok(&["kv", "put", "/tenure/k/1", "one"]).await;
    assert_eq!(ann.ok(&["kv", "get", "/tenure/k/1"]).await, "one");
    assert!(ann.ok(&["kv", "range", "/tenure/k/"]).await.contains("one"));
    let after = (revision.parse::<u64>().unwrap() - 1).to_string();
    let seen = ann.ok(&["kv", "watch", "--prefix", "/tenure/k/", "--after", &after, "--count", "1"]).await;
    assert!(seen.contains("one"), "{seen}");
    let txn = br#"{"when":[{"key":"/tenure/k/1","value":"one"}],"then":[{"put":{"key":"/tenure/k/2","value":"2"}}]}"#;
    assert_eq!(ann.run_with(&["kv", "txn"], txn).await.code, Some(0));
    assert_eq!(ann.ok(&["kv", "del", "--prefix", "/tenure/k/", "--yes"]).await, "2");
    // Outside of the grant the message names the key, and history belongs to root.
    let ran = ann.run(&["kv", "put", "/elsewhere", "1"]).await;
    refused(&ran, &["user \"ann\"", "\"write\"", "/elsewhere", "readwrite /elsewhere"]);
    let ran = ann.run(&["kv", "compact", "2"]).await;
    refused(&ran, &["user \"ann\"", "role root"]);
    root.ok(&["kv", "compact", "2"]).await;
}

#[tokio::test]
async fn tasks_and_nodes_need_one_grant() {
    let etcd = guarded();
    let (ann, ben) = (user(&etcd, "ann"), user(&etcd, "ben"));
    let mut worker = ann.start(&["worker", "--node", "one", "--exec", "true", "--match", "kind=mail"]);
    worker.hear("one").await;
    let done = ben.run(&["submit", "mail-1", "--kind", "mail", "--wait"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    ben.ok(&["submit", "other-1", "--kind", "other"]).await;
    assert!(ben.ok(&["task", "ls"]).await.contains("other-1"));
    ben.ok(&["task", "show", "other-1"]).await;
    ben.ok(&["task", "history", "other-1"]).await;
    ben.ok(&["task", "rm", "other-1"]).await;
    assert!(ben.ok(&["node", "ls"]).await.contains("one"));
    ben.ok(&["node", "show", "one"]).await;
    ben.ok(&["node", "freeze", "one"]).await;
    ben.ok(&["node", "unfreeze", "one"]).await;
    assert!(ben.ok(&["status"]).await.contains("etcd"));
    let drained = ben.run(&["node", "drain", "one"]).await;
    assert_eq!(drained.code, Some(0), "{drained:?}");
    assert_eq!(worker.end().await.0, Some(0));
    // History is read without the keys of others; the last revision is not of this namespace.
    user(&etcd, "root").ok(&["kv", "put", "/elsewhere", "1"]).await;
    let events = ben.ok(&["events"]).await;
    assert!(events.contains("mail-1") && events.contains("one"), "{events}");
    let doctor = ben.json(&["doctor"]).await;
    assert_eq!((&doctor["ok"], state(&doctor, "access")), (&Value::Bool(true), "ok"), "{doctor}");
}

#[tokio::test]
async fn read_only_user_reads_everything_and_writes_nothing() {
    let etcd = guarded();
    let (ann, bob) = (user(&etcd, "ann"), user(&etcd, "bob"));
    ann.ok(&["submit", "task-1"]).await;
    ann.ok(&["kv", "put", "/tenure/k", "1"]).await;
    let leased = ann.json(&["kv", "put", "/tenure/leased", "1", "--ttl", "60s"]).await;
    let lease = leased["lease"].as_str().unwrap();
    for args in [
        &["locks", "ls"][..],
        &["locks", "show", "a"],
        &["election", "ls"],
        &["once", "ls"],
        &["service", "ls"],
        &["lease", "ls"],
        &["lease", "show", lease],
        &["kv", "get", "/tenure/k"],
        &["kv", "range", "/tenure/"],
        &["task", "ls"],
        &["task", "show", "task-1"],
        &["node", "ls"],
        &["status"],
        &["events"],
        &["config", "show"],
    ] {
        let ran = bob.run(args).await;
        assert_eq!((ran.code, ran.stderr.contains("error:")), (Some(0), false), "{args:?} {ran:?}");
    }
    let grant = "etcdctl role grant-permission ROLE readwrite --prefix=true /tenure/";
    for (args, code) in [
        (&["kv", "put", "/tenure/k", "2"][..], 6),
        (&["kv", "del", "/tenure/k"], 6),
        (&["submit", "task-2"], 6),
        (&["task", "rm", "task-1"], 6),
        (&["task", "kill", "task-1"], 6),
        (&["lock", "a", "--", "true"], 125),
        (&["elect", "a", "--one-term", "--", "true"], 125),
        (&["once", "a", "--every", "1h", "--", "true"], 125),
        (&["register", "web/1=x", "--", "true"], 125),
    ] {
        let ran = bob.run(args).await;
        assert_eq!(ran.code, Some(code), "{args:?} {ran:?}");
        for part in ["user \"bob\"", "write\"", "/tenure/", grant] {
            assert!(ran.stderr.contains(part), "{args:?} without {part}: {ran:?}");
        }
        assert_eq!(
            ran.stderr.matches("lacks the permission").count(),
            1,
            "{args:?} is reported once: {ran:?}"
        );
    }
    let ran = bob.run(&["lease", "revoke", lease, "--yes"]).await;
    refused(&ran, &["user \"bob\"", "\"write\"", grant]);
    let ran = bob.run(&["doctor", "--json"]).await;
    assert_eq!(ran.code, Some(6), "{ran:?}");
    let doctor: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&doctor["ok"], state(&doctor, "access")), (&Value::Bool(false), "fail"), "{doctor}");
    assert_eq!(ann.ok(&["kv", "get", "/tenure/k"]).await, "1", "nothing was written");
}

fn refused(ran: &Ran, parts: &[&str]) {
    assert_eq!(ran.code, Some(6), "{ran:?}");
    for part in parts {
        assert!(ran.stderr.contains(part), "{part} in {ran:?}");
    }
}

fn state<'a>(doctor: &'a Value, name: &str) -> &'a str {
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("no {name} in {doctor}"))["state"].as_str().unwrap()
}
