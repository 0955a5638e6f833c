//! A holder stops believing before the store can stop agreeing.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant =
    Invariant { name: "validity ends before lease", guarantees: "G1", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let is_broken =
        |fact: &Fact| matches!(fact, Fact::KeyDeleted { was_valid: true, by_operator: false, .. });
    run.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
