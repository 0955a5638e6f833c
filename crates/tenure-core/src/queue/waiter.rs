//! One waiter of this process: its queue key, and its state on the way to the store and back.

use std::collections::{BTreeMap, BTreeSet};

use crate::backoff::{Backoff, BackoffState};
use crate::layout::QueueKey;
use crate::revision::{RequestId, Token};
use crate::time::Moment;

use super::{EnterGuard, LockMode, Predecessor, WaiterId};

/// A waiter: its key and its state.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub queue_key: QueueKey,
    pub mode: LockMode,
    pub state: WaiterState,
    /// Whether its caller still waits or holds.
    pub is_wanted: bool,
    /// Whether its end was reported.
    pub was_reported: bool,
    /// Whether a snapshot showed that it has to wait. For shareable modes alone.
    pub was_shown: bool,
    /// Whether the reply to a leave was lost.
    pub may_have_left: bool,
    /// The guard of the newest enter with a lost reply: the enter may have put the key, or may
    /// still do so until the guard changes.
    pub unsettled: Option<EnterGuard>,
    /// The token of its hold, once it leaves.
    pub held: Option<Token>,
    /// A predecessor that was marked as holder while this key was stored.
    pub holder: Option<QueueKey>,
    backoff: BackoffState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaiterState {
    /// An enter is in flight.
    Entering { epoch: RequestId, guard: EnterGuard },
    /// The key is not known to be stored. The enter is retried at `until`.
    BackingOff { until: Moment },
    /// The key is stored, behind a predecessor.
    Waiting { token: Token, predecessor: Option<QueueKey>, read: PredecessorRead },
    /// The key is stored, without a predecessor.
    Holding { token: Token, read: PredecessorRead },
    /// A leave is in flight, or retried later.
    Leaving { token: Option<Token>, next: NextRequest },
}

/// The state of the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NextRequest {
    /// It is in flight.
    Sent { epoch: RequestId },
    /// It is sent at this time.
    At(Moment),
}

/// Whether the key and its predecessor must be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PredecessorRead {
    /// Nothing has happened since the last read.
    Idle,
    /// A read is needed from this time on, once it is useful.
    NeededAt(Moment),
    /// A read is in flight; `again` if something has happened since.
    Sent { epoch: RequestId, again: bool },
}

impl Waiter {
    pub(super) fn new(queue_key: QueueKey, mode: LockMode, state: WaiterState) -> Waiter {
        Waiter {
            queue_key,
            mode,
            state,
            is_wanted: true,
            was_reported: false,
            was_shown: false,
            may_have_left: false,
            unsettled: None,
            held: None,
            holder: None,
            backoff: BackoffState::new(Backoff::QUEUE),
        }
    }

    /// Creates a key without a caller, to settle a lost enter of it.
    pub(super) fn ownerless(queue_key: QueueKey, unsettled: EnterGuard, now: Moment) -> Waiter {
        let state = WaiterState::Leaving { token: None, next: NextRequest::At(now) };
        Waiter {
            is_wanted: false,
            was_reported: true,
            unsettled: Some(unsettled),
            ..Waiter::new(queue_key, LockMode::Exclusive, state)
        }
    }

    pub(super) fn token(&self) -> Option<Token> {
        match self.state {
            WaiterState::Waiting { token, .. } | WaiterState::Holding { token, .. } => Some(token),
            WaiterState::Leaving { token, .. } => token,
            WaiterState::Entering { .. } | WaiterState::BackingOff { .. } => None,
        }
    }

    /// Whether an enter with a lost reply may have put the key.
    pub(super) fn may_be_stored(&self) -> bool {
        self.unsettled.is_some()
    }

    /// Backs off after a failure. Returns when to retry.
    pub(super) fn back_off(&mut self, jitter: f64, now: Moment) -> Moment {
        now + self.backoff.after_failure(now, jitter, None)
    }

    pub(super) fn note_success(&mut self) {
        self.backoff.reset();
    }

    /// Returns the predecessor, if it is known.
    pub(super) fn predecessor(&self) -> Option<QueueKey> {
        match self.state {
            WaiterState::Waiting { predecessor, .. } => predecessor,
            WaiterState::Entering { .. }
            | WaiterState::BackingOff { .. }
            | WaiterState::Holding { .. }
            | WaiterState::Leaving { .. } => None,
        }
    }

    /// Returns what is known of the predecessor.
    pub(super) fn known_predecessor(&self) -> Predecessor {
        match (self.state, self.predecessor()) {
            (WaiterState::Holding { .. }, _) => Predecessor::None,
            (_, None) => Predecessor::Unknown,
            (_, Some(predecessor)) if self.holder == Some(predecessor) => Predecessor::Holder(predecessor),
            (_, Some(predecessor)) => Predecessor::Nearest(predecessor),
        }
    }

    /// Returns the same state with an outdated read.
    pub(super) fn reading_again(&self, now: Moment) -> WaiterState {
        let mut state = self.state;
        if let WaiterState::Waiting { read, .. } | WaiterState::Holding { read, .. } = &mut state {
            *read = match *read {
                PredecessorRead::Idle => PredecessorRead::NeededAt(now),
                PredecessorRead::NeededAt(at) => PredecessorRead::NeededAt(at.min(now)),
                PredecessorRead::Sent { epoch, .. } => PredecessorRead::Sent { epoch, again: true },
            };
        }
        state
    }

    /// When a read is due.
    pub(super) fn read_at(&self) -> Option<Moment> {
        match self.state {
            WaiterState::Waiting { read: PredecessorRead::NeededAt(at), .. }
            | WaiterState::Holding { read: PredecessorRead::NeededAt(at), .. } => Some(at),
            WaiterState::Waiting { .. }
            | WaiterState::Holding { .. }
            | WaiterState::Entering { .. }
            | WaiterState::BackingOff { .. }
            | WaiterState::Leaving { .. } => None,
        }
    }

    /// When a request other than a read is due.
    pub(super) fn due_at(&self) -> Option<Moment> {
        match self.state {
            WaiterState::BackingOff { until } | WaiterState::Leaving { next: NextRequest::At(until), .. } => {
                Some(until)
            }
            WaiterState::Entering { .. }
            | WaiterState::Waiting { .. }
            | WaiterState::Holding { .. }
            | WaiterState::Leaving { next: NextRequest::Sent { .. }, .. } => None,
        }
    }
}

/// The waiters by what they wait for, so that no step visits all of them. `WaitQueue::change` keeps
/// it current.
#[derive(Clone, Debug, Default)]
pub(super) struct WaiterIndex {
    /// Exclusive waiters, in the order of their tokens. Only the first can hold next, so only it
    /// reads.
    pub queue: BTreeMap<Token, WaiterId>,
    /// Waiters with a shareable mode.
    pub shareable: BTreeMap<Token, WaiterId>,
    pub holding: BTreeSet<WaiterId>,
    /// The waiters that must read their predecessor, once they are the first.
    pub reads: BTreeSet<WaiterId>,
    /// The waiters with a request due later, by time.
    pub due: BTreeSet<(Moment, WaiterId)>,
}

impl WaiterIndex {
    pub(super) fn insert(&mut self, id: WaiterId, waiter: &Waiter) {
        match waiter.state {
            WaiterState::Waiting { token, .. } if waiter.mode == LockMode::Exclusive => {
                self.queue.insert(token, id);
            }
            WaiterState::Waiting { token, .. } => {
                self.shareable.insert(token, id);
            }
            WaiterState::Holding { .. } => {
                self.holding.insert(id);
            }
            WaiterState::Entering { .. } | WaiterState::BackingOff { .. } | WaiterState::Leaving { .. } => {}
        }
        if waiter.read_at().is_some() {
            self.reads.insert(id);
        }
        if let Some(at) = waiter.due_at() {
            self.due.insert((at, id));
        }
    }

    pub(super) fn remove(&mut self, id: WaiterId, waiter: &Waiter) {
        if let WaiterState::Waiting { token, .. } = waiter.state {
            self.queue.remove(&token);
            self.shareable.remove(&token);
        }
        self.holding.remove(&id);
        self.reads.remove(&id);
        if let Some(at) = waiter.due_at() {
            self.due.remove(&(at, id));
        }
    }
}
