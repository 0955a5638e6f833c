//! What a session costs when nothing happens.

use super::child::Process;
use super::*;

/// In a process of its own: its CPU time is that of the sessions alone.
#[tokio::test]
async fn idle_keys_cost_one_renewal_per_interval() {
    let etcd = Etcd::start();
    let mut process = Process::start("idle", &etcd);
    process.expect("idle").await;
    let renewals = || etcd.member(0).metric("etcd_debugging_lease_renewed_total");
    let before = renewals();
    let said = process.hear().await;
    let renewed = renewals() - before;
    // Twelve seconds under a TTL of 6 s: one every 2 s.
    assert!((4.0..=7.0).contains(&renewed), "{renewed} renewals");
    let busy_ms: u32 = said.strip_prefix("busy ").unwrap().parse().unwrap();
    eprintln!("{renewed} renewals and {busy_ms} ms of a core in 12 s");
    assert!(busy_ms < 60, "{busy_ms} ms in 12 s is more than 0.5 % of a core");
}
