//! Nodes: claim tasks, run them, share them, and give them back.
//!
//! The machine in `core::node` decides; these files are what users hold, and the task behind them only moves things between the machine, the
//! store and the handlers.

mod claims;
mod driver;
mod feeds;
mod measure;
mod memory;
mod options;
mod run;
mod words;
mod writes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::id::NodeId;
use tokio::sync::{broadcast, mpsc, watch};

use crate::clock::Clock;
use crate::news;
use driver::Wish;

pub use measure::describe_metrics;
pub use memory::memory;
pub use options::NodeOptions;
pub use tenure_core::balance;
pub use tenure_core::worker::{Keep, Notice, ReleaseReason, StopReason, WorkerStats};
pub use words::{NodeEnd, ShutdownError, WorkerStatus};

/// A node that takes tasks and runs them. Cheap to clone; all clones are one node.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Namespace, NodeId};
/// use tenure::handler::{Context, Outcome};
/// use tenure::node::Node;
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = Session::open(Store::memory())?;
/// let handler = |ctx: Context| async move {
///     println!("running {} with token {}", ctx.task(), ctx.token());
///     Outcome::Done
/// };
/// let node = Node::options(NodeId::parse("web-1")?).start(&session, &Namespace::parse("shop")?, handler).await?;
/// node.shutdown(Duration::from_secs(5)).await?;
/// session.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * A task is run by one node at a time: two nodes never have a valid claim to one task.
/// * Everything the node writes about a task happens only while its claim is in the store: a node that was deposed changes nothing.
/// * The store being away completes, deletes and duplicates nothing. Tasks whose claim cannot be proven any more are stopped.
/// * A task is released only when nothing of its handler runs any more.
///
/// # Not guaranteed
///
/// * *Exactly once*: tasks run at least once; see [`Handler`](crate::handler::Handler).
/// * That a task is picked up at once when its node dies: it is when the node's lease ends.
///
/// # Cancellation
///
/// Dropping the last handle shuts the node down in the background, with its grace.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
}

struct Shared {
    id: NodeId,
    clock: Arc<dyn Clock>,
    grace: Duration,
    wish: mpsc::UnboundedSender<Wish>,
    notices: broadcast::Sender<Notice>,
    tenancy: watch::Receiver<WorkerStatus>,
    tally: news::Receiver<WorkerStats>,
    end: news::Receiver<Option<NodeEnd>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A node that has ended does not listen any more.
        let _ = self.wish.send(Wish::Shutdown(self.clock.now() + self.grace));
    }
}

impl Node {
    /// A node with this id, about to be started.
    pub fn options(id: NodeId) -> NodeOptions {
        NodeOptions::new(id)
    }

    /// Who this is.
    pub fn id(&self) -> &NodeId {
        &self.shared.id
    }

    /// What happens from now on. A listener that falls 4,096 notices behind is told how many it missed.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.shared.notices.subscribe()
    }

    /// How many tasks it owns and whether it has its place, now and whenever that changes.
    pub fn tenancy(&self) -> watch::Receiver<WorkerStatus> {
        self.shared.tenancy.clone()
    }

    /// How much it has worked so far: what it looked at, which claims it sent, and how many of them it won.
    pub fn tally(&self) -> WorkerStats {
        *self.shared.tally.borrow()
    }

    /// Waits until the node has ended, and says why: it was shut down, drained, displaced, or its store is gone for good.
    pub async fn ended(&self) -> NodeEnd {
        let mut end = self.shared.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(NodeEnd::Left { running: Vec::new() }),
            // The task was ended from outside, with its runtime.
            Err(_) => NodeEnd::Left { running: Vec::new() },
        }
    }

    /// Takes nothing new, asks all handlers to stop, releases each task whose handler has ended, and leaves.
    ///
    /// # Errors
    ///
    /// [`ShutdownError::StillRunning`] names the tasks whose handlers did not stop within the time. They are not released.
    ///
    /// # Cancellation
    ///
    /// The shutdown goes on in the background.
    pub async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        // A node that has ended does not listen any more, and says below how it ended.
        let _ = self.shared.wish.send(Wish::Shutdown(self.shared.clock.now() + within));
        self.ended().await.as_shutdown()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, {:?})", self.shared.id, *self.shared.tenancy.borrow())
    }
}
