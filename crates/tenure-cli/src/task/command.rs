//! Telling a task something, and what came of it. Commands to nodes are waited for in the same way.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::client::{Client, CommandError, Handled, ReplacedCommand, Sent, WaitCommandError};
use tenure::clock::wall_time;
use tenure_core::id::TaskId;
use tenure_core::record::{CommandOutcome, Timestamp};
use tenure_core::task::{TaskMessage, TaskState};

use super::{SCHEMA, nothing_known};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct TimeoutArgs {
    /// How long to wait until it is acknowledged. The command stands after that too.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "10s", conflicts_with = "no_wait")]
    wait: Duration,
    /// Do not wait until it is acknowledged.
    #[arg(long)]
    no_wait: bool,
}

impl TimeoutArgs {
    /// How long to wait; not at all if none.
    pub(crate) fn within(&self) -> Option<Duration> {
        (!self.no_wait).then_some(self.wait)
    }
}

/// Until when a task is to sleep: a time, or how long from now.
pub(super) fn until(text: &str) -> Result<Timestamp, Failure> {
    let looks_like_time = text.contains(['-', ':', 'T']);
    let until = if looks_like_time {
        text.parse::<Timestamp>().map_err(|bad| Failure::usage(bad.to_string()))?
    } else {
        let span = duration::parse(text).map_err(|bad| {
            Failure::usage(bad.to_string()).hint("or say until when, as in 2026-12-31T23:59:59Z")
        })?;
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Timestamp(wall_time().0.saturating_add(span_ms))
    };
    if until <= wall_time() {
        return Err(Failure::usage(format!("it would sleep until {until}, which has passed"))
            .hint("run it now with `tenure task resume`, or choose a later time"));
    }
    Ok(until)
}

/// What came of a command to a task.
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

/// The command that nobody had handled.
#[derive(Serialize)]
struct PreviousCommand {
    command: Option<String>,
    by: String,
}

/// Tells a task something through its owner.
pub(super) async fn send_and_wait(
    id: &TaskId,
    message: TaskMessage,
    timeout: &TimeoutArgs,
    client: &Client,
    output: &Output,
) -> Result<(), Failure> {
    let word = message.kind().as_str();
    let sent = client.command(id, message).await.map_err(|error| not_sent(id, word, error))?;
    if let Some(replaced) = &sent.replaced {
        output.note(&describe_replaced(replaced));
    }
    let handled = match timeout.within() {
        None => None,
        Some(within) => match sent.wait(within).await {
            Ok(handled) => Some(handled),
            Err(error) => return Err(no_reply(id, word, error, client).await),
        },
    };
    let handled = handled.map(|handled| acknowledged(&format!("{word} of '{id}'"), handled)).transpose();
    let handled =
        handled.map_err(|failure| failure.hint(format!("see how it stands with `tenure task show {id}`")))?;
    report(id, word, &sent, handled.as_ref(), output)
}

fn report(
    id: &TaskId,
    word: &'static str,
    sent: &Sent,
    handled: Option<&Handled>,
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
            message: word,
            from,
            to,
            acknowledged_by: handled.map(|handled| handled.by.to_string()),
            ack_seconds: handled.map(|handled| handled.took.as_secs_f64()),
            command: sent.id().to_string(),
            replaced: sent.replaced.as_ref().map(former),
        });
    }
    match handled {
        None => output.note(&format!("{word} was sent to '{id}'; nobody has acknowledged it yet")),
        Some(handled) => note_acknowledged(&format!("{word} of '{id}'"), handled, output),
    }
    let dash = "-";
    let by = handled.map_or(dash, |handled| handled.by.as_str());
    let took = handled.map_or(dash.to_owned(), |handled| format!("{} ms", handled.took.as_millis()));
    output.record([id.as_str(), from.unwrap_or(dash), to.unwrap_or(dash), by, &took])
}

/// Says who has handled it.
pub(crate) fn note_acknowledged(what: &str, handled: &Handled, output: &Output) {
    let why = handled.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    output.note(&format!("{what} acknowledged by {} in {} ms{why}", handled.by, handled.took.as_millis()));
}

/// What it means that a command was handled: only what was done is no failure.
pub(crate) fn acknowledged(what: &str, handled: Handled) -> Result<Handled, Failure> {
    let why = handled.why.as_deref().unwrap_or("it does not say why");
    let (by, ms) = (&handled.by, handled.took.as_millis());
    let (code, message) = match handled.outcome {
        CommandOutcome::Done => return Ok(handled),
        CommandOutcome::Refused => (Code::Conflict, format!("{what} was refused by {by} in {ms} ms: {why}")),
        CommandOutcome::Replaced => (
            Code::Conflict,
            format!("{what} was not done: {by} sent another command before anybody had handled it"),
        ),
        CommandOutcome::Expired => (Code::Conflict, format!("{what} was not done: {why}")),
        CommandOutcome::Malformed => {
            (Code::Failed, format!("{by} does not understand {what}, perhaps because it is older: {why}"))
        }
        _ => (Code::Failed, format!("{by} says of {what} what this program does not understand; upgrade it")),
    };
    Err(Failure::new(code, message))
}

fn describe_replaced(replaced: &ReplacedCommand) -> String {
    let what = replaced.command.as_deref().unwrap_or("one that cannot be read");
    let by = if replaced.by.is_empty() { "somebody" } else { &replaced.by };
    format!("it replaces a command that nobody had handled: {what}, sent by {by}")
}

fn not_sent(id: &TaskId, word: &str, error: CommandError) -> Failure {
    match error {
        CommandError::NotFound => nothing_known(id),
        CommandError::Ended(state) => {
            Failure::new(Code::Conflict, format!("'{id}' has ended, it is {state}, and takes no {word}"))
                .hint(format!("see `tenure task history {id}`; `tenure task forget {id}` lets it run again"))
        }
        CommandError::Past(until) => {
            Failure::usage(format!("it would sleep until {until}, which has passed"))
        }
        CommandError::Unknown(error) => {
            let message = format!("it is not known whether {word} was sent to '{id}': {error}");
            Failure::new(Code::Ambiguous, message).hint(format!("look with `tenure task show {id}`"))
        }
        CommandError::Store(error) => {
            Failure::from(error).while_doing(&format!("{word} was not sent to '{id}'"))
        }
        other => Failure::new(Code::Failed, format!("{word} was not sent to '{id}': {other}")),
    }
}

/// Nobody said in time what came of it. Who should have is worth knowing.
async fn no_reply(id: &TaskId, word: &str, error: WaitCommandError, client: &Client) -> Failure {
    match error {
        WaitCommandError::Deadline(within) => {
            let owner = client.get(id).await.ok().flatten().and_then(|task| task.owner().cloned());
            let who = match &owner {
                Some(owner) => format!("its owner {owner} has not acknowledged it"),
                None => "nobody owns it".to_owned(),
            };
            let message =
                format!("{word} of '{id}' was not handled within {}: {who}", duration::format(within));
            let next = match owner {
                Some(owner) => format!("`tenure node show {owner}`"),
                None => "`tenure node ls`".to_owned(),
            };
            Failure::new(Code::TimedOut, message)
                .hint(format!("the command waits for a week; wait longer with --wait, or look at {next}"))
        }
        WaitCommandError::Gone => {
            let message = format!("{word} of '{id}' is gone, and nobody has handled it");
            Failure::new(Code::Conflict, message).hint(format!("look with `tenure task show {id}`"))
        }
        WaitCommandError::Store(error) => {
            Failure::from(error).while_doing(&format!("it is not known what came of {word} of '{id}'"))
        }
        other => {
            Failure::new(Code::Failed, format!("it is not known what came of {word} of '{id}': {other}"))
        }
    }
}
