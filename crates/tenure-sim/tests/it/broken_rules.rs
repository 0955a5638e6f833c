//! A checker that never failed proves nothing: each rule is broken once, and an invariant must report it within 500 seeds.

use std::sync::Mutex;

use tenure_core::sabotage::SabotageRule;
use tenure_sim::invariant::Violation;
use tenure_sim::run::run_seeds;

/// How many seeds a broken rule may stay unnoticed.
const WITHIN: u64 = 500;

/// Breaks a rule and collects the invariants that report it. At least one of `by` must be among
/// them.
fn check(rule: SabotageRule, by: &[&str]) {
    let found: Mutex<Option<(u64, Vec<Violation>)>> = Mutex::new(None);
    run_seeds(0..WITHIN, Some(rule), |run| {
        let violations = run.violations();
        let is_found = violations.iter().any(|violation| by.contains(&violation.invariant));
        if is_found {
            found.lock().expect("no thread panics").get_or_insert((run.plan.seed, violations));
        }
        !is_found
    });
    let found = found.into_inner().expect("no thread panics");
    assert!(found.is_some(), "{rule:?} was broken, and nothing in {WITHIN} seeds noticed");
}

#[test]
fn validity_counted_from_reply_is_noticed() {
    check(SabotageRule::ValidityFromSending, &["validity ends before lease", "one holder", "one owner"]);
}

#[test]
fn hold_without_margin_is_noticed() {
    check(SabotageRule::Margin, &["validity ends before lease", "one holder", "one owner"]);
}

#[test]
fn skipped_own_key_check_is_noticed() {
    check(SabotageRule::OwnPlace, &["one holder", "queue is fifo", "tokens grow"]);
}

#[test]
fn lost_reply_taken_as_refusal_is_noticed() {
    check(SabotageRule::UnknownMayBeThere, &["oldest key holds", "queue progresses", "no leaked keys"]);
}

#[test]
fn write_without_fence_is_noticed() {
    check(SabotageRule::Fence, &["guarded writes"]);
}

#[test]
fn release_before_stop_is_noticed() {
    check(SabotageRule::StopBeforeRelease, &["validity ends before lease", "one owner"]);
}

#[test]
fn deleted_foreign_claim_is_noticed() {
    check(SabotageRule::GuardedRelease, &["validity ends before lease", "one owner"]);
}

#[test]
fn state_of_former_owner_is_noticed() {
    check(
        SabotageRule::GuardedState,
        &["legal steps", "validity ends before lease", "one owner", "no task lost"],
    );
}

#[test]
fn prefix_without_slash_is_noticed() {
    check(SabotageRule::SlashAtTheEnd, &["no task lost", "validity ends before lease"]);
}

#[test]
fn snapshot_with_gap_is_noticed() {
    check(SabotageRule::WholePicture, &["views converge", "every task runs", "observers go forward"]);
}

#[test]
fn command_without_reply_is_noticed() {
    check(SabotageRule::CommandsAreAnswered, &["commands are answered"]);
}

#[test]
fn illegal_task_step_is_noticed() {
    check(SabotageRule::LegalSteps, &["legal steps"]);
}

#[test]
fn every_rule_has_a_test_here() {
    let source = include_str!("broken_rules.rs");
    for rule in SabotageRule::ALL {
        assert!(source.contains(&format!("SabotageRule::{rule:?},")), "{rule:?} is broken by no test");
    }
}
