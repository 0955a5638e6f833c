//! A fenced key is written only while the writer's queue key is the oldest.

use std::time::Duration;

use tenure::store::Change;
use tenure_core::revision::Token;

use super::{Invariant, Replay};
use crate::audit::subject_of;
use crate::run::RunRecord;
use crate::workload::REGISTERS;

pub(super) const INVARIANT: Invariant = Invariant { name: "guarded writes", guarantees: "G3, G4", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let mut replay = Replay::default();
    let mut found = Vec::new();
    for entry in &run.log {
        replay.step(entry);
        let Change::Put { pair, .. } = &entry.change else { continue };
        let Some(subject) = pair.key.strip_prefix(REGISTERS.as_bytes()) else { continue };
        let first = replay
            .pairs
            .values()
            .filter(|pair| {
                let key = run.layout.parse(&pair.key).and_then(|key| subject_of(&key));
                key.is_some_and(|of| of.as_bytes() == subject)
            })
            .map(|pair| Token(pair.created))
            .min();
        let shown = String::from_utf8_lossy(&pair.value).into_owned();
        if first.map(|first| first.to_string()) != Some(shown.clone()) {
            let subject = String::from_utf8_lossy(subject);
            found.push((entry.at, format!("{subject} was written with token {shown}, first is {first:?}")));
        }
    }
    found
}
