//! Takes tasks away, or the memory of them, and runs them again.

use tenure_core::client::{DeleteTask, ForgetTask, RetryTask};
use tenure_core::id::TaskId;
use tenure_core::task::TaskState;

use super::{Client, DeleteError, Deleted, ForgetError, RetryError};
use crate::audit::AuditAction;
use crate::rng;

impl Client {
    /// Deletes a task; its owner stops it. Its state stays, so that submitted again it goes on where it was.
    ///
    /// A command that no worker has handled goes with it, and its sender is notified.
    ///
    /// # Errors
    ///
    /// See [`DeleteError`].
    pub async fn delete(&self, task: &TaskId) -> Result<Deleted, DeleteError> {
        let audit = self.audit(AuditAction::DeleteTask, task, None);
        let mut delete = DeleteTask::exchange(&self.layout, task, self.origin(), audit);
        self.run("task delete", &mut delete).await
    }

    /// Forgets how a task ended, with its whole history. If it was submitted again meanwhile, it runs now.
    ///
    /// # Errors
    ///
    /// See [`ForgetError`].
    pub async fn forget(&self, task: &TaskId) -> Result<(), ForgetError> {
        let audit = self.audit(AuditAction::ForgetTask, task, None);
        self.run("task forget", &mut ForgetTask::exchange(&self.layout, task, audit)).await
    }

    /// Runs a task again that has ended, with its kind, labels, props and time of submission. Returns how it had ended.
    ///
    /// Earlier errors do not count any more; its history and attempts are kept. A task that was not completed goes on from its checkpoint.
    ///
    /// # Errors
    ///
    /// See [`RetryError`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves it open whether the task is retried.
    pub async fn retry(&self, task: &TaskId) -> Result<TaskState, RetryError> {
        let nonce = format!("{:016x}", rng::nonce());
        self.run("task retry", &mut RetryTask::exchange(&self.layout, task, self.origin(), nonce)).await
    }
}
