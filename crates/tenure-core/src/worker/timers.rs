//! What is due when.
//!
//! **Invariant**: each timer is set for at most one moment; setting it again moves it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::TaskId;
use crate::time::Moment;

use super::peers::RankDelay;

/// What a node can be waiting for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// A task that nobody owns is looked at again.
    Claimable(TaskId),
    /// Those who come before this node for some tasks have had their time.
    RankDelay(RankDelay),
    /// A handler's grace is over, or its abort should have worked by now.
    Stop(TaskId),
    /// A save is asked again.
    Retry(TaskId),
    /// A claim that nobody knows of is given back.
    Orphan(TaskId),
    /// Claims may be sent again.
    Claims,
    /// The answer to a command to this node is sent again.
    NodeCommand,
    /// A round of balancing is due because something changed, or because one was not enough.
    Round,
    /// A round of balancing is due because the last one is long ago.
    Periodic,
    /// The next page of the tasks that have ended is due.
    Retention,
    /// The next commands and results that have expired are due.
    Sweep,
    /// A change of the node's load may be published.
    Publish,
    /// The end of the shutdown.
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

    /// The next timer that is due, which is thereby over.
    pub(super) fn pop(&mut self, now: Moment) -> Option<Timer> {
        if self.due.first()?.0 > now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.at.remove(&timer);
        Some(timer)
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }
}
