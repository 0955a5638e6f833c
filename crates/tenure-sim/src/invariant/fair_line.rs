//! The line is fair: who holds has nobody before it, but those beside whom it may.

use std::time::Duration;

use tenure::store::KeyValue;
use tenure_core::queue::LockMode;
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;

use super::{Invariant, Replay};
use crate::audit::line_of;
use crate::history::Fact;
use crate::play::Story;

pub(super) const INVARIANT: Invariant = Invariant { name: "fair line", guarantees: "G3, G5", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    let mut replay = Replay::default();
    let mut log = story.log.iter().peekable();
    let mut found = Vec::new();
    for (at, fact) in &story.facts {
        let Fact::Held { line, token, mode, .. } = fact else { continue };
        // Within one millisecond the order is not known: what goes in it may have gone before.
        while let Some(entry) = log.next_if(|entry| entry.at <= *at) {
            replay.step(entry);
        }
        let before: Vec<&KeyValue> = replay
            .pairs
            .values()
            .filter(|pair| Token(pair.created) < *token)
            .filter(|pair| story.layout.parse(&pair.key).and_then(|key| line_of(&key)).as_ref() == Some(line))
            .collect();
        let is_fair = match mode {
            LockMode::Exclusive => before.is_empty(),
            LockMode::Shared => before.iter().all(|pair| shares(pair)),
            LockMode::Permit { of } => before.len() < of.get() as usize,
        };
        if !is_fair {
            let before: Vec<String> = before.iter().map(|pair| pair.created.to_string()).collect();
            found.push((*at, format!("{fact}, but {before:?} stand before it")));
        }
    }
    found
}

fn shares(pair: &KeyValue) -> bool {
    HolderRecord::decode(&pair.value).is_ok_and(|record| record.mode == LockMode::Shared)
}
