//! Tasks: what a handler runs, and what it works with.

pub(crate) mod context;
pub(crate) mod handler;

pub use context::{CheckpointError, StopReason, Stopped, Task, TaskContext};
pub use handler::{FromProps, Handler, InvalidTaskProps, Outcome, RawProps, TaskError};
pub use tenure_core::task::retry::{ErrorPolicy, ErrorRate, RetryDecision};
