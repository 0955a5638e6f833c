//! Once faults have ended, whoever stands first is told so: no place is left in a line that nobody wants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::layout::Key;
use tenure_core::revision::Token;

use super::{Invariant, Replay};
use crate::audit::line_of;
use crate::history::Fact;
use crate::play::Story;

/// How long a place may stand first before its owner is told, in a world without faults.
const TOLD_WITHIN: Duration = Duration::from_secs(3);

pub(super) const INVARIANT: Invariant = Invariant { name: "first holds", guarantees: "G5", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    let over = story.facts.iter().find(|(_, fact)| *fact == Fact::Over);
    let Some((over, _)) = over else { return vec![(story.lasted, "the day was never over".to_owned())] };
    let mut replay = Replay::default();
    let mut first: BTreeMap<String, (Token, Duration)> = BTreeMap::new();
    for entry in story.log.iter().take_while(|entry| entry.at <= *over) {
        replay.step(entry);
        let Some(line) = line_in_which(story, entry.change.key()) else { continue };
        let head = replay
            .pairs
            .values()
            .filter(|pair| line_in_which(story, &pair.key).as_ref() == Some(&line))
            .map(|pair| Token(pair.created))
            .min();
        match head {
            None => drop(first.remove(&line)),
            Some(head) if first.get(&line).is_some_and(|(token, _)| *token == head) => {}
            Some(head) => drop(first.insert(line, (head, entry.at))),
        }
    }
    let held: BTreeSet<(&String, Token)> = story
        .facts
        .iter()
        .filter_map(|(_, fact)| match fact {
            Fact::Held { line, token, .. } => Some((line, *token)),
            _ => None,
        })
        .collect();
    let stuck = first
        .iter()
        .filter(|(line, (token, since))| *over > *since + TOLD_WITHIN && !held.contains(&(*line, *token)));
    stuck
        .map(|(line, (token, since))| {
            (*over, format!("token {token} stands first in {line} since {since:?}, and nobody was told"))
        })
        .collect()
}

/// The line of a lock or an election.
fn line_in_which(story: &Story, key: &[u8]) -> Option<String> {
    let key = story.layout.parse(key)?;
    if matches!(key, Key::Waiter(..) | Key::Candidate(..)) { line_of(&key) } else { None }
}
