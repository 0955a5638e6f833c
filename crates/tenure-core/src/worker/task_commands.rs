//! The pending commands to tasks: a view of the feed of `commands/`.
//!
//! A claim reads the command of its task in the same transaction, so this view matters only for
//! later commands. Between a claim and its reply a newer command may appear here first. Therefore
//! all commands are kept, whichever worker owns the task. There are few, because a command is
//! deleted when it is handled.
//!
//! **Invariant**: a command that has expired when this worker reads it is refused. One that was read in time counts, however long its handler
//! takes to stop.

use std::collections::BTreeMap;

use crate::id::{CommandId, TaskId};
use crate::kv::KeyValue;
use crate::layout::{Key, Layout};
use crate::record::{CommandRecord, Record, Timestamp};
use crate::revision::Revision;
use crate::snapshot::FeedItem;
use crate::task::TaskMessage;

/// A command to a task, as it was read.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct TaskCommandEntry {
    /// The revision at which it was put.
    pub(super) modified: Revision,
    /// The id that its sender waits on.
    pub(super) id: Option<CommandId>,
    /// Whether it had expired when it was read.
    pub(super) is_expired: bool,
    /// The command, or why it cannot be parsed.
    pub(super) message: Result<TaskMessage, String>,
}

impl TaskCommandEntry {
    pub(super) fn read(pair: &KeyValue, now: Timestamp) -> TaskCommandEntry {
        let record = CommandRecord::decode(&pair.value).map_err(|error| error.reason());
        let id = record.as_ref().ok().and_then(|record| record.id.clone());
        let is_expired = record.as_ref().is_ok_and(|record| record.is_expired(now));
        let message = record.and_then(|record| TaskMessage::parse(&record).map_err(|bad| bad.to_string()));
        TaskCommandEntry { modified: pair.modified, id, is_expired, message }
    }
}

/// A change of a pending command.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum TaskCommandChange {
    /// It was put.
    Put(TaskId, TaskCommandEntry),
    /// It was deleted: handled, withdrawn or expired.
    Deleted(TaskId, Revision),
}

/// All pending commands.
#[derive(Clone, Debug)]
pub(super) struct TaskCommands {
    layout: Layout,
    entries: BTreeMap<TaskId, TaskCommandEntry>,
    pending: BTreeMap<TaskId, TaskCommandChange>,
}

impl TaskCommands {
    pub(super) fn new(layout: Layout) -> TaskCommands {
        TaskCommands { layout, entries: BTreeMap::new(), pending: BTreeMap::new() }
    }

    /// The pending command to a task, as far as the feed has shown.
    pub(super) fn get(&self, task: &TaskId) -> Option<&TaskCommandEntry> {
        self.entries.get(task)
    }

    /// Handles an item of the feed. Returns the changes once the snapshot is complete.
    pub(super) fn handle_item(&mut self, item: FeedItem, now: Timestamp) -> Vec<TaskCommandChange> {
        match item {
            FeedItem::SnapshotBegin => {}
            FeedItem::Put(pair) => {
                if let Some(Key::TaskCommand(task)) = self.layout.parse(&pair.key) {
                    self.pending.insert(
                        task.clone(),
                        TaskCommandChange::Put(task, TaskCommandEntry::read(&pair, now)),
                    );
                }
            }
            FeedItem::Delete { key, revision } => {
                if let Some(Key::TaskCommand(task)) = self.layout.parse(&key) {
                    self.pending.insert(task.clone(), TaskCommandChange::Deleted(task, revision));
                }
            }
            FeedItem::Synced(_) => {
                let changes: Vec<TaskCommandChange> =
                    std::mem::take(&mut self.pending).into_values().collect();
                for change in &changes {
                    match change {
                        TaskCommandChange::Put(task, entry) => {
                            self.entries.insert(task.clone(), entry.clone());
                        }
                        TaskCommandChange::Deleted(task, _) => {
                            self.entries.remove(task);
                        }
                    }
                }
                return changes;
            }
        }
        Vec::new()
    }
}
