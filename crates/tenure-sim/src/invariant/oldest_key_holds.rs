//! Once faults have ended, the process with the oldest key of a queue is notified: no key is left
//! without an owner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::layout::Key;
use tenure_core::revision::Token;

use super::{Invariant, Replay};
use crate::audit::subject_of;
use crate::history::Fact;
use crate::run::RunRecord;

/// How long a key may be the oldest before its owner is notified, in a world without faults.
const NOTIFIED_WITHIN: Duration = Duration::from_secs(3);

pub(super) const INVARIANT: Invariant = Invariant { name: "oldest key holds", guarantees: "G5", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let over = run.facts.iter().find(|(_, fact)| *fact == Fact::Over);
    let Some((over, _)) = over else { return vec![(run.lasted, "the day was never over".to_owned())] };
    let mut replay = Replay::default();
    let mut first: BTreeMap<String, (Token, Duration)> = BTreeMap::new();
    for entry in run.log.iter().take_while(|entry| entry.at <= *over) {
        replay.step(entry);
        let Some(subject) = line_in_which(run, entry.change.key()) else { continue };
        let head = replay
            .pairs
            .values()
            .filter(|pair| line_in_which(run, &pair.key).as_ref() == Some(&subject))
            .map(|pair| Token(pair.created))
            .min();
        match head {
            None => drop(first.remove(&subject)),
            Some(head) if first.get(&subject).is_some_and(|(token, _)| *token == head) => {}
            Some(head) => drop(first.insert(subject, (head, entry.at))),
        }
    }
    let held: BTreeSet<(&String, Token)> = run
        .facts
        .iter()
        .filter_map(|(_, fact)| match fact {
            Fact::Held { subject, token, .. } => Some((subject, *token)),
            _ => None,
        })
        .collect();
    let stuck = first.iter().filter(|(subject, (token, since))| {
        *over > *since + NOTIFIED_WITHIN && !held.contains(&(*subject, *token))
    });
    stuck
        .map(|(subject, (token, since))| {
            (
                *over,
                format!(
                    "token {token} is the oldest of {subject} since {since:?}, and its owner was not notified"
                ),
            )
        })
        .collect()
}

/// The subject of a lock or an election.
fn line_in_which(run: &RunRecord, key: &[u8]) -> Option<String> {
    let key = run.layout.parse(key)?;
    if matches!(key, Key::Waiter(..) | Key::Candidate(..)) { subject_of(&key) } else { None }
}
