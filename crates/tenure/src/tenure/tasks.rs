//! Tasks, workers and nodes of a namespace.

use tenure_core::id::{NodeId, TaskId};

use super::Tenure;
use crate::id::IntoId;
use crate::task::{NewTask, Submit, SubmitError, TaskHandle, TaskQuery};
use crate::worker::{NodeHandle, WorkerBuilder};

impl Tenure {
    /// Submits a task. Nothing is sent before the result is awaited.
    pub fn submit(&self, task: NewTask) -> Submit {
        Submit::new(&self.scope.tasks, task)
    }

    /// Submits many tasks in as few requests as possible. Each has a result of its own, in the order in which they were given; of several with
    /// one id the first counts.
    ///
    /// # Cancellation
    ///
    /// Each task may be submitted or not.
    pub async fn submit_all(
        &self,
        tasks: impl IntoIterator<Item = NewTask>,
    ) -> Vec<Result<TaskHandle, SubmitError>> {
        // Collected first: the iterator need not be `Send`, the future is.
        let tasks: Vec<NewTask> = tasks.into_iter().collect();
        self.scope.tasks.submit_all(tasks).await
    }

    /// One task: commands, state, end. A wrong name is reported by its requests.
    pub fn task(&self, id: impl IntoId<TaskId>) -> TaskHandle {
        TaskHandle::new(&self.scope.tasks, id.into_id())
    }

    /// The tasks of the namespace by filter: lists, and requests to all of them.
    pub fn tasks(&self) -> TaskQuery {
        TaskQuery::new(&self.scope.tasks)
    }

    /// A worker that claims and runs tasks of the namespace, about to be started.
    pub fn worker(&self, node: impl IntoId<NodeId>) -> WorkerBuilder {
        WorkerBuilder::new(self.clone(), node.into_id())
    }

    /// One node: commands to its worker. A wrong name is reported by its requests.
    pub fn node(&self, node: impl IntoId<NodeId>) -> NodeHandle {
        NodeHandle::new(&self.scope.tasks, node.into_id())
    }
}
