//! The timers of a worker.
//!
//! **Invariant**: each timer is set to at most one moment; setting it again moves it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::TaskId;
use crate::time::Moment;

use super::peers::RankDelay;

/// What a timer is for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// A claimable task is considered again.
    Claimable(TaskId),
    /// The peers that rank before this worker have had their time for some tasks.
    RankDelay(RankDelay),
    /// The grace period of a handler is over, or its abort should have ended it.
    Stop(TaskId),
    /// A state write is repeated.
    Retry(TaskId),
    /// A claim that this process does not know of is released.
    Orphan(TaskId),
    /// Claims may be sent again.
    Claims,
    /// The acknowledgement of a command to this worker is sent again.
    NodeCommand,
    /// A round of balancing is due, because something has changed or one round was not enough.
    Round,
    /// A round of balancing is due, because the last one was long ago.
    Periodic,
    /// The next page of ended tasks is due.
    Retention,
    /// The next expired commands and results are due.
    Sweep,
    /// A change of the worker's load may be published.
    Publish,
    /// The deadline of the shutdown.
    Deadline,
}

/// All timers.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(Moment, Timer)>,
    at: BTreeMap<Timer, Moment>,
}

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, at: Moment) {
        if let Some(before) = self.at.insert(timer.clone(), at) {
            self.due.remove(&(before, timer.clone()));
        }
        self.due.insert((at, timer));
    }

    pub(super) fn clear(&mut self, timer: &Timer) {
        if let Some((timer, at)) = self.at.remove_entry(timer) {
            self.due.remove(&(at, timer));
        }
    }

    pub(super) fn at(&self, timer: &Timer) -> Option<Moment> {
        self.at.get(timer).copied()
    }

    /// Removes and returns the next timer that is due.
    pub(super) fn pop(&mut self, now: Moment) -> Option<Timer> {
        if self.due.first()?.0 > now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.at.remove(&timer);
        Some(timer)
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }
}
