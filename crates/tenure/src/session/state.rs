//! The state and the health of a session, and the events of its keys.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::loss::LossReason;

use super::RegisteredKey;
use crate::store::StoreError;

/// The state of a session.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// It has no key and no lease.
    Idle,
    /// Each lease is valid, and renewals are acknowledged.
    Live {
        /// Grows when a lease replaces a lost one, and when the session starts again after its last key.
        incarnation: u64,
    },
    /// Renewals fail; still valid.
    Suspect {
        /// Grows when a lease replaces a lost one, and when the session starts again after its last key.
        incarnation: u64,
        /// How long renewals had been failing when this was reported.
        failing_for: Duration,
    },
    /// A lease was lost: its holds are invalid. The session requests another one until it is closed.
    Lost {
        /// The reason; none if no lease was ever granted.
        why: Option<LossReason>,
    },
    /// The session is closed, or the store can never be used again.
    Closed {
        /// The error of the store, if that closed the session.
        why: Option<StoreError>,
    },
}

/// An event of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyEvent {
    /// It is stored: for the first time, or again after it was missing or its lease was lost.
    Registered(RegisteredKey),
    /// Another client deleted it, and the session is putting it again.
    Missing(Bytes),
    /// Another process has put it. The session puts it again when that key is deleted.
    Taken(Bytes),
    /// The store refuses it, or another process has it and it must not be overwritten. It is not registered any more.
    Refused(Bytes),
    /// It is deleted, as `unregister` requested.
    Unregistered(Bytes),
}

/// The health of a session, all at one moment.
#[derive(Clone, Debug)]
pub struct Health {
    /// Its state.
    pub state: SessionState,
    /// How long requests for leases or keys have been failing; none if they succeed.
    pub failing_for: Option<Duration>,
    /// How long each lease is certainly valid; zero while a lease is required and not granted.
    pub remaining: Duration,
    /// How many leases it has.
    pub leases: usize,
    /// How many keys are registered, or will be.
    pub keys: usize,
    /// Grows when a lease replaces one that was lost.
    pub incarnation: u64,
}

impl Health {
    /// Whether the session is open, and no lease is lost or suspect.
    pub fn is_ok(&self) -> bool {
        self.failing_for.is_none() && matches!(self.state, SessionState::Idle | SessionState::Live { .. })
    }
}
