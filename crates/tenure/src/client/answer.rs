//! What came of a command, for whoever waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::client::{CommandReply, ReadCommandReply, ReplacedCommand};
use tenure_core::id::{CommandId, NodeId};
use tenure_core::record::{CommandOutcome, ResultRecord};
use tenure_core::task::TaskState;
use thiserror::Error;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::feed::{Feed, FeedItem};
use crate::retry;
use crate::store::{Selection, Store, StoreError};

/// A command that was sent.
#[derive(Clone)]
pub struct Sent {
    pub(super) store: Store,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) read: ReadCommandReply,
    /// The command that no worker had handled yet, in whose place this one is now.
    pub replaced: Option<ReplacedCommand>,
    pub(super) sent_at: Instant,
}

/// What came of a command.
#[derive(Clone, PartialEq, Debug)]
pub struct Handled {
    /// Who handled it; of one that was replaced, who replaced it.
    pub by: NodeId,
    /// What came of it.
    pub outcome: CommandOutcome,
    /// How the task stood before.
    pub from: Option<TaskState>,
    /// How it stood afterwards.
    pub to: Option<TaskState>,
    /// Why nothing came of it, or what else is to be said.
    pub why: Option<String>,
    /// The whole result, with what newer programs say in it.
    pub record: ResultRecord,
    /// How long it took from sending until this was seen.
    pub took: Duration,
}

impl fmt::Display for Handled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.outcome {
            CommandOutcome::Done => "handled",
            other => other.as_str(),
        };
        write!(f, "{verb} by {} in {} ms", self.by, self.took.as_millis())
    }
}

/// Why it is not known what came of a command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitCommandError {
    /// Nobody has handled it yet. It still waits, and may be handled later.
    #[error("nobody has handled the command within {0:?}")]
    Deadline(Duration),
    /// It is gone without a result: an operator or another program deleted it. It will not be handled.
    #[error("the command is gone, and nobody has handled it")]
    Gone,
    /// The store says no more.
    #[error("it cannot be known what came of the command")]
    Store(#[source] StoreError),
}

impl Sent {
    /// The command's id.
    pub fn id(&self) -> &CommandId {
        self.read.id()
    }

    /// Waits until somebody has handled the command.
    ///
    /// # Cancellation
    ///
    /// Dropping the future changes nothing: the command still waits, and so can you, again.
    ///
    /// # Errors
    ///
    /// See [`WaitCommandError`].
    pub async fn wait(&self, within: Duration) -> Result<Handled, WaitCommandError> {
        match tokio::time::timeout(within, self.handled()).await {
            Ok(handled) => handled,
            Err(_) => Err(WaitCommandError::Deadline(within)),
        }
    }

    async fn handled(&self) -> Result<Handled, WaitCommandError> {
        let open = |key: &Bytes| {
            Feed::open(self.store.clone(), Selection::key(key.clone())).map_err(WaitCommandError::Store)
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
                Some(Err(error)) => return Err(WaitCommandError::Store(error)),
                None => return Err(WaitCommandError::Store(StoreError::Closed)),
            }
            let reply = retry::run("command reply", &self.store, &self.clock, &mut self.read.clone()).await;
            match reply.map_err(WaitCommandError::Store)? {
                CommandReply::Waiting => {}
                CommandReply::Gone => return Err(WaitCommandError::Gone),
                CommandReply::Result(record) => {
                    return Ok(Handled {
                        by: record.handled_by.clone(),
                        outcome: record.outcome,
                        from: record.from,
                        to: record.to,
                        why: record.why.clone(),
                        record,
                        took: self.sent_at.elapsed(),
                    });
                }
            }
        }
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sent({}, replaced {:?})", self.id(), self.replaced)
    }
}
