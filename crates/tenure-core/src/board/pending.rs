//! The changes of a task's keys since the last complete snapshot.

use super::{Card, Owner};
use crate::id::ClaimId;
use crate::task::AttemptRecord;

/// A change of one key of a task.
#[derive(Clone, Debug)]
pub(super) enum BoardUpdate {
    /// Boxed, because it is much larger than the others and rare.
    Task(Box<KeyUpdate<Card>>),
    Owner(KeyUpdate<Owner>),
    Props(KeyUpdate<()>),
    Attempt(ClaimId, KeyUpdate<Option<AttemptRecord>>),
}

/// The newest changes of the keys of a task.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskUpdates {
    pub(super) task: Option<Box<KeyUpdate<Card>>>,
    pub(super) owner: Option<KeyUpdate<Owner>>,
    pub(super) props: Option<KeyUpdate<()>>,
    pub(super) attempts: Vec<(ClaimId, KeyUpdate<Option<AttemptRecord>>)>,
}

impl TaskUpdates {
    pub(super) fn apply(&mut self, update: BoardUpdate) {
        match update {
            BoardUpdate::Task(seen) => self.task = Some(seen),
            BoardUpdate::Owner(seen) => self.owner = Some(seen),
            BoardUpdate::Props(seen) => self.props = Some(seen),
            BoardUpdate::Attempt(claim, seen) => self.attempts.push((claim, seen)),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum KeyUpdate<T> {
    Present(T),
    Deleted,
}

impl<T> KeyUpdate<T> {
    pub(super) fn over(seen: Option<KeyUpdate<T>>, before: Option<T>) -> Option<T> {
        match seen {
            Some(KeyUpdate::Present(now)) => Some(now),
            Some(KeyUpdate::Deleted) => None,
            None => before,
        }
    }
}
