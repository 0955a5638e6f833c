//! A holder stops believing before the store can stop agreeing.

use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::play::Story;

pub(super) const INVARIANT: Invariant = Invariant { name: "belief ends first", guarantees: "G1", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    let is_broken = |fact: &Fact| matches!(fact, Fact::LetGo { believed: true, by_hand: false, .. });
    story.facts.iter().filter(|(_, fact)| is_broken(fact)).map(|(at, fact)| (*at, fact.to_string())).collect()
}
