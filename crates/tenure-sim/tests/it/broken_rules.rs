//! A checker that never failed proves nothing: each rule is broken once, and must be missed within 500 seeds.

use std::sync::Mutex;

use tenure_core::sabotage::SabotageRule;
use tenure_sim::invariant::Violation;
use tenure_sim::run::play_all;

/// How many seeds a broken rule may stay unnoticed.
const WITHIN: u64 = 500;

/// Breaks a rule, and says which promises were then seen broken. At least one of `by` must be among them.
fn check(rule: SabotageRule, by: &[&str]) {
    let found: Mutex<Option<(u64, Vec<Violation>)>> = Mutex::new(None);
    play_all(0..WITHIN, Some(rule), |run| {
        let violations = run.violations();
        let is_found = violations.iter().any(|violation| by.contains(&violation.invariant));
        if is_found {
            found.lock().expect("nobody panics").get_or_insert((run.plan.seed, violations));
        }
        !is_found
    });
    let found = found.into_inner().expect("nobody panics");
    assert!(found.is_some(), "{rule:?} was broken, and nothing in {WITHIN} seeds noticed");
}

#[test]
fn validity_that_counts_from_the_answer_is_noticed() {
    check(SabotageRule::ValidityFromSending, &["validity ends before lease", "one holder", "one owner"]);
}

#[test]
fn a_hold_without_a_margin_is_noticed() {
    check(SabotageRule::Margin, &["validity ends before lease", "one holder", "one owner"]);
}

#[test]
fn a_turn_without_a_look_at_the_own_place_is_noticed() {
    check(SabotageRule::OwnPlace, &["one holder", "queue is fifo", "tokens grow"]);
}

#[test]
fn a_lost_answer_that_is_taken_for_a_no_is_noticed() {
    check(SabotageRule::UnknownMayBeThere, &["oldest key holds", "queue progresses", "no leaked keys"]);
}

#[test]
fn a_write_without_its_fence_is_noticed() {
    check(SabotageRule::Fence, &["guarded writes"]);
}

#[test]
fn a_release_before_the_stop_is_noticed() {
    check(SabotageRule::StopBeforeRelease, &["validity ends before lease", "one owner"]);
}

#[test]
fn a_claim_of_somebody_else_that_is_deleted_is_noticed() {
    check(SabotageRule::GuardedRelease, &["validity ends before lease", "one owner"]);
}

#[test]
fn a_state_written_by_a_former_owner_is_noticed() {
    check(
        SabotageRule::GuardedState,
        &["legal steps", "validity ends before lease", "one owner", "no task lost"],
    );
}

#[test]
fn a_prefix_without_its_slash_is_noticed() {
    check(SabotageRule::SlashAtTheEnd, &["no task lost", "validity ends before lease"]);
}

#[test]
fn a_picture_with_a_hole_is_noticed() {
    check(SabotageRule::WholePicture, &["views converge", "every task runs", "observers go forward"]);
}

#[test]
fn a_command_without_an_answer_is_noticed() {
    check(SabotageRule::CommandsAreAnswered, &["commands are answered"]);
}

#[test]
fn an_illegal_step_is_noticed() {
    check(SabotageRule::LegalSteps, &["legal steps"]);
}

#[test]
fn every_rule_has_a_test_here() {
    let source = include_str!("broken_rules.rs");
    for rule in SabotageRule::ALL {
        assert!(source.contains(&format!("check(SabotageRule::{rule:?},")), "{rule:?} is broken by no test");
    }
}
