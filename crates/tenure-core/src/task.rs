//! One task's life: how it stands, what may be said to it, and what that does.
//!
//! A task is said something by people (commands), by its handler (done, failed, release) and by the node that runs it. All of them speak
//! in [`TaskMessage`]s, and one table says what each does in each state: see [`state`]. What is stored is a [`StateRecord`]: the state
//! with the errors, the checkpoint and the last steps; it does its own arithmetic and is told the time. [`retry`] says what becomes
//! of a task that failed, and [`command`] how a message travels as a command.
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
