//! Exit codes that scripts rely on.

use std::time::{Duration, Instant};

use crate::sandbox::Sandbox;

#[tokio::test]
async fn success_is_0() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["kv", "put", "/a", "1"]).await;
    assert_eq!(sandbox.ok(&["kv", "get", "/a"]).await, "1");
    sandbox.ok(&["version"]).await;
    assert!(sandbox.ok(&[]).await.contains("tenure demo"));
    assert!(sandbox.ok(&["--help"]).await.contains("Commands:"));
}

#[tokio::test]
async fn missing_history_is_1() {
    let sandbox = Sandbox::new();
    for _ in 0..3 {
        sandbox.ok(&["kv", "put", "/a", "1"]).await;
    }
    let now = sandbox.json(&["kv", "get", "/a"]).await["revision"].as_str().unwrap().to_owned();
    sandbox.ok(&["kv", "compact", &now]).await;
    for (args, code) in [
        (&["kv", "get", "/a", "--at", "2"][..], "compacted"),
        (&["kv", "range", "", "--at", "4000000000000000000"], "future_revision"),
        (&["kv", "watch", "/a", "--after", "1"], "compacted"),
    ] {
        let ran = sandbox.run(&[args, &["--json"]].concat()).await;
        assert_eq!(ran.code, Some(1), "{args:?} {ran:?}");
        assert_eq!(ran.error()["code"], code, "{args:?}");
        if code == "compacted" {
            assert!(ran.error()["hint"].as_str().unwrap().contains("list the keys"), "{ran:?}");
        }
    }
}

#[tokio::test]
async fn usage_is_2() {
    let sandbox = Sandbox::new();
    for args in [
        &["frobnicate"][..],
        &["kv", "get"],
        &["kv", "get", ""],
        &["kv", "get", "a\nb"],
        &["kv", "get", "/a", "--at", "0"],
        &["kv", "get", "--key-b64", "?"],
        &["kv", "put", "/a"],
        &["kv", "put", "/a", "1", "2"],
        &["kv", "put", "/a", "1", "--ttl", "15"],
        &["kv", "put", "/a", "1", "--ttl", "0s"],
        &["kv", "put", "/a", "1", "--ttl", "5s", "--lease", "1f"],
        &["kv", "put", "/a", "1", "--create", "--if-mod", "3"],
        &["kv", "put", "/a", "--value-file", "/nowhere"],
        &["kv", "put", "/a", "1", "--lease", "zz"],
        &["kv", "range", "/a"],
        &["kv", "range", "", "--limit", "0"],
        &["kv", "del", "--prefix", "/a", "--yes"],
        &["kv", "del", "--prefix", "/a/"],
        &["kv", "del", "--prefix", "", "--yes"],
        &["kv", "del", "--prefix", "/a/", "--all", "--yes"],
        &["kv", "del", "/a", "--all"],
        &["lease", "revoke", "1f"],
        &["locks", "break", "a"],
        &["kv", "watch"],
        &["kv", "txn"],
        &["--store", "redis://a", "kv", "get", "/a"],
        &["--user", "ann:pw", "kv", "get", "/a"],
    ] {
        let ran = sandbox.run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    assert!(sandbox.run(&["versoin"]).await.stderr.contains("`tenure version`"));
    let ran = sandbox.run(&["kv", "put", "/a", "1", "--ttl", "15"]).await;
    assert!(ran.stderr.contains("did you mean 15s?"), "{ran:?}");
}

#[tokio::test]
async fn not_found_is_3() {
    let sandbox = Sandbox::new();
    for args in [
        &["kv", "get", "/missing"][..],
        &["kv", "del", "/missing"],
        &["kv", "put", "/a", "1", "--lease", "1f"],
    ] {
        let ran = sandbox.run(&[args, &["--json"]].concat()).await;
        assert_eq!(ran.code, Some(3), "{args:?} {ran:?}");
        assert_eq!(ran.error()["code"], "not_found");
    }
    assert_eq!(sandbox.ok(&["kv", "del", "--prefix", "/missing/", "--yes"]).await, "0");
}

#[tokio::test]
async fn conflict_is_4_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let first = sandbox.ok(&["kv", "put", "/a", "1", "--create"]).await;
    sandbox.ok(&["kv", "put", "/a", "2", "--if-mod", &first]).await;
    let txn = br#"{"when":[{"key":"/a","absent":true}],"then":[{"put":{"key":"/a","value":"3"}}]}"#;
    let ran = sandbox.run_with(&["kv", "txn"], txn).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    for args in [
        &["kv", "put", "/a", "3", "--create"][..],
        &["kv", "put", "/a", "3", "--if-mod", &first],
        &["kv", "put", "/a", "3", "--if-mod", "0"],
        &["kv", "put", "/a", "3", "--create", "--ttl", "5s"],
    ] {
        assert_eq!(sandbox.run(args).await.code, Some(4), "{args:?}");
    }
    assert_eq!(sandbox.ok(&["kv", "get", "/a"]).await, "2");
    let ran = sandbox.run_with(&["kv", "txn", "--either"], txn).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn unreachable_store_is_5_within_6_seconds() {
    let sandbox = Sandbox::new();
    // No process listens at the first address; the second accepts no connection, so the kernel takes every byte and no reply comes.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = deaf.local_addr().unwrap().to_string();
    for endpoint in ["127.0.0.1:1", &deaf] {
        for args in [&["kv", "get", "/a"][..], &["kv", "put", "/a", "1"], &["doctor"]] {
            let begin = Instant::now();
            let ran = sandbox.run(&[&["--endpoints", endpoint][..], args].concat()).await;
            assert_eq!(ran.code, Some(5), "{args:?} {ran:?}");
            assert!(begin.elapsed() < Duration::from_secs(6), "{args:?} took {:?}", begin.elapsed());
        }
    }
    assert!(!std::path::Path::new(&sandbox.path(".local")).exists(), "never a silent fallback");
}

#[tokio::test]
async fn expired_wait_is_8() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["kv", "put", "/b", "1"]).await;
    let ran = sandbox.run(&["kv", "watch", "/a", "--wait", "10ms", "--json"]).await;
    assert_eq!(ran.code, Some(8), "{ran:?}");
    assert_eq!(ran.error()["code"], "timed_out");
}

#[tokio::test]
async fn ctrl_c_is_130() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["kv", "put", "/b", "1"]).await;
    let mut watch = sandbox.start(&["kv", "watch", "/a"]);
    watch.hear("watching").await;
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));
}

#[tokio::test]
async fn ctrl_c_while_reading_stdin_is_130() {
    let sandbox = Sandbox::new();
    for args in [&["kv", "txn"][..], &["kv", "put", "/a", "-"]] {
        let mut waiting = sandbox.start_with_open_stdin(args);
        // More than a pipe buffers: once it is written, the command is reading and waits for more.
        waiting.feed(&vec![b' '; 1 << 20]).await;
        waiting.interrupt();
        assert_eq!(waiting.end().await.0, Some(130), "{args:?}");
    }
}

/// The entries of a folder with their file types and modes.
fn folder_entries(folder: &str) -> Vec<(std::ffi::OsString, u32)> {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut entries: Vec<_> =
        entries.map(|entry| (entry.file_name(), entry.path().symlink_metadata().unwrap().mode())).collect();
    entries.sort();
    entries
}

#[tokio::test]
async fn foreign_file_is_refused_and_untouched() {
    let sandbox = Sandbox::new();
    let path = sandbox.file("own/other.db", "this is not a database, and it must stay as it is");
    let before = folder_entries(&sandbox.path("own"));
    let ran = sandbox.run(&["--store", &format!("file://{path}"), "kv", "put", "/a", "1"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("hint:"), "{ran:?}");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("this is not"));
    assert_eq!(folder_entries(&sandbox.path("own")), before);
}

/// As root, opening a device as a store once changed its mode, and every other process on the host lost access to it.
#[tokio::test]
async fn special_file_is_refused_and_untouched() {
    let sandbox = Sandbox::new();
    sandbox.file("own/file", "");
    let path = |name: &str| sandbox.path(&format!("own/{name}"));
    let made = |program: &str, args: &[&str]| {
        std::process::Command::new(program).args(args).status().is_ok_and(|status| status.success())
    };
    assert!(made("mkfifo", &["-m", "644", &path("fifo")]));
    std::os::unix::fs::symlink(path("fifo"), path("link")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    let mut names = vec!["fifo", "link", "folder", "socket"];
    // A second node for the device of /dev/null, so that /dev/null is not at risk. Only root may create one.
    if made("mknod", &["-m", "666", &path("node"), "c", "1", "3"]) {
        names.push("node");
    }
    let before = folder_entries(&sandbox.path("own"));
    for name in names {
        let store = format!("file://{}", path(name));
        for (args, code) in [
            (&["kv", "put", "/a", "1"][..], [1, 2]),
            (&["doctor", "--json"], [1, 2]),
            (&["lock", "a", "--", "true"], [125, 125]),
        ] {
            let ran = sandbox.run(&[&["--store", &store], args].concat()).await;
            assert!(ran.code.is_some_and(|found| code.contains(&found)), "{name} {ran:?}");
            let output = format!("{}{}", ran.stdout, ran.stderr);
            assert!(output.contains("--store file:///path"), "{name} {ran:?}");
            assert!(!ran.stderr.contains("kv get"), "{name} {ran:?}");
        }
        assert_eq!(folder_entries(&sandbox.path("own")), before, "{name}");
    }
}
