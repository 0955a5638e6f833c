//! Messages between a session's machine and its driver: requests to the store, outcomes, events.

use std::time::Duration;

use bytes::Bytes;

use crate::error::StoreError;
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::revision::{RequestId, Revision};
use crate::time::Moment;

use super::{LeaseSlotId, LeaseUserId, PutMode, RegistrationId};

/// A request to the store. Each reply comes back with the id of its request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionOutput {
    /// Grants a lease.
    Grant {
        /// The slot of the lease.
        slot: LeaseSlotId,
        /// The request.
        epoch: RequestId,
        /// The TTL.
        ttl: Duration,
    },
    /// Renews a lease.
    Renew {
        /// The slot of the lease.
        slot: LeaseSlotId,
        /// The request.
        epoch: RequestId,
        /// The lease.
        lease: LeaseId,
    },
    /// Puts keys under a lease, each only if it is absent, this session's, or may be overwritten.
    Put {
        /// The slot of the keys.
        slot: LeaseSlotId,
        /// The request.
        epoch: RequestId,
        /// The lease.
        lease: LeaseId,
        /// A key under one of these leases is this session's.
        own_leases: Vec<LeaseId>,
        /// The keys.
        entries: Vec<KeyPut>,
    },
    /// Deletes the keys that are under one of this session's leases.
    Delete {
        /// The slot of the keys.
        slot: LeaseSlotId,
        /// The request.
        epoch: RequestId,
        /// A key under one of these leases is this session's.
        own_leases: Vec<LeaseId>,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Revokes a lease.
    Revoke {
        /// The request.
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
    /// Which existing key it may replace.
    pub mode: PutMode,
    /// The registration, for the reply.
    pub registration: RegistrationId,
}

/// The outcome of a put or delete of one key.
#[derive(Clone, Debug)]
pub enum KeyOutcome {
    /// Applied, at this revision.
    Done(Revision),
    /// Another client had the key at this revision of the store.
    Taken(Revision),
    /// Rejected for good: a retry cannot succeed.
    Refused(StoreError),
    /// Not applied, or ambiguous: the machine retries.
    Failed,
}

/// What the session reports to its owner.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// The key is in the store under a valid lease.
    Registered {
        /// The key.
        key: Bytes,
        /// The registration that is complete.
        registration: RegistrationId,
        /// The lease it is under.
        lease: LeaseId,
        /// The revision of the put.
        revision: Revision,
        /// The TTL that the store granted to the lease.
        ttl: Duration,
    },
    /// The registration has ended without success.
    Refused {
        /// The key.
        key: Bytes,
        /// The registration that has ended.
        registration: RegistrationId,
        /// The error of the store; none if another client has the key.
        why: Option<StoreError>,
    },
    /// Another client has put the key. The key stays registered, and is put again when the other
    /// client deletes it.
    Taken {
        /// The key.
        key: Bytes,
    },
    /// Another client deleted the key. It is being put again.
    Missing {
        /// The key.
        key: Bytes,
    },
    /// The key was unregistered and is no longer in the store.
    Unregistered {
        /// The key.
        key: Bytes,
    },
    /// A lease is ready for a user; see [`Session::request_lease`](super::Session::request_lease).
    LeaseReady(LeaseInfo),
    /// The session is closing. The user must stop and call
    /// [`Session::release_lease`](super::Session::release_lease); the lease is kept until then.
    ReleaseRequested {
        /// The user.
        user: LeaseUserId,
    },
    /// A lease was lost. All that relied on it must stop.
    Lost {
        /// The lease.
        lease: LeaseId,
        /// The cause.
        why: LossReason,
        /// The users that ended with it.
        users: Vec<LeaseUserId>,
    },
    /// A lease was granted.
    Granted {
        /// The lease.
        lease: LeaseId,
        /// The incarnation of the session that it belongs to.
        incarnation: u64,
    },
    /// A lease was renewed.
    Renewed {
        /// The lease.
        lease: LeaseId,
        /// How long it was still valid when the reply to the renewal arrived.
        remained: Duration,
    },
    /// A request failed and will be retried.
    Failing {
        /// The operation.
        what: SessionOperation,
        /// The lease of the slot, if one is held.
        lease: Option<LeaseId>,
        /// How many failures in a row the session's worst lease has had since it last worked.
        attempt: u32,
        /// The backoff until the retry.
        next: Duration,
        /// Whether to log it: it is the first failure in a row, or their number has doubled.
        is_worth_logging: bool,
    },
    /// After failures, every lease is held and every key is stored.
    Recovered {
        /// How many failures there were.
        attempts: u32,
        /// How long they lasted.
        after: Duration,
    },
    /// All keys are unregistered and all leases have ended.
    Closed,
}

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionOperation {
    /// The grant of a new lease.
    Grant,
    /// The renewal of a lease.
    Renewal,
    /// A put of keys.
    Put,
    /// A delete of keys.
    Delete,
}

/// A lease of the session, for keys that a user puts under it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseInfo {
    /// The user.
    pub user: LeaseUserId,
    /// The lease that the user is bound to.
    pub lease: LeaseId,
    /// The incarnation of the session that the lease belongs to.
    pub incarnation: u64,
    /// The TTL that the store granted.
    pub ttl: Duration,
    /// When its validity ends if it is not renewed.
    pub valid_until: Moment,
}

/// What a session would leave in the store if it ended without closing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unreleased {
    /// Leases that may still exist.
    pub leases: usize,
    /// Keys that may still exist.
    pub keys: usize,
    /// Users that have not released their lease.
    pub users: usize,
    /// How long until the leases expire, if the store is available.
    pub within: Duration,
}

/// Whether the store still had the lease that a request named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseLookup {
    /// It had.
    Yes,
    /// It had not: the lease has ended.
    No,
}

/// The status of a session. A later variant is worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SessionStatus {
    /// No lease is held and none is needed.
    Idle,
    /// Every lease is held and its last renewal succeeded.
    Live,
    /// Renewals have failed for some time; the leases are still valid.
    Suspect {
        /// The time of the first failure.
        since: Moment,
    },
    /// A lease is needed and not held.
    Lost {
        /// The cause; none if the lease was never held.
        why: Option<LossReason>,
    },
}
