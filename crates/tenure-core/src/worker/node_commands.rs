//! The commands to this node that wait, and the one that is worked on.

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

/// The orders that wait, and the one that is worked on.
#[derive(Clone, Debug)]
pub(super) struct NodeCommandQueue {
    pub(super) waiting: BTreeMap<CommandId, QueuedNodeCommand>,
    pending: BTreeMap<CommandId, Option<QueuedNodeCommand>>,
    pub(super) current: Option<ActiveNodeCommand>,
    pub(super) backoff: BackoffState,
    /// Orders that were answered and that the feed still shows.
    pub(super) answered: BTreeSet<CommandId>,
    /// Keys among the commands that are none of the layout's, and were reported.
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

/// An order that is worked on.
#[derive(Clone, Debug)]
pub(super) struct ActiveNodeCommand {
    pub(super) id: CommandId,
    pub(super) modified: Revision,
    pub(super) stage: NodeCommandPhase,
}

#[derive(Clone, Debug)]
pub(super) enum NodeCommandPhase {
    /// Nothing was asked for it yet.
    Begun,
    /// The task is leaving.
    Releasing(TaskId),
    /// Its handler is stopping.
    Stopping(TaskId),
    /// The mark of the frozen has been written; everything is leaving.
    Draining { tasks: usize },
    /// Its answer is under way, or rests until it is tried again.
    Acknowledging { reply: Box<CommandAck>, then: AfterNodeCommand },
}

/// What follows when an answer is written.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum AfterNodeCommand {
    /// It was the last word.
    Ended { outcome: CommandOutcome, why: Option<String> },
    /// The node is frozen now, and drains.
    Drain,
    /// The node leaves.
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
        for (id, order) in std::mem::take(&mut self.pending) {
            match order {
                Some(order) if !self.answered.contains(&id) => drop(self.waiting.insert(id, order)),
                Some(_) => {}
                None => {
                    self.answered.remove(&id);
                    self.waiting.remove(&id);
                }
            }
        }
    }
}
