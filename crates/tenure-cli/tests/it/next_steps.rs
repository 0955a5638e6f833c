//! Refusals say why, and the next thing to do: the right one.

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future;
use rustix::process::{Resource, Rlimit, prlimit};
use tenure_fixture::Etcd;
use tokio::process::Command;

use crate::machine::{Machine, PATIENCE, Ran, binary};

fn machine() -> Machine {
    Machine::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

fn hint(ran: &Ran) -> String {
    ran.error()["hint"].as_str().unwrap_or_else(|| panic!("no hint: {ran:?}")).to_owned()
}

#[tokio::test]
async fn what_does_not_fit_is_named_with_what_would() {
    let machine = machine();
    let long = "r".repeat(1_001);
    for (flags, message, next) in [
        (&["--margin", "15s"][..], "a margin of 15s is too long", "--margin 3750ms or less"),
        (&["--margin", "8s"], "a margin of 8s is too long", "--margin 3750ms or less"),
        (&["--margin", "12s", "--grace", "1s"], "a margin of 12s is too long", "--margin 7750ms or less"),
        (&["--margin", "2s", "--grace", "9s"], "a grace of 9s is too long", "--grace 6750ms or less"),
        (&["--ttl", "100000000d"], "a TTL of", "a shorter --ttl"),
        (&["--reason", &long], "the reason has 1001 bytes", "one sentence"),
    ] {
        let ran = machine.run(&[&["lock", "a", "--json"], flags, &["--", "true"]].concat()).await;
        assert_eq!(ran.code, Some(125), "{flags:?} {ran:?}");
        assert!(ran.error()["message"].as_str().unwrap().contains(message), "{flags:?} {ran:?}");
        assert!(hint(&ran).contains(next), "{flags:?} {ran:?}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_with_the_flag_that_named_it() {
    let machine = machine();
    let folder = machine.path("");
    let empty = machine.file("empty", "");
    for (flags, flag) in [
        (&["--user", "ann", "--password-file", "/nowhere"][..], "--password-file"),
        (&["--user", "ann", "--password-file", &folder], "--password-file"),
        (&["--user", "ann", "--password-file", &empty], "--password-file"),
        (&["--cacert", "/nowhere"], "--cacert"),
    ] {
        let ran =
            machine.run(&[&["--endpoints", "127.0.0.1:1", "--json"], flags, &["locks", "ls"]].concat()).await;
        assert_eq!(ran.code, Some(2), "{flags:?} {ran:?}");
        assert!(hint(&ran).contains(flag), "{flags:?} {ran:?}");
    }
}

/// The hint was to put -- in front of it, which was there.
#[tokio::test]
async fn a_command_after_the_dashes_may_begin_with_one() {
    let machine = machine();
    let ran = machine.run(&["lock", "a", "--json", "--", "-x"]).await;
    assert_eq!((ran.code, ran.error()["code"].as_str()), (Some(127), Some("command_not_found")), "{ran:?}");
    let ran = machine.run(&["lock", "a", "-x"]).await;
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.stderr.contains("put -- in front of a command"), "{ran:?}");
}

/// Why the store did not let us in stood in a warning, and the last word was that it did not.
#[tokio::test]
async fn a_start_that_the_store_has_no_space_for_says_so() {
    let etcd = Etcd::builder().quota_backend_bytes(1).start();
    let machine = machine().with("TENURE_ENDPOINTS", etcd.endpoints());
    let wrappers = [&["lock", "a"][..], &["elect", "a"], &["once", "a", "--every", "1h"]];
    let runs = wrappers.map(async |wrapper| {
        let begin = Instant::now();
        let ran = machine.run(&[wrapper, &["--json", "--", "true"]].concat()).await;
        assert_eq!(ran.code, Some(125), "{ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        let error = ran.error();
        assert!(error["message"].as_str().unwrap().contains("no space left"), "{ran:?}");
        assert!(error["hint"].as_str().unwrap().contains("compact"), "{ran:?}");
    });
    future::join_all(runs).await;
}

/// A disk that takes no byte more answers quite well.
#[tokio::test]
async fn a_release_that_the_disk_does_not_take_says_so() {
    let machine = machine();
    let tenure = binary();
    // Without the trap, a write above the limit kills.
    let script = format!("trap '' XFSZ; exec {tenure} lock a -- sh -c 'echo up; read x; exit 7'");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env_clear().env("HOME", machine.path("")).kill_on_drop(true);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Machine::run_on(shell);
    assert_eq!(running.line().await, "up");
    // Enough for the queue, too little for the log of the database.
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
async fn a_lock_whose_announcement_nobody_reads_is_given_back_and_that_is_said() {
    let machine = machine();
    for wrapper in ["lock", "elect"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = machine.command(&[wrapper, "a"]).stdout(writer).spawn().unwrap();
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{wrapper} {stderr}");
        assert!(stderr.contains("the reader of the output has closed the pipe"), "{wrapper} {stderr}");
        let ran = machine.run(&["lock", "a", "--try", "--", "true"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

/// The lock of a run has a name that begins with `once/`, and that is nobody's business.
#[tokio::test]
async fn a_run_may_have_a_name_as_long_as_any_other() {
    let machine = machine();
    let names =
        ["n".repeat(251), "n".repeat(252), "n".repeat(256), format!("{}m", "n".repeat(255)), "é".repeat(128)];
    for name in &names {
        let once = async || machine.run(&["once", name, "--every", "36500d", "--", "echo", "ran"]).await;
        let ran = once().await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ran\n"), "{} bytes {ran:?}", name.len());
        assert_eq!(once().await.code, Some(124), "{} bytes", name.len());
    }
    let ran = machine.run(&["once", &"n".repeat(257), "--every", "1h", "--", "true"]).await;
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.stderr.contains("a name of 257 bytes"), "{ran:?}");
    // Two that differ only in their last letter do not stand in each other's way.
    let script = "echo up; read x";
    let mut first = machine.start_with_open_stdin(&[
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
    let other = machine.run(&["once", &format!("{}b", "x".repeat(255)), "--every", "1h", "--", "true"]).await;
    assert_eq!(other.code, Some(0), "{other:?}");
    first.feed(b"end\n").await;
    assert_eq!(first.end().await.0, Some(0));
}
