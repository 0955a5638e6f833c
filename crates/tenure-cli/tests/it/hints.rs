//! Refusals report the reason and the correct next step.

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future;
use rustix::process::{Resource, Rlimit, prlimit};
use tenure_fixture::Etcd;
use tokio::process::Command;

use crate::sandbox::{RUN_DEADLINE, Ran, Sandbox, binary};

fn sandbox() -> Sandbox {
    Sandbox::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

fn hint(ran: &Ran) -> String {
    ran.error()["hint"].as_str().unwrap_or_else(|| panic!("no hint: {ran:?}")).to_owned()
}

#[tokio::test]
async fn invalid_value_is_named_with_valid_one() {
    let sandbox = sandbox();
    let long = "r".repeat(1_001);
    for (flags, message, next) in [
        (&["--margin", "15s"][..], "a margin of 15s is too long", "--margin 3750ms or less"),
        (&["--margin", "8s"], "a margin of 8s is too long", "--margin 3750ms or less"),
        (&["--margin", "12s", "--grace", "1s"], "a margin of 12s is too long", "--margin 7750ms or less"),
        (&["--margin", "2s", "--grace", "9s"], "a grace of 9s is too long", "--grace 6750ms or less"),
        (&["--ttl", "100000000d"], "a TTL of", "a shorter --ttl"),
        (&["--reason", &long], "the reason has 1001 bytes", "one sentence"),
    ] {
        let ran = sandbox.run(&[&["lock", "a", "--json"], flags, &["--", "true"]].concat()).await;
        assert_eq!(ran.code, Some(125), "{flags:?} {ran:?}");
        assert!(ran.error()["message"].as_str().unwrap().contains(message), "{flags:?} {ran:?}");
        assert!(hint(&ran).contains(next), "{flags:?} {ran:?}");
    }
}

#[tokio::test]
async fn unreadable_file_is_named_with_its_flag() {
    let sandbox = sandbox();
    let folder = sandbox.path("");
    let empty = sandbox.file("empty", "");
    for (flags, flag) in [
        (&["--user", "ann", "--password-file", "/nowhere"][..], "--password-file"),
        (&["--user", "ann", "--password-file", &folder], "--password-file"),
        (&["--user", "ann", "--password-file", &empty], "--password-file"),
        (&["--cacert", "/nowhere"], "--cacert"),
    ] {
        let ran =
            sandbox.run(&[&["--endpoints", "127.0.0.1:1", "--json"], flags, &["locks", "ls"]].concat()).await;
        assert_eq!(ran.code, Some(2), "{flags:?} {ran:?}");
        assert!(hint(&ran).contains(flag), "{flags:?} {ran:?}");
    }
}

/// The hint once was to add the `--` that was there already.
#[tokio::test]
async fn command_after_separator_may_start_with_dash() {
    let sandbox = sandbox();
    let ran = sandbox.run(&["lock", "a", "--json", "--", "-x"]).await;
    assert_eq!((ran.code, ran.error()["code"].as_str()), (Some(127), Some("command_not_found")), "{ran:?}");
    let ran = sandbox.run(&["lock", "a", "-x"]).await;
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.stderr.contains("put -- in front of a command"), "{ran:?}");
}

/// The reason was once only in a warning, and the error itself did not contain it.
#[tokio::test]
async fn full_store_is_reported_at_start() {
    let etcd = Etcd::builder().quota_backend_bytes(1).start();
    let sandbox = sandbox().with("TENURE_ENDPOINTS", etcd.endpoints());
    let wrappers = [&["lock", "a"][..], &["elect", "a"], &["once", "a", "--every", "1h"]];
    let runs = wrappers.map(async |wrapper| {
        let begin = Instant::now();
        let ran = sandbox.run(&[wrapper, &["--json", "--", "true"]].concat()).await;
        assert_eq!(ran.code, Some(125), "{ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        let error = ran.error();
        assert!(error["message"].as_str().unwrap().contains("no space left"), "{ran:?}");
        assert!(error["hint"].as_str().unwrap().contains("compact"), "{ran:?}");
    });
    future::join_all(runs).await;
}

/// A full disk is a reply of the store, not a store that does not reply.
#[tokio::test]
async fn full_disk_is_reported_at_release() {
    let sandbox = sandbox();
    let tenure = binary();
    // Without the trap, a write above the limit kills the process.
    let script = format!("trap '' XFSZ; exec {tenure} lock a -- sh -c 'echo up; read x; exit 7'");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env_clear().env("HOME", sandbox.path("")).kill_on_drop(true);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Sandbox::run_on(shell);
    assert_eq!(running.line().await, "up");
    // Enough for the files of the store, too little for the log of the database.
    let limit = Rlimit { current: Some(4_096), maximum: None };
    prlimit(Some(running.pid()), Resource::Fsize, limit).unwrap();
    let begin = Instant::now();
    running.feed(b"end\n").await;
    let (code, stderr) = running.end().await;
    assert_eq!(code, Some(7), "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(stderr.contains("expires within 15 s"), "{stderr}");
    assert!(stderr.contains("disk I/O error") && !stderr.contains("does not reply"), "{stderr}");
}

#[tokio::test]
async fn closed_stdout_releases_the_lock() {
    let sandbox = sandbox();
    for wrapper in ["lock", "elect"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = sandbox.command(&[wrapper, "a"]).stdout(writer).spawn().unwrap();
        let output = tokio::time::timeout(RUN_DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{wrapper} {stderr}");
        assert!(stderr.contains("the reader of the output has closed the pipe"), "{wrapper} {stderr}");
        let ran = sandbox.run(&["lock", "a", "--try", "--", "true"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

/// The lock of a run is named `once/NAME`; the prefix must not shorten the limit for NAME.
#[tokio::test]
async fn once_accepts_longest_names() {
    let sandbox = sandbox();
    let names =
        ["n".repeat(251), "n".repeat(252), "n".repeat(256), format!("{}m", "n".repeat(255)), "é".repeat(128)];
    for name in &names {
        let once = async || sandbox.run(&["once", name, "--every", "36500d", "--", "echo", "ran"]).await;
        let ran = once().await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ran\n"), "{} bytes {ran:?}", name.len());
        assert_eq!(once().await.code, Some(124), "{} bytes", name.len());
    }
    let ran = sandbox.run(&["once", &"n".repeat(257), "--every", "1h", "--", "true"]).await;
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.stderr.contains("a name of 257 bytes"), "{ran:?}");
    // Two names that differ only in their last letter do not block each other.
    let script = "echo up; read x";
    let mut first = sandbox.start_with_open_stdin(&[
        "once",
        &format!("{}a", "x".repeat(255)),
        "--every",
        "1h",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(first.line().await, "up");
    let other = sandbox.run(&["once", &format!("{}b", "x".repeat(255)), "--every", "1h", "--", "true"]).await;
    assert_eq!(other.code, Some(0), "{other:?}");
    first.feed(b"end\n").await;
    assert_eq!(first.end().await.0, Some(0));
}
