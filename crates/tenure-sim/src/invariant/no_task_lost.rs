//! No task is lost: each one that was submitted, and not deleted, has an end that is stored.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::task::TaskState;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "no task lost", guarantees: "G9", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let deleted: BTreeSet<&String> = run
        .facts
        .iter()
        .filter_map(|(_, fact)| if let Fact::Deleted { task } = fact { Some(task) } else { None })
        .collect();
    let mut found = Vec::new();
    for (at, fact) in &run.facts {
        let Fact::Final { task, state } = fact else { continue };
        let has_ended = state.is_some_and(TaskState::is_terminal);
        // An overdue task exists, and is reported as overdue.
        let is_overdue = run.facts.iter().any(
            |(_, fact)| matches!(fact, Fact::Overdue(what) if what.split(' ').next() == Some(task.as_str())),
        );
        if !has_ended && !is_overdue && !deleted.contains(task) {
            found.push((*at, fact.to_string()));
        }
    }
    found
}
