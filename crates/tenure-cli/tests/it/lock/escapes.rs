//! Commands that leave their process group while a fault hits their supervisor: no process of the old holder overlaps the next holder.
//!
//! Each test is one fault on one store, with all escapes concurrently, each under a lock of its own.

use std::time::Duration;

use futures_util::future;
use rustix::process::{Pid, Signal, kill_process};
use tenure_fixture::Etcd;

use super::{on, sandbox};
use crate::ledger::{beating_file, intervals_in, overlap};
use crate::sandbox::{Running, Sandbox};
use crate::supervise::helpers_of;

/// Ways out of a process group; `BEAT` beats and ignores SIGTERM.
const ESCAPES: [(&str, &str); 7] = [
    ("timeout", "timeout 60 sh BEAT; true"),
    ("setsid", "setsid sh BEAT & wait"),
    ("job-control", "bash -mc 'sh BEAT & wait'"),
    ("double-fork", "(setsid sh -c 'sh BEAT & wait' &); sleep 25"),
    ("nohup", "nohup sh BEAT & wait"),
    ("ignores-term", "sh BEAT & wait; wait"),
    // The command has ended before the fault, and only its daemon is left.
    ("daemon", "(setsid sh BEAT &)"),
];

#[derive(Clone, Copy)]
enum Fault {
    Break,
    Kill,
    Stop,
    /// Supervisor and both helpers, which no supervision survives. The overlap that follows proves that the check detects one.
    KillAll,
}

fn start(sandbox: &Sandbox, name: &str, script: &str) -> Running {
    sandbox.start(&["lock", name, "--ttl", "4s", "--", "sh", "-c", script])
}

/// The pid that a command prints once it runs.
async fn up(running: &mut Running) -> Pid {
    let line = match running.hear_before_line("was lost").await {
        Ok(lost) => panic!("lost before it began: {lost}"),
        Err(line) => line,
    };
    let pid = line.strip_prefix("up ").unwrap_or_else(|| panic!("{line:?}"));
    Pid::from_raw(pid.parse().unwrap()).unwrap()
}

/// Starts a holder, injects a fault, starts a second holder; returns the overlapping beats of both, if any.
async fn overlap_after(fault: Fault, sandbox: &Sandbox, name: &str, script: &str) -> Option<String> {
    let script = script.replace("BEAT", &beating_file(sandbox, name));
    let mut first = start(sandbox, name, &script);
    let job = up(&mut first).await;
    let mut second = match fault {
        Fault::Break => {
            sandbox.ok(&["locks", "break", name, "--force", "--yes"]).await;
            // A break frees the lock before the holder notices. Once the holder's `tenure lock` has returned, no process of it runs.
            first.silence(SOON).await;
            start(sandbox, name, &script)
        }
        Fault::Kill | Fault::Stop | Fault::KillAll => {
            let mut second = start(sandbox, name, &script);
            second.hear("waiting for").await;
            strike(fault, &first);
            second
        }
    };
    let next_job = up(&mut second).await;
    // A remaining process of the first beats again within this time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let overlap = overlap(&intervals_in(sandbox, name));
    second.signal(Signal::KILL);
    if matches!(fault, Fault::Stop) {
        first.signal(Signal::KILL);
    }
    if matches!(fault, Fault::KillAll) {
        let _ = kill_process(job, Signal::KILL);
    }
    second.silence(SOON).await;
    first.silence(SOON).await;
    assert_ne!(job, next_job);
    assert_eq!(intervals_in(sandbox, name).len(), 2, "{name}");
    overlap
}

fn strike(fault: Fault, first: &Running) {
    match fault {
        Fault::Break => {}
        Fault::Kill => first.signal(Signal::KILL),
        Fault::Stop => first.signal(Signal::STOP),
        Fault::KillAll => {
            // Stop it first, so that it cannot react to the end of its helpers.
            first.signal(Signal::STOP);
            for helper in ["reap", "sentinel"].iter().flat_map(|name| helpers_of(first, name)) {
                kill_process(helper, Signal::KILL).unwrap();
            }
            first.signal(Signal::KILL);
        }
    }
}

/// Far less than the half minute after which a job ends without a signal, and far more than a kill takes.
const SOON: Duration = Duration::from_secs(15);

async fn none_overlaps(fault: Fault, sandbox: &Sandbox) {
    let cases = ESCAPES.map(|(name, script)| overlap_after(fault, sandbox, name, script));
    let overlaps = future::join_all(cases).await;
    let found: Vec<_> = ESCAPES.iter().zip(&overlaps).filter(|(_, overlap)| overlap.is_some()).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn escaped_job_after_break_never_overlaps_on_file() {
    none_overlaps(Fault::Break, &sandbox()).await;
}

#[tokio::test]
async fn escaped_job_after_break_never_overlaps_on_etcd() {
    let etcd = Etcd::start();
    none_overlaps(Fault::Break, &on(&etcd)).await;
}

#[tokio::test]
async fn escaped_job_after_kill_never_overlaps_on_file() {
    none_overlaps(Fault::Kill, &sandbox()).await;
}

#[tokio::test]
async fn escaped_job_after_kill_never_overlaps_on_etcd() {
    let etcd = Etcd::start();
    none_overlaps(Fault::Kill, &on(&etcd)).await;
}

#[tokio::test]
async fn escaped_job_after_stop_never_overlaps_on_file() {
    none_overlaps(Fault::Stop, &sandbox()).await;
}

#[tokio::test]
async fn escaped_job_after_stop_never_overlaps_on_etcd() {
    let etcd = Etcd::start();
    none_overlaps(Fault::Stop, &on(&etcd)).await;
}

/// The negative control, and what docs/guarantees.md states as out of reach.
#[tokio::test]
async fn escaped_job_overlaps_when_all_helpers_are_killed() {
    let sandbox = sandbox();
    let overlap = overlap_after(Fault::KillAll, &sandbox, "setsid", "setsid sh BEAT & wait").await;
    assert!(overlap.is_some(), "the check detects no overlap");
}
