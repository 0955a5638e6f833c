//! How a task stands, as it is stored: the state, and what led to it.
//!
//! Whoever owns the task changes the record with [`StateRecord::apply`] and stores it, guarded by its claim, if anything changed. It is
//! stored with the task's next owner in mind: the errors that the error policy counts, the checkpoint to go on from, and the last steps for people who
//! ask what happened.
//!
//! **Invariant**: a message that is refused, or that leaves things as they are, changes nothing in the record, not even its time.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::attempt::{ATTEMPTS_LEN_MAX, Attempt, AttemptEnd};
use super::checkpoint::Checkpoint;
use super::retry::{ErrorPolicy, RetryDecision};
use super::state::{IllegalTransition, TaskMessage, TaskMessageKind, TaskState, TaskStatus, transition};
use crate::id::NodeId;
use crate::record::{RECORD_BYTES_MAX, Record, TaskRecord, Timestamp, UnknownFields};

/// How many errors are kept, the newest: as many as the usual policy counts.
pub const ERRORS_LEN_MAX: usize = 8;

/// How many steps are kept, the newest: a few days of a task that moves every hour, and some 4 KiB.
pub const HISTORY_LEN_MAX: usize = 32;

/// How much of an error's text or of a reason is kept: a message with its causes, not a dump. Eight of them must leave room for a checkpoint.
const TEXT_BYTES_MAX: usize = 2 * 1024;

/// How a task stands, under `state/<task>`. A task without this record is runnable.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "StoredStateRecord", into = "StoredStateRecord")]
pub struct StateRecord {
    /// The state.
    pub state: TaskStatus,
    /// The newest errors, the oldest of them first.
    pub errors: Vec<TaskFailure>,
    /// How often it has failed in all.
    pub faults: u64,
    /// How many of its claims ended without an outcome.
    pub lost: u64,
    /// The newest attempts that have ended, the oldest of them first.
    pub attempts: Vec<Attempt>,
    /// Where the next owner goes on.
    pub checkpoint: Option<Checkpoint>,
    /// When the record was last changed.
    pub updated_at: Timestamp,
    /// Which node changed it.
    pub by: Option<NodeId>,
    /// Why it was given up or killed.
    pub reason: Option<String>,
    /// What was submitted. Only in a terminal state, so that a task that has ended can be shown and retried.
    pub task: Option<TaskRecord>,
    /// The newest changes of state, the oldest of them first. Checkpoints and releases change no state and are not among them.
    pub history: Vec<HistoryEntry>,
    /// What newer programs wrote.
    pub unknown: UnknownFields,
}

/// One failure of a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskFailure {
    /// When, by the clock of the node that ran it.
    pub at: Timestamp,
    /// What went wrong.
    pub message: String,
}

/// One change of state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When, by the clock of the node that did it.
    pub at: Timestamp,
    /// How the task stood.
    pub from: TaskState,
    /// What it was told.
    pub message: TaskMessageKind,
    /// How it stood then.
    pub to: TaskState,
    /// The node that did it.
    pub by: NodeId,
}

/// What a message did to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a record that changed must be stored"]
pub enum Applied {
    /// It is another record now: store it.
    Changed,
    /// It is what it was: there is nothing to store.
    Same,
}

impl StateRecord {
    /// The number of the current or next attempt, from 1 on; of a task that has ended, that of its last one.
    /// Failures and lost claims make a new one; a task that moves is still in the same.
    pub fn attempt(&self) -> u64 {
        let ended = self.faults.saturating_add(self.lost);
        // The attempt that failed a task is counted already, and no other follows it.
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
        // Lost ones are noted with the next outcome, which may be after a later attempt was released.
        self.attempts.sort_by_key(|attempt| attempt.started);
        keep_newest(&mut self.attempts, ATTEMPTS_LEN_MAX);
    }

    /// Ends a task whose claims end without an outcome again and again: no policy is consulted.
    ///
    /// # Errors
    ///
    /// [`IllegalTransition`] if the task does not take an error as it stands; nothing has changed.
    pub fn quarantine(
        &mut self,
        reason: &str,
        at: Timestamp,
        by: &NodeId,
    ) -> Result<Applied, IllegalTransition> {
        let faults = self.faults;
        let _ = self.apply(TaskMessage::Error { message: reason.to_owned() }, at, by)?;
        let applied = self.apply(TaskMessage::Error { message: reason.to_owned() }, at, by)?;
        // No handler failed here; the lost claims are counted by themselves.
        self.faults = faults;
        Ok(applied)
    }

    /// Keeps what was submitted with the final state. A record that could not be read again with it goes without.
    pub fn keep_task(&mut self, task: &TaskRecord) {
        self.task = Some(task.clone());
        if self.encode().len() > RECORD_BYTES_MAX {
            self.task = None;
        }
    }

    /// The state with which a task that has ended runs again; none if it has not ended.
    ///
    /// It begins anew as far as the error policy is concerned. What was tried stays to be shown. A task that was not completed goes on from its
    /// checkpoint.
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

    /// Does what a message says, if the table allows it.
    ///
    /// An error only leads to [`TaskStatus::Fault`] here; [`StateRecord::fail`] also decides what becomes of the task then.
    ///
    /// # Errors
    ///
    /// [`IllegalTransition`] if the task does not take the message as it stands; nothing has changed.
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

    /// Notes that the task failed, and does what the policy says about it: both steps, to be stored as one.
    ///
    /// # Errors
    ///
    /// [`IllegalTransition`] if the task does not take an error as it stands; nothing has changed.
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

    /// Does what the policy says about a task that is in [`TaskStatus::Fault`], as one stored by somebody else may be.
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

/// The record field by field. A sleeping task without a time to wake is none.
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

/// A stored state that says that the task sleeps, but not until when.
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

/// A text cut to what is kept of it, between two characters.
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
