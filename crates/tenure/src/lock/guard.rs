//! A lock that is held.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tenure_core::fence::Fence;
use tenure_core::revision::Token;
use tenure_core::time::Moment;

use crate::line::{Held, Lost, ReleaseError};
use crate::store::LeaseId;

/// A lock that is held, until it is released, dropped or lost.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    held: Held,
}

impl Guard {
    pub(super) fn new(held: Held) -> Guard {
        Guard { held }
    }

    /// What to show to whatever is protected: larger than that of every earlier holder.
    pub fn token(&self) -> Token {
        self.held.token()
    }

    /// Guards writes inside the store: they happen only while the lock is held.
    pub fn fence(&self) -> Fence {
        self.held.fence()
    }

    /// The lease that the lock hangs on.
    pub fn lease(&self) -> LeaseId {
        self.held.loan().lease()
    }

    /// The TTL that the store granted.
    pub fn ttl(&self) -> Duration {
        self.held.loan().ttl()
    }

    /// Whether the lock may be relied upon. Once false, always false.
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// How long it is certainly valid, if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Until when it is certainly valid, if nothing is renewed, on the session's clock.
    pub fn valid_until(&self) -> Moment {
        self.held.loan().valid_until()
    }

    /// When the last request was sent that the store has acknowledged, on the session's clock: nobody else can hold before this and the TTL.
    pub fn acknowledged(&self) -> Moment {
        self.held.loan().acknowledged()
    }

    /// Waits for an acknowledgement that was sent after `before`, and says when. Never comes once the lock is lost.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn acknowledged_after(&self, before: Moment) -> Moment {
        self.held.loan().acknowledged_after(before).await
    }

    /// Waits until the lock is lost, and says why. Comes on time, even while calls to the store hang.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn lost(&self) -> Lost {
        self.held.lost().await
    }

    /// Runs a future, and drops it the moment the lock cannot be proven any more.
    ///
    /// It is never polled while the lock is not valid, also not once after a suspend. Blocking code inside it cannot be stopped.
    ///
    /// # Cancellation
    ///
    /// Drops the future too; the lock stays held.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        self.held.run(work).await
    }

    /// Gives the lock back, and waits until the store has taken it. Stop the work before.
    ///
    /// # Cancellation
    ///
    /// The release goes on in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.held.release().await
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({}, {:?} left)", self.token(), self.remaining())
    }
}
