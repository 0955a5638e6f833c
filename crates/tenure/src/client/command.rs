//! Commands: to a task as a mailbox in which the last one counts, to a node as a queue. Both are acknowledged.

use tenure_core::client::{ReadCommandReply, SendCommand, SendNodeCommand, unfreeze_absent};
use tenure_core::command::NodeCommand;
use tenure_core::id::{CommandId, NodeId, TaskId};
use tenure_core::layout::Key;
use tenure_core::task::TaskMessage;
use tokio::time::Instant;

use super::{Client, CommandError, NodeCommandError, ReplacedCommand, Sent};
use crate::audit::AuditAction;
use crate::store::StoreError;

impl Client {
    /// Tells a task something, through its owner. One that waits to be handled is replaced.
    ///
    /// The task need not have an owner now: the worker that claims it handles the command, unless that has expired a week after it was sent.
    ///
    /// # Cancellation
    ///
    /// The command may have been sent or not.
    ///
    /// # Errors
    ///
    /// See [`CommandError`].
    pub async fn command(&self, task: &TaskId, message: TaskMessage) -> Result<Sent, CommandError> {
        let (id, sent_at) = (self.next_command_id(), Instant::now());
        let audit = match &message {
            TaskMessage::Kill { reason } => Some(self.audit(AuditAction::KillTask, task, reason.as_deref())),
            _ => None,
        };
        let origin = (id.clone(), self.origin());
        let mut send = SendCommand::exchange(&self.layout, task, message, origin, audit)?;
        let replaced = self.run("task command", &mut send).await?;
        Ok(self.sent(&Key::TaskCommand(task.clone()), id, replaced, sent_at))
    }

    /// Tells a node something. Commands to one node are handled in the order in which they were sent.
    ///
    /// # Errors
    ///
    /// See [`NodeCommandError`].
    pub async fn command_node(&self, node: &NodeId, command: NodeCommand) -> Result<Sent, NodeCommandError> {
        let (id, sent_at) = (self.next_command_id(), Instant::now());
        let mut send = SendNodeCommand::new(&self.layout, node, command, (id.clone(), &self.origin()));
        self.run("node command", &mut send).await?;
        Ok(self.sent(&Key::NodeCommand(node.clone(), id.clone()), id, None, sent_at))
    }

    fn sent(&self, key: &Key, id: CommandId, replaced: Option<ReplacedCommand>, sent_at: Instant) -> Sent {
        let read = ReadCommandReply::new(&self.layout, id, self.layout.encode(key));
        Sent { store: self.store.clone(), clock: self.clock.clone(), read, replaced, sent_at }
    }

    /// Lets a node that is not alive take tasks when it comes back. Returns whether it was frozen.
    ///
    /// A live node is unfrozen with [`NodeCommand::Unfreeze`], which it acknowledges.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store did not do it, or its reply was lost; it may be called again.
    pub async fn unfreeze_absent(&self, node: &NodeId) -> Result<bool, StoreError> {
        Ok(self.store.txn(unfreeze_absent(&self.layout, node)).await?.succeeded)
    }
}
