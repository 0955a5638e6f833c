//! At most one valid holder of a name.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "one holder", guarantees: "G1", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    overlaps(run, |subject| !subject.starts_with("task "))
}

/// Whenever two was_valid in one thing at once.
pub(super) fn overlaps(run: &RunRecord, concerns: impl Fn(&str) -> bool) -> Vec<(Duration, String)> {
    let mut found = Vec::new();
    for (at, fact) in &run.facts {
        match fact {
            Fact::Held { subject, conflicting, .. } if concerns(subject) && !conflicting.is_empty() => {
                found.push((*at, fact.to_string()));
            }
            Fact::Overlapping { subject, .. } if concerns(subject) => found.push((*at, fact.to_string())),
            _ => {}
        }
    }
    found
}
