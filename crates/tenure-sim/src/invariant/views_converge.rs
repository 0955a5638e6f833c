//! Once faults have ended, every view shows what is there.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "views converge", guarantees: "G7", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let is_broken = |fact: &Fact| matches!(fact, Fact::View { shows, truth, .. } if shows != truth);
    run.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
