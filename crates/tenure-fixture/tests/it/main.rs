//! What the fixture promises to the tests that use it, shown on real processes.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod members;
mod no_orphans;
mod proxy;
mod redis;
mod wires;
mod with_etcd;

use std::time::{Duration, Instant};

/// Waits until a claim holds; fails with its words after ten seconds.
fn eventually(claim: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "not within 10 s: {claim}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process with this pid exists and is no zombie.
fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
}
