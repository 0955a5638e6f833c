//! The terms of this process: whether it leads an election, by its own clock.
//!
//! **Invariant**: the recorded hold of an election is the one with the largest token, and it keeps nothing alive.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::hold::Hold;

/// The newest hold of each election that this process leads, by the prefix of its queue. All clones are one record.
#[derive(Clone, Default)]
pub(crate) struct LocalTerms {
    holds: Arc<Mutex<BTreeMap<Bytes, Hold>>>,
}

impl LocalTerms {
    pub(super) fn record(&self, queue: &Bytes, hold: Hold) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.retain(|_, hold| hold.is_valid());
        // A campaign may be polled with its term after a later term of this process has begun.
        if holds.get(queue).is_none_or(|newest| newest.token() < hold.token()) {
            holds.insert(queue.clone(), hold);
        }
    }

    pub(super) fn valid(&self, queue: &Bytes) -> Option<Hold> {
        let holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.get(queue).filter(|hold| hold.is_valid()).cloned()
    }
}
