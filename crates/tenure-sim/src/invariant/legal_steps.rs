//! Tasks only make legal steps, and each begins where the last one ended.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::store::Change;
use tenure_core::layout::Key;
use tenure_core::record::Record;
use tenure_core::task::{StateRecord, TaskState};

use super::Invariant;
use crate::run::RunRecord;

pub(super) const INVARIANT: Invariant = Invariant { name: "legal steps", guarantees: "G9", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let mut stands = BTreeMap::new();
    let mut found = Vec::new();
    for entry in &run.log {
        let Some(Key::TaskState(task)) = run.layout.parse(entry.change.key()) else { continue };
        let Change::Put { pair, .. } = &entry.change else {
            stands.remove(&task);
            continue;
        };
        let record = match StateRecord::decode(&pair.value) {
            Ok(record) => record,
            Err(error) => {
                found.push((entry.at, format!("the state of {task} cannot be read: {error}")));
                continue;
            }
        };
        let steps = record.history.iter().map(|step| (step.from, step.to));
        for (from, to) in steps.clone().filter(|(from, to)| !is_legal(*from, *to)) {
            found.push((entry.at, format!("{task} went from {from:?} to {to:?}")));
        }
        for ((_, to), (from, _)) in steps.clone().zip(steps.skip(1)) {
            if from != to {
                found.push((entry.at, format!("{task} came to {to:?} and went on from {from:?}")));
            }
        }
        let before = stands.insert(task.clone(), record.clone());
        if let Some(before) = before
            && let Some(what) = is_forgotten(&before, &record)
        {
            found.push((entry.at, format!("{task} {what}")));
        }
    }
    found
}

/// What the earlier record contained and the later one lacks: its writer had not read the earlier
/// one.
fn is_forgotten(before: &StateRecord, now: &StateRecord) -> Option<String> {
    let (was, is) = (before.state.kind(), now.state.kind());
    if was.is_terminal() && was != is {
        return Some(format!("had ended as {was:?}, and is {is:?} now"));
    }
    // No run is long enough for a history that is cut short.
    if !now.history.starts_with(&before.history) {
        return Some(format!("forgot how it came to {was:?}, and is {is:?} now"));
    }
    let progress = |record: &StateRecord| record.checkpoint.as_ref().map(|kept| kept.bytes().clone());
    if progress(now) < progress(before) {
        return Some("lost progress that was kept".to_owned());
    }
    None
}

/// The table of the contract, written down a second time on purpose.
fn is_legal(from: TaskState, to: TaskState) -> bool {
    use TaskState as S;
    match from {
        S::Runnable => {
            matches!(to, S::Runnable | S::Sleeping | S::Completed | S::Killed | S::Fault | S::Paused)
        }
        S::Sleeping => matches!(to, S::Sleeping | S::Runnable | S::Killed | S::Paused | S::Fault),
        S::Fault => {
            matches!(to, S::Sleeping | S::Failed | S::Runnable | S::Killed | S::Paused | S::Fault)
        }
        S::Paused => matches!(to, S::Paused | S::Runnable | S::Sleeping | S::Killed),
        S::Completed | S::Failed | S::Killed => false,
    }
}
