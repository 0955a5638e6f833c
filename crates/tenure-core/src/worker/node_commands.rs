//! The pending commands to this worker, and the one in progress.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::backoff::BackoffState;
use crate::command::NodeCommand;
use crate::id::{CommandId, TaskId};
use crate::kv::KeyValue;
use crate::record::{CommandOutcome, CommandRecord, Record, Timestamp};
use crate::revision::Revision;

use super::config::RETRY;
use super::output::CommandAck;

/// The pending commands to this worker, and the one in progress.
#[derive(Clone, Debug)]
pub(super) struct NodeCommandQueue {
    pub(super) waiting: BTreeMap<CommandId, QueuedNodeCommand>,
    pending: BTreeMap<CommandId, Option<QueuedNodeCommand>>,
    pub(super) current: Option<ActiveNodeCommand>,
    pub(super) backoff: BackoffState,
    /// Commands that were acknowledged and that the feed still shows.
    pub(super) answered: BTreeSet<CommandId>,
    /// Keys among the commands that are not of the layout and were reported.
    pub(super) postponed: BTreeSet<Bytes>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct QueuedNodeCommand {
    pub(super) modified: Revision,
    pub(super) command: Result<NodeCommand, String>,
    /// The incarnation that it was sent to, if its sender has stored that.
    pub(super) incarnation: Option<u64>,
    /// When it expires.
    pub(super) expires_at: Option<Timestamp>,
    /// Its sender.
    pub(super) by: String,
}

/// A command in progress.
#[derive(Clone, Debug)]
pub(super) struct ActiveNodeCommand {
    pub(super) id: CommandId,
    pub(super) modified: Revision,
    pub(super) phase: NodeCommandPhase,
}

#[derive(Clone, Debug)]
pub(super) enum NodeCommandPhase {
    /// Nothing was requested for it yet.
    Begun,
    /// The task is being released.
    Releasing(TaskId),
    /// Its handler is stopping.
    Stopping(TaskId),
    /// The freeze mark was written, and all tasks are being released.
    Draining { tasks: usize },
    /// Its acknowledgement is in flight, or waits for its repetition.
    Acknowledging { reply: Box<CommandAck>, then: AfterNodeCommand },
}

/// What follows when the acknowledgement is written.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum AfterNodeCommand {
    /// The command has ended.
    Ended { outcome: CommandOutcome, why: Option<String> },
    /// The worker drains.
    Drain,
    /// The worker leaves.
    Leave,
}

impl NodeCommandQueue {
    pub(super) fn new() -> NodeCommandQueue {
        NodeCommandQueue {
            waiting: BTreeMap::new(),
            pending: BTreeMap::new(),
            current: None,
            backoff: BackoffState::new(RETRY),
            answered: BTreeSet::new(),
            postponed: BTreeSet::new(),
        }
    }

    pub(super) fn see_put(&mut self, id: CommandId, pair: &KeyValue) {
        let record = CommandRecord::decode(&pair.value).map_err(|bad| bad.reason());
        let (incarnation, expires_at, by) = record.as_ref().map_or((None, None, String::new()), |record| {
            (record.incarnation, record.expires_at, record.by.clone())
        });
        let command = record.and_then(|record| NodeCommand::parse(&record).map_err(|bad| bad.to_string()));
        self.pending.insert(
            id,
            Some(QueuedNodeCommand { modified: pair.modified, command, incarnation, expires_at, by }),
        );
    }

    pub(super) fn see_delete(&mut self, id: CommandId) {
        self.pending.insert(id, None);
    }

    pub(super) fn see_synced(&mut self) {
        for (id, queued) in std::mem::take(&mut self.pending) {
            match queued {
                Some(queued) if !self.answered.contains(&id) => drop(self.waiting.insert(id, queued)),
                Some(_) => {}
                None => {
                    self.answered.remove(&id);
                    self.waiting.remove(&id);
                }
            }
        }
    }
}
