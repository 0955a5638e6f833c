//! Once faults have ended, every view shows what is there.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::play::Story;

pub(super) const INVARIANT: Invariant = Invariant { name: "views converge", guarantees: "G7", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    let is_broken = |fact: &Fact| matches!(fact, Fact::View { shows, truth, .. } if shows != truth);
    story.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
