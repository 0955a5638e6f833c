//! What a session says: its state, its health, what happens to keys, what it could not do.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::loss::LossReason;

use super::RegisteredKey;
use crate::store::StoreError;

/// How a session stands.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// Nothing is registered, nothing is held.
    Idle,
    /// Every lease is held and renewals are answered.
    Live {
        /// Grows when a lease replaces a lost one, and when the session starts again after its last key.
        incarnation: u64,
    },
    /// Renewals fail; still valid.
    Suspect {
        /// Grows when a lease replaces a lost one, and when the session starts again after its last key.
        incarnation: u64,
        /// For how long renewals have been failing when this was said.
        failing_for: Duration,
    },
    /// A lease could not be kept: whatever relied on it must have stopped. The session goes on trying to get another.
    Lost {
        /// Why; none if a lease could never be had.
        why: Option<LossReason>,
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
    /// It is in the store: for the first time, or back after it was missing or its lease lost.
    Registered(RegisteredKey),
    /// It was deleted behind our back and is being put back.
    Missing(Bytes),
    /// Somebody else put it; it comes back when they leave.
    Taken(Bytes),
    /// The store does not take it, or somebody else has it and it was not to be overwritten. It is not wanted any more.
    Refused(Bytes),
    /// It is gone from the store, as was asked.
    Unregistered(Bytes),
}

/// How a session does, all at one moment.
#[derive(Clone, Debug)]
pub struct Health {
    /// How it stands.
    pub state: SessionState,
    /// For how long the store has been failing us, be it with leases or with keys; none if it is not.
    pub failing_for: Option<Duration>,
    /// How long every lease is certainly valid; nothing while one is wanted and not held.
    pub remaining: Duration,
    /// How many leases are held.
    pub leases: usize,
    /// How many keys are wanted.
    pub keys: usize,
    /// Grows when a lease replaces one that was lost.
    pub incarnation: u64,
}
