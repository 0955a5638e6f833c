//! How a node is started.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::balance::{Balancer, Fair, Resource};
use tenure_core::id::{Namespace, NodeId};
use tenure_core::layout::Layout;
use tenure_core::record::MemberState;
use tenure_core::task::retry::{ErrorPolicy, ErrorRate};
use tenure_core::worker::{Keep, Node as Machine, StopMode, WorkerConfig, WorkerStats};
use tokio::sync::{broadcast, mpsc, watch};

use super::driver::Driver;
use super::measure::Measure;
use super::run::Handlers;
use super::words::WorkerStatus;
use super::{Node, Shared};
use crate::dice;
use crate::handler::Handler;
use crate::membership::{Cluster, JoinError, NewNode};
use crate::news;
use crate::session::Session;

/// How many notices a listener may fall behind.
const NOTICES_KEPT: usize = 4_096;

/// How often a resource is measured. Memory fills within seconds; reading it takes microseconds.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// Reads how much of a resource is used.
pub(super) struct Gauge {
    read: Box<dyn Fn() -> Option<Resource> + Send + Sync>,
    pub(super) every: Duration,
}

impl Gauge {
    pub(super) fn read(&self) -> Option<Resource> {
        (self.read)()
    }
}

/// How a node is started.
#[must_use = "nothing is started before `start`"]
pub struct NodeOptions {
    node: NewNode,
    settings: WorkerConfig,
    balancer: Box<dyn Balancer>,
    policy: Box<dyn ErrorPolicy>,
    gauge: Option<Gauge>,
    join_within: Option<Duration>,
    join_wait: Option<Duration>,
}

impl NodeOptions {
    pub(super) fn new(id: NodeId) -> NodeOptions {
        NodeOptions {
            node: NewNode::new(id.clone()).state(MemberState::Ready),
            settings: WorkerConfig::new(id, dice::nonce()),
            balancer: Box::new(Fair::default()),
            policy: Box::new(ErrorRate::default()),
            gauge: None,
            join_within: None,
            join_wait: None,
        }
    }

    /// Where it can be reached.
    pub fn address(mut self, address: impl Into<String>) -> NodeOptions {
        self.node = self.node.address(address);
        self
    }

    /// The version of the program it runs.
    pub fn version(mut self, version: impl Into<String>) -> NodeOptions {
        self.node = self.node.version(version);
        self
    }

    /// Something its operator says of it.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> NodeOptions {
        self.node = self.node.label(name, value);
        self
    }

    /// How long a handler has to stop before it is dropped; 5 s.
    pub fn grace(mut self, grace: Duration) -> NodeOptions {
        self.settings.grace = grace;
        self
    }

    /// Never drops a handler: one that has not stopped when its grace is over is waited for.
    ///
    /// For handlers that have work elsewhere, such as a process: dropped, they would leave it behind, and the task would be released while it
    /// still runs. They must see to their end themselves within the grace.
    pub fn wait_for_handlers(mut self) -> NodeOptions {
        self.settings.insistence = StopMode::Wait;
        self
    }

    /// How many tasks it runs at a time; no limit unless set. Sleeping and paused tasks do not count.
    pub fn capacity(mut self, tasks: usize) -> NodeOptions {
        self.settings.capacity = Some(tasks);
        self
    }

    /// How many sleeping and paused tasks a node with a capacity holds before it claims no more; 10,000.
    pub fn parked_max(mut self, tasks: usize) -> NodeOptions {
        self.settings.parked_max = tasks;
        self
    }

    /// Takes only tasks of this kind; called again, of this kind too.
    pub fn kind(mut self, kind: impl Into<String>) -> NodeOptions {
        self.settings.wanted.kinds.insert(kind.into());
        self
    }

    /// Takes only tasks with this label; called again, with this one too.
    pub fn only_with_label(mut self, name: impl Into<String>, value: impl Into<String>) -> NodeOptions {
        self.settings.wanted.labels.insert(name.into(), value.into());
        self
    }

    /// Who decides which tasks it takes and gives away; [`Fair`] unless told.
    pub fn balancer(mut self, balancer: impl Balancer + 'static) -> NodeOptions {
        self.balancer = Box::new(balancer);
        self
    }

    /// How often it looks whether others should have some of its tasks, beside when nodes come and go; 15 min.
    pub fn balance_every(mut self, every: Duration) -> NodeOptions {
        self.settings.balance_every = every;
        self
    }

    /// For how long it does not take back what it has released; 60 s.
    pub fn cool_down(mut self, cool_down: Duration) -> NodeOptions {
        self.settings.cool_down = cool_down;
        self
    }

    /// What becomes of tasks that fail; [`ErrorRate`] unless told: they sleep 10 min, and the eighth error within 4 h ends them.
    pub fn error_policy(mut self, policy: impl ErrorPolicy + 'static) -> NodeOptions {
        self.policy = Box::new(policy);
        self
    }

    /// After how many claims in a row that ended without an outcome a task is failed instead of run; 3. `None` for no limit.
    ///
    /// A claim ends without an outcome if its process is killed, so this stops a task that kills its worker.
    /// Only claims of the last day count.
    pub fn lost_claims_max(mut self, claims: Option<usize>) -> NodeOptions {
        self.settings.lost_claims_max = claims;
        self
    }

    /// For how long after their end, and how many of them, tasks that have ended are kept in the namespace; 7 days and 100,000.
    ///
    /// One node of the namespace deletes for all of them, so set it alike on every node. It goes by the wall clocks of the nodes.
    pub fn keep(mut self, keep: Keep) -> NodeOptions {
        self.settings.keep = keep;
        self
    }

    /// How much of a resource is used, for balancers that look at it; read every 5 s. It must not block.
    pub fn resource(mut self, read: impl Fn() -> Option<Resource> + Send + Sync + 'static) -> NodeOptions {
        self.gauge = Some(Gauge { read: Box::new(read), every: MEASURE_EVERY });
        self
    }

    /// How long joining may take; 10 s.
    pub fn join_within(mut self, within: Duration) -> NodeOptions {
        self.join_within = Some(within);
        self
    }

    /// How long to wait for another node with the same id to go; not at all unless told.
    ///
    /// For a node that was killed and started again: its former life goes when its lease ends.
    pub fn join_wait_up_to(mut self, wait: Duration) -> NodeOptions {
        self.join_wait = Some(wait);
        self
    }

    /// Joins the nodes of a namespace and begins to take tasks. Must be called inside a tokio runtime, on which the node and its handlers run.
    ///
    /// # Errors
    ///
    /// [`JoinError`] says why it did not join; nothing is left behind.
    ///
    /// # Cancellation
    ///
    /// Dropping the future withdraws the node.
    pub async fn start(
        self,
        session: &Session,
        namespace: &Namespace,
        handler: impl Handler,
    ) -> Result<Node, JoinError> {
        let store = session.store().clone();
        let id = self.settings.node.clone();
        let node = self.node.balancer(self.balancer.name());
        let node = node.accepts(self.settings.wanted.clone(), self.settings.capacity);
        let mut join = Cluster::new(store.clone(), namespace).join(session, node);
        if let Some(within) = self.join_within {
            join = join.within(within);
        }
        if let Some(wait) = self.join_wait {
            join = join.wait_up_to(wait);
        }
        let membership = join.await?;
        let layout = Layout::new(namespace);
        let (wish, wishes) = mpsc::unbounded_channel();
        let (notices, _) = broadcast::channel(NOTICES_KEPT);
        let (tenancy, shown) = watch::channel(WorkerStatus::default());
        let (tally, counted) = news::channel(WorkerStats::default());
        let (ended, end) = news::channel(None);
        let grace = self.settings.grace;
        let driver = Driver {
            machine: Machine::new(self.settings, layout.clone(), self.balancer, self.policy),
            handlers: Handlers::new(Arc::new(handler), store.clone()),
            store,
            session: session.clone(),
            layout,
            measure: Measure::new(&id),
            node: id.clone(),
            gauge: self.gauge,
            grace,
            wishes,
            notices: notices.clone(),
            tenancy,
            tally,
        };
        tokio::spawn(async move {
            let end = driver.drive(membership).await;
            ended.send_replace(Some(end));
        });
        let clock = session.clock().clone();
        Ok(Node {
            shared: Arc::new(Shared { id, clock, grace, wish, notices, tenancy: shown, tally: counted, end }),
        })
    }
}

impl fmt::Debug for NodeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeOptions({:?}, {:?}, {})", self.node, self.settings, self.balancer.name())
    }
}
