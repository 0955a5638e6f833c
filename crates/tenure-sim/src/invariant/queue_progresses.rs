//! When all processes have left, their locks are free: no queue key is left without an owner.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "queue progresses", guarantees: "G5", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let is_broken = |fact: &Fact| matches!(fact, Fact::Overdue(what) if what.starts_with("lock "));
    run.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
