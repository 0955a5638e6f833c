//! One node by its id: commands to its worker.

use serde_json::Value;
use tenure_core::client::unfreeze_absent;
use tenure_core::command::{AfterDrain, BalanceMode, NodeCommand};
use tenure_core::id::{InvalidName, NodeId, TaskId};

use crate::error::Error;
use crate::id::IntoId;
use crate::task::access::TaskAccess;
use crate::task::{Command, CommandError, CommandReply};

/// One node by its id, to control its worker from any process. Cheap to clone; a wrong name is reported by its requests.
///
/// ```
/// use tenure::task::RawProps;
/// use tenure::{Outcome, Task, TaskError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn run(_: Task<RawProps>) -> Result<Outcome, TaskError> {
///     Ok(Outcome::Complete)
/// }
///
/// let tenure = Tenure::connect("memory:").await?;
/// let worker = tenure.worker("eu-1").handle_any(run).start().await?;
/// let node = tenure.node("eu-1");
/// node.freeze().await?; // claims nothing new, also after a restart
/// assert!(node.plan().await?.releases.is_empty());
/// node.unfreeze().await?;
/// node.drain().await?; // releases all tasks and leaves
/// worker.finished().await;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// A command is for the incarnation of the node that is a member when it is sent. It expires with that incarnation.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    access: TaskAccess,
    node: Result<NodeId, InvalidName>,
}

impl NodeHandle {
    pub(crate) fn new(access: &TaskAccess, node: Result<NodeId, InvalidName>) -> NodeHandle {
        NodeHandle { access: access.clone(), node }
    }

    /// The id.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::InvalidName) if the text that was given is not an id.
    pub fn id(&self) -> Result<&NodeId, InvalidName> {
        self.node.as_ref().map_err(Clone::clone)
    }

    /// Claims no new tasks, also after a restart, until [`NodeHandle::unfreeze`].
    pub fn freeze(&self) -> Command {
        self.command(NodeCommand::Freeze)
    }

    /// Claims tasks again. The node must be a member; see [`NodeHandle::unfreeze_absent`].
    pub fn unfreeze(&self) -> Command {
        self.command(NodeCommand::Unfreeze)
    }

    /// Releases all tasks and leaves. The reply comes when it is done; it is awaited without a bound unless [`Command::timeout`] is set.
    pub fn drain(&self) -> Command {
        self.command(NodeCommand::Drain(AfterDrain::TakeTasks))
    }

    /// As [`NodeHandle::drain`], and leaves the id frozen.
    pub fn drain_and_freeze(&self) -> Command {
        self.command(NodeCommand::Drain(AfterDrain::StayFrozen))
    }

    /// Calls the balancer now, and releases what it returns.
    pub fn rebalance(&self) -> Command {
        self.command(NodeCommand::Balance(BalanceMode::Act))
    }

    /// Releases one task to another worker.
    pub fn release_task(&self, task: impl IntoId<TaskId>) -> Command {
        self.task_command(task.into_id(), NodeCommand::ReleaseTask)
    }

    /// Stops the handler of one task, and releases the task.
    pub fn stop_task(&self, task: impl IntoId<TaskId>) -> Command {
        self.task_command(task.into_id(), NodeCommand::StopTask)
    }

    /// What a rebalance would release now. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`CommandError`].
    ///
    /// # Cancellation
    ///
    /// Changes nothing.
    pub async fn plan(&self) -> Result<RebalancePlan, CommandError> {
        Ok(RebalancePlan::read(&self.command(NodeCommand::Balance(BalanceMode::DryRun)).await?))
    }

    /// Lets a node that is not a member claim tasks when it joins again. False if the node is a member or was not frozen.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    ///
    /// # Cancellation
    ///
    /// The node may be unfrozen or not.
    pub async fn unfreeze_absent(&self) -> Result<bool, Error> {
        Ok(self.access.unfreeze_absent(self.id()?).await?)
    }

    /// Sends any command; the other methods send the usual ones.
    pub fn command(&self, command: NodeCommand) -> Command {
        Command::to_node(&self.access, self.node.clone(), command)
    }

    fn task_command(
        &self,
        task: Result<TaskId, InvalidName>,
        command: impl FnOnce(TaskId) -> NodeCommand,
    ) -> Command {
        let (node, command) = match (self.node.clone(), task) {
            (Ok(node), Ok(task)) => (Ok(node), command(task)),
            // Never sent: the request reports the wrong name.
            (Err(invalid), _) | (_, Err(invalid)) => (Err(invalid), NodeCommand::Freeze),
        };
        Command::to_node(&self.access, node, command)
    }
}

/// What a worker would release in a rebalance.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RebalancePlan {
    /// The name of its balancer.
    pub balancer: String,
    /// How many tasks it would release. Of very many it names only the first.
    pub planned: usize,
    /// The tasks with the reasons.
    pub releases: Vec<PlannedRelease>,
}

/// A task that a worker would release.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PlannedRelease {
    /// The task.
    pub task: String,
    /// Why.
    pub reason: String,
}

impl RebalancePlan {
    /// The plan in the reply to a dry run. A worker of another version may record less, so nothing of it is required.
    pub fn read(reply: &CommandReply) -> RebalancePlan {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("-").to_owned();
        let releases: Vec<PlannedRelease> = reply
            .details
            .get("plan")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|release| PlannedRelease {
                task: text(release.get("task")),
                reason: text(release.get("why")),
            })
            .collect();
        let planned = reply.details.get("planned").and_then(Value::as_u64);
        let planned = planned.and_then(|count| usize::try_from(count).ok());
        let balancer = text(reply.details.get("balancer"));
        RebalancePlan { balancer, planned: planned.unwrap_or(releases.len()), releases }
    }
}

impl TaskAccess {
    async fn unfreeze_absent(&self, node: &NodeId) -> Result<bool, crate::StoreError> {
        Ok(self.store().txn(unfreeze_absent(self.layout(), node)).await?.succeeded)
    }
}
