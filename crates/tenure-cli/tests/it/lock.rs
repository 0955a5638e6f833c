//! `tenure lock` as scripts see it: exit codes, environment, waiting, losing.
//!
//! Every script ends within half a minute, so a failing test leaves no process.
//! A command line cannot contain NUL; the library's tests check such names.

mod escapes;
mod exclusion;
mod fenced;
mod once;
mod waiting;

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future;
use rustix::process::Signal;
use serde_json::json;
use tenure_fixture::Etcd;

use crate::sandbox::{Running, Sandbox, binary};

fn sandbox() -> Sandbox {
    Sandbox::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

fn on(etcd: &Etcd) -> Sandbox {
    sandbox().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// Prints `up`, waits for a line on stdin and exits with 7.
const SCRIPT: [&str; 4] = ["--", "sh", "-c", "echo up; read x; exit 7"];

/// Starts `SCRIPT` under the lock `a` and waits until it runs.
async fn hold(sandbox: &Sandbox, flags: &[&str]) -> Running {
    let mut running = sandbox.start_with_open_stdin(&[&["lock", "a"], flags, &SCRIPT].concat());
    assert_eq!(running.line().await, "up");
    running
}

async fn finish(mut running: Running) -> (Option<i32>, String) {
    running.feed(b"end\n").await;
    running.end().await
}

/// The output of `locks show` once the holder has recorded when it acquired.
async fn show_recorded(sandbox: &Sandbox, flags: &[&str]) -> serde_json::Value {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let shown = sandbox.json(&[&["locks", "show", "a"], flags].concat()).await;
        if shown["holders"][0]["since"].is_string() {
            return shown;
        }
        assert!(Instant::now() < until, "{shown}");
    }
}

async fn is_free(sandbox: &Sandbox) -> bool {
    sandbox.json(&["locks", "show", "a"]).await["held"] == json!(false)
}

#[tokio::test]
async fn exit_code_is_passed_on() {
    let sandbox = sandbox();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137)] {
        let ran = sandbox.run(&["lock", "a", "--", "sh", "-c", script]).await;
        assert_eq!(ran.code, Some(code), "{script} {ran:?}");
    }
    assert!(is_free(&sandbox).await);
    assert_eq!(sandbox.ok(&["lease", "ls"]).await, "");
}

#[tokio::test]
async fn flags_after_command_belong_to_it() {
    let sandbox = sandbox();
    let args = ["lock", "--ttl", "20s", "a", "printf", "%s|", "--ttl", "-v", "--json"];
    assert_eq!(sandbox.ok(&args).await, "--ttl|-v|--json|");
    let args = ["lock", "a", "--ttl", "20s", "--", "sh", "-c", "echo $TENURE_TTL_SECONDS"];
    assert_eq!(sandbox.ok(&args).await, "20");
}

#[tokio::test]
async fn command_gets_hold_in_environment_and_stdin() {
    let sandbox = sandbox();
    let script = "echo $TENURE_LOCK $TENURE_LOCK_KEY $TENURE_FENCING_TOKEN $TENURE_LEASE $TENURE_TTL_SECONDS $TENURE_NAMESPACE \
                  $TENURE_NODE $ETCD_LOCK_KEY $ETCD_LOCK_REV; cat";
    let args =
        ["lock", "a", "--namespace", "shop", "--reason", "release 7", "--json", "--", "sh", "-c", script];
    let mut running = sandbox.start_with_open_stdin(&args);
    let output = running.line().await;
    let acquired: serde_json::Value = serde_json::from_str(&running.hear("tenure.lock/v1").await).unwrap();
    let shown = show_recorded(&sandbox, &["--namespace", "shop"]).await;
    let holder = &shown["holders"][0];
    let (token, lease) = (shown["token"].as_str().unwrap(), holder["lease"].as_str().unwrap());
    let key = acquired["key"].as_str().unwrap();
    assert!(key.starts_with(&format!("/shop/locks/a/{lease}-")), "{key}");
    assert_eq!(output, format!("a {key} {token} {lease} 15 shop web-1 {key} {token}"));
    assert_eq!(
        acquired,
        json!({"schema": "tenure.lock/v1", "name": "a", "key": key, "token": token, "lease": lease,
               "ttl_seconds": 15.0, "namespace": "shop", "node": "web-1"})
    );
    let left = &holder["remaining_seconds"];
    assert!(left.as_f64().unwrap() <= 15.0, "{shown}");
    let (pid, since, queued) = (running.pid().as_raw_nonzero().get(), &holder["since"], &holder["queued"]);
    assert!(since.as_str().unwrap().ends_with('Z'), "{shown}");
    assert_eq!(
        shown,
        json!({"schema": "tenure.lock/v1", "name": "a", "held": true, "token": token, "waiters": [],
               "backend": "file", "revision": shown["revision"], "holders": [{
                   "node": "web-1", "pid": pid, "user": holder["user"], "command": format!("sh -c {script}"),
                   "reason": "release 7", "since": since, "queued": queued, "lease": lease, "ttl_seconds": 15.0,
                   "remaining_seconds": left, "token": token}]})
    );
    running.feed(b"through\n").await;
    assert_eq!(running.line().await, "through");
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(143));
}

#[tokio::test]
async fn unrunnable_command_exits_126_or_127() {
    let sandbox = sandbox();
    let plain = sandbox.file("plain", "");
    for (command, code, word) in [
        ("no-such-command", 127, "command_not_found"),
        (&*plain, 126, "not_executable"),
        ("/", 126, "not_executable"),
    ] {
        for wrapper in [&["lock", "a", "--json"][..], &["once", "a", "--every", "1h", "--json"]] {
            let ran = sandbox.run(&[wrapper, &["--", command]].concat()).await;
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{ran:?}");
            assert_eq!(ran.error()["code"], word);
        }
    }
    assert!(!Path::new(&sandbox.path(".local")).exists(), "looked up before any store is opened");
}

#[tokio::test]
async fn bad_input_exits_125_and_runs_nothing() {
    let sandbox = sandbox();
    let before = sandbox.ok(&["kv", "put", "/a", "1"]).await;
    let marker = sandbox.path("marker");
    let long = "n".repeat(300);
    for (args, expected) in [
        (&[""][..], "must not be empty"),
        (&[&long], "300 bytes"),
        (&["a\nb"], "control characters"),
        (&["\x1b[2J"], "control characters"),
        (&["a", "--ttl", "0s"], "the TTL is zero"),
        (&["a", "--ttl", "15"], "did you mean 15s"),
        (&["a", "--ttl", "1ms"], "a TTL of 1ms is too short"),
        (&["a", "--grace", "9s"], "a grace of 9s is too long for a TTL of 15s"),
        (&["a", "--margin", "10ms"], "a margin of 10ms is too short"),
        (&["a", "--ttl", "99999999999h"], "TTL"),
        (&["a", "-n", "0"], "number would be zero"),
        (&["a", "-n", "2", "--shared"], "exclude each other"),
        (&["a", "--try", "--wait", "1s"], "exclude each other"),
        (&["a", "-E", "256"], "256"),
        (&["a", "--signal", "WINCH"], "use TERM"),
        (&["a", "--namespace", "x//y"], "namespace"),
        (&["a", "--frobnicate"], "--frobnicate"),
        (&["a", "--store", "redis://a"], "redis"),
        (&["a", "extra"], "extra"),
        (&[], "NAME"),
    ] {
        let ran = sandbox.run(&[&["lock"], args, &["--", "touch", &marker]].concat()).await;
        assert_eq!(ran.code, Some(125), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
        assert!(ran.stdout.is_empty() && !ran.stderr.contains('\x1b'), "{args:?} {ran:?}");
    }
    let grace = sandbox.run(&["lock", "a", "--grace", "9s", "--", "touch", &marker]).await;
    for number in ["750ms", "5.25s", "6.25s", "--grace 8000ms"] {
        assert!(grace.stderr.contains(number), "{grace:?} lacks {number}");
    }
    for (args, expected) in [
        (&["lock", "a", "--"][..], "no command after --"),
        (&["lock", "a", "--frobnicate"], "has no flag"),
        (&["lock"], "NAME"),
        (&["once", "a", "--every", "1h"], "CMD"),
        (&["once", "a", "--", "touch", &marker], "--every"),
        (&["once", "a", "--every", "10ms", "--", "touch", &marker], "too short"),
    ] {
        let ran = sandbox.run(args).await;
        assert_eq!(ran.code, Some(125), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?} {ran:?}");
    }
    assert!(!Path::new(&marker).exists());
    assert_eq!(sandbox.json(&["kv", "range", ""]).await["revision"], before.as_str());
}

/// Addresses that take every byte and never reply, while the sockets are open.
fn deaf(count: usize) -> (Vec<std::net::TcpListener>, Vec<String>) {
    let sockets = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let sockets: Vec<_> = sockets.collect();
    let addresses = sockets.iter().map(|socket| socket.local_addr().unwrap().to_string()).collect();
    (sockets, addresses)
}

const WRAPPERS: [&[&str]; 4] = [
    &["lock", "a"],
    &["lock", "a", "--try"],
    &["lock", "a", "--wait", "60s", "--connect-timeout", "4s"],
    &["once", "a", "--every", "1h"],
];

/// Every wrapper on an unusable store fails in time. The runs are concurrent, because they only wait.
/// With `--wait`, connecting is part of the wait unless `--connect-timeout` limits it.
async fn every_wrapper_exits_125_in_time(endpoints: &[&str]) {
    let sandbox = sandbox();
    let marker = sandbox.path("marker");
    let all = endpoints.iter().flat_map(|endpoints| WRAPPERS.map(|wrapper| (*endpoints, wrapper)));
    let runs = all.map(async |(endpoints, wrapper)| {
        let begin = Instant::now();
        let args = [&["--endpoints", endpoints], wrapper, &["--", "touch", &marker]].concat();
        let ran = sandbox.run(&args).await;
        assert_eq!(ran.code, Some(125), "{args:?} {ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(6), "{args:?} {:?} {ran:?}", begin.elapsed());
    });
    future::join_all(runs).await;
    assert!(!Path::new(&marker).exists() && !Path::new(&sandbox.path(".local")).exists());
}

/// No process listens at the first address; the others accept no connection, so the kernel takes every byte and no reply comes.
#[tokio::test]
async fn unreachable_store_exits_125_within_6_seconds() {
    let (_sockets, deaf) = deaf(7);
    every_wrapper_exits_125_in_time(&["127.0.0.1:1", &deaf[0], &deaf.join(",")]).await;
}

/// One member of three is alive and has no quorum. It is the first address, or the fifth after four silent ones have taken most of the
/// time.
#[tokio::test]
async fn etcd_without_majority_exits_125_within_6_seconds() {
    let etcd = Etcd::cluster(3);
    let (_sockets, deaf) = deaf(4);
    let member = etcd.member(0).client_addr().to_string();
    etcd.member(1).kill();
    etcd.member(2).kill();
    let late = format!("{},{member}", deaf.join(","));
    every_wrapper_exits_125_in_time(&[&member, &late]).await;
}

#[tokio::test]
async fn lost_lock_stops_command_and_exits_122() {
    let sandbox = sandbox();
    for (flags, script, code) in [
        (&[][..], "echo up; sleep 25", 122),
        (&["--lost-exit-code", "99"], "echo up; sleep 25", 99),
        (&[], "trap '' TERM; echo up; sleep 25", 122),
        (&[], "trap 'exit 0' TERM; echo up; sleep 25 & wait", 122),
        (&["--signal", "USR1"], "trap 'exit 0' USR1; trap '' TERM; echo up; sleep 25 & wait", 122),
    ] {
        for how in ["break", "revoke"] {
            let mut running = sandbox.start(&[&["lock", "a"], flags, &["--", "sh", "-c", script]].concat());
            assert_eq!(running.line().await, "up");
            let shown = sandbox.json(&["locks", "show", "a"]).await;
            let begin = Instant::now();
            match how {
                "break" => sandbox.ok(&["locks", "break", "a", "--yes"]).await,
                _ => {
                    sandbox
                        .ok(&["lease", "revoke", shown["holders"][0]["lease"].as_str().unwrap(), "--yes"])
                        .await
                }
            };
            running.silence(Duration::from_secs(10)).await;
            let (got, stderr) = running.end().await;
            assert_eq!(got, Some(code), "{script} {how} {stderr}");
            assert!(stderr.contains("'a' was lost"), "{stderr}");
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        }
    }
    assert!(is_free(&sandbox).await);
}

#[tokio::test]
async fn lock_without_command_is_held_until_signalled() {
    let sandbox = sandbox();
    for signal in [Signal::TERM, Signal::INT] {
        let mut running = sandbox.start(&["lock", "--json", "a"]);
        let acquired: serde_json::Value = serde_json::from_str(&running.line().await).unwrap();
        assert_eq!(acquired["token"], sandbox.json(&["locks", "show", "a"]).await["token"]);
        running.signal(signal);
        assert_eq!(running.end().await.0, Some(0));
        assert!(is_free(&sandbox).await);
    }
    let mut running = sandbox.start(&["lock", "a"]);
    let line = running.line().await;
    assert!(line.starts_with("a\t") && line.contains("\t/tenure/locks/a/"), "{line}");
    sandbox.ok(&["locks", "break", "a", "--yes"]).await;
    assert_eq!(running.end().await.0, Some(122));
}

#[tokio::test]
async fn signal_ends_command_before_release() {
    let sandbox = sandbox();
    let script = "trap 'echo bye; read x; exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let mut running = sandbox.start_with_open_stdin(&["lock", "a", "--", "sh", "-c", script]);
    assert_eq!(running.line().await, "up");
    running.signal(Signal::TERM);
    assert_eq!(running.line().await, "bye");
    assert!(!is_free(&sandbox).await, "held until the command has ended");
    assert_eq!(finish(running).await.0, Some(9));
    assert!(is_free(&sandbox).await);
}

#[tokio::test]
async fn exit_code_survives_etcd_outage() {
    for is_gone in [true, false] {
        let etcd = Etcd::start();
        let sandbox = on(&etcd);
        let running = hold(&sandbox, &[]).await;
        // The connection is refused, or no reply comes.
        if is_gone {
            etcd.member(0).kill();
        } else {
            etcd.member(0).pause();
        }
        let begin = Instant::now();
        let (code, stderr) = finish(running).await;
        assert_eq!(code, Some(7), "{stderr}");
        assert!(stderr.contains("expires within 15 s"), "{stderr}");
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn lock_is_kept_for_min_hold() {
    let sandbox = sandbox();
    let begin = Instant::now();
    let ran = sandbox.run(&["lock", "a", "--min-hold", "1500ms", "--", "sh", "-c", "exit 5"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(begin.elapsed() >= Duration::from_millis(1_500), "{:?}", begin.elapsed());
}

/// The last act of a command may end its own lock. With `--min-hold` the loss was once detected only during the remaining hold time, and
/// counted as one that came after the command.
#[tokio::test]
async fn lock_lost_by_last_act_exits_122() {
    let etcd = Etcd::start();
    for sandbox in [sandbox(), on(&etcd)] {
        let sandbox = sandbox.with("TENURE_BINARY", binary());
        for last_act in ["lease revoke --yes $TENURE_LEASE", "locks break --yes $TENURE_LOCK"] {
            let script = format!("exec $TENURE_BINARY {last_act} >/dev/null 2>&1");
            let begin = Instant::now();
            let ran = sandbox.run(&["lock", "a", "--min-hold", "30s", "--", "sh", "-c", &script]).await;
            assert_eq!(ran.code, Some(122), "{last_act} {ran:?}");
            assert!(ran.stderr.contains("'a' was lost"), "{last_act} {ran:?}");
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "a lost lock has no hold time left: {last_act}"
            );
            assert!(is_free(&sandbox).await);
        }
    }
}

/// The command ended while the lock was held, so its own exit code is correct.
#[tokio::test]
async fn loss_after_command_keeps_exit_code() {
    let sandbox = sandbox();
    let mut running = sandbox.start(&["-vv", "lock", "a", "--min-hold", "30s", "--", "sh", "-c", "exit 5"]);
    running.hear("lock kept for --min-hold").await;
    sandbox.ok(&["locks", "break", "a", "--yes"]).await;
    let (code, stderr) = running.end().await;
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("'a' was lost after the command had ended"), "{stderr}");
}

/// A supervisor that was stopped between acquiring the lock and starting the command finds its deadline passed.
#[tokio::test]
async fn command_past_its_deadline_never_starts() {
    let sandbox = sandbox();
    let marker = sandbox.path("marker");
    let args =
        ["internal", "supervise", "--term-after", "0ms", "--kill-after", "10s", "--", "touch", &marker];
    let ran = sandbox.run(&args).await;
    assert_eq!(ran.code, Some(122), "{ran:?}");
    assert!(ran.stderr.contains("ended before the command was started"), "{ran:?}");
    assert!(!Path::new(&marker).exists());
}
