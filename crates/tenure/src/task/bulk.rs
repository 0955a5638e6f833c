//! One request to many tasks, and one result for each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure_core::id::TaskId;
use tenure_core::task::TaskMessage;

use super::command::Command;
use super::delete::{DeleteTaskRequest, ForgetTaskRequest, TaskRequestError};
use super::query::TaskQuery;
use super::{CommandError, details::TaskSummary};
use crate::error::Error;
use crate::tenure::request;

/// How many tasks are handled at a time. Each costs the store a few requests, and its worker may take seconds to reply.
const TASKS_IN_FLIGHT: usize = 16;

/// A request to all tasks of a [`TaskQuery`], about to be sent.
///
/// # Cancellation
///
/// The request is done for some of the tasks.
///
/// # Errors
///
/// [`Error::InvalidName`] or [`Error::Store`] if the tasks cannot be listed; nothing was done then. What concerns one task is in [`BulkReport::failed`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before this is awaited"]
pub struct BulkRequest {
    query: TaskQuery,
    action: BulkAction,
    reason: String,
    timeout: Option<Duration>,
    awaits_reply: bool,
}

#[derive(Clone, Debug)]
pub(super) enum BulkAction {
    Command(TaskMessage),
    Delete,
    Forget,
}

impl BulkAction {
    /// Whether the request makes sense for a task that a filter has found.
    fn applies(&self, task: &TaskSummary) -> bool {
        let is_finished = task.state().is_some_and(tenure_core::task::TaskState::is_terminal);
        match self {
            BulkAction::Command(_) => task.card.is_some() && !is_finished,
            BulkAction::Delete => task.card.is_some(),
            BulkAction::Forget => is_finished,
        }
    }
}

/// What came of a [`BulkRequest`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct BulkReport {
    /// For how many tasks it was done.
    pub done: usize,
    /// The tasks for which it was not done, or may not be done, with the reasons.
    pub failed: BTreeMap<TaskId, Error>,
}

request!(BulkRequest => Result<BulkReport, Error>);

impl BulkRequest {
    pub(super) fn new(query: &TaskQuery, action: BulkAction) -> BulkRequest {
        BulkRequest { query: query.clone(), action, reason: String::new(), timeout: None, awaits_reply: true }
    }

    /// How long all of it may take. Unless set, each command waits 10 s for its reply.
    pub fn timeout(mut self, timeout: Duration) -> BulkRequest {
        self.timeout = Some(timeout);
        self
    }

    /// Counts a command as done when it is stored, without waiting for the reply of its worker.
    pub fn no_reply(mut self) -> BulkRequest {
        self.awaits_reply = false;
        self
    }

    /// Why, for the [audit records](crate::audit) of a deletion.
    pub fn reason(mut self, reason: impl Into<String>) -> BulkRequest {
        self.reason = reason.into();
        self
    }

    async fn send(self) -> Result<BulkReport, Error> {
        let tasks = self.tasks().await?;
        let mut open: BTreeSet<TaskId> = tasks.iter().cloned().collect();
        let mut report = BulkReport::default();
        // Collected first: a stream that borrows what it maps would keep the future from being sent to another thread.
        let requests: Vec<_> = tasks.into_iter().map(|task| self.clone().send_one(task)).collect();
        let all = async {
            let mut results = stream::iter(requests).buffer_unordered(TASKS_IN_FLIGHT);
            while let Some((task, result)) = results.next().await {
                open.remove(&task);
                match result {
                    Ok(()) => report.done += 1,
                    Err(error) => drop(report.failed.insert(task, error)),
                }
            }
        };
        if self.query.access.within(self.timeout, all).await.is_none() {
            report.failed.extend(open.into_iter().map(|task| (task, self.late())));
        }
        Ok(report)
    }

    async fn tasks(&self) -> Result<Vec<TaskId>, Error> {
        if let Some(ids) = self.query.only_ids() {
            return Ok(ids);
        }
        let found = self.query.list().await?.into_iter();
        Ok(found.filter(|task| self.action.applies(task)).map(|task| task.id).collect())
    }

    async fn send_one(self, task: TaskId) -> (TaskId, Result<(), Error>) {
        let (access, reason, id) = (self.query.access.clone(), self.reason, Ok(task.clone()));
        let result = match self.action {
            BulkAction::Command(message) => {
                let command = Command::to_task(&access, id, message);
                // The timeout of the whole request bounds the replies.
                let command = match self.timeout {
                    Some(timeout) => command.timeout(timeout),
                    None => command,
                };
                if self.awaits_reply {
                    command.await.map(drop).map_err(Error::from)
                } else {
                    command.no_reply().await.map(drop).map_err(Error::from)
                }
            }
            BulkAction::Delete => {
                DeleteTaskRequest { access, task: id, reason }.await.map(drop).map_err(Error::from)
            }
            BulkAction::Forget => ForgetTaskRequest { access, task: id, reason }.await.map_err(Error::from),
        };
        (task, result)
    }

    /// The result of a task that was not reached in time.
    fn late(&self) -> Error {
        let after = self.timeout.unwrap_or_default();
        match self.action {
            BulkAction::Command(_) => CommandError::Timeout { after }.into(),
            BulkAction::Delete | BulkAction::Forget => TaskRequestError::Timeout { after }.into(),
        }
    }
}
