//! The state machine of a task: its states, the messages it takes, and their effects.
//!
//! A task gets messages from clients (commands), from its handler (complete, fail, release) and
//! from the worker that runs it. All of them are [`TaskMessage`]s, and one table defines the effect
//! of each in each state: see [`state`]. The store keeps a [`StateRecord`]: the state with the
//! errors, the checkpoint and the last steps. It is pure: the time is an argument. [`retry`]
//! decides about a task that failed, and [`command`] encodes messages as commands.
//!
//! ```
//! use tenure_core::id::NodeId;
//! use tenure_core::record::Timestamp;
//! use tenure_core::task::{TaskMessage, TaskStatus, StateRecord};
//!
//! let (node, now) = (NodeId::parse("web-1")?, Timestamp(1_000));
//! let mut task = StateRecord::default(); // what a task without a stored state is
//! task.apply(TaskMessage::Pause, now, &node)?;
//! assert_eq!(task.state, TaskStatus::Paused);
//! let refused = task.apply(TaskMessage::Complete, now, &node).unwrap_err();
//! assert_eq!(refused.to_string(), "a paused task does not take complete");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod state;

pub mod command;

pub mod retry;

mod attempt;
mod checkpoint;
mod record;

pub use attempt::{ATTEMPTS_LEN_MAX, Attempt, AttemptEnd, AttemptRecord};
pub use checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, CheckpointTooLarge};
pub use record::{Applied, ERRORS_LEN_MAX, HISTORY_LEN_MAX, HistoryEntry, StateRecord, TaskFailure};
pub use state::{IllegalTransition, TaskMessage, TaskMessageKind, TaskState, TaskStatus, transition};
