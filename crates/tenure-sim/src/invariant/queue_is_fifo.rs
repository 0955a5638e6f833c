//! The queue is fair: a holder has no older key before it, except those that it may share with.

use std::time::Duration;

use tenure::store::KeyValue;
use tenure_core::queue::LockMode;
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;

use super::{Invariant, Replay};
use crate::audit::subject_of;
use crate::history::Fact;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "queue is fifo", guarantees: "G3, G5", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let mut replay = Replay::default();
    let mut log = run.log.iter().peekable();
    let mut found = Vec::new();
    for (at, fact) in &run.facts {
        let Fact::Held { subject, token, mode, .. } = fact else { continue };
        // Within one millisecond the order is not known: changes of that millisecond may have come
        // before.
        while let Some(entry) = log.next_if(|entry| entry.at <= *at) {
            replay.step(entry);
        }
        let before: Vec<&KeyValue> = replay
            .pairs
            .values()
            .filter(|pair| Token(pair.created) < *token)
            .filter(|pair| {
                run.layout.parse(&pair.key).and_then(|key| subject_of(&key)).as_ref() == Some(subject)
            })
            .collect();
        let is_fair = match mode {
            LockMode::Exclusive => before.is_empty(),
            LockMode::Shared => before.iter().all(|pair| shares(pair)),
            LockMode::Permit { of } => before.len() < of.get() as usize,
        };
        if !is_fair {
            let before: Vec<String> = before.iter().map(|pair| pair.created.to_string()).collect();
            found.push((*at, format!("{fact}, but {before:?} are older")));
        }
    }
    found
}

fn shares(pair: &KeyValue) -> bool {
    HolderRecord::decode(&pair.value).is_ok_and(|record| record.mode == LockMode::Shared)
}
