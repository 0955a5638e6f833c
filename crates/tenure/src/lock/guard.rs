//! A lock that is held.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tenure_core::time::Moment;

use crate::hold::{Hold, ReleaseError};
use crate::queue::QueueHold;

/// A lock that is held, until it is released, dropped or lost. Its methods are those of [`Hold`] and [`Validity`](crate::Validity).
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    /// None once a drop has passed it to the task that keeps it.
    hold: Option<QueueHold>,
    /// When it may be released at the earliest; none without a minimum.
    keep_until: Option<Moment>,
}

impl Guard {
    pub(super) fn new(hold: QueueHold, min_hold: Duration) -> Guard {
        let keep_until = (!min_hold.is_zero()).then(|| hold.now() + min_hold);
        Guard { hold: Some(hold), keep_until }
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
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        if let Some(keep_until) = self.keep_until {
            // The guard stays whole meanwhile: a cancelled release keeps the minimum as a dropped guard does.
            self.queue_hold().wait_until(keep_until).await;
            self.keep_until = None;
        }
        self.queue_hold().release().await
    }

    fn queue_hold(&self) -> &QueueHold {
        self.hold.as_ref().expect("only a drop takes the hold")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (Some(keep_until), Some(hold)) = (self.keep_until, &self.hold) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if hold.now() >= keep_until || !hold.is_valid() {
            return;
        }
        // This process does not rely on the lock any more; only its key stays.
        hold.withdraw();
        if let Some(hold) = self.hold.take() {
            runtime.spawn(async move { hold.wait_until(keep_until).await });
        }
    }
}

impl Deref for Guard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        self.queue_hold()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({}, {:?} left)", self.token(), self.remaining())
    }
}
