//! Seeds that once broke a promise, with what they had found.

use tenure_sim::play::play;

fn check(seed: u64) {
    let story = play(seed, None);
    let violations = story.violations();
    assert!(violations.is_empty(), "{violations:#?}\n{}", story.trace());
}

/// The node's key hung on a lease that was over, its claims already on the next one: when the key went, the node forgot its tasks, and their
/// claims lived on for as long as the process. `claims_that_outlive_the_nodes_own_key_are_given_back` shows it in ten lines.
#[test]
fn claims_on_the_next_lease_do_not_outlive_the_nodes_key() {
    for seed in [534, 802, 917, 958, 1_046] {
        check(seed);
    }
}
