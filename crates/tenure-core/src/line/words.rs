//! What crosses between a line's machine and its driver: wishes to the store, answers, notices. All closed.

use std::num::NonZeroU32;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::layout::Place;
use crate::revision::{Epoch, Revision, Token};
use crate::txn::Condition;

use super::Ticket;

/// Beside whom a place can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Beside nobody: it holds when nobody is before it.
    #[default]
    Exclusive,
    /// Beside others that share: it holds when everybody before it shares.
    Shared,
    /// Beside a few: it holds when fewer than this many are before it.
    Permit {
        /// How many hold at once.
        of: NonZeroU32,
    },
}

/// Walks along a line from its first place and says who holds.
#[derive(Clone, Debug)]
pub struct RollCall {
    before: u32,
    all_share: bool,
    permits: Option<NonZeroU32>,
}

impl Default for RollCall {
    fn default() -> RollCall {
        RollCall { before: 0, all_share: true, permits: None }
    }
}

impl RollCall {
    /// Whether the next place, which wants this, holds.
    pub fn holds(&mut self, mode: Mode) -> bool {
        let holds = match mode {
            Mode::Exclusive => self.before == 0,
            Mode::Shared => self.all_share,
            Mode::Permit { of } => self.before < of.get(),
        };
        self.before = self.before.saturating_add(1);
        self.all_share &= mode == Mode::Shared;
        if let Mode::Permit { of } = mode {
            self.permits.get_or_insert(of);
        }
        holds
    }

    /// The permit count of the oldest key that was passed. Every later caller must use the same.
    pub fn permits(&self) -> Option<NonZeroU32> {
        self.permits
    }
}

/// The state of a lease's enter guard: the revision of its last change; none while the key does not exist.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct EnterGuard(pub Option<Revision>);

impl EnterGuard {
    /// The condition that the guard under this key has not changed since.
    pub fn unchanged(self, key: Bytes) -> Condition {
        match self.0 {
            Some(revision) => Condition::modified_at(key, revision),
            None => Condition::absent(key),
        }
    }
}

/// What the driver must do. Every answer comes back with the epoch of its question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Create the place, unless it is there already, and read which place is the nearest before it as far as is asked.
    Enter {
        /// For the answer.
        ticket: Ticket,
        /// The question.
        epoch: Epoch,
        /// The place.
        place: Place,
        /// What it wants.
        mode: Mode,
        /// Of whom it has to know.
        asks: Asks,
        /// Whether an earlier request may have put it.
        may_be_there: bool,
        /// The enter guard that this request requires.
        guard: EnterGuard,
    },
    /// Read the place, and which place is the nearest before it.
    Look {
        /// For the answer.
        ticket: Ticket,
        /// The question.
        epoch: Epoch,
        /// The place.
        place: Place,
        /// Since when it stands there.
        token: Token,
        /// What is known of who is before it.
        before: Before,
    },
    /// Delete the place, and read what is wanted of the line then.
    Leave {
        /// For the answer.
        ticket: Ticket,
        /// The question.
        epoch: Epoch,
        /// The place.
        place: Place,
        /// What is wanted of the line.
        then: Then,
        /// The guard of a lost enter of this place. If the guard is still the same, the same transaction changes it.
        settles: Option<EnterGuard>,
    },
}

/// What a place knows of who is before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Nothing.
    Unknown,
    /// This was the nearest: if it is there, it still is.
    Nearest(Place),
    /// This is the nearest, and it holds: when it is gone nobody is before us, and the line need not be read.
    Holder(Place),
    /// Nobody is: we hold, and only our own place is in question.
    Nobody,
}

/// Whom a place that enters asks for. A read of a line costs the store time in proportion to its length and to its past, so nobody asks for more
/// than it has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// Nobody: one of ours stands before it, and passes on.
    Nobody,
    /// Everybody but us: nobody of this line's own is there. Whatever it left behind is gone, and need not be looked through.
    Others,
    /// Everybody.
    All,
}

/// What has to be known of a line when a place has left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// Nothing: nobody of ours can be the first now without hearing of it.
    Nothing,
    /// Whether this place is there. It is one of ours and the first now, because nobody was between it and the one that left.
    Next(Place, Token),
    /// Which places are the first, as many as are shown at once.
    Line,
}

/// The answer to [`Action::Enter`].
#[derive(Clone, Debug)]
pub enum Entered {
    /// The place is there.
    Stands {
        /// Since when.
        token: Token,
        /// The nearest place before it.
        before: Option<Place>,
    },
    /// The place is there, and who is before it was not asked.
    Joined {
        /// Since when.
        token: Token,
    },
    /// Nothing happened: the enter guard has changed since.
    Stale {
        /// The guard as it is now.
        guard: EnterGuard,
    },
    /// The store does not know the lease any more.
    LeaseGone,
    /// It can never be done.
    Refused(StoreError),
    /// Certainly nothing happened.
    NotDone,
    /// Nobody knows.
    Unknown,
}

/// The answer to [`Action::Look`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// The place is there, since its token.
    Stands {
        /// The nearest place before it.
        before: Option<Place>,
    },
    /// The place is not there any more.
    Missing,
    /// There was no answer.
    NotDone,
}

/// The answer to [`Action::Leave`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Left {
    /// The place is not there any more.
    Gone {
        /// Whether it was there before.
        was_there: bool,
        /// Which places are the first now, since when, without a gap between them; none where that was not asked.
        first: Vec<(Place, Token)>,
        /// The enter guard after this, if an enter was settled.
        guard: Option<EnterGuard>,
    },
    /// It was certainly not done: ask again.
    NotDone,
    /// Nobody knows whether it was done: ask again.
    Unknown,
}

/// What those who stand in line are told.
#[derive(Clone, Debug)]
pub enum Notice {
    /// It holds.
    Held {
        /// Who.
        ticket: Ticket,
        /// Its token.
        token: Token,
    },
    /// It waits: the complete state of the queue shows that it does not hold yet.
    Waits {
        /// Who.
        ticket: Ticket,
    },
    /// A predecessor uses another number of permits. The key is deleted in the background.
    PermitsDiffer {
        /// Who.
        ticket: Ticket,
        /// The number that this ticket requested.
        requested: NonZeroU32,
        /// The number of the oldest key in the queue.
        in_use: NonZeroU32,
    },
    /// It does not hold, or wait, any more.
    Lost {
        /// Who.
        ticket: Ticket,
        /// Why.
        why: LossReason,
    },
    /// The store will never let it stand here.
    Refused {
        /// Who.
        ticket: Ticket,
        /// Why.
        why: StoreError,
    },
    /// Its place is gone, as was asked.
    Left {
        /// Who.
        ticket: Ticket,
        /// Whether it was still there when it was asked to go.
        was_there: bool,
    },
}

/// Why a place was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossReason {
    /// Its lease is over.
    Lease,
    /// Somebody deleted it while it held.
    Deleted,
}
