//! Requests for a held lock: refused, waiting, sharing, and listed by other commands.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tenure_fixture::Etcd;

use super::{finish, hold, is_free, on, sandbox, show_recorded};

#[tokio::test]
async fn held_lock_exits_124_without_wait() {
    let sandbox = sandbox();
    let first = hold(&sandbox, &[]).await;
    for (flags, code) in [
        (&["--try"][..], 124),
        (&["--wait", "300ms"], 124),
        (&["--wait", "0s"], 124),
        (&["--try", "-E", "9"], 9),
        (&["--try", "--shared"], 124),
    ] {
        let ran = sandbox.run(&[&["lock", "a", "--json"], flags, &["--", "true"]].concat()).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{flags:?} {ran:?}");
        assert_eq!(ran.error()["code"], "not_acquired");
        assert!(ran.error()["message"].as_str().unwrap().contains("held by web-1 pid"), "{ran:?}");
    }
    let shown = sandbox.json(&["locks", "show", "a"]).await;
    assert_eq!(shown["waiters"], json!([]), "a refused request leaves no waiter");
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(sandbox.run(&["lock", "a", "--wait", "0s", "--", "true"]).await.code, Some(0), "it is free");
}

/// `locks ls` once included the time in the queue: 8 s for a holder of 1.2 s.
#[tokio::test]
async fn held_time_excludes_the_wait() {
    let sandbox = sandbox();
    let first = hold(&sandbox, &[]).await;
    let mut second = sandbox.start_with_open_stdin(&[&["lock", "a"][..], &super::SCRIPT].concat());
    let until = Instant::now() + Duration::from_secs(10);
    while sandbox.json(&["locks", "show", "a"]).await["waiters"] == json!([]) {
        assert!(Instant::now() < until, "the waiter is not in the queue");
    }
    // This sleep is the time in the queue that must not be counted.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let waiter = sandbox.json(&["locks", "show", "a"]).await["waiters"][0].clone();
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(second.line().await, "up");
    let shown = show_recorded(&sandbox, &[]).await;
    let holder = &shown["holders"][0];
    assert_eq!(holder["queued"], waiter["since"], "{shown}");
    assert!(holder["since"].as_str() > holder["queued"].as_str(), "{shown}");
    let listed = sandbox.ok(&["locks", "ls"]).await;
    // Milliseconds below a second, as `245ms`, then `1s`; the wait was longer.
    let held_for = listed.split('\t').nth(4).unwrap();
    assert!(held_for.ends_with("ms") || held_for == "1s", "{listed}");
    assert_eq!(finish(second).await.0, Some(7));
}

/// A `--try` was once refused although permits were free, and a caller with another count was admitted.
#[tokio::test]
async fn try_takes_free_permits_and_shared_locks() {
    let sandbox = sandbox();
    for flags in [&["--permits", "2"][..], &["--shared"]] {
        let first = hold(&sandbox, flags).await;
        for how in [&["--try"][..], &["--wait", "0s"]] {
            let ran = sandbox.run(&[&["lock", "a"], flags, how, &["--", "echo", "ok"]].concat()).await;
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ok\n"), "{flags:?} {how:?} {ran:?}");
        }
        assert_eq!(finish(first).await.0, Some(7));
    }
    let (one, two) = (hold(&sandbox, &["--permits", "2"]).await, hold(&sandbox, &["--permits", "2"]).await);
    let full = sandbox.run(&["lock", "a", "--permits", "2", "--try", "--", "true"]).await;
    assert_eq!(full.code, Some(124), "{full:?}");
    let differs = sandbox.run(&["lock", "a", "--json", "--permits", "5", "--", "true"]).await;
    let message = differs.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("5 permits") && message.contains("2 permits"), "{differs:?}");
    assert_eq!((finish(one).await.0, finish(two).await.0), (Some(7), Some(7)));
    assert!(is_free(&sandbox).await);
}

/// The wait once took three seconds more, and reported another holder although the store did not reply.
#[tokio::test]
async fn wait_ends_on_time_despite_silent_store() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let _first = hold(&sandbox, &[]).await;
    let begin = Instant::now();
    let second = sandbox.start(&["lock", "a", "--json", "--wait", "2s", "--", "true"]);
    while sandbox.json(&["locks", "show", "a"]).await["waiters"] == json!([]) {
        assert!(begin.elapsed() < Duration::from_secs(1), "the waiter queued too late for this test");
    }
    etcd.member(0).pause();
    let (code, stderr) = second.end().await;
    assert_eq!(code, Some(124), "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?} {stderr}", begin.elapsed());
    assert!(stderr.contains("the store does not reply") && !stderr.contains("another process"), "{stderr}");
}

#[tokio::test]
async fn waiter_names_holder_and_acquires_next() {
    let sandbox = sandbox();
    let first = hold(&sandbox, &[]).await;
    let mut second = sandbox.start(&["lock", "a", "--", "echo", "second"]);
    let output = second.hear("waiting for 'a'").await;
    let pid = first.pid().as_raw_nonzero();
    assert!(
        output.contains(&format!("held by web-1 pid {pid} (sh -c echo up; read x; exit 7) for ")),
        "{output}"
    );
    assert!(output.ends_with(", you are next"), "{output}");
    let mut third = sandbox.start(&["lock", "a", "--", "echo", "third"]);
    assert!(third.hear("waiting for 'a'").await.ends_with(", 1 ahead of you"));
    let shown = sandbox.json(&["locks", "show", "a"]).await;
    let waiter = |at: usize, running: &crate::sandbox::Running| {
        let since = &shown["waiters"][at]["since"];
        json!({"node": "web-1", "pid": running.pid().as_raw_nonzero().get(), "position": at + 1, "since": since})
    };
    assert_eq!(shown["waiters"], json!([waiter(0, &second), waiter(1, &third)]));
    let listed = sandbox.json(&["locks", "ls"]).await;
    assert_eq!(
        (&listed["locks"][0]["name"], &listed["locks"][0]["waiters"]),
        (&json!("a"), &shown["waiters"])
    );
    third.signal(Signal::INT);
    assert_eq!(third.end().await.0, Some(130), "a signal ends the wait");
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(second.line().await, "second");
    assert_eq!(second.end().await.0, Some(0));
    assert!(is_free(&sandbox).await);
}

#[tokio::test]
async fn waiter_with_lost_session_queues_again() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let first = hold(&sandbox, &[]).await;
    let held = sandbox.json(&["locks", "show", "a"]).await["holders"][0]["lease"].clone();
    let mut second = sandbox.start(&["lock", "a", "--", "echo", "second"]);
    second.hear("you are next").await;
    let leases = sandbox.json(&["lease", "ls"]).await["leases"].clone();
    let waiting_lease = leases.as_array().unwrap().iter().find(|lease| lease["lease"] != held).unwrap();
    sandbox.ok(&["lease", "revoke", waiting_lease["lease"].as_str().unwrap(), "--yes"]).await;
    second.hear("entering the queue again").await;
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(second.line().await, "second");
    assert_eq!(second.end().await.0, Some(0));
}

#[tokio::test]
async fn readers_and_permits_share_writers_exclude() {
    let sandbox = sandbox();
    let readers = [hold(&sandbox, &["--shared"]).await, hold(&sandbox, &["--shared"]).await];
    assert_eq!(sandbox.run(&["lock", "a", "--try", "--", "true"]).await.code, Some(124));
    let shown = sandbox.json(&["locks", "show", "a"]).await;
    assert_eq!(shown["holders"].as_array().unwrap().len(), 2);
    for reader in readers {
        assert_eq!(finish(reader).await.0, Some(7));
    }
    let permits = [hold(&sandbox, &["-n", "2"]).await, hold(&sandbox, &["-n", "2"]).await];
    assert_eq!(sandbox.run(&["lock", "a", "-n", "2", "--try", "--", "true"]).await.code, Some(124));
    let ran = sandbox.run(&["locks", "break", "a", "--json", "--yes"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "which of them: {ran:?}");
    let broken = sandbox.json(&["locks", "break", "a", "--force", "--yes"]).await;
    assert_eq!(broken["broken"].as_array().unwrap().len(), 2);
    for permit in permits {
        assert_eq!(permit.end().await.0, Some(122));
    }
}

#[tokio::test]
async fn break_requires_intended_holder() {
    let sandbox = sandbox();
    let ran = sandbox.run(&["locks", "break", "a", "--json", "--yes"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(3), &json!("not_found")), "{ran:?}");
    let free = sandbox.json(&["locks", "show", "a"]).await;
    assert_eq!(
        free,
        json!({"schema": "tenure.lock/v1", "name": "a", "held": false, "token": null, "holders": [],
               "waiters": [], "backend": "file", "revision": free["revision"]})
    );
    let revision = sandbox.json(&["locks", "show", "a"]).await["revision"].clone();
    assert!(revision.is_string(), "{revision}");
    assert_eq!(
        sandbox.json(&["locks", "ls"]).await,
        json!({"schema": "tenure.lock/v1", "locks": [], "backend": "file", "revision": revision})
    );
    let first = hold(&sandbox, &[]).await;
    let token = sandbox.json(&["locks", "show", "a"]).await["token"].as_str().unwrap().to_owned();
    let ran = sandbox.run(&["locks", "break", "a", "--token", "1", "--json", "--yes"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
    assert!(!is_free(&sandbox).await);
    let ran = sandbox.run(&["locks", "break", "a", "--token", &token, "--yes"]).await;
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), &*token), "{ran:?}");
    assert!(ran.stderr.contains("broke 'a', held by web-1 pid"), "{ran:?}");
    assert_eq!(first.end().await.0, Some(122));
    assert_eq!(sandbox.run(&["locks", "show", ""]).await.code, Some(2));
}
