//! What is stored about tasks, as it was at one revision.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use bytes::Bytes;
use tenure_core::board::{Board, Card};
use tenure_core::client::{ReadEffort, TaskFound, TaskKeys, attempts_and_props};
use tenure_core::id::{ClaimId, NodeId, TaskId};
use tenure_core::layout::Key;
use tenure_core::record::{CommandRecord, Record, TaskRecord};
use tenure_core::revision::Token;
use tenure_core::snapshot::FeedItem;
use tenure_core::task::{AttemptRecord, StateRecord, TaskState};

use super::access::TaskAccess;
use crate::store::{KeyValue, Revision, StoreError};

/// A task as it was at one revision, without its props.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskSummary {
    /// Its id.
    pub id: TaskId,
    /// What was submitted and the owner; none if only the final state is left.
    pub card: Option<Card>,
    /// The stored state with errors and history, or the reason why it cannot be read.
    pub state_record: Result<StateRecord, String>,
}

impl TaskSummary {
    /// What was submitted, if the task exists and its record can be read.
    pub fn record(&self) -> Option<&TaskRecord> {
        self.card.as_ref().and_then(|card| card.record.as_ref().ok())
    }

    /// What was submitted, also of a finished task if its final state keeps it.
    pub fn submitted(&self) -> Option<&TaskRecord> {
        let kept = || self.state_record.as_ref().ok().and_then(|state| state.task.as_ref());
        self.record().or_else(kept)
    }

    /// The kind; none if it was submitted without one.
    pub fn kind(&self) -> Option<&str> {
        self.submitted().and_then(|record| record.kind.as_deref())
    }

    /// The labels; none if what was submitted is not kept.
    pub fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.submitted().map(|record| &record.labels)
    }

    /// The worker with the stored claim.
    pub fn owner(&self) -> Option<&NodeId> {
        self.card.as_ref()?.owner.as_ref()?.node()
    }

    /// The fencing token of the stored claim.
    pub fn token(&self) -> Option<Token> {
        Some(self.card.as_ref()?.owner.as_ref()?.token)
    }

    /// The state, if it can be read.
    pub fn state(&self) -> Option<TaskState> {
        self.state_record.as_ref().ok().map(|record| record.state.kind())
    }

    /// The number of the attempt, from 1 on; none if the state cannot be read.
    pub fn attempt(&self) -> Option<u64> {
        self.state_record.as_ref().ok().map(StateRecord::attempt)
    }

    /// The worker of the last attempt, if the task is finished and its state is left.
    pub(super) fn finished_on(&self) -> Option<&NodeId> {
        let state = self.state_record.as_ref().ok().filter(|state| state.state.is_terminal())?;
        state.attempts.last().map(|attempt| &attempt.node).or(state.by.as_ref())
    }

    fn read(access: &TaskAccess, task: &TaskId, found: TaskFound) -> Option<TaskSummary> {
        if found.task.is_none() && found.state.is_none() {
            return None;
        }
        let state_record = found.state();
        let board = board_of(access, found.task.into_iter().chain(found.owner), found.revision);
        Some(TaskSummary { id: task.clone(), card: board.get(task).cloned(), state_record })
    }
}

/// Everything that is stored about one task, as it was at one revision. Dereferences to [`TaskSummary`].
#[derive(Clone, PartialEq)]
pub struct TaskDetails {
    /// What [`TaskList`]s contain too.
    pub summary: TaskSummary,
    /// The props, also of a finished task that keeps them.
    pub props: Option<Bytes>,
    /// Claims that began and have no stored outcome, the oldest first: the running one, and those that were lost.
    pub attempts: Vec<(ClaimId, AttemptRecord)>,
    /// The command that no worker has handled yet, or the reason why it cannot be read.
    pub command: Option<Result<CommandRecord, String>>,
    /// The revision of all of it.
    pub revision: Revision,
}

impl Deref for TaskDetails {
    type Target = TaskSummary;

    fn deref(&self) -> &TaskSummary {
        &self.summary
    }
}

/// Props may be secret, so only their size is shown.
impl fmt::Debug for TaskDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let props = self.props.as_ref().map(Bytes::len);
        write!(f, "TaskDetails({:?}, {props:?} bytes of props, {:?})", self.summary, self.command)
    }
}

/// Tasks as they were at one revision, in the order of their ids.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskList {
    /// The tasks.
    pub tasks: Vec<TaskSummary>,
    /// The revision of all of them.
    pub revision: Revision,
}

impl Deref for TaskList {
    type Target = [TaskSummary];

    fn deref(&self) -> &[TaskSummary] {
        &self.tasks
    }
}

impl IntoIterator for TaskList {
    type Item = TaskSummary;
    type IntoIter = std::vec::IntoIter<TaskSummary>;

    fn into_iter(self) -> Self::IntoIter {
        self.tasks.into_iter()
    }
}

impl TaskAccess {
    /// Everything about a task but its props and attempts; none if nothing is stored about it.
    pub(super) async fn summary(&self, task: &TaskId) -> Result<Option<TaskSummary>, StoreError> {
        Ok(TaskSummary::read(self, task, self.read(task, ReadEffort::Once).await?))
    }

    /// Everything about a task; none if nothing is stored about it.
    pub(super) async fn details(&self, task: &TaskId) -> Result<Option<TaskDetails>, StoreError> {
        let reply = self.store.txn(TaskKeys::of(&self.layout, task).read_whole()).await?;
        let found = TaskFound::in_reply(&reply)?;
        let (attempts, props) = attempts_and_props(reply)?;
        let props = match (&found.task, found.entry(&self.layout, task)) {
            (Some(_), _) => props.pairs.first().map(|pair| pair.value.clone()),
            // A finished task has its props in its entry among the ended tasks.
            (None, Some(entry)) => found.kept_props(self.store.get_key(entry).await?.as_ref()),
            (None, None) => None,
        };
        let attempts = self.attempts_in(&attempts.pairs);
        let command = found.command.as_ref();
        let command = command.map(|pair| CommandRecord::decode(&pair.value).map_err(|bad| bad.reason()));
        let revision = found.revision;
        let summary = TaskSummary::read(self, task, found);
        Ok(summary.map(|summary| TaskDetails { summary, props, attempts, command, revision }))
    }

    /// Attempt records, the oldest first. A record that cannot be read is left out.
    fn attempts_in(&self, pairs: &[KeyValue]) -> Vec<(ClaimId, AttemptRecord)> {
        let read = |pair: &KeyValue| match self.layout.parse(&pair.key)? {
            Key::TaskAttempt(_, claim) => Some((claim, AttemptRecord::decode(&pair.value).ok()?)),
            _ => None,
        };
        let mut attempts: Vec<_> = pairs.iter().filter_map(read).collect();
        attempts.sort_by_key(|(_, attempt)| attempt.started);
        attempts
    }
}

/// The board with these keys of tasks and owners, as workers see it.
pub(super) fn board_of(
    access: &TaskAccess,
    pairs: impl IntoIterator<Item = KeyValue>,
    revision: Revision,
) -> Board {
    let mut board = Board::new(access.layout.clone());
    let mut changes = Vec::new();
    for pair in pairs {
        board.handle_item(FeedItem::Put(pair), &mut changes);
    }
    // The board applies what it received when the snapshot is complete.
    board.handle_item(FeedItem::Synced(revision), &mut changes);
    board
}
