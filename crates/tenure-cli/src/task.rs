//! `tenure task`: lists tasks, sends them commands, and waits for their end.

mod command;
mod delete;
mod list;
mod rows;
mod select;
mod show;
mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::Tenure;
use tenure::task::{TaskMessage, TaskState, TaskSummary};
use tenure_core::id::{NodeId, TaskId};

pub(crate) use command::{TimeoutArgs, acknowledged, note_acknowledged};
pub(crate) use rows::unreadable;
pub(crate) use wait::wait_for;

use self::select::{BulkAction, SelectArgs};

use crate::duration;
use crate::failure::Failure;
use crate::output::Output;

/// The `schema` of JSON output about tasks.
const SCHEMA: &str = "tenure.task/v1";

/// The verbs. A command goes to the task's owner, and the verb waits until the owner acknowledges it.
#[derive(Subcommand, Debug)]
pub(crate) enum TaskCommand {
    /// List the tasks, all at one revision: id, kind, state, owner, token, attempt, time of submission and of the last change.
    #[command(alias = "list")]
    Ls(list::ListArgs),
    /// Show a task with its attempts and errors; exit 3 if there is no such task.
    #[command(aliases = ["get", "describe"])]
    Show(TaskArgs),
    /// Stop a task until `tenure task resume`.
    Pause(TaskCommandArgs),
    /// Run a paused or sleeping task.
    Resume(TaskCommandArgs),
    /// Stop a task, and run it again at a time.
    Sleep(SleepArgs),
    /// End a task as killed.
    Kill(KillArgs),
    /// Make a task's owner release it to another node.
    Release(TaskCommandArgs),
    /// Make a task save a checkpoint now.
    Checkpoint(TaskCommandArgs),
    /// Show every change of a task's state, and its errors.
    History(TaskArgs),
    /// Wait until tasks have ended. Exit 0 if all completed, 10 if one failed, 11 if one was killed, 8 if it takes longer than --wait.
    Wait(WaitArgs),
    /// Delete a task; its owner stops it. Its state stays, so a task submitted again with the same id continues from it.
    #[command(aliases = ["delete", "del", "remove"])]
    Rm(SelectArgs),
    /// Run an ended task again, as it was submitted. With a filter: failed and killed tasks, and with --state completed also completed ones.
    /// A failed or killed task continues from its checkpoint.
    Retry(SelectArgs),
    /// Delete the final state and the history of an ended task. If the task was submitted again, it runs now.
    Forget(SelectArgs),
}

#[derive(Args, Debug)]
pub(crate) struct TaskArgs {
    /// The task's id.
    id: String,
}

#[derive(Args, Debug)]
pub(crate) struct TaskCommandArgs {
    /// The task's id.
    id: String,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SleepArgs {
    /// The task's id.
    id: String,
    /// How long, as 90s or 2h; or a time, as 2026-12-31T23:59:59Z.
    #[arg(value_name = "DUR|TIME")]
    until: String,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// The tasks' ids.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// The longest time to wait.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

const KILL: BulkAction =
    BulkAction { verb: "kill", doing: "killing", done: "killed", applies: |task| !has_ended(task) };

const RM: BulkAction =
    BulkAction { verb: "delete", doing: "deleting", done: "deleted", applies: |task| task.card.is_some() };

const RETRY: BulkAction =
    BulkAction { verb: "retry", doing: "retrying", done: "retried", applies: was_not_completed };

/// The action for `--state completed`.
const RETRY_ALL: BulkAction = BulkAction { applies: has_ended, ..RETRY };

const FORGET: BulkAction =
    BulkAction { verb: "forget", doing: "forgetting", done: "forgotten", applies: has_ended };

fn was_not_completed(task: &TaskSummary) -> bool {
    has_ended(task) && task.state() != Some(TaskState::Completed)
}

fn has_ended(task: &TaskSummary) -> bool {
    task.state().is_some_and(TaskState::is_terminal)
}

/// Checks the arguments before a store is opened.
pub(crate) fn check(command: &TaskCommand, output: &Output) -> Result<(), Failure> {
    match command {
        TaskCommand::Ls(args) => args.check(),
        TaskCommand::Show(args) | TaskCommand::History(args) => parse(&args.id).map(drop),
        TaskCommand::Rm(args) => args.check(&RM, output),
        TaskCommand::Retry(args) => args.check(&RETRY, output),
        TaskCommand::Forget(args) => args.check(&FORGET, output),
        TaskCommand::Pause(args)
        | TaskCommand::Resume(args)
        | TaskCommand::Release(args)
        | TaskCommand::Checkpoint(args) => parse(&args.id).map(drop),
        TaskCommand::Kill(args) => args.select.check(&KILL, output),
        TaskCommand::Sleep(args) => {
            parse(&args.id)?;
            command::until(&args.until).map(drop)
        }
        TaskCommand::Wait(args) => args.ids.iter().try_for_each(|id| parse(id).map(drop)),
    }
}

/// Runs a verb.
pub(crate) async fn run(command: &TaskCommand, tenure: &Tenure, output: &Output) -> Result<(), Failure> {
    let send = async |args: &TaskCommandArgs, message: TaskMessage| {
        command::send_and_wait(&parse(&args.id)?, message, &args.timeout, tenure, output).await
    };
    match command {
        TaskCommand::Ls(args) => list::list(args, tenure, output).await,
        TaskCommand::Show(args) => show::show(&parse(&args.id)?, tenure, output).await,
        TaskCommand::History(args) => show::history(&parse(&args.id)?, tenure, output).await,
        TaskCommand::Pause(args) => send(args, TaskMessage::Pause).await,
        TaskCommand::Resume(args) => send(args, TaskMessage::Run).await,
        TaskCommand::Release(args) => send(args, TaskMessage::Release).await,
        TaskCommand::Checkpoint(args) => send(args, TaskMessage::Checkpoint { blob: None }).await,
        TaskCommand::Kill(args) => {
            let kill = async |id: TaskId| {
                let message = TaskMessage::Kill { reason: args.select.reason.clone() };
                command::send_and_wait(&id, message, &args.timeout, tenure, output).await
            };
            args.select.each(&KILL, tenure, output, kill).await
        }
        TaskCommand::Sleep(args) => {
            let message = TaskMessage::Sleep { until: command::until(&args.until)? };
            command::send_and_wait(&parse(&args.id)?, message, &args.timeout, tenure, output).await
        }
        TaskCommand::Wait(args) => {
            let ids = args.ids.iter().map(|id| parse(id)).collect::<Result<_, _>>()?;
            wait_for(ids, args.wait.unwrap_or(Duration::MAX), tenure, output).await
        }
        TaskCommand::Rm(args) => {
            let reason = args.reason.as_deref().unwrap_or_default();
            let remove = async |id: TaskId| delete::remove(&id, reason, tenure, output).await;
            args.each(&RM, tenure, output, remove).await
        }
        TaskCommand::Retry(args) => {
            let act = if args.names(TaskState::Completed) { RETRY_ALL } else { RETRY };
            args.each(&act, tenure, output, async |id| delete::retry(&id, tenure, output).await).await
        }
        TaskCommand::Forget(args) => {
            let reason = args.reason.as_deref().unwrap_or_default();
            let forget = async |id: TaskId| delete::forget(&id, reason, tenure, output).await;
            args.each(&FORGET, tenure, output, forget).await
        }
    }
}

/// Parses the id of a task.
pub(crate) fn parse(id: &str) -> Result<TaskId, Failure> {
    TaskId::parse(id).map_err(|error| Failure::usage(format!("invalid task id: {error}")))
}

/// Parses the id of a node.
pub(crate) fn parse_node(id: &str) -> Result<NodeId, Failure> {
    NodeId::parse(id).map_err(|error| Failure::usage(format!("invalid node id: {error}")))
}

/// The failure for a task that does not exist.
fn no_such_task(id: &TaskId) -> Failure {
    Failure::new(crate::failure::Code::NotFound, format!("there is no task '{id}'"))
        .hint("list the tasks with `tenure task ls`, and those that have ended with `tenure task ls --ended`")
}
