//! Sends a command to a task and reports its reply. Commands to nodes share the waiting.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::Tenure;
use tenure::clock::wall_time;
use tenure::task::{CommandError, CommandReply, PendingCommand, ReplacedCommand};
use tenure_core::id::TaskId;
use tenure_core::record::{CommandOutcome, Timestamp};
use tenure_core::task::{TaskMessage, TaskState};

use super::{SCHEMA, no_such_task};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct TimeoutArgs {
    /// How long to wait for the acknowledgement. The command stays in the store after that.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "10s", conflicts_with = "no_wait")]
    wait: Duration,
    /// Do not wait for the acknowledgement.
    #[arg(long)]
    no_wait: bool,
}

impl TimeoutArgs {
    /// How long to wait; `None` for not at all.
    pub(crate) fn within(&self) -> Option<Duration> {
        (!self.no_wait).then_some(self.wait)
    }
}

/// Parses when a sleep ends: a time, or a duration from now.
pub(super) fn until(text: &str) -> Result<Timestamp, Failure> {
    let looks_like_time = text.contains(['-', ':', 'T']);
    let until = if looks_like_time {
        text.parse::<Timestamp>().map_err(|error| Failure::usage(error.to_string()))?
    } else {
        let span = duration::parse(text).map_err(|error| {
            Failure::usage(error.to_string()).hint("or give a time, as in 2026-12-31T23:59:59Z")
        })?;
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Timestamp(wall_time().0.saturating_add(span_ms))
    };
    if until <= wall_time() {
        return Err(Failure::usage(format!("the end of the sleep has passed: {until}"))
            .hint("run the task now with `tenure task resume`, or choose a later time"));
    }
    Ok(until)
}

/// The JSON report of a command to a task.
#[derive(Serialize)]
struct TaskCommandReport {
    schema: &'static str,
    id: String,
    message: &'static str,
    from: Option<&'static str>,
    to: Option<&'static str>,
    acknowledged_by: Option<String>,
    ack_seconds: Option<f64>,
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<PreviousCommand>,
}

/// The unhandled command that was replaced.
#[derive(Serialize)]
struct PreviousCommand {
    command: Option<String>,
    by: String,
}

/// Sends a command to a task's owner, and waits until the owner acknowledges it.
pub(super) async fn send_and_wait(
    id: &TaskId,
    message: TaskMessage,
    timeout: &TimeoutArgs,
    tenure: &Tenure,
    output: &Output,
) -> Result<(), Failure> {
    let name = message.kind().as_str();
    let sent =
        tenure.task(id).command(message).no_reply().await.map_err(|error| not_sent(id, name, error))?;
    if let Some(replaced) = &sent.replaced {
        output.note(&describe_replaced(replaced));
    }
    let handled = match timeout.within() {
        None => None,
        Some(within) => match sent.reply().timeout(within).await {
            Ok(handled) => Some(handled),
            Err(error) => return Err(no_reply(id, name, error, tenure).await),
        },
    };
    let handled = handled.map(|handled| acknowledged(&format!("{name} of '{id}'"), handled)).transpose();
    let handled = handled
        .map_err(|failure| failure.hint(format!("see the task's state with `tenure task show {id}`")))?;
    report(id, name, &sent, handled.as_ref(), output)
}

fn report(
    id: &TaskId,
    name: &'static str,
    sent: &PendingCommand,
    handled: Option<&CommandReply>,
    output: &Output,
) -> Result<(), Failure> {
    let from = handled.and_then(|handled| handled.from).map(TaskState::as_str);
    let to = handled.and_then(|handled| handled.to).map(TaskState::as_str);
    if output.is_json {
        let former = |replaced: &ReplacedCommand| PreviousCommand {
            command: replaced.command.clone(),
            by: replaced.by.clone(),
        };
        return output.object(&TaskCommandReport {
            schema: SCHEMA,
            id: id.to_string(),
            message: name,
            from,
            to,
            acknowledged_by: handled.map(|handled| handled.by.to_string()),
            ack_seconds: handled.map(|handled| handled.took.as_secs_f64()),
            command: sent.id().to_string(),
            replaced: sent.replaced.as_ref().map(former),
        });
    }
    match handled {
        None => output.note(&format!("{name} was sent to '{id}', and no node has acknowledged it yet")),
        Some(handled) => note_acknowledged(&format!("{name} of '{id}'"), handled, output),
    }
    let dash = "-";
    let by = handled.map_or(dash, |handled| handled.by.as_str());
    let took = handled.map_or(dash.to_owned(), |handled| format!("{} ms", handled.took.as_millis()));
    output.record([id.as_str(), from.unwrap_or(dash), to.unwrap_or(dash), by, &took])
}

/// Prints which node acknowledged a command, and how fast.
pub(crate) fn note_acknowledged(what: &str, handled: &CommandReply, output: &Output) {
    let why = handled.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    output.note(&format!("{what} acknowledged by {} in {} ms{why}", handled.by, handled.took.as_millis()));
}

/// The failure of a command that a node handled and did not do.
pub(crate) fn acknowledged(what: &str, handled: CommandReply) -> Result<CommandReply, Failure> {
    let why = handled.reason.as_deref().unwrap_or("it gives no reason");
    let (by, ms) = (&handled.by, handled.took.as_millis());
    let (code, message) = match handled.outcome {
        CommandOutcome::Done => return Ok(handled),
        CommandOutcome::Refused => (Code::Conflict, format!("{what} was refused by {by} in {ms} ms: {why}")),
        CommandOutcome::Replaced => (
            Code::Conflict,
            format!("{what} was not done: {by} sent another command before a node handled it"),
        ),
        CommandOutcome::Expired => (Code::Conflict, format!("{what} was not done: {why}")),
        CommandOutcome::Malformed => (
            Code::Failed,
            format!("{by} does not know {what}, perhaps because it runs an older version: {why}"),
        ),
        _ => (
            Code::Failed,
            format!("the reply of {by} to {what} is unknown to this version of tenure; upgrade it"),
        ),
    };
    Err(Failure::new(code, message))
}

fn describe_replaced(replaced: &ReplacedCommand) -> String {
    let what = replaced.command.as_deref().unwrap_or("an unreadable command");
    let by = if replaced.by.is_empty() { "an unknown sender" } else { &replaced.by };
    format!("replaced an unhandled command: {what}, sent by {by}")
}

fn not_sent(id: &TaskId, name: &str, error: CommandError) -> Failure {
    match error {
        CommandError::NotFound => no_such_task(id),
        CommandError::Finished { state } => Failure::new(
            Code::Conflict,
            format!("{name} was not sent to '{id}': the task has ended, it is {state}"),
        )
        .hint(format!("see `tenure task history {id}`; `tenure task retry {id}` runs it again")),
        CommandError::InvalidTime { until } => {
            Failure::usage(format!("the end of the sleep has passed: {until}"))
        }
        CommandError::Ambiguous(error) => {
            let message = format!("{name} may or may not have been sent to '{id}': {error}");
            Failure::new(Code::Ambiguous, message)
                .hint(format!("see the waiting command with `tenure task show {id}`"))
        }
        CommandError::Store(error) => {
            Failure::from(error).while_doing(&format!("{name} was not sent to '{id}'"))
        }
        other => Failure::new(Code::Failed, format!("{name} was not sent to '{id}': {other}")),
    }
}

/// The failure of a wait for a reply. It names the owner, which should have replied.
async fn no_reply(id: &TaskId, name: &str, error: CommandError, tenure: &Tenure) -> Failure {
    match error {
        CommandError::Timeout { after: within } => {
            let owner = tenure.task(id).summary().await.ok().flatten().and_then(|task| task.owner().cloned());
            let why = match &owner {
                Some(owner) => format!("its owner {owner} has not acknowledged it"),
                None => "the task has no owner".to_owned(),
            };
            let message =
                format!("{name} of '{id}' was not handled within {}: {why}", duration::format(within));
            let next = match owner {
                Some(owner) => format!("`tenure node show {owner}`"),
                None => "`tenure node ls`".to_owned(),
            };
            Failure::new(Code::TimedOut, message)
                .hint(format!("the command waits for a week; wait longer with --wait, or see {next}"))
        }
        CommandError::Deleted => {
            let message = format!("{name} of '{id}' was deleted before a node handled it");
            Failure::new(Code::Conflict, message)
                .hint(format!("see the waiting command with `tenure task show {id}`"))
        }
        CommandError::ReplyUnknown(error) => {
            Failure::from(error).while_doing(&format!("the reply to {name} of '{id}' could not be read"))
        }
        other => {
            Failure::new(Code::Failed, format!("the reply to {name} of '{id}' could not be read: {other}"))
        }
    }
}
