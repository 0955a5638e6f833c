//! Workers: members that claim tasks, run them, share them, and release them.
//!
//! The machine in `tenure_core` decides. These files are what users hold, and a driver that moves events and requests between the machine,
//! the store and the handlers.

mod builder;
mod claims;
mod driver;
mod feeds;
mod handlers;
mod memory;
mod metrics;
mod node;
mod status;
mod writes;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::stream;
use tenure_core::id::NodeId;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};

use crate::clock::Clock;
use crate::ordered_watch;
use crate::tenure::request;
use driver::WorkerRequest;

pub use builder::{StartWorker, WorkerBuilder};
pub use memory::memory;
pub use metrics::describe_metrics;
pub use node::{NodeHandle, PlannedRelease, RebalancePlan};
pub use status::{ShutdownError, WorkerEnd, WorkerStatus};
pub use tenure_core::balance;
pub use tenure_core::balance::{
    AcceptAll, Balancer, Capacity, ClaimDecision, Claimable, ClusterLoad, Fair, Release, Rendezvous,
    ResourceUsage, Weighted,
};
pub use tenure_core::worker::{Keep, ReleaseReason, WorkerEvent, WorkerStats};

/// How much longer than the grace of its handlers a shutdown may take: for the store to confirm what was written and released.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(5);

/// A worker that claims tasks and runs them. Cheap to clone; all clones are one worker.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Task, TaskError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::connect("memory:").await?;
/// let print = |task: Task<String>| async move {
///     println!("running {} with token {}: {}", task.id(), task.token(), task.props);
///     Ok::<(), TaskError>(())
/// };
/// let worker = tenure.worker("web-1").handle("print", print).start().await?;
/// assert!(worker.status().wait_for(|status| status.is_member).await.is_ok());
/// worker.shutdown().timeout(Duration::from_secs(30)).await?;
/// tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * A task is run by one worker at a time: two workers never have a valid claim to one task.
/// * Everything that it writes about a task is applied only while its claim is stored.
/// * A store that does not answer completes, deletes and duplicates nothing. A task is stopped when its claim cannot be proven.
/// * A task is released only when nothing of its handler runs.
///
/// # Not guaranteed
///
/// * *Exactly once*: tasks run at least once; see [`Handler`](crate::task::Handler).
/// * That tasks of a killed worker run at once: they do when its lease has expired.
///
/// # Cancellation
///
/// Dropping the last handle shuts the worker down in the background, with its grace.
#[derive(Clone)]
pub struct Worker {
    shared: Arc<WorkerShared>,
}

struct WorkerShared {
    id: NodeId,
    clock: Arc<dyn Clock>,
    grace: Duration,
    request: mpsc::UnboundedSender<WorkerRequest>,
    events: broadcast::Sender<WorkerEvent>,
    status: watch::Receiver<WorkerStatus>,
    stats: ordered_watch::OrderedReceiver<WorkerStats>,
    end: ordered_watch::OrderedReceiver<Option<WorkerEnd>>,
}

impl Drop for WorkerShared {
    fn drop(&mut self) {
        // A worker that has ended does not receive it.
        let _ = self.request.send(WorkerRequest::Shutdown(self.clock.now() + self.grace));
    }
}

impl Worker {
    /// Its id among the members.
    pub fn id(&self) -> &NodeId {
        &self.shared.id
    }

    /// How many tasks it owns, how many peers it has and whether it is a member, now and whenever that changes.
    pub fn status(&self) -> watch::Receiver<WorkerStatus> {
        self.shared.status.clone()
    }

    /// Counts of what it has done so far: tasks considered, claims sent, claims won.
    pub fn stats(&self) -> WorkerStats {
        *self.shared.stats.borrow()
    }

    /// What happens from now on. A reader that falls 4,096 events behind receives [`WorkerEvent::Lagged`] in their place.
    pub fn events(&self) -> WorkerEvents {
        let receiver = self.shared.events.subscribe();
        let events = stream::unfold(receiver, async |mut receiver| match receiver.recv().await {
            Ok(event) => Some((event, receiver)),
            Err(RecvError::Lagged(missed)) => Some((WorkerEvent::Lagged(missed), receiver)),
            Err(RecvError::Closed) => None,
        });
        WorkerEvents { events: Box::pin(events) }
    }

    /// Waits until the worker has ended, and returns the reason: shut down, drained, replaced, or its store can never be used again.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn finished(&self) -> WorkerEnd {
        let mut end = self.shared.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(WorkerEnd::Left { running: Vec::new() }),
            // The driver ended with its runtime.
            Err(_) => WorkerEnd::Left { running: Vec::new() },
        }
    }

    /// Claims nothing new, requests all handlers to stop, releases each task when its handler has ended, and leaves.
    pub fn shutdown(&self) -> Shutdown {
        let within = self.shared.grace.saturating_add(SHUTDOWN_MARGIN);
        Shutdown { worker: self.clone(), within }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({}, {:?})", self.shared.id, *self.shared.status.borrow())
    }
}

/// Shuts a worker down; within its grace and 5 s unless [`Shutdown::timeout`] is set.
///
/// # Errors
///
/// [`ShutdownError::StillRunning`] names the tasks with handlers that did not stop in time. They are not released.
///
/// # Cancellation
///
/// Once it was polled the shutdown continues in the background.
#[must_use = "nothing ends before this is awaited"]
#[derive(Debug)]
pub struct Shutdown {
    worker: Worker,
    within: Duration,
}

request!(Shutdown => Result<(), ShutdownError>);

impl Shutdown {
    /// How long handlers and the store have in all.
    pub fn timeout(mut self, timeout: Duration) -> Shutdown {
        self.within = timeout;
        self
    }

    async fn send(self) -> Result<(), ShutdownError> {
        let shared = &self.worker.shared;
        // A worker that has ended does not receive it, and reports below how it ended.
        let _ = shared.request.send(WorkerRequest::Shutdown(shared.clock.now() + self.within));
        self.worker.finished().await.as_shutdown()
    }
}

/// The events of a worker; see [`Worker::events`]. Ends with the last handle of the worker.
pub struct WorkerEvents {
    events: Pin<Box<dyn Stream<Item = WorkerEvent> + Send>>,
}

impl WorkerEvents {
    /// The next event; none when the worker is gone.
    ///
    /// # Cancellation
    ///
    /// No event is missed.
    pub async fn next(&mut self) -> Option<WorkerEvent> {
        std::future::poll_fn(|context| self.events.as_mut().poll_next(context)).await
    }
}

impl Stream for WorkerEvents {
    type Item = WorkerEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WorkerEvent>> {
        self.events.as_mut().poll_next(context)
    }
}

impl fmt::Debug for WorkerEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerEvents")
    }
}
