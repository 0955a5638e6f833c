//! The exit codes are a promise to scripts.

use std::time::{Duration, Instant};

use crate::machine::Machine;

#[tokio::test]
async fn success_is_0() {
    let machine = Machine::new();
    machine.ok(&["kv", "put", "/a", "1"]).await;
    assert_eq!(machine.ok(&["kv", "get", "/a"]).await, "1");
    machine.ok(&["version"]).await;
    assert!(machine.ok(&[]).await.contains("tenure demo"));
    assert!(machine.ok(&["--help"]).await.contains("Commands:"));
}

#[tokio::test]
async fn history_that_is_gone_or_not_there_yet_is_1() {
    let machine = Machine::new();
    for _ in 0..3 {
        machine.ok(&["kv", "put", "/a", "1"]).await;
    }
    let now = machine.json(&["kv", "get", "/a"]).await["revision"].as_str().unwrap().to_owned();
    machine.ok(&["kv", "compact", &now]).await;
    for (args, code) in [
        (&["kv", "get", "/a", "--at", "2"][..], "compacted"),
        (&["kv", "range", "", "--at", "4000000000000000000"], "future_revision"),
        (&["kv", "watch", "/a", "--after", "1"], "compacted"),
    ] {
        let ran = machine.run(&[args, &["--json"]].concat()).await;
        assert_eq!(ran.code, Some(1), "{args:?} {ran:?}");
        assert_eq!(ran.error()["code"], code, "{args:?}");
        if code == "compacted" {
            assert!(ran.error()["hint"].as_str().unwrap().contains("list the keys"), "{ran:?}");
        }
    }
}

#[tokio::test]
async fn usage_is_2() {
    let machine = Machine::new();
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
        let ran = machine.run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    assert!(machine.run(&["versoin"]).await.stderr.contains("`tenure version`"));
    let ran = machine.run(&["kv", "put", "/a", "1", "--ttl", "15"]).await;
    assert!(ran.stderr.contains("did you mean 15s?"), "{ran:?}");
}

#[tokio::test]
async fn not_found_is_3() {
    let machine = Machine::new();
    for args in [
        &["kv", "get", "/missing"][..],
        &["kv", "del", "/missing"],
        &["kv", "put", "/a", "1", "--lease", "1f"],
    ] {
        let ran = machine.run(&[args, &["--json"]].concat()).await;
        assert_eq!(ran.code, Some(3), "{args:?} {ran:?}");
        assert_eq!(ran.error()["code"], "not_found");
    }
    assert_eq!(machine.ok(&["kv", "del", "--prefix", "/missing/", "--yes"]).await, "0");
}

#[tokio::test]
async fn conflict_is_4_and_changes_nothing() {
    let machine = Machine::new();
    let first = machine.ok(&["kv", "put", "/a", "1", "--create"]).await;
    machine.ok(&["kv", "put", "/a", "2", "--if-mod", &first]).await;
    let txn = br#"{"when":[{"key":"/a","absent":true}],"then":[{"put":{"key":"/a","value":"3"}}]}"#;
    let ran = machine.run_with(&["kv", "txn"], txn).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    for args in [
        &["kv", "put", "/a", "3", "--create"][..],
        &["kv", "put", "/a", "3", "--if-mod", &first],
        &["kv", "put", "/a", "3", "--if-mod", "0"],
        &["kv", "put", "/a", "3", "--create", "--ttl", "5s"],
    ] {
        assert_eq!(machine.run(args).await.code, Some(4), "{args:?}");
    }
    assert_eq!(machine.ok(&["kv", "get", "/a"]).await, "2");
    let ran = machine.run_with(&["kv", "txn", "--either"], txn).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn an_unreachable_store_is_5_within_6_seconds() {
    let machine = Machine::new();
    // Nothing listens at the first; the second swallows every byte, because nobody accepts.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = deaf.local_addr().unwrap().to_string();
    for endpoint in ["127.0.0.1:1", &deaf] {
        for args in [&["kv", "get", "/a"][..], &["kv", "put", "/a", "1"], &["doctor"]] {
            let begin = Instant::now();
            let ran = machine.run(&[&["--endpoints", endpoint][..], args].concat()).await;
            assert_eq!(ran.code, Some(5), "{args:?} {ran:?}");
            assert!(begin.elapsed() < Duration::from_secs(6), "{args:?} took {:?}", begin.elapsed());
        }
    }
    assert!(!std::path::Path::new(&machine.path(".local")).exists(), "never a silent fallback");
}

#[tokio::test]
async fn a_wait_that_is_over_is_8() {
    let machine = Machine::new();
    machine.ok(&["kv", "put", "/b", "1"]).await;
    let ran = machine.run(&["kv", "watch", "/a", "--wait", "10ms", "--json"]).await;
    assert_eq!(ran.code, Some(8), "{ran:?}");
    assert_eq!(ran.error()["code"], "timed_out");
}

#[tokio::test]
async fn ctrl_c_is_130() {
    let machine = Machine::new();
    machine.ok(&["kv", "put", "/b", "1"]).await;
    let mut watch = machine.start(&["kv", "watch", "/a"]);
    watch.hear("watching").await;
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));
}

#[tokio::test]
async fn ctrl_c_is_130_while_stdin_is_awaited_too() {
    let machine = Machine::new();
    for args in [&["kv", "txn"][..], &["kv", "put", "/a", "-"]] {
        let mut waiting = machine.start_with_open_stdin(args);
        // More than a pipe holds: when it is through, the command is reading and waits for more.
        waiting.feed(&vec![b' '; 1 << 20]).await;
        waiting.interrupt();
        assert_eq!(waiting.end().await.0, Some(130), "{args:?}");
    }
}

/// What lies in a folder, with its kind and mode.
fn lying_in(folder: &str) -> Vec<(std::ffi::OsString, u32)> {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut lying: Vec<_> =
        entries.map(|entry| (entry.file_name(), entry.path().symlink_metadata().unwrap().mode())).collect();
    lying.sort();
    lying
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let machine = Machine::new();
    let path = machine.file("own/other.db", "this is not a database, and it must stay as it is");
    let before = lying_in(&machine.path("own"));
    let ran = machine.run(&["--store", &format!("file://{path}"), "kv", "put", "/a", "1"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("hint:"), "{ran:?}");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("this is not"));
    assert_eq!(lying_in(&machine.path("own")), before);
}

/// As root, a device that was opened as a store lost its mode, and everybody else on the machine lost the device.
#[tokio::test]
async fn what_is_no_file_at_all_is_refused_and_left_alone() {
    let machine = Machine::new();
    machine.file("own/file", "");
    let path = |name: &str| machine.path(&format!("own/{name}"));
    let made = |program: &str, args: &[&str]| {
        std::process::Command::new(program).args(args).status().is_ok_and(|status| status.success())
    };
    assert!(made("mkfifo", &["-m", "644", &path("fifo")]));
    std::os::unix::fs::symlink(path("fifo"), path("link")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    let mut names = vec!["fifo", "link", "folder", "socket"];
    // Another name for /dev/null, which is itself left out of this. Only root may make one.
    if made("mknod", &["-m", "666", &path("node"), "c", "1", "3"]) {
        names.push("node");
    }
    let before = lying_in(&machine.path("own"));
    for name in names {
        let store = format!("file://{}", path(name));
        for (args, code) in [
            (&["kv", "put", "/a", "1"][..], [1, 2]),
            (&["doctor", "--json"], [1, 2]),
            (&["lock", "a", "--", "true"], [125, 125]),
        ] {
            let ran = machine.run(&[&["--store", &store], args].concat()).await;
            assert!(ran.code.is_some_and(|found| code.contains(&found)), "{name} {ran:?}");
            let told = format!("{}{}", ran.stdout, ran.stderr);
            assert!(told.contains("--store file:///path"), "{name} {ran:?}");
            assert!(!ran.stderr.contains("kv get"), "{name} {ran:?}");
        }
        assert_eq!(lying_in(&machine.path("own")), before, "{name}");
    }
}
