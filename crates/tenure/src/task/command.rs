//! Commands to tasks and nodes: stored without a lease, handled by the worker, and answered with a stored reply.

use std::time::Duration;

use tenure_core::client::{
    ReadCommandReply, SendCommand, SendCommandError as SendError, SendNodeCommand,
    SendNodeCommandError as NodeSendError,
};
use tenure_core::command::NodeCommand;
use tenure_core::id::{InvalidName, NodeId, TaskId};
use tenure_core::layout::Key;
use tenure_core::record::Timestamp;
use tenure_core::task::{TaskMessage, TaskState};
use thiserror::Error;

use super::access::TaskAccess;
use super::command_reply::{CommandReply, PendingCommand};
use crate::audit::AuditAction;
use crate::error::{ErrorClass, classified};
use crate::store::StoreError;
use crate::tenure::request;

/// How long a reply is awaited unless another time is given. A worker that lives replies within milliseconds; a handler that has to stop
/// first takes its grace, which is 5 s.
pub(super) const REPLY_WITHIN: Duration = Duration::from_secs(10);

/// A command to a task or a node, about to be sent. Awaiting it gives the reply of the worker that handled it.
///
/// ```
/// use std::time::Duration;
/// use tenure::task::CommandError;
/// use tenure::{NewTask, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::connect("memory:").await?;
/// let task = tenure.submit(NewTask::new("mail").id("mail-1")).await?;
///
/// // No worker runs, so no reply comes: the command stays stored for a week.
/// let late = task.pause().timeout(Duration::from_millis(10)).await;
/// assert!(matches!(late, Err(CommandError::Timeout { .. })));
///
/// // The last command counts.
/// let sent = task.resume().no_reply().await?;
/// assert_eq!(sent.replaced.unwrap().command.as_deref(), Some("pause"));
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * A command is stored once, also if a reply of the store is lost.
/// * Of several commands to one task the last one counts, and the sender of each replaced one is notified. Commands to one node are handled in the
///   order in which they were sent.
/// * A task need not have an owner: the worker that claims it next handles the command.
///
/// # Not guaranteed
///
/// That a command is handled: it expires a week after it was sent, by the clock of the sender; one to a node, with the incarnation of the node.
///
/// # Cancellation
///
/// The command may be stored or not. A stored command stays, and may be handled later.
///
/// # Errors
///
/// [`CommandError`]; a wrong name is reported when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before this is awaited"]
pub struct Command {
    access: TaskAccess,
    target: Result<CommandTarget, InvalidName>,
    timeout: Option<Duration>,
}

#[derive(Clone, Debug)]
enum CommandTarget {
    Task(TaskId, TaskMessage),
    Node(NodeId, NodeCommand),
}

request!(Command => Result<CommandReply, CommandError>);

impl Command {
    pub(crate) fn to_task(
        access: &TaskAccess,
        task: Result<TaskId, InvalidName>,
        message: TaskMessage,
    ) -> Command {
        let target = task.map(|task| CommandTarget::Task(task, message));
        Command { access: access.clone(), target, timeout: Some(REPLY_WITHIN) }
    }

    pub(crate) fn to_node(
        access: &TaskAccess,
        node: Result<NodeId, InvalidName>,
        command: NodeCommand,
    ) -> Command {
        // A drain is done when the last handler has stopped, which may take any time.
        let timeout = (!matches!(command, NodeCommand::Drain(_))).then_some(REPLY_WITHIN);
        let target = node.map(|node| CommandTarget::Node(node, command));
        Command { access: access.clone(), target, timeout }
    }

    /// How long sending and the reply may take in all, then [`CommandError::Timeout`]; 10 s, for a drain unbounded.
    pub fn timeout(mut self, timeout: Duration) -> Command {
        self.timeout = Some(timeout);
        self
    }

    /// Returns when the command is stored. [`PendingCommand::reply`] waits for its reply later.
    pub fn no_reply(self) -> NoReply {
        NoReply { command: self }
    }

    async fn send(self) -> Result<CommandReply, CommandError> {
        let (access, timeout) = (self.access.clone(), self.timeout);
        let reply = async { self.store().await?.recorded().await?.into_result() };
        match access.within(timeout, reply).await {
            Some(reply) => reply,
            None => Err(CommandError::Timeout { after: timeout.unwrap_or_default() }),
        }
    }

    async fn store(self) -> Result<PendingCommand, CommandError> {
        let Command { access, target, .. } = self;
        let (id, sent_at) = (access.next_command_id(), access.clock.now());
        let (key, replaced) = match target? {
            CommandTarget::Task(task, message) => {
                let audit = match &message {
                    TaskMessage::Kill { reason } => Some(access.audit(
                        AuditAction::KillTask,
                        &task,
                        reason.as_deref().unwrap_or_default(),
                    )),
                    _ => None,
                };
                let origin = (id.clone(), access.origin());
                let mut send = SendCommand::exchange(&access.layout, &task, message, origin, audit)?;
                (Key::TaskCommand(task), access.run("task command", &mut send).await?)
            }
            CommandTarget::Node(node, command) => {
                let origin = access.origin();
                let mut send = SendNodeCommand::new(&access.layout, &node, command, (id.clone(), &origin));
                access.run("node command", &mut send).await?;
                (Key::NodeCommand(node, id.clone()), None)
            }
        };
        let read = ReadCommandReply::new(&access.layout, id, access.layout.encode(&key));
        Ok(PendingCommand { access, read, replaced, sent_at })
    }
}

/// Sends a [`Command`] without waiting for its reply.
///
/// # Cancellation
///
/// The command may be stored or not.
///
/// # Errors
///
/// [`CommandError`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before this is awaited"]
pub struct NoReply {
    command: Command,
}

request!(NoReply => Result<PendingCommand, CommandError>);

impl NoReply {
    async fn send(self) -> Result<PendingCommand, CommandError> {
        self.command.store().await
    }
}

/// Why a command was not sent, not done, or has no known reply.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The text is not an id. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The time to sleep until has passed. Nothing was sent.
    #[error("the time to sleep until has passed: {until}")]
    InvalidTime {
        /// The time.
        until: Timestamp,
    },
    /// The task or the node does not exist. Nothing was sent.
    #[error("the task or node does not exist")]
    NotFound,
    /// The task is finished and takes no commands. Nothing was sent.
    #[error("the task is finished: it is {state}")]
    Finished {
        /// The final state.
        state: TaskState,
    },
    /// The node has too many commands that it has not handled. Nothing was sent.
    #[error("the node has {waiting} commands that it has not handled")]
    Full {
        /// How many.
        waiting: usize,
    },
    /// The worker did not do it.
    #[error("refused by {by}: {reason}")]
    Refused {
        /// The worker.
        by: NodeId,
        /// The state of the task, if it was the reason.
        state: Option<TaskState>,
        /// Why.
        reason: String,
    },
    /// Another command was sent before a worker had handled this one.
    #[error("replaced by a command of {by}")]
    Replaced {
        /// The sender of the other command.
        by: NodeId,
    },
    /// No worker handled it before it was too late.
    #[error("the command expired: {reason}")]
    Expired {
        /// Why.
        reason: String,
    },
    /// The worker could not read the command, or this program cannot read its outcome; one of the two is older.
    #[error("the command was not understood by {by}: {reason}")]
    NotUnderstood {
        /// The worker.
        by: NodeId,
        /// Why.
        reason: String,
    },
    /// No reply came in time. The command stays stored, and may be handled later.
    #[error("no reply to the command within {after:?}")]
    Timeout {
        /// The timeout.
        after: Duration,
    },
    /// The command was deleted by another program, and no worker handles it.
    #[error("the command was deleted before a worker handled it")]
    Deleted,
    /// The command is stored, but its reply cannot be read.
    #[error("the reply to the command cannot be read")]
    ReplyUnknown(#[source] StoreError),
    /// The reply of the store was lost, and the command may be stored: read before sending it again.
    #[error("the command may or may not be stored")]
    Ambiguous(#[source] StoreError),
    /// The store failed. Nothing was sent.
    #[error("the command was not stored")]
    Store(#[source] StoreError),
}

impl CommandError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            CommandError::InvalidName(_)
            | CommandError::InvalidTime { .. }
            | CommandError::NotFound
            | CommandError::NotUnderstood { .. } => ErrorClass::Invalid,
            CommandError::Finished { .. }
            | CommandError::Full { .. }
            | CommandError::Refused { .. }
            | CommandError::Replaced { .. }
            | CommandError::Expired { .. }
            | CommandError::Deleted => ErrorClass::Conflict,
            // The command stays stored, and may be handled later.
            CommandError::Timeout { .. } | CommandError::ReplyUnknown(_) | CommandError::Ambiguous(_) => {
                ErrorClass::Ambiguous
            }
            CommandError::Store(error) => error.into(),
        }
    }
}

classified!(CommandError);

impl From<SendError> for CommandError {
    fn from(error: SendError) -> CommandError {
        match error {
            SendError::NotFound => CommandError::NotFound,
            SendError::Ended(state) => CommandError::Finished { state },
            SendError::Past(until) => CommandError::InvalidTime { until },
            SendError::Unknown(error) => CommandError::Ambiguous(error),
            SendError::Store(error) => CommandError::Store(error),
        }
    }
}

impl From<NodeSendError> for CommandError {
    fn from(error: NodeSendError) -> CommandError {
        match error {
            NodeSendError::NotFound => CommandError::NotFound,
            NodeSendError::Full(waiting) => CommandError::Full { waiting },
            NodeSendError::Unknown(error) => CommandError::Ambiguous(error),
            NodeSendError::Store(error) => CommandError::Store(error),
        }
    }
}
