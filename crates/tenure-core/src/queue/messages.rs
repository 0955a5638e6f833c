//! Messages between a queue and its driver: requests, replies, events.

use std::num::NonZeroU32;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::layout::QueueKey;
use crate::loss::LossReason;
use crate::revision::{RequestId, Revision, Token};
use crate::txn::Condition;

use super::WaiterId;

/// Which other holders a waiter accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockMode {
    /// None: it holds when it has no predecessor.
    #[default]
    Exclusive,
    /// Shared holders: it holds when all its predecessors are shared.
    Shared,
    /// A limited number: it holds when it has fewer predecessors than this.
    Permit {
        /// The number of permits.
        of: NonZeroU32,
    },
}

/// Walks along a queue from its oldest key and decides which keys hold.
#[derive(Clone, Debug)]
pub struct HolderCount {
    passed: u32,
    all_share: bool,
    permits: Option<NonZeroU32>,
}

impl Default for HolderCount {
    fn default() -> HolderCount {
        HolderCount { passed: 0, all_share: true, permits: None }
    }
}

impl HolderCount {
    /// Whether the next key, with this mode, holds.
    pub fn holds(&mut self, mode: LockMode) -> bool {
        let holds = match mode {
            LockMode::Exclusive => self.passed == 0,
            LockMode::Shared => self.all_share,
            LockMode::Permit { of } => self.passed < of.get(),
        };
        self.passed = self.passed.saturating_add(1);
        self.all_share &= mode == LockMode::Shared;
        if let LockMode::Permit { of } = mode {
            self.permits.get_or_insert(of);
        }
        holds
    }

    /// The permit count of the oldest key. Every later waiter must use the same.
    pub fn permits(&self) -> Option<NonZeroU32> {
        self.permits
    }
}

/// The state of a lease's enter guard: the revision of its last change; none while the key does not
/// exist.
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

/// A request. Each reply carries the id of its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueOutput {
    /// Put the key unless it is stored, and read its predecessor as far as requested.
    Enter {
        /// Its waiter.
        id: WaiterId,
        /// Its epoch.
        epoch: RequestId,
        /// The key.
        queue_key: QueueKey,
        /// Its mode.
        mode: LockMode,
        /// What it reads.
        lookup: PredecessorLookup,
        /// Whether an earlier request may have put it.
        may_be_stored: bool,
        /// The enter guard that this request requires.
        guard: EnterGuard,
    },
    /// Read the key and its predecessor.
    ReadPredecessor {
        /// Its waiter.
        id: WaiterId,
        /// Its epoch.
        epoch: RequestId,
        /// The key.
        queue_key: QueueKey,
        /// Its create revision.
        token: Token,
        /// What is known of the predecessor.
        predecessor: Predecessor,
    },
    /// Delete the key, and read what local successors must know.
    Leave {
        /// Its waiter.
        id: WaiterId,
        /// Its epoch.
        epoch: RequestId,
        /// The key.
        queue_key: QueueKey,
        /// What is read after the delete.
        after: AfterLeave,
        /// The guard of a lost enter of this key. If the guard is unchanged, the same transaction
        /// changes it.
        settles: Option<EnterGuard>,
        /// The token of the hold that ends with it; none if the key never held.
        held: Option<Token>,
    },
}

impl QueueOutput {
    /// Whether a caller waits for the reply. It does not if another local waiter is before it: that
    /// one holds earlier.
    pub fn is_urgent(&self) -> bool {
        !matches!(self, QueueOutput::Enter { lookup: PredecessorLookup::Skip, .. })
    }
}

/// What a waiter knows of its predecessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Predecessor {
    /// Nothing is known.
    Unknown,
    /// The last read showed this key. If it is stored, it still is the predecessor.
    Nearest(QueueKey),
    /// It is this key, and it holds: when it is deleted there is no predecessor, and the queue need
    /// not be read.
    Holder(QueueKey),
    /// There is none: the waiter holds, and only its own key is read.
    None,
}

/// What an enter reads. A read costs the store time in proportion to the length and the history of
/// the queue, so an enter reads no more than it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PredecessorLookup {
    /// Nothing: the predecessor is a local waiter and passes the hold on.
    Skip,
    /// The newest key of other drivers: no local key is stored, and deleted local keys need not be
    /// read.
    Others,
    /// The newest key of all.
    All,
}

/// What a leave reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterLeave {
    /// Nothing: no local waiter can become the first without being notified otherwise.
    Nothing,
    /// Whether this local key is stored. It is the first now, because no key was between it and the
    /// deleted one.
    Successor(QueueKey, Token),
    /// The oldest keys, as many as one read returns.
    Queue,
}

/// The reply to [`QueueOutput::Enter`].
#[derive(Clone, Debug)]
pub enum EnterReply {
    /// The key is stored.
    Stored {
        /// Its create revision.
        token: Token,
        /// Its predecessor.
        predecessor: Option<QueueKey>,
    },
    /// The key is stored; its predecessor was not read.
    Joined {
        /// Its create revision.
        token: Token,
    },
    /// Not applied: the enter guard has changed since.
    Stale {
        /// The current guard.
        guard: EnterGuard,
    },
    /// The lease has ended.
    LeaseGone,
    /// The store refuses it for good.
    Refused(StoreError),
    /// Certainly not applied.
    NotDone,
    /// The outcome is unknown.
    Unknown,
}

/// The reply to [`QueueOutput::ReadPredecessor`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PredecessorReply {
    /// The key is stored, at its token.
    Stored {
        /// Its predecessor.
        predecessor: Option<QueueKey>,
    },
    /// The key is not stored any more.
    Missing,
    /// There was no reply.
    NotDone,
}

/// The reply to [`QueueOutput::Leave`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaveReply {
    /// The key is not stored any more.
    Gone {
        /// Whether it was stored before.
        was_there: bool,
        /// The oldest keys now with their tokens, without a gap; none where they were not read.
        first: Vec<(QueueKey, Token)>,
        /// The enter guard after this, if an enter was settled.
        guard: Option<EnterGuard>,
    },
    /// Certainly not applied: retry.
    NotDone,
    /// The outcome is unknown: retry.
    Unknown,
}

/// What happens to a waiter.
#[derive(Clone, Debug)]
pub enum QueueEvent {
    /// It holds.
    Held {
        /// The waiter.
        id: WaiterId,
        /// Its token.
        token: Token,
    },
    /// It waits: a complete snapshot of the queue shows that it does not hold yet.
    Waits {
        /// The waiter.
        id: WaiterId,
    },
    /// A predecessor uses another number of permits. The key is deleted in the background.
    PermitsDiffer {
        /// The waiter.
        id: WaiterId,
        /// The number that this waiter requested.
        requested: NonZeroU32,
        /// The number of the oldest key in the queue.
        in_use: NonZeroU32,
    },
    /// It neither holds nor waits any more.
    Lost {
        /// The waiter.
        id: WaiterId,
        /// Why.
        why: LossReason,
    },
    /// The store refuses it for good.
    Refused {
        /// The waiter.
        id: WaiterId,
        /// Why.
        why: StoreError,
    },
    /// Its key is deleted, because it left.
    Released {
        /// The waiter.
        id: WaiterId,
        /// Whether it was still stored when it left.
        was_there: bool,
    },
}
