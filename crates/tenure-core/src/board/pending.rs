//! What a feed has shown of the keys of a task since the last whole picture.

use super::{Card, Owner};
use crate::id::ClaimId;
use crate::task::AttemptRecord;

/// What was seen of one key of a task.
#[derive(Clone, Debug)]
pub(super) enum Word {
    /// Apart, because it is much larger than the others and seldom there.
    Task(Box<Seen<Card>>),
    Owner(Seen<Owner>),
    Props(Seen<()>),
    Attempt(ClaimId, Seen<Option<AttemptRecord>>),
}

/// The newest words about the keys of a task.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    pub(super) task: Option<Box<Seen<Card>>>,
    pub(super) owner: Option<Seen<Owner>>,
    pub(super) props: Option<Seen<()>>,
    pub(super) attempts: Vec<(ClaimId, Seen<Option<AttemptRecord>>)>,
}

impl Pending {
    pub(super) fn hear(&mut self, word: Word) {
        match word {
            Word::Task(seen) => self.task = Some(seen),
            Word::Owner(seen) => self.owner = Some(seen),
            Word::Props(seen) => self.props = Some(seen),
            Word::Attempt(claim, seen) => self.attempts.push((claim, seen)),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Seen<T> {
    Here(T),
    Gone,
}

impl<T> Seen<T> {
    pub(super) fn over(seen: Option<Seen<T>>, before: Option<T>) -> Option<T> {
        match seen {
            Some(Seen::Here(now)) => Some(now),
            Some(Seen::Gone) => None,
            None => before,
        }
    }
}
