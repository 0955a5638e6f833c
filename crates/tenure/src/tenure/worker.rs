//! A worker: a node that claims and runs tasks of the namespace.

use std::time::Duration;

use tenure_core::id::{InvalidName, Namespace, NodeId};

use super::Shared;
use super::members::owner_wait;
use crate::handler::Handler;
use crate::membership::JoinError;
use crate::node::{Node, NodeOptions};
use crate::session::Session;

/// A worker that is about to be started.
///
/// ```
/// use std::time::Duration;
/// use tenure::handler::{Context, Outcome};
/// use tenure::{NewTask, TaskId, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn send(_mail: Context) -> Outcome {
///     Outcome::Done
/// }
///
/// let tenure = Tenure::connect("memory:").await?;
/// let worker = tenure.worker("eu-1").label("zone", "eu").kind("mail").start(send).await?;
///
/// let mail: TaskId = "mail-1".parse()?;
/// tenure.submit(NewTask::new(mail.clone()).kind("mail")).await?;
/// tenure.tasks().wait(&mail, Duration::from_secs(10)).await?;
///
/// worker.shutdown(Duration::from_secs(5)).await?;
/// tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// It waits for another process with the same id for the TTL and 5 s, so a restarted program starts when the key of its former process has
/// expired.
#[must_use = "nothing is started before `start`"]
#[derive(Debug)]
pub struct WorkerBuilder {
    options: Result<NodeOptions, InvalidName>,
    session: Session,
    namespace: Namespace,
}

impl WorkerBuilder {
    pub(super) fn new(
        shared: &Shared,
        namespace: &Namespace,
        node: Result<NodeId, InvalidName>,
    ) -> WorkerBuilder {
        let options = node.map(|node| Node::options(node).join_wait_up_to(owner_wait(shared)));
        WorkerBuilder { options, session: shared.session.clone(), namespace: namespace.clone() }
    }

    /// Where it can be reached.
    pub fn address(self, address: impl Into<String>) -> WorkerBuilder {
        self.options(|options| options.address(address))
    }

    /// A label, for balancers and operators.
    pub fn label(self, name: impl Into<String>, value: impl Into<String>) -> WorkerBuilder {
        self.options(|options| options.label(name, value))
    }

    /// Claims only tasks of this kind; called again, of this kind too.
    pub fn kind(self, kind: impl Into<String>) -> WorkerBuilder {
        self.options(|options| options.kind(kind))
    }

    /// How many tasks it runs at a time; no limit unless set.
    pub fn capacity(self, tasks: usize) -> WorkerBuilder {
        self.options(|options| options.capacity(tasks))
    }

    /// How long a handler has to stop before it is dropped; 5 s.
    pub fn grace(self, grace: Duration) -> WorkerBuilder {
        self.options(|options| options.grace(grace))
    }

    /// Waits at most this long to join, for the store and for another process with the same id.
    pub fn timeout(self, timeout: Duration) -> WorkerBuilder {
        self.options(|options| options.join_within(timeout).join_wait_up_to(timeout))
    }

    /// Fails at once with [`JoinError::Alive`] instead of waiting for another process with the same id.
    pub fn try_now(self) -> WorkerBuilder {
        self.options(|options| options.join_wait_up_to(Duration::ZERO))
    }

    /// Changes any other option, such as the balancer: `.options(|options| options.balancer(Fair::default()))`.
    pub fn options(mut self, change: impl FnOnce(NodeOptions) -> NodeOptions) -> WorkerBuilder {
        self.options = self.options.map(change);
        self
    }

    /// Joins and begins to claim tasks. Must be called inside a tokio runtime, on which the worker and its handlers run.
    ///
    /// # Errors
    ///
    /// [`JoinError`] says why it did not join; nothing is left behind.
    ///
    /// # Cancellation
    ///
    /// Dropping the future withdraws the worker.
    pub async fn start(self, handler: impl Handler) -> Result<Node, JoinError> {
        self.options?.start(&self.session, &self.namespace, handler).await
    }
}
