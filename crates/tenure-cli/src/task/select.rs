//! The tasks that a destructive verb is for: one by its id, or all that match a filter.

use clap::Args;
use futures_util::{StreamExt, stream};
use tenure::Tenure;
use tenure::task::TaskSummary;
use tenure_core::id::TaskId;
use tenure_core::task::TaskState;

use super::list::FilterArgs;
use super::parse;
use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::output::Output;

/// The number of tasks in flight. Each costs the store a few requests, and a task that its owner must acknowledge waits for seconds.
const IN_FLIGHT: usize = 16;

/// The number of failed tasks that a message names.
const NAMED_MAX: usize = 10;

/// One task, or a filter.
#[derive(Args, Debug)]
pub(crate) struct SelectArgs {
    /// The task's id; or a filter, for all tasks that match it.
    #[arg(required_unless_present_any = ["states", "node", "kind"], conflicts_with_all = ["states", "node", "kind"])]
    id: Option<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// The reason; `tenure events` shows it.
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

/// An action on many tasks.
pub(super) struct BulkAction {
    /// As in "kill 3 tasks".
    pub(super) verb: &'static str,
    /// As in "killing every task", which needs a confirmation.
    pub(super) doing: &'static str,
    /// As in "3 tasks were not killed".
    pub(super) done: &'static str,
    /// Whether the action applies to a task; others that match the filter are skipped.
    pub(super) applies: fn(&TaskSummary) -> bool,
}

impl SelectArgs {
    /// Whether the filter contains this state.
    pub(super) fn names(&self, state: TaskState) -> bool {
        self.filter.names(state)
    }

    /// Checks the arguments before a store is opened.
    pub(super) fn check(&self, act: &BulkAction, output: &Output) -> Result<(), Failure> {
        match &self.id {
            Some(id) => parse(id).map(drop),
            None => {
                self.filter.check()?;
                let (doing, flags) = (act.doing, self.filter.flags());
                self.confirm.check(
                    &format!("{doing} every task with {flags}"),
                    &format!("tenure task ls {flags}"),
                    output,
                )
            }
        }
    }

    /// Runs the action for one task, or after a confirmation for all that match the filter.
    pub(super) async fn each(
        &self,
        act: &BulkAction,
        tenure: &Tenure,
        output: &Output,
        one: impl AsyncFn(TaskId) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let Some(id) = &self.id {
            return one(parse(id)?).await;
        }
        let found = self.filter.query(tenure)?.finished().list().await?;
        let ids: Vec<TaskId> =
            found.tasks.into_iter().filter(|task| (act.applies)(task)).map(|task| task.id).collect();
        let (flags, count) = (self.filter.flags(), ids.len());
        if ids.is_empty() {
            output.note(&format!("there is no task to {} with {flags}", act.verb));
            return Ok(());
        }
        let tasks = if count == 1 { "task" } else { "tasks" };
        self.confirm.prompt(&format!("{} {count} {tasks} with {flags}", act.verb), output).await?;
        let one = &one;
        let doing = ids.into_iter().map(|id| async move { (id.clone(), one(id).await) });
        let done: Vec<(TaskId, Result<(), Failure>)> =
            stream::iter(doing).buffer_unordered(IN_FLIGHT).collect().await;
        let mut failed: Vec<(TaskId, Failure)> =
            done.into_iter().filter_map(|(id, done)| done.err().map(|failure| (id, failure))).collect();
        failed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let names: Vec<&str> = failed.iter().take(NAMED_MAX).map(|(id, _)| id.as_str()).collect();
        let more = if failed.len() > NAMED_MAX { ", …" } else { "" };
        let what =
            format!("{} of {count} tasks were not {} ({}{more})", failed.len(), act.done, names.join(", "));
        match failed.into_iter().next() {
            None => Ok(()),
            Some((_, failure)) => Err(failure.while_doing(&what)),
        }
    }
}
