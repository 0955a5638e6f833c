//! An observer of an election never sees an older leader after a newer one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "observers go forward", guarantees: "G7", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let mut newest = BTreeMap::new();
    let mut found = Vec::new();
    for (at, fact) in &run.facts {
        let Fact::Observed { subject, process, token: Some(token) } = fact else { continue };
        let before = newest.insert((subject.clone(), process.clone()), *token);
        if let Some(before) = before.filter(|before| before > token) {
            found.push((*at, format!("{fact}, after token {before}")));
        }
    }
    found
}
