//! What crosses between a session's machine and its driver: wishes to the store, outcomes, notices. All closed.

use std::time::Duration;

use bytes::Bytes;

use crate::error::StoreError;
use crate::hold::End;
use crate::lease::LeaseId;
use crate::revision::{Epoch, Revision};
use crate::time::Moment;

use super::{Mode, SlotId, Wish};

/// What the driver must do. Every answer comes back with the epoch of its question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask for a lease.
    Grant {
        /// For this slot.
        slot: SlotId,
        /// The question.
        epoch: Epoch,
        /// With this TTL.
        ttl: Duration,
    },
    /// Renew a lease.
    Renew {
        /// Of this slot.
        slot: SlotId,
        /// The question.
        epoch: Epoch,
        /// The lease.
        lease: LeaseId,
    },
    /// Put keys under a lease, each only if it is absent, ours, or may be overwritten.
    Put {
        /// Of this slot.
        slot: SlotId,
        /// The question.
        epoch: Epoch,
        /// Under this lease.
        lease: LeaseId,
        /// A key on one of these is ours.
        ours: Vec<LeaseId>,
        /// The keys.
        entries: Vec<PutEntry>,
    },
    /// Delete keys that hang on one of our leases, and leave all others alone.
    Delete {
        /// Of this slot.
        slot: SlotId,
        /// The question.
        epoch: Epoch,
        /// A key on one of these is ours.
        ours: Vec<LeaseId>,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// End a lease.
    Revoke {
        /// Of this slot.
        slot: SlotId,
        /// The question.
        epoch: Epoch,
        /// The lease.
        lease: LeaseId,
    },
    /// End a lease that nobody needs; the answer does not matter, because it ends by itself too.
    Discard {
        /// The lease.
        lease: LeaseId,
    },
}

/// One key to put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutEntry {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// Whom it may replace.
    pub mode: Mode,
    /// For the answer.
    pub wish: Wish,
}

/// What came of putting or deleting one key.
#[derive(Clone, Debug)]
pub enum KeyOutcome {
    /// It was done, at this revision.
    Done(Revision),
    /// Somebody else had the key at this revision of the store.
    Taken(Revision),
    /// It can never be done.
    Refused(StoreError),
    /// It was not done, or nobody knows: try again.
    Failed,
}

/// What those who use the session are told.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The key is in the store under a valid lease.
    Registered {
        /// The key.
        key: Bytes,
        /// The wish that is fulfilled.
        wish: Wish,
        /// Under this lease.
        lease: LeaseId,
        /// Since this revision.
        revision: Revision,
    },
    /// The key will not be registered.
    Refused {
        /// The key.
        key: Bytes,
        /// The wish that is not fulfilled.
        wish: Wish,
        /// Why; none if somebody else has the key.
        why: Option<StoreError>,
    },
    /// Somebody else has put the key. It is still wanted, and comes back when they leave.
    Taken {
        /// The key.
        key: Bytes,
    },
    /// The key was deleted behind our back and is being put back.
    Missing {
        /// The key.
        key: Bytes,
    },
    /// The key is not in the store any more, as was asked.
    Unregistered {
        /// The key.
        key: Bytes,
    },
    /// A lease could not be kept; everything that relied on it must stop.
    Lost {
        /// The lease.
        lease: LeaseId,
        /// Why.
        why: End,
    },
    /// A lease was granted.
    Granted {
        /// The lease.
        lease: LeaseId,
        /// Which incarnation of the session this begins.
        incarnation: u64,
    },
    /// A grant or a renewal failed; `next` is when it is tried again.
    Failing {
        /// How often in a row.
        failures: u32,
        /// How long until the next try.
        next: Duration,
    },
    /// Everything is unregistered and every lease ended.
    Closed,
}

/// Whether the store still knew the lease that a request named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseKnown {
    /// It did.
    Yes,
    /// It did not: the lease is over.
    No,
}

/// How a session stands; a later one is worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// Nothing is held, nothing is wanted.
    Idle,
    /// Every lease is renewed and answered.
    Live,
    /// Renewals fail since then; still valid.
    Suspect {
        /// Since when.
        since: Moment,
    },
    /// A lease is wanted and not held.
    Lost,
}
