//! Seeds that once broke a promise, with what they had found.

use tenure_sim::run::play;

fn check(seed: u64) {
    let run = play(seed, None);
    let violations = run.violations();
    assert!(violations.is_empty(), "{violations:#?}\n{}", run.trace());
}

/// All places of a subject were lost with their lease while one was being entered; the next subject of that name took the late answer for its
/// own, and two held. `late_reply_of_former_queue_is_ignored` shows it in ten lines.
#[test]
fn a_late_answer_lets_nobody_hold_what_is_gone() {
    for seed in [947, 1_749] {
        check(seed);
    }
}

/// An entry whose answer came late was found in the store, and who was before it was read after that: by then a leader had handed over and taken
/// it away with all before it, so nobody was before it, and it led beside the heir.
#[test]
fn a_place_that_is_gone_by_the_second_read_leads_nobody() {
    check(18_306);
}

/// A session had recovered, and the news that the node's key had gone with the former lease was still on its way: the node believed that it had its
/// place, and claimed. `one_is_a_member_while_its_lease_is_held_and_its_key_is_its_own` shows that, and
/// `a_claim_from_before_the_node_joined_again_is_given_back_although_its_answer_was_lost` why nobody could claim its tasks from then on.
#[test]
fn a_node_whose_place_went_with_a_former_lease_claims_nothing_and_leaves_nothing() {
    check(28_079);
}

/// The node's key hung on a lease that was over, its claims already on the next one: when the key went, the node forgot its tasks, and their
/// claims lived on for as long as the process. `claims_that_outlive_the_nodes_own_key_are_given_back` shows it in ten lines.
#[test]
fn claims_on_the_next_lease_do_not_outlive_the_nodes_key() {
    for seed in [534, 802, 917, 958, 1_046] {
        check(seed);
    }
}
