//! Seeds that once broke a promise, with what they had found.

use tenure_sim::run::run_seed;

fn check(seed: u64) {
    let run = run_seed(seed, None);
    let violations = run.violations();
    assert!(violations.is_empty(), "{violations:#?}\n{}", run.trace());
}

/// All places of a subject were lost with their lease while one was being entered; the next subject of that name took the late answer for its
/// own, and two held. `late_reply_of_former_queue_is_ignored` shows it in ten lines.
#[test]
fn late_reply_grants_no_deleted_hold() {
    for seed in [947, 1_749] {
        check(seed);
    }
}

/// An entry with a late reply was found in the store, and its predecessors were read after that. By
/// then a leader had transferred and deleted it with all keys before it. It found no older key and
/// led beside the new leader.
#[test]
fn deleted_queue_key_never_leads() {
    check(18_306);
}

/// A session had recovered, and the event that the node's key was deleted with the former lease was
/// still in flight. The node assumed that its key existed, and claimed. The claim was never released,
/// so no node could claim its tasks from then on; the worker's tests in tenure-core cover both steps.
#[test]
fn node_without_key_claims_nothing() {
    check(28_079);
}

/// The node's key was on a lease that had expired, its claims already on the next one. When the key
/// was deleted, the node forgot its tasks, and their claims existed for as long as the process.
/// A test of the worker in tenure-core covers the same case.
#[test]
fn claims_end_with_node_key() {
    for seed in [534, 802, 917, 958, 1_046] {
        check(seed);
    }
}
