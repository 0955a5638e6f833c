//! Tokens of one name only grow, from holder to holder.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::queue::LockMode;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "tokens grow", guarantees: "G3", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    // The newest of all, and the newest of exclusive holders.
    let (mut newest, mut newest_alone) = (BTreeMap::new(), BTreeMap::new());
    let mut found = Vec::new();
    for (at, fact) in &run.facts {
        let Fact::Held { subject, process, token, mode, .. } = fact else { continue };
        // Shared holders may be notified in any order.
        let is_alone = *mode == LockMode::Exclusive;
        let before = if is_alone { newest.get(subject) } else { newest_alone.get(subject) }.copied();
        newest
            .entry(subject.clone())
            .and_modify(|top| *top = (*token, process).max(*top))
            .or_insert((*token, process));
        if is_alone {
            newest_alone.insert(subject.clone(), (*token, process));
        }
        let Some((before, holder)) = before else { continue };
        // A task that was paused runs again under the same claim.
        let is_same_hold = before == *token && holder == process && subject.starts_with("task ");
        if before >= *token && !is_same_hold {
            found.push((*at, format!("{fact}, after token {before} of {holder}")));
        }
    }
    found
}
