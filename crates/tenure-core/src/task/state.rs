//! The states of a task, the messages it takes, and the transition table.
//!
//! A message that is not in the table is refused and changes nothing. docs/task-states.md is
//! generated from it.
//!
//! **Invariant**: a terminal state takes no message.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::checkpoint::Checkpoint;
use crate::record::Timestamp;
use crate::sabotage::{SabotageRule, is_broken};

/// The status of a task, with its details.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum TaskStatus {
    /// Its owner runs it. The status of a task without a stored state.
    #[default]
    Runnable,
    /// Its owner does not run it before this wall-clock time.
    Sleeping {
        /// When it runs again.
        until: Timestamp,
    },
    /// It failed, and the error policy has not decided yet how it continues.
    Fault,
    /// Its owner does not run it until a command resumes it.
    Paused,
    /// It has done its work. Terminal.
    Completed,
    /// It failed for good. Terminal.
    Failed,
    /// A command ended it. Terminal.
    Killed,
}

/// The state of a task, without details.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// See [`TaskStatus::Runnable`].
    Runnable,
    /// See [`TaskStatus::Sleeping`].
    Sleeping,
    /// See [`TaskStatus::Fault`].
    Fault,
    /// See [`TaskStatus::Paused`].
    Paused,
    /// See [`TaskStatus::Completed`].
    Completed,
    /// See [`TaskStatus::Failed`].
    Failed,
    /// See [`TaskStatus::Killed`].
    Killed,
}

/// A message to a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskMessage {
    /// Run, in any state.
    Run,
    /// Sleep until a time.
    Sleep {
        /// When to run again, by the wall clock.
        until: Timestamp,
    },
    /// Stop until a command resumes it.
    Pause,
    /// End without being completed.
    Kill {
        /// Why, as the sender states it.
        reason: Option<String>,
    },
    /// It failed.
    Error {
        /// What went wrong.
        message: String,
    },
    /// It is done.
    Complete,
    /// Keep this checkpoint for the next owner. Without a blob: ask the handler to save one.
    Checkpoint {
        /// The checkpoint.
        blob: Option<Checkpoint>,
    },
    /// Go to another owner.
    Release,
}

/// The kind of a message, without details.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskMessageKind {
    /// See [`TaskMessage::Run`].
    Run,
    /// See [`TaskMessage::Sleep`].
    Sleep,
    /// See [`TaskMessage::Pause`].
    Pause,
    /// See [`TaskMessage::Kill`].
    Kill,
    /// See [`TaskMessage::Error`].
    Error,
    /// See [`TaskMessage::Complete`].
    Complete,
    /// See [`TaskMessage::Checkpoint`].
    Checkpoint,
    /// See [`TaskMessage::Release`].
    Release,
}

/// A row of the table: a state, a message it takes, and the resulting state.
pub type Transition = (TaskState, TaskMessageKind, TaskState);

/// All transitions that are allowed.
pub const TABLE: &[Transition] = {
    use TaskMessageKind as M;
    use TaskState as S;
    &[
        (S::Runnable, M::Checkpoint, S::Runnable),
        (S::Runnable, M::Release, S::Runnable),
        (S::Runnable, M::Run, S::Runnable),
        (S::Runnable, M::Sleep, S::Sleeping),
        (S::Runnable, M::Complete, S::Completed),
        (S::Runnable, M::Kill, S::Killed),
        (S::Runnable, M::Error, S::Fault),
        (S::Runnable, M::Pause, S::Paused),
        (S::Sleeping, M::Checkpoint, S::Sleeping),
        (S::Sleeping, M::Release, S::Sleeping),
        (S::Sleeping, M::Sleep, S::Sleeping),
        (S::Sleeping, M::Run, S::Runnable),
        (S::Sleeping, M::Kill, S::Killed),
        (S::Sleeping, M::Pause, S::Paused),
        (S::Sleeping, M::Error, S::Fault),
        (S::Fault, M::Sleep, S::Sleeping),
        (S::Fault, M::Error, S::Failed),
        (S::Fault, M::Run, S::Runnable),
        (S::Fault, M::Kill, S::Killed),
        (S::Fault, M::Pause, S::Paused),
        (S::Fault, M::Release, S::Fault),
        (S::Paused, M::Checkpoint, S::Paused),
        (S::Paused, M::Release, S::Paused),
        (S::Paused, M::Pause, S::Paused),
        (S::Paused, M::Run, S::Runnable),
        (S::Paused, M::Sleep, S::Sleeping),
        (S::Paused, M::Kill, S::Killed),
    ]
};

/// A message that a state does not take. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a {from} task does not take {message}")]
pub struct IllegalTransition {
    /// The state, which is unchanged.
    pub from: TaskState,
    /// The message.
    pub message: TaskMessageKind,
}

/// The result of a message in a state.
///
/// # Errors
///
/// [`IllegalTransition`] if the table has no row for the two.
pub fn transition(state: TaskStatus, message: &TaskMessage) -> Result<TaskStatus, IllegalTransition> {
    let (from, said) = (state.kind(), message.kind());
    if is_broken(SabotageRule::LegalSteps) && (from, said) == (TaskState::Paused, TaskMessageKind::Run) {
        return Ok(TaskStatus::Completed);
    }
    let rule = TABLE.iter().find(|(at, takes, _)| (*at, *takes) == (from, said));
    let Some((_, _, to)) = rule else { return Err(IllegalTransition { from, message: said }) };
    let until = match (message, state) {
        (TaskMessage::Sleep { until }, _) => Some(*until),
        (_, TaskStatus::Sleeping { until }) => Some(until),
        _ => None,
    };
    Ok(to.until(until).expect("only a sleep message leads to sleeping, and it has a time"))
}

impl TaskStatus {
    /// The state without details.
    pub const fn kind(self) -> TaskState {
        match self {
            TaskStatus::Runnable => TaskState::Runnable,
            TaskStatus::Sleeping { .. } => TaskState::Sleeping,
            TaskStatus::Fault => TaskState::Fault,
            TaskStatus::Paused => TaskState::Paused,
            TaskStatus::Completed => TaskState::Completed,
            TaskStatus::Failed => TaskState::Failed,
            TaskStatus::Killed => TaskState::Killed,
        }
    }

    /// Whether the task has ended.
    pub const fn is_terminal(self) -> bool {
        self.kind().is_terminal()
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskStatus::Sleeping { until } => write!(f, "sleeping until {until}"),
            TaskStatus::Runnable
            | TaskStatus::Fault
            | TaskStatus::Paused
            | TaskStatus::Completed
            | TaskStatus::Failed
            | TaskStatus::Killed => f.write_str(self.kind().as_str()),
        }
    }
}

impl TaskState {
    /// All of them, in reading order.
    pub const ALL: [TaskState; 7] = [
        TaskState::Runnable,
        TaskState::Sleeping,
        TaskState::Fault,
        TaskState::Paused,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Killed,
    ];

    /// The stored and displayed text.
    pub const fn as_str(self) -> &'static str {
        match self {
            TaskState::Runnable => "runnable",
            TaskState::Sleeping => "sleeping",
            TaskState::Fault => "fault",
            TaskState::Paused => "paused",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Killed => "killed",
        }
    }

    /// Parses the text of [`TaskState::as_str`].
    pub fn parse(text: &str) -> Option<TaskState> {
        TaskState::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// The status of this state. `None` if it needs a time and there is none.
    pub fn until(self, until: Option<Timestamp>) -> Option<TaskStatus> {
        Some(match self {
            TaskState::Runnable => TaskStatus::Runnable,
            TaskState::Sleeping => TaskStatus::Sleeping { until: until? },
            TaskState::Fault => TaskStatus::Fault,
            TaskState::Paused => TaskStatus::Paused,
            TaskState::Completed => TaskStatus::Completed,
            TaskState::Failed => TaskStatus::Failed,
            TaskState::Killed => TaskStatus::Killed,
        })
    }

    /// Whether a task in this state has ended.
    pub const fn is_terminal(self) -> bool {
        match self {
            TaskState::Runnable | TaskState::Sleeping | TaskState::Fault | TaskState::Paused => false,
            TaskState::Completed | TaskState::Failed | TaskState::Killed => true,
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TaskMessage {
    /// The kind of the message.
    pub const fn kind(&self) -> TaskMessageKind {
        match self {
            TaskMessage::Run => TaskMessageKind::Run,
            TaskMessage::Sleep { .. } => TaskMessageKind::Sleep,
            TaskMessage::Pause => TaskMessageKind::Pause,
            TaskMessage::Kill { .. } => TaskMessageKind::Kill,
            TaskMessage::Error { .. } => TaskMessageKind::Error,
            TaskMessage::Complete => TaskMessageKind::Complete,
            TaskMessage::Checkpoint { .. } => TaskMessageKind::Checkpoint,
            TaskMessage::Release => TaskMessageKind::Release,
        }
    }
}

impl TaskMessageKind {
    /// All of them, in reading order.
    pub const ALL: [TaskMessageKind; 8] = [
        TaskMessageKind::Run,
        TaskMessageKind::Sleep,
        TaskMessageKind::Pause,
        TaskMessageKind::Kill,
        TaskMessageKind::Error,
        TaskMessageKind::Complete,
        TaskMessageKind::Checkpoint,
        TaskMessageKind::Release,
    ];

    /// The stored and displayed text.
    pub const fn as_str(self) -> &'static str {
        match self {
            TaskMessageKind::Run => "run",
            TaskMessageKind::Sleep => "sleep",
            TaskMessageKind::Pause => "pause",
            TaskMessageKind::Kill => "kill",
            TaskMessageKind::Error => "error",
            TaskMessageKind::Complete => "complete",
            TaskMessageKind::Checkpoint => "checkpoint",
            TaskMessageKind::Release => "release",
        }
    }

    /// Parses the text of [`TaskMessageKind::as_str`].
    pub fn parse(text: &str) -> Option<TaskMessageKind> {
        TaskMessageKind::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for TaskMessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
