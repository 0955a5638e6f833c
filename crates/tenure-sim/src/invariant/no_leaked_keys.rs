//! When all processes have left, no key and no lease is left except those that are kept on purpose.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "no leaked keys", guarantees: "G5, G8", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let is_broken = |fact: &Fact| matches!(fact, Fact::Left(_));
    run.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
