//! Tasks: submitting, listing, commands and waiting for a client, handlers and their context for a worker.

pub(crate) mod access;
mod bulk;
mod command;
mod command_reply;
pub(crate) mod context;
mod delete;
mod details;
mod handle;
pub(crate) mod handler;
mod query;
mod submit;
mod wait;

pub use bulk::{BulkReport, BulkRequest};
pub use command::{Command, CommandError, NoReply};
pub use command_reply::{AwaitReply, CommandReply, PendingCommand};
pub use context::{CheckpointError, StopReason, Stopped, Task, TaskContext};
pub use delete::{DeleteTaskRequest, ForgetTaskRequest, TaskRequestError};
pub use details::{TaskDetails, TaskList, TaskSummary};
pub use handle::TaskHandle;
pub use handler::{FromProps, Handler, InvalidTaskProps, Outcome, RawProps, TaskError};
pub use query::TaskQuery;
pub use submit::{NewTask, Submit, SubmitError, new_task_ids};
pub use tenure_core::client::{Deleted, InvalidText, PROPS_BYTES_MAX, ReplacedCommand};
pub use tenure_core::command::NodeCommand;
pub use tenure_core::id::CommandId;
pub use tenure_core::record::CommandOutcome;
pub use tenure_core::task::retry::{ErrorPolicy, Retry, RetryDecision};
pub use tenure_core::task::{TaskMessage, TaskState};
pub use wait::{Finished, FinishedTasks, WaitTask, WaitTaskError, WaitTasks};
