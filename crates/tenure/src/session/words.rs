//! What a session says: registrations, refusals, its state, what happens to keys.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::hold::{End, TtlTooShort};
use thiserror::Error;

use crate::store::{LeaseId, Revision, StoreError};

/// A key that is in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The key.
    pub key: Bytes,
    /// The lease it hangs on.
    pub lease: LeaseId,
    /// When it was put.
    pub revision: Revision,
}

/// Why a key is not registered.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Somebody else has the key, and it was not to be overwritten. It is not wanted any more.
    #[error("somebody else has registered this key")]
    Taken,
    /// The store did not answer in time. The key is still wanted and will be registered when the store is back; `unregister`
    /// withdraws it.
    #[error(
        "the store did not take the key within {within:?}; it is still wanted and will be registered when the store answers"
    )]
    NotYet {
        /// How long was waited.
        within: Duration,
    },
    /// The store will never take it. It is not wanted any more.
    #[error("the store refuses the key")]
    Refused(#[source] StoreError),
    /// The TTL cannot be held.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// Another `register` of the same key came later.
    #[error("the key was registered again with another value, or unregistered, before this was done")]
    Superseded,
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
}

/// How a session stands.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// Nothing is registered, nothing is held.
    Idle,
    /// Every lease is held and renewals are answered.
    Live {
        /// Grows with every new lease.
        incarnation: u64,
    },
    /// Renewals fail; still valid.
    Suspect {
        /// Grows with every new lease.
        incarnation: u64,
        /// For how long renewals have been failing when this was said.
        failing_for: Duration,
    },
    /// A lease could not be kept: whatever relied on it must have stopped. The session goes on trying to get another.
    Lost {
        /// Why; none if a lease could never be had.
        why: Option<End>,
    },
    /// The session is closed, or the store can never be used again.
    Closed {
        /// What the store said, if it was the store.
        why: Option<StoreError>,
    },
}

/// What happened to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyEvent {
    /// It is in the store.
    Registered(Registration),
    /// It was deleted behind our back and is being put back.
    Missing(Bytes),
    /// Somebody else put it; it comes back when they leave.
    Taken(Bytes),
    /// It is gone from the store, as was asked.
    Unregistered(Bytes),
}

/// A session that could not tidy up; what is left ends by itself within its TTL.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "the store did not answer, so {leases} leases with {keys} keys are left to end by themselves within {within:?}"
)]
pub struct LeftBehind {
    /// How many leases.
    pub leases: usize,
    /// How many keys.
    pub keys: usize,
    /// When they are gone at the latest, if the store is up.
    pub within: Duration,
}
