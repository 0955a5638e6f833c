//! What a leadership is told, what it asks for, and how it can end.

use std::time::Duration;

use crate::keepalive::Terms;

/// How one leadership is to be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How its time is divided.
    pub terms: Terms,
    /// How long the work may take to stop before the key is left to lapse.
    pub stop_within: Duration,
    /// Whether the storage has a token to ask for.
    pub fencing: FencingSupport,
}

/// Whether a leadership has a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FencingSupport {
    /// The storage has one, and nobody leads before it is known.
    Token,
    /// There is none.
    None,
}

/// What a storage says to one question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done.
    Yes,
    /// Not done, because something else is stored, or nothing.
    No,
    /// Failed, and certainly not done.
    NotApplied,
    /// Failed, and perhaps done.
    Unknown,
}

/// What the driver must ask of the storage. Each answer comes back with the moment at which it was asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ask {
    /// Insert our value if the key is absent.
    Insert,
    /// Swap our value for itself, with a new TTL.
    Swap,
    /// Ask for the token of our value.
    Token,
    /// Delete our value.
    Delete,
}

/// Where a leadership stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Not yet decided.
    Acquiring,
    /// Ours, until time or the storage says otherwise.
    Leading,
    /// Not ours any more; the work is being stopped.
    Stopping,
    /// Not ours any more; what is stored is being deleted.
    Leaving(End),
    /// Nothing is left to do.
    Over(End),
}

/// Why somebody does not lead, or no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Somebody else has the key.
    Held,
    /// The storage did not take the value, or nobody knows.
    NotTaken,
    /// It was not renewed in time.
    Lapsed,
    /// The storage holds another value, or none.
    Taken,
    /// Given up on purpose; [`Left`] says what is left in the storage.
    Left(Left),
}

/// What is left of a leadership that was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing: the key was deleted.
    Nothing,
    /// The key, until its TTL is over, because the work did not stop in time.
    StillRunning,
    /// Perhaps the key, until its TTL is over, because the storage does not answer.
    Unconfirmed,
    /// Nothing of ours: when it was to be deleted it was gone.
    Gone,
}

impl End {
    /// The same end, when nobody could tell what is left.
    pub(super) fn unconfirmed(self) -> End {
        match self {
            End::Left(_) => End::Left(Left::Unconfirmed),
            End::Held | End::NotTaken | End::Lapsed | End::Taken => self,
        }
    }
}
