//! What must be true of every story. One sentence of the promises each, in a file of its own, with where it is promised.

mod acts_by_right;
mod belief_ends_first;
mod commands_are_answered;
mod every_task_runs;
mod fair_line;
mod first_holds;
mod guarded_writes;
mod keys_as_wanted;
mod legal_steps;
mod lines_move;
mod no_task_lost;
mod nothing_leaks;
mod observers_go_forward;
mod one_holder;
mod one_owner;
mod tokens_grow;
mod views_converge;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tenure::store::{Change, KeyValue};

use crate::audit::Entry;
use crate::play::Story;

/// Something that was promised and did not hold.
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
    check: fn(&Story) -> Vec<(Duration, String)>,
}

/// All promises.
pub const ALL: [Invariant; 17] = [
    one_holder::INVARIANT,
    one_owner::INVARIANT,
    belief_ends_first::INVARIANT,
    acts_by_right::INVARIANT,
    tokens_grow::INVARIANT,
    guarded_writes::INVARIANT,
    fair_line::INVARIANT,
    first_holds::INVARIANT,
    lines_move::INVARIANT,
    observers_go_forward::INVARIANT,
    keys_as_wanted::INVARIANT,
    views_converge::INVARIANT,
    no_task_lost::INVARIANT,
    every_task_runs::INVARIANT,
    legal_steps::INVARIANT,
    commands_are_answered::INVARIANT,
    nothing_leaks::INVARIANT,
];

/// Everything that is wrong with a story.
pub fn all(story: &Story) -> Vec<Violation> {
    let mut violations = Vec::new();
    for invariant in &ALL {
        let found = (invariant.check)(story).into_iter();
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
    fn step(&mut self, entry: &Entry) {
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
