//! `tenure once`: at most one run per period.

use std::time::{Duration, Instant};

use futures_util::future;
use serde_json::json;
use tenure_fixture::{Etcd, Mode, Proxy};

use super::{finish, on, sandbox};
use crate::sandbox::RUN_DEADLINE;

/// A century: no test crosses the end of such a period.
const EVER: &str = "36500d";

#[tokio::test]
async fn command_runs_once_per_period() {
    let sandbox = sandbox();
    let runs = || sandbox.run(&["once", "a", "--every", EVER, "--json", "--", "echo", "ran"]);
    let all = future::join_all((0..6).map(|_| runs())).await;
    let ran: Vec<_> = all.iter().filter(|ran| ran.code == Some(0)).collect();
    assert_eq!((ran.len(), ran[0].stdout.as_str()), (1, "ran\n"), "{all:?}");
    for other in all.iter().filter(|ran| ran.code != Some(0)) {
        assert_eq!((other.code, &other.error()["code"]), (Some(124), &json!("not_acquired")), "{other:?}");
        assert_eq!(other.stdout, "");
    }
    let again = runs().await;
    assert_eq!(again.code, Some(124));
    assert!(again.error()["message"].as_str().unwrap().contains("on web-1 pid"), "{again:?}");
    // The same record, with a start one period ago.
    let stored = sandbox.ok(&["kv", "get", "/tenure/once/a"]).await;
    let mut record: serde_json::Value = serde_json::from_str(&stored).unwrap();
    assert_eq!(record["exit_code"], 0);
    record["started"] = json!(0);
    sandbox.ok(&["kv", "put", "/tenure/once/a", &record.to_string()]).await;
    let ran = sandbox.run(&["once", "a", "--every", "1h", "--", "echo", "ran"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ran\n"), "{ran:?}");
}

#[tokio::test]
async fn failed_run_counts_without_retry_failed() {
    let sandbox = sandbox();
    let once = |flags: &'static [&'static str], script: &'static str| {
        let sandbox = &sandbox;
        async move {
            let args = [&["once", "a", "--every", EVER], flags, &["--", "sh", "-c", script]].concat();
            sandbox.run(&args).await.code
        }
    };
    assert_eq!(once(&[], "exit 3").await, Some(3));
    assert_eq!(once(&[], "exit 0").await, Some(124));
    assert_eq!(once(&["-E", "0"], "exit 5").await, Some(0));
    assert_eq!(once(&["--retry-failed"], "exit 4").await, Some(4));
    assert_eq!(once(&["--retry-failed"], "exit 0").await, Some(0));
    assert_eq!(once(&["--retry-failed"], "exit 0").await, Some(124));
}

#[tokio::test]
async fn running_and_killed_runs_both_count() {
    let sandbox = sandbox();
    let mut first = sandbox.start(&["once", "a", "--every", EVER, "--", "sh", "-c", "echo up; sleep 25"]);
    assert_eq!(first.line().await, "up");
    for flags in [&[][..], &["--retry-failed"]] {
        let args = [&["once", "a", "--every", EVER], flags, &["--", "true"]].concat();
        assert_eq!(sandbox.run(&args).await.code, Some(124), "{flags:?}");
    }
    first.signal(rustix::process::Signal::KILL);
    first.silence(Duration::from_secs(10)).await;
    // The killed run's lock would block others until its lease expires; the record of the run blocks them for the period.
    sandbox.ok(&["locks", "break", "once/a", "--yes"]).await;
    let again = sandbox.run(&["once", "a", "--every", EVER, "--json", "--", "true"]).await;
    assert_eq!(again.code, Some(124), "{again:?}");
    assert!(again.error()["message"].as_str().unwrap().contains("its end was not recorded"), "{again:?}");
}

/// A slow host reads the record, another host runs and ends before the slow one has the lock: the slow one must re-read the record.
#[tokio::test]
async fn stale_read_causes_no_second_run() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let (quick, slow) = (on(&etcd), sandbox().with("TENURE_ENDPOINTS", proxy.addr().to_string()));
    proxy.set(Mode::Delay(Duration::from_millis(250)));
    let reads = || etcd.member(0).metric_with("grpc_server_started_total", "grpc_method=\"Range\"");
    let before = reads();
    let args = ["once", "a", "--every", EVER, "--", "echo", "ran"];
    let late = async {
        let deadline = Instant::now() + RUN_DEADLINE;
        while reads() <= before {
            assert!(Instant::now() < deadline, "the slow host sends no read");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The reply, the lease and the lock take the slow host four times the delay.
        quick.run(&args).await
    };
    let (slow, quick) = tokio::join!(slow.run(&args), late);
    let mut codes = [slow.code, quick.code];
    codes.sort();
    assert_eq!(codes, [Some(0), Some(124)], "{slow:?} {quick:?}");
    assert_eq!(slow.stdout + &quick.stdout, "ran\n");
}

#[tokio::test]
async fn exit_code_survives_silent_etcd() {
    let etcd = Etcd::start();
    let sandbox = on(&etcd);
    let args = ["once", "a", "--every", EVER, "--", "sh", "-c", "echo up; read x; exit 7"];
    let mut running = sandbox.start_with_open_stdin(&args);
    assert_eq!(running.line().await, "up");
    etcd.member(0).pause();
    let begin = Instant::now();
    let (code, stderr) = finish(running).await;
    assert_eq!(code, Some(7), "{stderr}");
    assert!(stderr.contains("expires within") && stderr.contains("the run counts"), "{stderr}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

/// A host with a clock ten days ahead recorded a run: every run until then was once blocked.
#[tokio::test]
async fn future_run_record_is_listed_and_ignored() {
    let sandbox = sandbox();
    let args = ["once", "a", "--every", "1h", "--", "echo", "ran"];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ahead = now + Duration::from_secs(10 * 86_400);
    let record = json!({"started": u64::try_from(ahead.as_millis()).unwrap(), "exit_code": 0, "node": "web-2", "pid": 7});
    sandbox.ok(&["kv", "put", "/tenure/once/a", &record.to_string()]).await;
    let listed = sandbox.ok(&["once", "ls"]).await;
    assert!(listed.contains("in the future") && listed.contains("web-2"), "{listed}");
    assert_eq!(sandbox.json(&["once", "ls"]).await["runs"][0]["in_future"], json!(true));
    let ran = sandbox.run(&args).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ran\n"), "{ran:?}");
    assert_eq!(ran.stderr.matches("recorded in the future").count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("recorded in the future") && ran.stderr.contains("web-2 pid 7"), "{ran:?}");
    // The new record has the correct time and counts. At the end of an hour it belongs to the period before.
    let listed = sandbox.json(&["once", "ls"]).await;
    let run = &listed["runs"][0];
    assert_eq!(
        (&run["name"], &run["in_future"], &run["exit_code"]),
        (&json!("a"), &json!(false), &json!(0)),
        "{listed}"
    );
}

/// Hosts with slightly different clocks agree on one run at the start of a period.
#[tokio::test]
async fn run_recorded_slightly_ahead_counts() {
    let sandbox = sandbox();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ahead = now + Duration::from_secs(300);
    let record = json!({"started": u64::try_from(ahead.as_millis()).unwrap(), "exit_code": 0, "node": "web-2", "pid": 7});
    sandbox.ok(&["kv", "put", "/tenure/once/a", &record.to_string()]).await;
    let ran = sandbox.run(&["once", "a", "--every", "2s", "--", "echo", "ran"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(124), ""), "{ran:?}");
}

#[tokio::test]
async fn unreadable_record_is_left_alone() {
    let sandbox = sandbox();
    sandbox.ok(&["kv", "put", "/tenure/once/a", "not json"]).await;
    let ran = sandbox.run(&["once", "a", "--every", EVER, "--", "echo", "ran"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(125), ""), "{ran:?}");
    assert_eq!(sandbox.ok(&["kv", "get", "/tenure/once/a"]).await, "not json");
}
