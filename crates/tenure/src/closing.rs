//! The end of a connection: work that `close` stops before it ends the session.
//!
//! A `lead` and a worker run in tasks of the user, so `close` cannot drop them. It requests their end, and waits until each has stopped
//! its work and released what it holds.
//!
//! **Invariant** (G2): the session is closed after the work has stopped and its keys are released, or after the bound of `close`.

use std::sync::Arc;

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
}

impl Closing {
    /// Counts as running until it is dropped.
    pub(crate) fn enter(&self) -> TaskTrackerToken {
        self.running.token()
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
