//! Sends a command to a task: a mailbox in which the last command counts.
//!
//! A client that replaces a command writes its result in the same transaction, so the first sender is notified. A command expires a week after
//! it was sent, by the sender's clock.

use bytes::Bytes;
use thiserror::Error;

use super::Origin;
use super::keys::{TaskFound, TaskKeys, modified};
use super::write::{Settled, TaskExchange, TaskWrite};
use crate::audit::AuditEntry;
use crate::error::StoreError;
use crate::id::{CommandId, TaskId};
use crate::kv::KeyValue;
use crate::layout::{COMMAND_EXPIRES_AFTER, Key, Layout};
use crate::record::{CommandOutcome, CommandRecord, Record, ResultRecord, Timestamp};
use crate::task::{TaskMessage, TaskState};
use crate::txn::{Condition, Op, Txn};

/// Why a command was not sent to a task.
#[derive(Debug, Error)]
pub enum SendCommandError {
    /// There is no such task.
    #[error("there is no such task")]
    NotFound,
    /// The task has ended, and takes no commands any more.
    #[error("the task has ended, it is {0}")]
    Ended(TaskState),
    /// A time to sleep until that has passed.
    #[error("it would sleep until {0}, which has passed")]
    Past(Timestamp),
    /// The reply was lost, and what was found does not decide it: read before you send it again.
    #[error("it is not known whether the command was sent")]
    Unknown(#[source] StoreError),
    /// The store did not take it: nothing was sent.
    #[error("the command was not sent")]
    Store(#[source] StoreError),
}

/// A command that was replaced by a later one before any worker had handled it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplacedCommand {
    /// Its id, if it had one.
    pub id: Option<CommandId>,
    /// What it requested; none if it could not be read.
    pub command: Option<String>,
    /// Its sender.
    pub by: String,
    /// When it was sent.
    pub sent_at: Timestamp,
}

impl ReplacedCommand {
    pub(super) fn read(pair: &KeyValue) -> ReplacedCommand {
        match CommandRecord::decode(&pair.value) {
            Ok(record) => ReplacedCommand {
                id: record.id,
                command: Some(record.command),
                by: record.by,
                sent_at: record.sent_at,
            },
            Err(_) => {
                ReplacedCommand { id: None, command: None, by: String::new(), sent_at: Timestamp::default() }
            }
        }
    }
}

/// Whether this is the command with that id.
pub(super) fn holds(pair: Option<&KeyValue>, id: &CommandId) -> bool {
    pair.is_some_and(|pair| ReplacedCommand::read(pair).id.as_ref() == Some(id))
}

/// A command with its id, its sender, and when it expires.
pub(super) fn signed(command: CommandRecord, id: &CommandId, origin: &Origin) -> CommandRecord {
    CommandRecord {
        id: Some(id.clone()),
        sent_at: origin.at,
        by: origin.name.to_string(),
        expires_at: Some(origin.at.after(COMMAND_EXPIRES_AFTER)),
        ..command
    }
}

/// Puts the result of a command that goes unhandled, if it has an id.
pub(super) fn unhandled_result(
    layout: &Layout,
    origin: &Origin,
    id: Option<CommandId>,
    (outcome, why): (CommandOutcome, &str),
) -> Option<Op> {
    let key = layout.encode(&Key::CommandResult(id?));
    let result = ResultRecord::new(origin.name.clone(), outcome, origin.at).why(why);
    Some(Op::put(key, result.encode()))
}

/// Sends one command. It results in the command that it replaced.
#[derive(Clone, Debug)]
pub struct SendCommand {
    layout: Layout,
    keys: TaskKeys,
    origin: Origin,
    id: CommandId,
    record: Bytes,
    /// Of a destructive command.
    audit: Option<AuditEntry>,
}

impl SendCommand {
    /// Sends this message to a task, under this id.
    ///
    /// # Errors
    ///
    /// [`SendCommandError::Past`].
    pub fn exchange(
        layout: &Layout,
        task: &TaskId,
        message: TaskMessage,
        (id, origin): (CommandId, Origin),
        audit: Option<AuditEntry>,
    ) -> Result<TaskExchange<SendCommand>, SendCommandError> {
        if let TaskMessage::Sleep { until } = message
            && until <= origin.at
        {
            return Err(SendCommandError::Past(until));
        }
        let keys = TaskKeys::of(layout, task);
        let record = signed(message.into_command(), &id, &origin).encode();
        let send = SendCommand { layout: layout.clone(), keys: keys.clone(), origin, id, record, audit };
        Ok(TaskExchange::new(keys, send))
    }
}

impl TaskWrite for SendCommand {
    type Output = Option<ReplacedCommand>;
    type Error = SendCommandError;
    /// The command that it replaces.
    type Trace = Option<ReplacedCommand>;

    /// After a lost reply: a worker may have handled the command already.
    fn extra(&self, _: &TaskFound, lost: Option<&Self::Trace>) -> Option<Bytes> {
        lost.map(|_| self.layout.encode(&Key::CommandResult(self.id.clone())))
    }

    fn decide(
        &mut self,
        found: &TaskFound,
        result: Option<&KeyValue>,
        lost: Option<&Self::Trace>,
    ) -> Result<Settled<Self>, SendCommandError> {
        if let Some(replaced) = lost
            && (result.is_some() || holds(found.command.as_ref(), &self.id))
        {
            return Ok(Settled::Done(replaced.clone()));
        }
        match (&found.task, found.ended()) {
            (_, Some(state)) => return Err(SendCommandError::Ended(state)),
            (None, None) => return Err(SendCommandError::NotFound),
            (Some(_), None) => {}
        }
        let created = found.task.as_ref().map(|pair| pair.created).unwrap_or_default();
        let mut txn = Txn::new()
            .when(Condition::created_at(self.keys.task.clone(), created))
            .when(Condition::modified_at(self.keys.command.clone(), modified(found.command.as_ref())))
            .then(Op::put(self.keys.command.clone(), self.record.clone()));
        let replaced = found.command.as_ref().map(ReplacedCommand::read);
        let id = replaced.as_ref().and_then(|replaced| replaced.id.clone());
        let outcome = (CommandOutcome::Replaced, "another command was sent before it was handled");
        if let Some(result) = unhandled_result(&self.layout, &self.origin, id, outcome) {
            txn = txn.then(result);
        }
        if let Some(audit) = &self.audit {
            txn = audit.add_to(txn);
        }
        Ok(Settled::Write(txn, replaced))
    }

    fn output(&self, replaced: Self::Trace) -> Option<ReplacedCommand> {
        replaced
    }

    fn unknown(error: StoreError) -> SendCommandError {
        SendCommandError::Unknown(error)
    }

    fn failed(error: StoreError) -> SendCommandError {
        SendCommandError::Store(error)
    }
}
