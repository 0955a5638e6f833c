//! The reply to a command, and waiting for it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Map, Value};
use tenure_core::client::{CommandReadback, ReadCommandReply, ReplacedCommand};
use tenure_core::id::{CommandId, NodeId};
use tenure_core::record::{CommandOutcome, ResultRecord};
use tenure_core::task::TaskState;
use tenure_core::time::Moment;

use super::access::TaskAccess;
use super::command::{CommandError, REPLY_WITHIN};
use crate::feed::{Feed, FeedItem};
use crate::retry;
use crate::store::{Selection, StoreError};
use crate::tenure::request;

/// A command that is stored. Its reply can be awaited, also more than once.
#[derive(Clone)]
pub struct PendingCommand {
    pub(super) access: TaskAccess,
    pub(super) read: ReadCommandReply,
    /// The unhandled command that this one has replaced.
    pub replaced: Option<ReplacedCommand>,
    pub(super) sent_at: Moment,
}

impl PendingCommand {
    /// The id of the command.
    pub fn id(&self) -> &CommandId {
        self.read.id()
    }

    /// Waits for the recorded outcome, also one that is no success; 10 s unless [`AwaitReply::timeout`] is set.
    pub fn reply(&self) -> AwaitReply {
        AwaitReply { sent: self.clone(), timeout: REPLY_WITHIN }
    }

    pub(super) async fn recorded(&self) -> Result<CommandReply, CommandError> {
        let store = &self.access.store;
        let open = |key: &Bytes| {
            Feed::open(store.clone(), Selection::key(key.clone())).map_err(CommandError::ReplyUnknown)
        };
        let [result, command] = self.read.watched();
        let (mut results, mut commands) = (open(result)?, open(command)?);
        loop {
            let item = tokio::select! {
                biased;
                item = results.next() => item,
                item = commands.next() => item,
            };
            match item {
                Some(Ok(FeedItem::Synced(_))) => {}
                Some(Ok(FeedItem::SnapshotBegin | FeedItem::Put(_) | FeedItem::Delete { .. })) => continue,
                Some(Err(error)) => return Err(CommandError::ReplyUnknown(error)),
                None => return Err(CommandError::ReplyUnknown(StoreError::Closed)),
            }
            // The two feeds may be at different revisions, so both keys are read in one transaction.
            let mut read = self.read.clone();
            let reply = retry::run("command reply", store, &self.access.clock, &mut read).await;
            match reply.map_err(CommandError::ReplyUnknown)? {
                CommandReadback::Waiting => {}
                CommandReadback::Gone => return Err(CommandError::Deleted),
                CommandReadback::Result(record) => return Ok(self.read_reply(record)),
            }
        }
    }

    fn read_reply(&self, record: ResultRecord) -> CommandReply {
        CommandReply {
            by: record.handled_by,
            outcome: record.outcome,
            from: record.from,
            to: record.to,
            reason: record.why,
            details: record.unknown.into_iter().collect(),
            took: self.access.clock.now().since(self.sent_at),
        }
    }
}

impl fmt::Debug for PendingCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingCommand({}, replaced {:?})", self.id(), self.replaced)
    }
}

/// A recorded reply to a command.
#[derive(Clone, PartialEq, Debug)]
pub struct CommandReply {
    /// The worker that handled it; of a replaced command, the sender of the later one.
    pub by: NodeId,
    /// What came of it.
    pub outcome: CommandOutcome,
    /// The state of the task before.
    pub from: Option<TaskState>,
    /// The state of the task afterwards.
    pub to: Option<TaskState>,
    /// Why it was not done, or a remark of the worker.
    pub reason: Option<String>,
    /// What the worker recorded beyond that, such as the plan of a rebalance.
    pub details: Map<String, Value>,
    /// The time from sending to reading the reply.
    pub took: Duration,
}

impl CommandReply {
    /// The reply if the command was done, otherwise the error.
    ///
    /// # Errors
    ///
    /// [`CommandError::Refused`], [`CommandError::Replaced`], [`CommandError::Expired`] or [`CommandError::NotUnderstood`].
    pub fn into_result(self) -> Result<CommandReply, CommandError> {
        let CommandReply { by, outcome, from, reason, .. } = &self;
        let (by, reason) = (by.clone(), reason.clone().unwrap_or_default());
        Err(match outcome {
            CommandOutcome::Done => return Ok(self),
            CommandOutcome::Refused => CommandError::Refused { by, state: *from, reason },
            CommandOutcome::Replaced => CommandError::Replaced { by },
            CommandOutcome::Expired => CommandError::Expired { reason },
            _ => CommandError::NotUnderstood { by, reason },
        })
    }
}

impl fmt::Display for CommandReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.outcome {
            CommandOutcome::Done => "handled",
            other => other.as_str(),
        };
        write!(f, "{verb} by {} in {} ms", self.by, self.took.as_millis())
    }
}

/// Waits for the reply to a [`PendingCommand`].
///
/// # Cancellation
///
/// Changes nothing: the command stays stored, and the reply can be awaited again.
///
/// # Errors
///
/// [`CommandError::Timeout`], [`CommandError::Deleted`] or [`CommandError::ReplyUnknown`].
#[derive(Clone, Debug)]
#[must_use = "nothing is read before this is awaited"]
pub struct AwaitReply {
    sent: PendingCommand,
    timeout: Duration,
}

request!(AwaitReply => Result<CommandReply, CommandError>);

impl AwaitReply {
    /// Waits at most this long, then fails with [`CommandError::Timeout`].
    pub fn timeout(mut self, timeout: Duration) -> AwaitReply {
        self.timeout = timeout;
        self
    }

    async fn send(self) -> Result<CommandReply, CommandError> {
        let AwaitReply { sent, timeout } = self;
        let reply = sent.access.within(Some(timeout), sent.recorded()).await;
        reply.unwrap_or(Err(CommandError::Timeout { after: timeout }))
    }
}
