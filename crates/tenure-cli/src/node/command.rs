//! Sends a command to a node and reports its reply.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tenure::Tenure;
use tenure::task::{CommandError, CommandReply, PendingCommand};
use tenure_core::command::NodeCommand as Command;
use tenure_core::id::NodeId;

use super::{SCHEMA, not_alive};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::task::{acknowledged, note_acknowledged};

/// The JSON report of a command to a node.
#[derive(Serialize)]
struct NodeCommandReport<'a> {
    schema: &'static str,
    id: &'a str,
    message: &'static str,
    acknowledged_by: Option<&'a str>,
    ack_seconds: Option<f64>,
    command: &'a str,
    /// For `balance`: the releases that the balancer plans with their reasons, their number, and how many start now.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<&'a Value>,
}

/// Sends a command to a node, and waits until the node acknowledges it.
pub(super) async fn send_and_wait(
    id: &NodeId,
    command: Command,
    within: Option<Duration>,
    tenure: &Tenure,
    output: &Output,
) -> Result<(), Failure> {
    let name = command.as_str();
    let sent = send(id, command, tenure).await?;
    let handled = match within {
        None => None,
        Some(within) => {
            let handled = sent.reply().timeout(within).await.map_err(|error| no_reply(id, name, error))?;
            let refused = |failure: Failure| failure.hint(format!("see `tenure node show {id}`"));
            Some(acknowledged(&format!("{name} of node '{id}'"), handled).map_err(refused)?)
        }
    };
    report(id, name, &sent, handled.as_ref(), output)
}

/// Unfreezes a node: a live one by a command, any other by deleting its freeze record, because no process would handle the command.
pub(super) async fn unfreeze(
    id: &NodeId,
    within: Option<Duration>,
    tenure: &Tenure,
    output: &Output,
) -> Result<(), Failure> {
    if !tenure.node(id).unfreeze_absent().await? {
        return send_and_wait(id, Command::Unfreeze, within, tenure, output).await;
    }
    if output.is_json {
        return output.object(&NodeCommandReport {
            schema: SCHEMA,
            id: id.as_str(),
            message: "unfreeze",
            acknowledged_by: None,
            ack_seconds: None,
            command: "",
            plan: None,
            planned: None,
            released: None,
        });
    }
    output.note(&format!("node '{id}' is not alive; it claims tasks when it starts again"));
    output.record([id.as_str(), "unfreeze", "-", "-"])
}

pub(super) async fn send(id: &NodeId, command: Command, tenure: &Tenure) -> Result<PendingCommand, Failure> {
    let name = command.as_str();
    tenure.node(id).command(command).no_reply().await.map_err(|error| match error {
        CommandError::NotFound => not_alive(id),
        CommandError::Full { waiting } => {
            let message =
                format!("{name} was not sent to node '{id}': {waiting} commands already wait there");
            Failure::new(Code::Conflict, message).hint(format!(
                "the node does not handle them; see whether it is alive with `tenure node show {id}`"
            ))
        }
        CommandError::Ambiguous(error) => {
            let message = format!("{name} may or may not have been sent to node '{id}': {error}");
            Failure::new(Code::Ambiguous, message)
                .hint(format!("see the node's waiting commands with `tenure node show {id}`"))
        }
        CommandError::Store(error) => {
            Failure::from(error).while_doing(&format!("{name} was not sent to node '{id}'"))
        }
        other => Failure::new(Code::Failed, format!("{name} was not sent to node '{id}': {other}")),
    })
}

pub(super) fn no_reply(id: &NodeId, name: &str, error: CommandError) -> Failure {
    match error {
        CommandError::Timeout { after: within } => {
            let message =
                format!("node '{id}' did not acknowledge {name} within {}", duration::format(within));
            Failure::new(Code::TimedOut, message).hint(format!(
                "the command stays in the node's queue; wait longer with --wait, or see `tenure node show {id}`"
            ))
        }
        CommandError::Deleted => {
            let message = format!("{name} of node '{id}' was deleted before any node handled it");
            Failure::new(Code::Conflict, message).hint(format!("see `tenure node show {id}`"))
        }
        CommandError::ReplyUnknown(error) => {
            Failure::from(error).while_doing(&format!("the reply to {name} of node '{id}' could not be read"))
        }
        other => Failure::new(
            Code::Failed,
            format!("the reply to {name} of node '{id}' could not be read: {other}"),
        ),
    }
}

fn report(
    id: &NodeId,
    name: &'static str,
    sent: &PendingCommand,
    handled: Option<&CommandReply>,
    output: &Output,
) -> Result<(), Failure> {
    let field = |name: &str| handled.and_then(|handled| handled.details.get(name));
    if output.is_json {
        return output.object(&NodeCommandReport {
            schema: SCHEMA,
            id: id.as_str(),
            message: name,
            acknowledged_by: handled.map(|handled| handled.by.as_str()),
            ack_seconds: handled.map(|handled| handled.took.as_secs_f64()),
            command: sent.id().as_str(),
            plan: field("plan"),
            planned: field("planned"),
            released: field("released"),
        });
    }
    let Some(handled) = handled else {
        output.note(&format!("{name} was sent to node '{id}', which has not acknowledged it yet"));
        return output.record([id.as_str(), name, "-", "-"]);
    };
    note_acknowledged(&format!("{name} of node '{id}'"), handled, output);
    if let (Some(planned), Some(released)) = (field("planned"), field("released")) {
        output.note(&format!("{planned} tasks are to be released, {released} of them now"));
    }
    output.record([id.as_str(), name, handled.by.as_str(), &format!("{} ms", handled.took.as_millis())])?;
    let text = |release: &Value, name: &str| release[name].as_str().unwrap_or("-").to_owned();
    let plan = field("plan").and_then(Value::as_array);
    plan.into_iter().flatten().try_for_each(|release| {
        output.record(["gives".to_owned(), text(release, "task"), text(release, "why")])
    })
}
