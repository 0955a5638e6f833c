//! The commands that wait for tasks: the fold of the feed of `commands/`.
//!
//! A claim reads the command of its task in the same step, so this picture is needed only for what comes after. But between a claim and its
//! answer a command may be seen here first; so all of them are kept, whoever owns the tasks. There are few: a command is deleted when it was handled.
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
    /// When it was put.
    pub(super) modified: Revision,
    /// Under which id its sender waits.
    pub(super) id: Option<CommandId>,
    /// Whether it had expired when it was read.
    pub(super) is_expired: bool,
    /// What it says; or why that cannot be understood.
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

/// What became of a command.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum TaskCommandChange {
    /// It was put.
    Put(TaskId, TaskCommandEntry),
    /// It is gone: handled, withdrawn or expired.
    Deleted(TaskId, Revision),
}

/// All commands that wait.
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

    /// The command that waits for a task, as far as is known.
    pub(super) fn get(&self, task: &TaskId) -> Option<&TaskCommandEntry> {
        self.entries.get(task)
    }

    /// Something came from the feed; says what changed when the picture is whole.
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
                        TaskCommandChange::Put(task, mail) => {
                            self.entries.insert(task.clone(), mail.clone());
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
