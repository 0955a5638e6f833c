//! What must be true of every run. One sentence of the promises each, in a file of its own, with where it is promised.

mod actions_are_valid;
mod commands_are_answered;
mod every_task_runs;
mod guarded_writes;
mod legal_steps;
mod no_leaked_keys;
mod no_task_lost;
mod observers_go_forward;
mod oldest_key_holds;
mod one_holder;
mod one_owner;
mod queue_is_fifo;
mod queue_progresses;
mod registrations_match;
mod tokens_grow;
mod validity_ends_before_lease;
mod views_converge;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tenure::store::{Change, KeyValue};

use crate::audit::AuditEntry;
use crate::run::RunRecord;

/// A guarantee that was violated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What was promised.
    pub invariant: &'static str,
    /// When it was broken, in the world's time.
    pub at: Duration,
    /// How.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.invariant, self.at.as_secs_f64(), self.what)
    }
}

/// One promise.
pub struct Invariant {
    /// Its name: a claim.
    pub name: &'static str,
    /// The guarantees of docs/guarantees.md that it checks, such as `G3, G4`.
    pub guarantees: &'static str,
    check: fn(&RunRecord) -> Vec<(Duration, String)>,
}

/// All promises.
pub const ALL: [Invariant; 17] = [
    one_holder::INVARIANT,
    one_owner::INVARIANT,
    validity_ends_before_lease::INVARIANT,
    actions_are_valid::INVARIANT,
    tokens_grow::INVARIANT,
    guarded_writes::INVARIANT,
    queue_is_fifo::INVARIANT,
    oldest_key_holds::INVARIANT,
    queue_progresses::INVARIANT,
    observers_go_forward::INVARIANT,
    registrations_match::INVARIANT,
    views_converge::INVARIANT,
    no_task_lost::INVARIANT,
    every_task_runs::INVARIANT,
    legal_steps::INVARIANT,
    commands_are_answered::INVARIANT,
    no_leaked_keys::INVARIANT,
];

/// Everything that is wrong with a run.
pub fn all(run: &RunRecord) -> Vec<Violation> {
    let mut violations = Vec::new();
    for invariant in &ALL {
        let found = (invariant.check)(run).into_iter();
        violations.extend(found.map(|(at, what)| Violation { invariant: invariant.name, at, what }));
    }
    violations
}

/// The keys of the store as they come and go.
#[derive(Default)]
struct Replay {
    pairs: BTreeMap<Bytes, KeyValue>,
}

impl Replay {
    fn step(&mut self, entry: &AuditEntry) {
        match &entry.change {
            Change::Put { pair, .. } => {
                self.pairs.insert(pair.key.clone(), pair.clone());
            }
            Change::Delete { key, .. } => {
                self.pairs.remove(key);
            }
        }
    }
}
