//! Tokens of one name only grow, from holder to holder.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::play::Story;

pub(super) const INVARIANT: Invariant =
    Invariant { name: "tokens grow", source: "GUARANTEES rule 3; I2 TOKEN", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    let mut newest = BTreeMap::new();
    let mut found = Vec::new();
    for (at, fact) in &story.facts {
        let Fact::Held { line, who, token, .. } = fact else { continue };
        let Some((before, holder)) = newest.insert(line.clone(), (*token, who)) else { continue };
        // A task that was paused runs again under the same claim.
        let is_same_hold = before == *token && holder == who && line.starts_with("task ");
        if before >= *token && !is_same_hold {
            found.push((*at, format!("{fact}, after token {before} of {holder}")));
        }
    }
    found
}
