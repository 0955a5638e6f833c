//! What crosses between a session's machine and its driver: wishes to the store, outcomes, notices. All closed.

use std::time::Duration;

use bytes::Bytes;

use crate::error::StoreError;
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::revision::{RequestId, Revision};
use crate::time::Moment;

use super::{LeaseSlotId, LeaseUserId, PutMode, RegistrationId};

/// What the driver must do. Every answer comes back with the epoch of its question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionOutput {
    /// Ask for a lease.
    Grant {
        /// For this slot.
        slot: LeaseSlotId,
        /// The question.
        epoch: RequestId,
        /// With this TTL.
        ttl: Duration,
    },
    /// Renew a lease.
    Renew {
        /// Of this slot.
        slot: LeaseSlotId,
        /// The question.
        epoch: RequestId,
        /// The lease.
        lease: LeaseId,
    },
    /// Put keys under a lease, each only if it is absent, ours, or may be overwritten.
    Put {
        /// Of this slot.
        slot: LeaseSlotId,
        /// The question.
        epoch: RequestId,
        /// Under this lease.
        lease: LeaseId,
        /// A key on one of these is ours.
        own_leases: Vec<LeaseId>,
        /// The keys.
        entries: Vec<KeyPut>,
    },
    /// Delete keys that hang on one of our leases, and leave all others alone.
    Delete {
        /// Of this slot.
        slot: LeaseSlotId,
        /// The question.
        epoch: RequestId,
        /// A key on one of these is ours.
        own_leases: Vec<LeaseId>,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// End a lease that nobody needs any more.
    Revoke {
        /// The question.
        epoch: RequestId,
        /// The lease.
        lease: LeaseId,
    },
}

/// One key to put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPut {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// Whom it may replace.
    pub mode: PutMode,
    /// For the answer.
    pub registration: RegistrationId,
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
pub enum SessionEvent {
    /// The key is in the store under a valid lease.
    Registered {
        /// The key.
        key: Bytes,
        /// The wish that is fulfilled.
        registration: RegistrationId,
        /// Under this lease.
        lease: LeaseId,
        /// Since this revision.
        revision: Revision,
        /// The TTL that the store granted to the lease.
        ttl: Duration,
    },
    /// The key will not be registered.
    Refused {
        /// The key.
        key: Bytes,
        /// The wish that is not fulfilled.
        registration: RegistrationId,
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
    /// A lease is lent; see [`Session::request_lease`](super::Session::lend).
    LeaseReady(LeaseInfo),
    /// Whoever has this loan must stop and give it back: the session is closing, and its lease is not ended before.
    ReleaseRequested {
        /// The loan.
        user: LeaseUserId,
    },
    /// A lease could not be kept; everything that relied on it must stop.
    Lost {
        /// The lease.
        lease: LeaseId,
        /// Why.
        why: LossReason,
        /// The loans that ended with it.
        users: Vec<LeaseUserId>,
    },
    /// A lease was granted.
    Granted {
        /// The lease.
        lease: LeaseId,
        /// Which incarnation of the session it belongs to.
        incarnation: u64,
    },
    /// A lease was renewed.
    Renewed {
        /// The lease.
        lease: LeaseId,
        /// How long it was still valid when the renewal was acknowledged.
        remained: Duration,
    },
    /// Something failed and is tried again.
    Failing {
        /// What was tried.
        what: SessionOperation,
        /// The lease that is held, if one is.
        lease: Option<LeaseId>,
        /// How often in a row the session's worst lease has failed since it last was well.
        attempt: u32,
        /// How long until the next try.
        next: Duration,
        /// Whether it is the first failure of this trouble, or their number has doubled.
        is_worth_logging: bool,
    },
    /// After trouble every lease is held and every key is where it should be.
    Recovered {
        /// How often it had failed.
        attempts: u32,
        /// How long it took.
        after: Duration,
    },
    /// Everything is unregistered and every lease ended.
    Closed,
}

/// What was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionOperation {
    /// A new lease was asked for.
    Grant,
    /// A lease was to be renewed.
    Renewal,
    /// Keys were to be put.
    Put,
    /// Keys were to be deleted.
    Delete,
}

/// A lease of the session's, lent for keys that others put under it themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseInfo {
    /// The loan.
    pub user: LeaseUserId,
    /// The one lease that it is bound to.
    pub lease: LeaseId,
    /// Which incarnation of the session the lease belongs to.
    pub incarnation: u64,
    /// The TTL that the store granted.
    pub ttl: Duration,
    /// Until when it may be relied upon, if nothing is renewed.
    pub valid_until: Moment,
}

/// What a session that does not end by itself would leave in the store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unreleased {
    /// Leases that may live.
    pub leases: usize,
    /// Keys that may be there.
    pub keys: usize,
    /// Loans that were not given back.
    pub users: usize,
    /// How long until the leases end by themselves, if the store is up.
    pub within: Duration,
}

/// Whether the store still knew the lease that a request named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseLookup {
    /// It did.
    Yes,
    /// It did not: the lease is over.
    No,
}

/// How a session stands; a later one is worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SessionStatus {
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
    Lost {
        /// Why; none if it was never held.
        why: Option<LossReason>,
    },
}
