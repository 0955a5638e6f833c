//! The stored state of a task: its status, and what led to it.
//!
//! The owner of a task changes the record with [`StateRecord::apply`]. If anything changed, it
//! stores the record in a write that is conditional on its claim. The record contains what the next
//! owner needs: the errors that the error policy counts, the checkpoint to continue from, and the
//! last steps for operators.
//!
//! **Invariant**: a message that is refused, or that has no effect, changes nothing in the record,
//! not even its time.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::attempt::{ATTEMPTS_LEN_MAX, Attempt, AttemptEnd};
use super::checkpoint::Checkpoint;
use super::retry::{ErrorPolicy, RetryDecision};
use super::state::{IllegalTransition, TaskMessage, TaskMessageKind, TaskState, TaskStatus, transition};
use crate::id::NodeId;
use crate::record::{RECORD_BYTES_MAX, Record, TaskRecord, Timestamp, UnknownFields};

/// How many errors are kept, the newest ones: as many as the default policy counts.
pub const ERRORS_LEN_MAX: usize = 8;

/// How many steps are kept, the newest ones: a few days of a task that changes every hour, and some
/// 4 KiB.
pub const HISTORY_LEN_MAX: usize = 32;

/// How much text of an error or a reason is kept: a message with its causes, not a dump. Eight of
/// them must leave room for a checkpoint.
const TEXT_BYTES_MAX: usize = 2 * 1024;

/// The stored state of a task, under `state/<task>`. A task without this record is runnable.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "StoredStateRecord", into = "StoredStateRecord")]
pub struct StateRecord {
    /// The status.
    pub state: TaskStatus,
    /// The newest errors, the oldest first.
    pub errors: Vec<TaskFailure>,
    /// How often it has failed.
    pub faults: u64,
    /// How many of its claims ended without an outcome.
    pub lost: u64,
    /// The newest attempts that have ended, the oldest first.
    pub attempts: Vec<Attempt>,
    /// The checkpoint for the next owner.
    pub checkpoint: Option<Checkpoint>,
    /// When the record was last changed.
    pub updated_at: Timestamp,
    /// The worker that changed it.
    pub by: Option<NodeId>,
    /// Why it failed or was killed.
    pub reason: Option<String>,
    /// The submitted record. Only in a terminal state, so that an ended task can be shown and
    /// retried.
    pub task: Option<TaskRecord>,
    /// The newest changes of state, the oldest first. Checkpoints and releases change no state and
    /// are not included.
    pub history: Vec<HistoryEntry>,
    /// Fields of newer programs.
    pub unknown: UnknownFields,
}

/// One failure of a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskFailure {
    /// When, by the clock of the worker that ran it.
    pub at: Timestamp,
    /// What went wrong.
    pub message: String,
}

/// One change of state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When, by the clock of the worker that made it.
    pub at: Timestamp,
    /// The previous state.
    pub from: TaskState,
    /// The message.
    pub message: TaskMessageKind,
    /// The new state.
    pub to: TaskState,
    /// The worker that made it.
    pub by: NodeId,
}

/// The effect of a message on a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a record that changed must be stored"]
pub enum Applied {
    /// The record has changed: store it.
    Changed,
    /// The record is unchanged: there is nothing to store.
    Same,
}

impl StateRecord {
    /// The number of the current or next attempt, from 1 on; of an ended task, that of its last
    /// one. Failures and lost claims start a new attempt; a task that only moves continues the same
    /// one.
    pub fn attempt(&self) -> u64 {
        let ended = self.faults.saturating_add(self.lost);
        // The attempt that failed the task is counted already, and no other follows it.
        if self.state == TaskStatus::Failed { ended.max(1) } else { ended.saturating_add(1) }
    }

    /// Adds an attempt that has ended.
    pub fn note_attempt(&mut self, attempt: Attempt) {
        if attempt.end == AttemptEnd::Lost {
            self.lost = self.lost.saturating_add(1);
        } else {
            (self.updated_at, self.by) = (attempt.ended, Some(attempt.node.clone()));
        }
        self.attempts.push(attempt);
        // Lost attempts are added with the next outcome, which may follow a later attempt that was
        // released.
        self.attempts.sort_by_key(|attempt| attempt.started);
        keep_newest(&mut self.attempts, ATTEMPTS_LEN_MAX);
    }

    /// Fails a task with too many claims that ended without an outcome. The error policy is not
    /// consulted.
    ///
    /// # Errors
    ///
    /// [`IllegalTransition`] if the state takes no error; nothing was changed.
    pub fn quarantine(
        &mut self,
        reason: &str,
        at: Timestamp,
        by: &NodeId,
    ) -> Result<Applied, IllegalTransition> {
        let faults = self.faults;
        let _ = self.apply(TaskMessage::Error { message: reason.to_owned() }, at, by)?;
        let applied = self.apply(TaskMessage::Error { message: reason.to_owned() }, at, by)?;
        // No handler failed here; the lost claims have a counter of their own.
        self.faults = faults;
        Ok(applied)
    }

    /// Keeps the submitted record with the final state, unless the record would become too large to
    /// be read again.
    pub fn keep_task(&mut self, task: &TaskRecord) {
        self.task = Some(task.clone());
        if self.encode().len() > RECORD_BYTES_MAX {
            self.task = None;
        }
    }

    /// The state with which an ended task runs again. `None` if it has not ended.
    ///
    /// The error policy starts from zero. Former attempts stay for display. A task that was not
    /// completed continues from its checkpoint.
    pub fn retried(&self, at: Timestamp, by: &NodeId) -> Option<StateRecord> {
        if !self.state.is_terminal() {
            return None;
        }
        let (from, to) = (self.state.kind(), TaskState::Runnable);
        let mut history = self.history.clone();
        history.push(HistoryEntry { at, from, message: TaskMessageKind::Run, to, by: by.clone() });
        keep_newest(&mut history, HISTORY_LEN_MAX);
        Some(StateRecord {
            attempts: self.attempts.clone(),
            checkpoint: self.checkpoint.clone().filter(|_| self.state != TaskStatus::Completed),
            updated_at: at,
            by: Some(by.clone()),
            history,
            unknown: self.unknown.clone(),
            ..StateRecord::default()
        })
    }

    /// Applies a message, if the table allows it.
    ///
    /// An error leads only to [`TaskStatus::Fault`] here; [`StateRecord::fail`] applies the error
    /// policy as well.
    ///
    /// # Errors
    ///
    /// [`IllegalTransition`] if the state does not take the message; nothing was changed.
    pub fn apply(
        &mut self,
        message: TaskMessage,
        at: Timestamp,
        by: &NodeId,
    ) -> Result<Applied, IllegalTransition> {
        let to = transition(self.state, &message)?;
        let said = message.kind();
        let is_new_checkpoint = match message {
            TaskMessage::Error { message } if to == TaskStatus::Fault => {
                self.faults = self.faults.saturating_add(1);
                self.errors.push(TaskFailure { at, message: shortened(message) });
                keep_newest(&mut self.errors, ERRORS_LEN_MAX);
                false
            }
            TaskMessage::Error { message: reason } => {
                self.reason = Some(shortened(reason));
                false
            }
            TaskMessage::Kill { reason } => {
                self.reason = reason.map(shortened);
                false
            }
            TaskMessage::Checkpoint { blob: Some(blob) } if self.checkpoint.as_ref() != Some(&blob) => {
                self.checkpoint = Some(blob);
                true
            }
            TaskMessage::Checkpoint { .. }
            | TaskMessage::Run
            | TaskMessage::Sleep { .. }
            | TaskMessage::Pause
            | TaskMessage::Complete
            | TaskMessage::Release => false,
        };
        if to == self.state && !is_new_checkpoint {
            return Ok(Applied::Same);
        }
        if to != self.state {
            let (from, to) = (self.state.kind(), to.kind());
            self.history.push(HistoryEntry { at, from, message: said, to, by: by.clone() });
            keep_newest(&mut self.history, HISTORY_LEN_MAX);
        }
        self.state = to;
        self.updated_at = at;
        self.by = Some(by.clone());
        Ok(Applied::Changed)
    }

    /// Records a failure and applies the error policy: two steps that are stored as one.
    ///
    /// # Errors
    ///
    /// [`IllegalTransition`] if the state takes no error; nothing was changed.
    pub fn fail(
        &mut self,
        message: impl Into<String>,
        at: Timestamp,
        by: &NodeId,
        policy: &dyn ErrorPolicy,
    ) -> Result<Applied, IllegalTransition> {
        let applied = self.apply(TaskMessage::Error { message: message.into() }, at, by)?;
        match self.settle(at, by, policy) {
            Applied::Changed => Ok(Applied::Changed),
            Applied::Same => Ok(applied),
        }
    }

    /// Applies the error policy to a task in [`TaskStatus::Fault`], which another program may have
    /// stored.
    pub fn settle(&mut self, at: Timestamp, by: &NodeId, policy: &dyn ErrorPolicy) -> Applied {
        if self.state != TaskStatus::Fault {
            return Applied::Same;
        }
        let message = match policy.decide(self, at) {
            RetryDecision::Sleep { until } => TaskMessage::Sleep { until },
            RetryDecision::Fail { reason } => TaskMessage::Error { message: reason },
        };
        self.apply(message, at, by).expect("a fault takes sleep and error")
    }
}

impl Record for StateRecord {}

/// The record field by field. A sleeping task without a wake time is invalid.
#[derive(Serialize, Deserialize)]
struct StoredStateRecord {
    state: TaskState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    errors: Vec<TaskFailure>,
    #[serde(default, skip_serializing_if = "is_zero")]
    faults: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    lost: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attempts: Vec<Attempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Checkpoint>,
    #[serde(default)]
    updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    history: Vec<HistoryEntry>,
    #[serde(flatten)]
    unknown: UnknownFields,
}

/// A stored state with status `sleeping` but without a wake time.
#[derive(Debug, Error)]
#[error("it sleeps, but not until any time")]
struct MissingWakeTime;

impl TryFrom<StoredStateRecord> for StateRecord {
    type Error = MissingWakeTime;

    fn try_from(stored: StoredStateRecord) -> Result<StateRecord, MissingWakeTime> {
        Ok(StateRecord {
            state: stored.state.until(stored.until).ok_or(MissingWakeTime)?,
            errors: stored.errors,
            faults: stored.faults,
            lost: stored.lost,
            attempts: stored.attempts,
            checkpoint: stored.checkpoint,
            updated_at: stored.updated_at,
            by: stored.by,
            reason: stored.reason,
            task: stored.task,
            history: stored.history,
            unknown: stored.unknown,
        })
    }
}

impl From<StateRecord> for StoredStateRecord {
    fn from(record: StateRecord) -> StoredStateRecord {
        let until = match record.state {
            TaskStatus::Sleeping { until } => Some(until),
            TaskStatus::Runnable
            | TaskStatus::Fault
            | TaskStatus::Paused
            | TaskStatus::Completed
            | TaskStatus::Failed
            | TaskStatus::Killed => None,
        };
        StoredStateRecord {
            state: record.state.kind(),
            until,
            errors: record.errors,
            faults: record.faults,
            lost: record.lost,
            attempts: record.attempts,
            checkpoint: record.checkpoint,
            updated_at: record.updated_at,
            by: record.by,
            reason: record.reason,
            task: record.task,
            history: record.history,
            unknown: record.unknown,
        }
    }
}

fn keep_newest<T>(list: &mut Vec<T>, max: usize) {
    list.drain(..list.len().saturating_sub(max));
}

/// Truncates a text at a character boundary.
fn shortened(mut text: String) -> String {
    let cut = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    text.truncate(cut.unwrap_or(0));
    text
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests;
