//! One task by its id: commands, state, end.

use std::time::{Duration, SystemTime};

use tenure_core::id::{InvalidName, TaskId};
use tenure_core::task::{TaskMessage, TaskState};

use super::access::TaskAccess;
use super::command::Command;
use super::delete::{DeleteTaskRequest, ForgetTaskRequest, TaskRequestError};
use super::details::{TaskDetails, TaskSummary};
use super::wait::WaitTask;
use crate::clock::{timestamp, wall_time};
use crate::error::Error;

/// One task by its id. Cheap to clone; it holds nothing in the store. A wrong name is reported by its requests.
///
/// ```
/// use tenure::task::TaskState;
/// use tenure::{NewTask, Task, TaskError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn import(task: Task<String>) -> Result<(), TaskError> {
///     println!("importing {}", task.props);
///     Ok(())
/// }
///
/// let tenure = Tenure::connect("memory:").await?;
/// let task = tenure.submit(NewTask::new("import").id("import-1").props(&"a.csv")).await?;
/// let worker = tenure.worker("eu-1").handle("import", import).start().await?;
/// assert_eq!(task.wait().await?.state, TaskState::Completed);
///
/// let details = tenure.task("import-1").details().await?.expect("the final state is kept");
/// assert_eq!(details.attempt(), Some(1));
/// # worker.shutdown().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// No request changes another task, whatever their names.
#[derive(Clone, Debug)]
pub struct TaskHandle {
    access: TaskAccess,
    task: Result<TaskId, InvalidName>,
}

impl TaskHandle {
    pub(crate) fn new(access: &TaskAccess, task: Result<TaskId, InvalidName>) -> TaskHandle {
        TaskHandle { access: access.clone(), task }
    }

    /// The id.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::InvalidName) if the text that was given is not an id. The id of a submitted task is valid.
    pub fn id(&self) -> Result<&TaskId, InvalidName> {
        self.task.as_ref().map_err(Clone::clone)
    }

    /// Stops the task until it is resumed. Its owner keeps it.
    pub fn pause(&self) -> Command {
        self.command(TaskMessage::Pause)
    }

    /// Runs the task again after a pause, a failure or a sleep.
    pub fn resume(&self) -> Command {
        self.command(TaskMessage::Run)
    }

    /// Ends the task without completing it. An empty reason is none.
    pub fn kill(&self, reason: impl Into<String>) -> Command {
        let reason = Some(reason.into()).filter(|reason| !reason.is_empty());
        self.command(TaskMessage::Kill { reason })
    }

    /// Stops the task, and runs it again after this long.
    pub fn sleep(&self, time: Duration) -> Command {
        self.command(TaskMessage::Sleep { until: wall_time().after(time) })
    }

    /// Stops the task, and runs it again at this time of the wall clock of its owner.
    pub fn sleep_until(&self, time: SystemTime) -> Command {
        self.command(TaskMessage::Sleep { until: timestamp(time) })
    }

    /// Moves the task to another worker.
    pub fn release(&self) -> Command {
        self.command(TaskMessage::Release)
    }

    /// Requests the handler to store its progress; see [`TaskContext::checkpoint_requested`](super::TaskContext::checkpoint_requested).
    pub fn request_checkpoint(&self) -> Command {
        self.command(TaskMessage::Checkpoint { blob: None })
    }

    /// Sends any message; the other methods send the usual ones.
    pub fn command(&self, message: TaskMessage) -> Command {
        Command::to_task(&self.access, self.task.clone(), message)
    }

    /// Deletes the task; its owner stops it. Its state stays, so that the task goes on where it was when it is submitted again.
    ///
    /// A command that no worker has handled is deleted too, and its sender is notified.
    pub fn delete(&self) -> DeleteTaskRequest {
        DeleteTaskRequest { access: self.access.clone(), task: self.task.clone(), reason: String::new() }
    }

    /// Forgets how the task ended, with its whole history. The id can be submitted as a new task then.
    pub fn forget(&self) -> ForgetTaskRequest {
        ForgetTaskRequest { access: self.access.clone(), task: self.task.clone(), reason: String::new() }
    }

    /// Runs a finished task again, with its kind, labels, props and time of submission. Returns how it had ended.
    ///
    /// Earlier errors do not count any more; its history and attempts are kept. A task that was not completed goes on from its checkpoint.
    ///
    /// # Errors
    ///
    /// [`TaskRequestError`].
    ///
    /// # Cancellation
    ///
    /// The task may run again or not.
    pub async fn retry(&self) -> Result<TaskState, TaskRequestError> {
        self.access.retry(self.id()?).await
    }

    /// The task without its props; none if nothing is stored about it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn summary(&self) -> Result<Option<TaskSummary>, Error> {
        Ok(self.access.summary(self.id()?).await?)
    }

    /// Everything that is stored about the task, with props and attempts; none if nothing is stored about it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn details(&self) -> Result<Option<TaskDetails>, Error> {
        Ok(self.access.details(self.id()?).await?)
    }

    /// Waits until the task is finished.
    pub fn wait(&self) -> WaitTask {
        WaitTask { access: self.access.clone(), task: self.task.clone(), timeout: None }
    }
}
