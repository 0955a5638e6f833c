//! Those who come second: refused, waiting, sharing, and looked at from outside.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tenure_fixture::Etcd;

use super::{finish, hold, is_free, machine, on, show_recorded};

#[tokio::test]
async fn what_is_held_is_124_for_those_who_do_not_wait() {
    let machine = machine();
    let first = hold(&machine, &[]).await;
    for (flags, code) in [
        (&["--try"][..], 124),
        (&["--wait", "300ms"], 124),
        (&["--wait", "0s"], 124),
        (&["--try", "-E", "9"], 9),
        (&["--try", "--shared"], 124),
    ] {
        let ran = machine.run(&[&["lock", "a", "--json"], flags, &["--", "true"]].concat()).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{flags:?} {ran:?}");
        assert_eq!(ran.error()["code"], "not_acquired");
        assert!(ran.error()["message"].as_str().unwrap().contains("held by web-1 pid"), "{ran:?}");
    }
    let shown = machine.json(&["locks", "show", "a"]).await;
    assert_eq!(shown["waiters"], json!([]), "nobody who was refused stands in line");
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(machine.run(&["lock", "a", "--wait", "0s", "--", "true"]).await.code, Some(0), "it is free");
}

/// `locks ls` counted the time in the queue: 8 s for a holder of 1.2 s.
#[tokio::test]
async fn held_time_excludes_the_wait() {
    let machine = machine();
    let first = hold(&machine, &[]).await;
    let mut second = machine.start_with_open_stdin(&[&["lock", "a"][..], &super::SCRIPT].concat());
    let until = Instant::now() + Duration::from_secs(10);
    while machine.json(&["locks", "show", "a"]).await["waiters"] == json!([]) {
        assert!(Instant::now() < until, "it waits");
    }
    // The time in the queue is what is measured.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let waiter = machine.json(&["locks", "show", "a"]).await["waiters"][0].clone();
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(second.line().await, "up");
    let shown = show_recorded(&machine, &[]).await;
    let holder = &shown["holders"][0];
    assert_eq!(holder["queued"], waiter["since"], "{shown}");
    assert!(holder["since"].as_str() > holder["queued"].as_str(), "{shown}");
    let listed = machine.ok(&["locks", "ls"]).await;
    // Milliseconds below a second, as `245ms`, then `1s`; the wait was longer.
    let held_for = listed.split('\t').nth(4).unwrap();
    assert!(held_for.ends_with("ms") || held_for == "1s", "{listed}");
    assert_eq!(finish(second).await.0, Some(7));
}

/// A try was refused although permits were free, and a caller with another count was admitted.
#[tokio::test]
async fn try_takes_free_permits_and_shared_locks() {
    let machine = machine();
    for flags in [&["--permits", "2"][..], &["--shared"]] {
        let first = hold(&machine, flags).await;
        for how in [&["--try"][..], &["--wait", "0s"]] {
            let ran = machine.run(&[&["lock", "a"], flags, how, &["--", "echo", "ok"]].concat()).await;
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ok\n"), "{flags:?} {how:?} {ran:?}");
        }
        assert_eq!(finish(first).await.0, Some(7));
    }
    let (one, two) = (hold(&machine, &["--permits", "2"]).await, hold(&machine, &["--permits", "2"]).await);
    let full = machine.run(&["lock", "a", "--permits", "2", "--try", "--", "true"]).await;
    assert_eq!(full.code, Some(124), "{full:?}");
    let differs = machine.run(&["lock", "a", "--json", "--permits", "5", "--", "true"]).await;
    let message = differs.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("5 permits") && message.contains("2 permits"), "{differs:?}");
    assert_eq!((finish(one).await.0, finish(two).await.0), (Some(7), Some(7)));
    assert!(is_free(&machine).await);
}

/// It was three seconds more, and the reason was that somebody else had it, which nobody could know.
#[tokio::test]
async fn a_wait_ends_on_time_and_says_why_also_if_the_store_falls_silent() {
    let etcd = Etcd::start();
    let machine = on(&etcd);
    let _first = hold(&machine, &[]).await;
    let begin = Instant::now();
    let second = machine.start(&["lock", "a", "--json", "--wait", "2s", "--", "true"]);
    while machine.json(&["locks", "show", "a"]).await["waiters"] == json!([]) {
        assert!(begin.elapsed() < Duration::from_secs(1), "too late to fall silent in time");
    }
    etcd.member(0).pause();
    let (code, stderr) = second.end().await;
    assert_eq!(code, Some(124), "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?} {stderr}", begin.elapsed());
    assert!(stderr.contains("the store does not reply") && !stderr.contains("another process"), "{stderr}");
}

#[tokio::test]
async fn one_who_waits_is_told_for_whom_and_comes_after() {
    let machine = machine();
    let first = hold(&machine, &[]).await;
    let mut second = machine.start(&["lock", "a", "--", "echo", "second"]);
    let told = second.hear("waiting for 'a'").await;
    let pid = first.pid().as_raw_nonzero();
    assert!(
        told.contains(&format!("held by web-1 pid {pid} (sh -c echo up; read x; exit 7) for ")),
        "{told}"
    );
    assert!(told.ends_with(", you are next"), "{told}");
    let mut third = machine.start(&["lock", "a", "--", "echo", "third"]);
    assert!(third.hear("waiting for 'a'").await.ends_with(", 1 ahead of you"));
    let shown = machine.json(&["locks", "show", "a"]).await;
    let waiter = |at: usize, running: &crate::machine::Running| {
        let since = &shown["waiters"][at]["since"];
        json!({"node": "web-1", "pid": running.pid().as_raw_nonzero().get(), "position": at + 1, "since": since})
    };
    assert_eq!(shown["waiters"], json!([waiter(0, &second), waiter(1, &third)]));
    let listed = machine.json(&["locks", "ls"]).await;
    assert_eq!(
        (&listed["locks"][0]["name"], &listed["locks"][0]["waiters"]),
        (&json!("a"), &shown["waiters"])
    );
    third.signal(Signal::INT);
    assert_eq!(third.end().await.0, Some(130), "asked to end while it waits");
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(second.line().await, "second");
    assert_eq!(second.end().await.0, Some(0));
    assert!(is_free(&machine).await);
}

#[tokio::test]
async fn one_who_loses_its_session_while_it_waits_stands_in_line_again() {
    let etcd = Etcd::start();
    let machine = on(&etcd);
    let first = hold(&machine, &[]).await;
    let held = machine.json(&["locks", "show", "a"]).await["holders"][0]["lease"].clone();
    let mut second = machine.start(&["lock", "a", "--", "echo", "second"]);
    second.hear("you are next").await;
    let leases = machine.json(&["lease", "ls"]).await["leases"].clone();
    let theirs = leases.as_array().unwrap().iter().find(|lease| lease["lease"] != held).unwrap();
    machine.ok(&["lease", "revoke", theirs["lease"].as_str().unwrap(), "--yes"]).await;
    second.hear("entering the queue again").await;
    assert_eq!(finish(first).await.0, Some(7));
    assert_eq!(second.line().await, "second");
    assert_eq!(second.end().await.0, Some(0));
}

#[tokio::test]
async fn permits_and_readers_hold_together_and_writers_alone() {
    let machine = machine();
    let readers = [hold(&machine, &["--shared"]).await, hold(&machine, &["--shared"]).await];
    assert_eq!(machine.run(&["lock", "a", "--try", "--", "true"]).await.code, Some(124));
    let shown = machine.json(&["locks", "show", "a"]).await;
    assert_eq!(shown["holders"].as_array().unwrap().len(), 2);
    for reader in readers {
        assert_eq!(finish(reader).await.0, Some(7));
    }
    let permits = [hold(&machine, &["-n", "2"]).await, hold(&machine, &["-n", "2"]).await];
    assert_eq!(machine.run(&["lock", "a", "-n", "2", "--try", "--", "true"]).await.code, Some(124));
    let ran = machine.run(&["locks", "break", "a", "--json", "--yes"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "which of them: {ran:?}");
    let broken = machine.json(&["locks", "break", "a", "--force", "--yes"]).await;
    assert_eq!(broken["broken"].as_array().unwrap().len(), 2);
    for permit in permits {
        assert_eq!(permit.end().await.0, Some(122));
    }
}

#[tokio::test]
async fn a_lock_is_broken_only_for_the_holder_that_was_meant() {
    let machine = machine();
    let ran = machine.run(&["locks", "break", "a", "--json", "--yes"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(3), &json!("not_found")), "{ran:?}");
    let free = machine.json(&["locks", "show", "a"]).await;
    assert_eq!(
        free,
        json!({"schema": "tenure.lock/v1", "name": "a", "held": false, "token": null, "holders": [],
               "waiters": [], "backend": "file", "revision": free["revision"]})
    );
    let revision = machine.json(&["locks", "show", "a"]).await["revision"].clone();
    assert!(revision.is_string(), "{revision}");
    assert_eq!(
        machine.json(&["locks", "ls"]).await,
        json!({"schema": "tenure.lock/v1", "locks": [], "backend": "file", "revision": revision})
    );
    let first = hold(&machine, &[]).await;
    let token = machine.json(&["locks", "show", "a"]).await["token"].as_str().unwrap().to_owned();
    let ran = machine.run(&["locks", "break", "a", "--token", "1", "--json", "--yes"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
    assert!(!is_free(&machine).await);
    let ran = machine.run(&["locks", "break", "a", "--token", &token, "--yes"]).await;
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), &*token), "{ran:?}");
    assert!(ran.stderr.contains("broke 'a', held by web-1 pid"), "{ran:?}");
    assert_eq!(first.end().await.0, Some(122));
    assert_eq!(machine.run(&["locks", "show", ""]).await.code, Some(2));
}
