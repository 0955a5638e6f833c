//! Deletes tasks, forgets how they ended, and runs finished ones again.

use std::time::Duration;

use tenure_core::client::{DeleteError, DeleteTask, Deleted, ForgetError, ForgetTask, RetryError, RetryTask};
use tenure_core::id::{InvalidName, TaskId};
use tenure_core::task::TaskState;
use thiserror::Error;

use super::access::TaskAccess;
use crate::audit::AuditAction;
use crate::error::{ErrorClass, classified};
use crate::rng;
use crate::store::StoreError;
use crate::tenure::request;

/// Deletes one task; see [`TaskHandle::delete`](super::TaskHandle::delete).
///
/// # Cancellation
///
/// The task may be deleted or not, as a whole.
///
/// # Errors
///
/// [`TaskRequestError`].
#[derive(Clone, Debug)]
#[must_use = "nothing is deleted before this is awaited"]
pub struct DeleteTaskRequest {
    pub(super) access: TaskAccess,
    pub(super) task: Result<TaskId, InvalidName>,
    pub(super) reason: String,
}

request!(DeleteTaskRequest => Result<Deleted, TaskRequestError>);

impl DeleteTaskRequest {
    /// Why, for the [audit record](crate::audit).
    pub fn reason(mut self, reason: impl Into<String>) -> DeleteTaskRequest {
        self.reason = reason.into();
        self
    }

    async fn send(self) -> Result<Deleted, TaskRequestError> {
        let DeleteTaskRequest { access, task, reason } = self;
        let task = task?;
        let audit = access.audit(AuditAction::DeleteTask, &task, &reason);
        let mut delete = DeleteTask::exchange(&access.layout, &task, access.origin(), audit);
        Ok(access.run("task delete", &mut delete).await?)
    }
}

/// Forgets how one task ended; see [`TaskHandle::forget`](super::TaskHandle::forget).
///
/// # Cancellation
///
/// The state may be deleted or not, as a whole.
///
/// # Errors
///
/// [`TaskRequestError`].
#[derive(Clone, Debug)]
#[must_use = "nothing is forgotten before this is awaited"]
pub struct ForgetTaskRequest {
    pub(super) access: TaskAccess,
    pub(super) task: Result<TaskId, InvalidName>,
    pub(super) reason: String,
}

request!(ForgetTaskRequest => Result<(), TaskRequestError>);

impl ForgetTaskRequest {
    /// Why, for the [audit record](crate::audit).
    pub fn reason(mut self, reason: impl Into<String>) -> ForgetTaskRequest {
        self.reason = reason.into();
        self
    }

    async fn send(self) -> Result<(), TaskRequestError> {
        let ForgetTaskRequest { access, task, reason } = self;
        let task = task?;
        let audit = access.audit(AuditAction::ForgetTask, &task, &reason);
        let mut forget = ForgetTask::exchange(&access.layout, &task, audit);
        Ok(access.run("task forget", &mut forget).await?)
    }
}

impl TaskAccess {
    pub(super) async fn retry(&self, task: &TaskId) -> Result<TaskState, TaskRequestError> {
        let nonce = format!("{:016x}", rng::nonce());
        let mut retry = RetryTask::exchange(&self.layout, task, self.origin(), nonce);
        Ok(self.run("task retry", &mut retry).await?)
    }
}

/// Why a task was not deleted, forgotten or retried.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum TaskRequestError {
    /// The text is not an id. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// Nothing is stored about the task.
    #[error("the task does not exist")]
    NotFound,
    /// The task is not finished: its owner needs its state.
    #[error("the task is not finished: it is {state}")]
    NotFinished {
        /// The state.
        state: TaskState,
    },
    /// What was submitted is not kept: a version before 0.2 finished the task. Submit it again.
    #[error("what was submitted is not kept with the final state")]
    NotKept,
    /// The final state cannot be read.
    #[error("the final state of the task cannot be read: {0}")]
    Unreadable(String),
    /// It was not done within the timeout of a bulk request, or may be done.
    #[error("not done within {after:?}")]
    Timeout {
        /// The timeout.
        after: Duration,
    },
    /// The reply was lost, and it may be done: read before trying again.
    #[error("the request may or may not have been applied")]
    Ambiguous(#[source] StoreError),
    /// The store failed. Nothing was changed.
    #[error("the request was not applied")]
    Store(#[source] StoreError),
}

impl TaskRequestError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            TaskRequestError::InvalidName(_) | TaskRequestError::NotFound | TaskRequestError::NotKept => {
                ErrorClass::Invalid
            }
            TaskRequestError::NotFinished { .. } | TaskRequestError::Unreadable(_) => ErrorClass::Conflict,
            // The request may have been sent, and may be applied.
            TaskRequestError::Timeout { .. } | TaskRequestError::Ambiguous(_) => ErrorClass::Ambiguous,
            TaskRequestError::Store(error) => error.into(),
        }
    }
}

classified!(TaskRequestError);

impl From<DeleteError> for TaskRequestError {
    fn from(error: DeleteError) -> TaskRequestError {
        match error {
            DeleteError::NotFound => TaskRequestError::NotFound,
            DeleteError::Unknown(error) => TaskRequestError::Ambiguous(error),
            DeleteError::Store(error) => TaskRequestError::Store(error),
        }
    }
}

impl From<ForgetError> for TaskRequestError {
    fn from(error: ForgetError) -> TaskRequestError {
        match error {
            ForgetError::NotFound => TaskRequestError::NotFound,
            ForgetError::Live(state) => TaskRequestError::NotFinished { state },
            ForgetError::Unknown(error) => TaskRequestError::Ambiguous(error),
            ForgetError::Store(error) => TaskRequestError::Store(error),
        }
    }
}

impl From<RetryError> for TaskRequestError {
    fn from(error: RetryError) -> TaskRequestError {
        match error {
            RetryError::NotFound => TaskRequestError::NotFound,
            RetryError::Live(state) => TaskRequestError::NotFinished { state },
            RetryError::NotKept => TaskRequestError::NotKept,
            RetryError::Unreadable(reason) => TaskRequestError::Unreadable(reason),
            RetryError::Unknown(error) => TaskRequestError::Ambiguous(error),
            RetryError::Store(error) => TaskRequestError::Store(error),
        }
    }
}
