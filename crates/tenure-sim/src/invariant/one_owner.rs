//! No task is owned twice: two handlers of one task never both have a valid claim.

use std::time::Duration;

use super::Invariant;
use super::one_holder::overlaps;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "one owner", guarantees: "G1, G9", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    overlaps(run, |subject| subject.starts_with("task "))
}
