//! No task is owned twice: two handlers of one task never both have a valid claim.

use std::time::Duration;

use super::Invariant;
use super::one_holder::overlaps;
use crate::play::Story;

pub(super) const INVARIANT: Invariant = Invariant { name: "one owner", guarantees: "G1, G9", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    overlaps(story, |line| line.starts_with("task "))
}
