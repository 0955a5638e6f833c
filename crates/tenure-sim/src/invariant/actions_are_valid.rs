//! No work is done under a hold that is not valid, not even once after a suspend.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "actions are valid", guarantees: "G1, G2", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let is_broken = |fact: &Fact| matches!(fact, Fact::Acted { valid: false, .. });
    run.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
