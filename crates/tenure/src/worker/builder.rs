//! How a worker is started: its handlers by kind, its options, and joining the namespace.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::balance::{Balancer, Fair, ResourceUsage};
use tenure_core::id::{InvalidName, NodeId};
use tenure_core::record::MemberState;
use tenure_core::task::retry::{ErrorPolicy, Retry};
use tenure_core::worker::{Keep, StopMode, WorkerConfig, WorkerMachine, WorkerStats};
use tokio::sync::{broadcast, mpsc, watch};

use super::driver::{WorkerDriver, WorkerRequest};
use super::handlers::{HandlerTable, RunningHandlers};
use super::metrics::WorkerMetrics;
use super::status::WorkerStatus;
use super::{Worker, WorkerShared};
use crate::member::{JoinError, Members, NewMember};
use crate::ordered_watch;
use crate::rng;
use crate::task::handler::{self, FromProps, Handler};
use crate::tenure::{Tenure, request};

/// How many events a reader may fall behind. A burst of a thousand claims is three thousand events.
pub(super) const EVENTS_KEPT: usize = 4_096;

/// How often a resource is measured. Memory fills within seconds; reading it takes microseconds.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// Reads how much of a resource is used.
pub(super) struct ResourceGauge {
    read: Box<dyn Fn() -> Option<ResourceUsage> + Send + Sync>,
    pub(super) every: Duration,
}

impl ResourceGauge {
    pub(super) fn read(&self) -> Option<ResourceUsage> {
        (self.read)()
    }
}

/// A worker that is about to be started: its handlers and options.
///
/// ```
/// use std::time::Duration;
/// use tenure::{NewTask, Task, TaskError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn send(mail: Task<String>) -> Result<(), TaskError> {
///     println!("{} to {}", mail.id(), mail.props);
///     Ok(())
/// }
///
/// let tenure = Tenure::connect("memory:").await?;
/// let worker = tenure.worker("eu-1").label("zone", "eu").capacity(100).handle("mail", send).start().await?;
/// # worker.shutdown().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// A worker claims the kinds that it handles and publishes them, so that the balancers of its peers count right.
#[must_use = "nothing is started before `start`"]
pub struct WorkerBuilder {
    tenure: Tenure,
    options: Result<Box<WorkerOptions>, InvalidName>,
    routes: HandlerTable,
}

struct WorkerOptions {
    node: NewMember,
    config: WorkerConfig,
    balancer: Box<dyn Balancer>,
    policy: Box<dyn ErrorPolicy>,
    gauge: Option<ResourceGauge>,
}

impl WorkerBuilder {
    pub(crate) fn new(tenure: Tenure, node: Result<NodeId, InvalidName>) -> WorkerBuilder {
        let options = node.map(|id| {
            Box::new(WorkerOptions {
                node: NewMember::new(id.clone()).state(MemberState::Ready),
                config: WorkerConfig::new(id, rng::nonce()),
                balancer: Box::new(Fair::default()),
                policy: Box::new(Retry::default()),
                gauge: None,
            })
        });
        WorkerBuilder { tenure, options, routes: HandlerTable::default() }
    }

    /// Runs tasks of this kind. The type of the props follows from the handler.
    pub fn handle<P: FromProps, H: Handler<P>>(mut self, kind: impl Into<String>, handler: H) -> Self {
        self.routes.by_kind.insert(kind.into(), handler::erased(handler));
        self
    }

    /// Runs tasks of every other kind, also of none. The worker then claims tasks of every kind.
    pub fn handle_any<P: FromProps, H: Handler<P>>(mut self, handler: H) -> Self {
        self.routes.any = Some(handler::erased(handler));
        self
    }

    /// Where it can be reached.
    pub fn address(self, address: impl Into<String>) -> Self {
        self.node(|node| node.address(address))
    }

    /// The version of its program.
    pub fn version(self, version: impl Into<String>) -> Self {
        self.node(|node| node.version(version))
    }

    /// A label of the worker, for balancers and operators.
    pub fn label(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.node(|node| node.label(name, value))
    }

    /// Claims only tasks with this label; called again, with this one too.
    pub fn match_label(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config(|config| drop(config.selector.labels.insert(name.into(), value.into())))
    }

    /// How many tasks it runs at a time; no limit unless set. Sleeping and paused tasks do not count.
    pub fn capacity(self, tasks: usize) -> Self {
        self.config(|config| config.capacity = Some(tasks))
    }

    /// How many sleeping and paused tasks a worker with a capacity holds before it claims no more; 10,000.
    pub fn parked_max(self, tasks: usize) -> Self {
        self.config(|config| config.parked_max = tasks)
    }

    /// How long a handler has to stop before it is dropped; 5 s.
    pub fn grace(self, grace: Duration) -> Self {
        self.config(|config| config.grace = grace)
    }

    /// Waits for handlers after their grace instead of dropping them.
    ///
    /// For handlers with work that goes on elsewhere, such as in a child process: dropped, they would leave it behind, and the task would be
    /// released while it still runs. They must end it themselves within the grace.
    pub fn never_abort(self) -> Self {
        self.config(|config| config.stop_mode = StopMode::Wait)
    }

    /// Decides which tasks it claims and releases; [`Fair`] unless set.
    pub fn balancer(self, balancer: impl Balancer + 'static) -> Self {
        self.options(|options| options.balancer = Box::new(balancer))
    }

    /// How often the balancer is asked what to release, beside when workers join and leave; 15 min.
    pub fn rebalance_every(self, every: Duration) -> Self {
        self.config(|config| config.rebalance_every = every)
    }

    /// How long it does not claim again what it has released; 60 s.
    pub fn cooldown(self, cooldown: Duration) -> Self {
        self.config(|config| config.cooldown = cooldown)
    }

    /// What follows failed attempts. Unless set they are repeated after 10 min, and the eighth within 4 h fails the task.
    pub fn errors(self, policy: impl ErrorPolicy + 'static) -> Self {
        self.options(|options| options.policy = Box::new(policy))
    }

    /// After how many claims in a row that ended without an outcome a task is failed instead of run; 3. `None` for no limit.
    ///
    /// A claim ends without an outcome if its process is killed, so this stops a task that kills its worker. Only claims of the last day count.
    pub fn lost_claims_max(self, claims: Option<usize>) -> Self {
        self.config(|config| config.lost_claims_max = claims)
    }

    /// How long finished tasks are kept in the namespace, and how many of them; 7 days and 100,000.
    ///
    /// One worker of the namespace deletes for all of them, so set it alike on every worker. It uses the wall clocks of the workers.
    pub fn keep(self, keep: Keep) -> Self {
        self.config(|config| config.keep = keep)
    }

    /// How much of a resource is used, for balancers that read it; measured every 5 s. It must not block.
    pub fn resource(self, read: impl Fn() -> Option<ResourceUsage> + Send + Sync + 'static) -> Self {
        self.options(|options| {
            options.gauge = Some(ResourceGauge { read: Box::new(read), every: MEASURE_EVERY });
        })
    }

    /// Joins the namespace and begins to claim tasks. Must be awaited inside a tokio runtime, on which the worker and its handlers run.
    pub fn start(self) -> StartWorker {
        let wait = self.tenure.owner_wait();
        StartWorker { builder: self, wait, timeout: None }
    }

    fn options(mut self, change: impl FnOnce(&mut WorkerOptions)) -> Self {
        if let Ok(options) = &mut self.options {
            change(options);
        }
        self
    }

    fn config(self, change: impl FnOnce(&mut WorkerConfig)) -> Self {
        self.options(|options| change(&mut options.config))
    }

    fn node(mut self, change: impl FnOnce(NewMember) -> NewMember) -> Self {
        self.options = self.options.map(|mut options| {
            options.node = change(options.node);
            options
        });
        self
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<&String> = self.routes.by_kind.keys().collect();
        match &self.options {
            Ok(options) => write!(f, "WorkerBuilder({}, {kinds:?})", options.config.node),
            Err(invalid) => write!(f, "WorkerBuilder({invalid})"),
        }
    }
}

/// Starts a worker. Awaiting it gives a [`Worker`].
///
/// It waits for another process with the same id for the TTL and 5 s, so a restarted program starts when the key of its former process has
/// expired.
///
/// # Cancellation
///
/// Dropping the future withdraws the worker.
///
/// # Errors
///
/// [`JoinError`]; nothing of the worker is left in the store.
#[must_use = "nothing is started before this is awaited"]
#[derive(Debug)]
pub struct StartWorker {
    builder: WorkerBuilder,
    wait: Duration,
    timeout: Option<Duration>,
}

request!(StartWorker => Result<Worker, JoinError>);

impl StartWorker {
    /// Waits at most this long, for the store and for another process with the same id.
    pub fn timeout(mut self, timeout: Duration) -> StartWorker {
        (self.wait, self.timeout) = (timeout, Some(timeout));
        self
    }

    /// Fails at once with [`JoinError::Held`] instead of waiting for another process with the same id.
    pub fn try_now(mut self) -> StartWorker {
        self.wait = Duration::ZERO;
        self
    }

    async fn send(self) -> Result<Worker, JoinError> {
        let StartWorker { builder: WorkerBuilder { tenure, options, routes }, wait, timeout } = self;
        let WorkerOptions { node, mut config, balancer, policy, gauge } = *options?;
        if routes.by_kind.is_empty() && routes.any.is_none() {
            return Err(JoinError::NoHandler);
        }
        if routes.any.is_none() {
            config.selector.kinds.extend(routes.by_kind.keys().cloned());
        }
        let (session, namespace) = (tenure.session().clone(), tenure.current_namespace());
        let node = node.balancer(balancer.name()).accepts(config.selector.clone(), config.capacity);
        let mut join = Members::new(session.store().clone(), namespace).join_as(&session, node);
        if wait.is_zero() {
            join = join.try_now();
        }
        if let Some(timeout) = timeout {
            join = join.timeout(timeout);
        }
        let membership = join.await?;
        let closing = tenure.closing().clone();
        let (request, requests) = mpsc::unbounded_channel();
        let (events, _) = broadcast::channel(EVENTS_KEPT);
        let (status, shown) = watch::channel(WorkerStatus::default());
        let (stats, counted) = ordered_watch::channel(WorkerStats::default());
        let (ended, end) = ordered_watch::channel(None);
        let (id, grace) = (config.node.clone(), config.grace);
        let driver = WorkerDriver {
            machine: WorkerMachine::new(config, tenure.layout().clone(), balancer, policy),
            store: session.store().clone(),
            layout: tenure.layout().clone(),
            handlers: RunningHandlers::new(routes, tenure),
            metrics: WorkerMetrics::new(&id),
            node: id.clone(),
            gauge,
            grace,
            requests,
            events: events.clone(),
            status,
            stats,
            session: session.clone(),
        };
        let clock = session.clock().clone();
        let (shutdown, now) = (request.clone(), clock.clone());
        let running = closing.enter(grace);
        tokio::spawn(async move {
            let mut driving = pin!(driver.drive(membership));
            let end = tokio::select! {
                biased;
                end = &mut driving => end,
                () = closing.requested() => {
                    let _ = shutdown.send(WorkerRequest::Shutdown(now.now() + grace));
                    driving.await
                }
            };
            ended.send_replace(Some(end));
            // `Tenure::close` ends the session after this.
            drop(running);
        });
        let shared = WorkerShared { id, clock, grace, request, events, status: shown, stats: counted, end };
        Ok(Worker { shared: Arc::new(shared) })
    }
}
