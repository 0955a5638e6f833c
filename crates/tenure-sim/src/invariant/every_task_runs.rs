//! Every task eventually runs to its end, once faults have ended.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "every task runs", guarantees: "G9", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let is_broken = |fact: &Fact| matches!(fact, Fact::Overdue(what) if !what.starts_with("lock "));
    run.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
