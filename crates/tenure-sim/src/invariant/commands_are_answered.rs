//! No command is lost: every sender that waits receives the result of its command.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Invariant;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant =
    Invariant { name: "commands are answered", guarantees: "G6, G9", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let mut found = Vec::new();
    let mut answered = BTreeSet::new();
    for (at, fact) in &run.facts {
        if let Fact::Handled { command, outcome } = fact {
            answered.insert(command);
            if outcome.starts_with("unknown") {
                found.push((*at, fact.to_string()));
            }
        }
    }
    let living = run.facts.iter().find_map(|(_, fact)| match fact {
        Fact::Compared { living } => Some(living),
        _ => None,
    });
    for (at, fact) in &run.facts {
        if let Fact::Sent { command, process, .. } = fact
            && !answered.contains(command)
            && (process == "observer" || living.is_some_and(|living| living.contains(process)))
        {
            found.push((*at, format!("{fact}, without a reply")));
        }
    }
    found
}
