//! The end of a connection: work that `close` stops before it ends the session.
//!
//! A `lead` and a worker run in tasks of the user, so `close` cannot drop them. It requests their end, and waits until each has stopped
//! its work and released what it holds.
//!
//! **Invariant** (G2): the session is closed after the work has stopped and its keys are released, or after the bound of `close`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::time::Moment;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Clock;

/// The request to end, and what has not ended yet. All clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing {
    request: CancellationToken,
    running: TaskTracker,
    /// The longest grace of what has run.
    grace_ms: Arc<AtomicU64>,
}

impl Closing {
    /// Counts as running until it is dropped. Its work may take `grace` to stop.
    pub(crate) fn enter(&self, grace: Duration) -> TaskTrackerToken {
        self.grace_ms.fetch_max(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.running.token()
    }

    /// How long the work that has run may take to stop.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms.load(Ordering::Relaxed))
    }

    /// Waits until the end is requested.
    pub(crate) async fn requested(&self) {
        self.request.cancelled().await;
    }

    /// Requests the end of what runs, and waits for it until the deadline.
    pub(crate) async fn close(&self, deadline: Moment, clock: &Arc<dyn Clock>) {
        self.request.cancel();
        self.running.close();
        tokio::select! {
            biased;
            () = self.running.wait() => {}
            () = clock.sleep_until(deadline) => {}
        }
    }
}
