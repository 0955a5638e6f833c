//! A lock that is held.

use std::fmt;
use std::ops::Deref;

use crate::hold::{Hold, ReleaseError};
use crate::queue::QueueHold;

/// A lock that is held, until it is released, dropped or lost. Its methods are those of [`Hold`] and [`Validity`](crate::Validity).
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    hold: QueueHold,
}

impl Guard {
    pub(super) fn new(hold: QueueHold) -> Guard {
        Guard { hold }
    }

    /// Drops the work that runs under the lock, releases it, and waits until the store has confirmed that.
    ///
    /// Only work of [`Validity::run`](crate::Validity::run) is stopped: what the caller spawned has to be stopped before.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`]. The lock is not held any more in any case.
    ///
    /// # Cancellation
    ///
    /// The release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.hold.release().await
    }
}

impl Deref for Guard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({}, {:?} left)", self.token(), self.remaining())
    }
}
