//! At most one valid holder of a name.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::play::Story;

pub(super) const INVARIANT: Invariant = Invariant { name: "one holder", guarantees: "G1", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    overlaps(story, |line| !line.starts_with("task "))
}

/// Whenever two believed in one thing at once.
pub(super) fn overlaps(story: &Story, concerns: impl Fn(&str) -> bool) -> Vec<(Duration, String)> {
    let mut found = Vec::new();
    for (at, fact) in &story.facts {
        match fact {
            Fact::Held { line, beside, .. } if concerns(line) && !beside.is_empty() => {
                found.push((*at, fact.to_string()));
            }
            Fact::Believed { line, .. } if concerns(line) => found.push((*at, fact.to_string())),
            _ => {}
        }
    }
    found
}
