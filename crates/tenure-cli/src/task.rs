//! `tenure task`: what tasks there are, how they stand, and telling them something.

mod command;
mod delete;
mod list;
mod rows;
mod select;
mod show;
mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::client::{Client, TaskView};
use tenure_core::id::{NodeId, TaskId};
use tenure_core::task::{TaskMessage, TaskState};

pub(crate) use command::{TimeoutArgs, acknowledged, note_acknowledged};
pub(crate) use rows::unreadable;
pub(crate) use wait::wait_for;

use self::select::{BulkAction, SelectArgs};

use crate::duration;
use crate::failure::Failure;
use crate::output::Output;

/// What `--json` answers to these verbs carry as `schema`.
const SCHEMA: &str = "tenure.task/v1";

/// The verbs. Commands go to whoever owns the task, and wait until it has acknowledged them.
#[derive(Subcommand, Debug)]
pub(crate) enum TaskCommand {
    /// List the tasks, all at one revision: id, kind, state, owner, token, attempt, when it was submitted and last changed.
    #[command(alias = "list")]
    Ls(list::ListArgs),
    /// Show all that is known of a task; exit 3 if nothing is.
    #[command(aliases = ["get", "describe"])]
    Show(TaskArgs),
    /// Stop a task until it is resumed.
    Pause(TaskCommandArgs),
    /// Run a task that is paused or sleeps.
    Resume(TaskCommandArgs),
    /// Stop a task until a time, and run it again then.
    Sleep(SleepArgs),
    /// End a task, not done.
    Kill(KillArgs),
    /// Have a task run by another node.
    Release(TaskCommandArgs),
    /// Have a task's progress kept now.
    Checkpoint(TaskCommandArgs),
    /// Show what a task has been through: every change of its state, and its errors.
    History(TaskArgs),
    /// Wait until tasks have ended. Exit 0 if all completed, 10 if one failed, 11 if one was killed, 8 if it takes longer than --wait.
    Wait(WaitArgs),
    /// Delete a task; whoever runs it stops. Its state stays: submitted again, it goes on where it was.
    #[command(aliases = ["delete", "del", "remove"])]
    Rm(SelectArgs),
    /// Run a task again that has ended, as it was submitted. With a filter: those that failed or were killed, and with --state completed
    /// those too. One that was not completed goes on from its checkpoint.
    Retry(SelectArgs),
    /// Forget how a task ended, with its history. If it was submitted again, it runs now.
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
    /// For how long, as 90s or 2h; or until when, as 2026-12-31T23:59:59Z.
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
    /// How long to wait at most.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

const KILL: BulkAction =
    BulkAction { verb: "kill", doing: "killing", done: "killed", applies: |task| !has_ended(task) };

const RM: BulkAction =
    BulkAction { verb: "delete", doing: "deleting", done: "deleted", applies: |task| task.card.is_some() };

const RETRY: BulkAction =
    BulkAction { verb: "retry", doing: "retrying", done: "retried", applies: was_not_completed };

/// With --state completed.
const RETRY_ALL: BulkAction = BulkAction { applies: has_ended, ..RETRY };

const FORGET: BulkAction =
    BulkAction { verb: "forget", doing: "forgetting", done: "forgotten", applies: has_ended };

fn was_not_completed(task: &TaskView) -> bool {
    has_ended(task) && task.state_kind() != Some(TaskState::Completed)
}

fn has_ended(task: &TaskView) -> bool {
    task.state_kind().is_some_and(TaskState::is_terminal)
}

/// Refuses what is wrong whatever the store holds.
pub(crate) fn check(command: &TaskCommand, output: &Output) -> Result<(), Failure> {
    match command {
        TaskCommand::Ls(args) => list::filter(args).map(drop),
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
pub(crate) async fn run(command: &TaskCommand, client: &Client, output: &Output) -> Result<(), Failure> {
    let send = async |args: &TaskCommandArgs, message: TaskMessage| {
        command::send_and_wait(&parse(&args.id)?, message, &args.timeout, client, output).await
    };
    match command {
        TaskCommand::Ls(args) => list::list(args, client, output).await,
        TaskCommand::Show(args) => show::show(&parse(&args.id)?, client, output).await,
        TaskCommand::History(args) => show::history(&parse(&args.id)?, client, output).await,
        TaskCommand::Pause(args) => send(args, TaskMessage::Pause).await,
        TaskCommand::Resume(args) => send(args, TaskMessage::Run).await,
        TaskCommand::Release(args) => send(args, TaskMessage::Release).await,
        TaskCommand::Checkpoint(args) => send(args, TaskMessage::Checkpoint { blob: None }).await,
        TaskCommand::Kill(args) => {
            let kill = async |id: TaskId| {
                let message = TaskMessage::Kill { reason: args.select.reason.clone() };
                command::send_and_wait(&id, message, &args.timeout, client, output).await
            };
            args.select.each(&KILL, client, output, kill).await
        }
        TaskCommand::Sleep(args) => {
            let message = TaskMessage::Sleep { until: command::until(&args.until)? };
            command::send_and_wait(&parse(&args.id)?, message, &args.timeout, client, output).await
        }
        TaskCommand::Wait(args) => {
            let ids = args.ids.iter().map(|id| parse(id)).collect::<Result<_, _>>()?;
            wait_for(ids, args.wait.unwrap_or(Duration::MAX), client, output).await
        }
        TaskCommand::Rm(args) => {
            let client = &client.clone().because(args.reason.as_deref().unwrap_or_default());
            args.each(&RM, client, output, async |id| delete::remove(&id, client, output).await).await
        }
        TaskCommand::Retry(args) => {
            let act = if args.names(TaskState::Completed) { RETRY_ALL } else { RETRY };
            args.each(&act, client, output, async |id| delete::retry(&id, client, output).await).await
        }
        TaskCommand::Forget(args) => {
            let client = &client.clone().because(args.reason.as_deref().unwrap_or_default());
            args.each(&FORGET, client, output, async |id| delete::forget(&id, client, output).await).await
        }
    }
}

/// The id of a task.
pub(crate) fn parse(id: &str) -> Result<TaskId, Failure> {
    TaskId::parse(id).map_err(|error| Failure::usage(format!("the task's id: {error}")))
}

/// The id of a node.
pub(crate) fn parse_node(id: &str) -> Result<NodeId, Failure> {
    NodeId::parse(id).map_err(|error| Failure::usage(format!("the node's id: {error}")))
}

/// There is no such task.
fn nothing_known(id: &TaskId) -> Failure {
    Failure::new(crate::failure::Code::NotFound, format!("there is no task '{id}'"))
        .hint("list what there is with `tenure task ls`, and what has ended with `tenure task ls --ended`")
}
