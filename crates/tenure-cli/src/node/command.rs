//! Telling a node something, and what came of it.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tenure::client::{Client, Handled, NodeCommandError, Sent, WaitCommandError};
use tenure_core::command::NodeCommand as Command;
use tenure_core::id::NodeId;

use super::{SCHEMA, not_there};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::task::{acknowledged, note_acknowledged};

/// What came of a command to a node.
#[derive(Serialize)]
struct NodeCommandReport<'a> {
    schema: &'static str,
    id: &'a str,
    message: &'static str,
    acknowledged_by: Option<&'a str>,
    ack_seconds: Option<f64>,
    command: &'a str,
    /// Of `balance`: what it wants to give away and why, and how many it gives away now.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<&'a Value>,
}

/// Tells a node something, and waits until it has acknowledged that.
pub(super) async fn send_and_wait(
    id: &NodeId,
    order: Command,
    within: Option<Duration>,
    client: &Client,
    output: &Output,
) -> Result<(), Failure> {
    let word = order.as_str();
    let sent = send(id, order, client).await?;
    let handled = match within {
        None => None,
        Some(within) => {
            let handled = sent.wait(within).await.map_err(|error| no_reply(id, word, error))?;
            let refused = |failure: Failure| failure.hint(format!("see `tenure node show {id}`"));
            Some(acknowledged(&format!("{word} of node '{id}'"), handled).map_err(refused)?)
        }
    };
    report(id, word, &sent, handled.as_ref(), output)
}

/// Lets a node take tasks again: one that is alive by a command, one that is not by deleting its mark.
pub(super) async fn unfreeze(
    id: &NodeId,
    within: Option<Duration>,
    client: &Client,
    output: &Output,
) -> Result<(), Failure> {
    if !client.unfreeze_absent(id).await? {
        return send_and_wait(id, Command::Unfreeze, within, client, output).await;
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
    output.note(&format!("node '{id}' is not alive; it takes tasks when it comes back"));
    output.record([id.as_str(), "unfreeze", "-", "-"])
}

pub(super) async fn send(id: &NodeId, order: Command, client: &Client) -> Result<Sent, Failure> {
    let word = order.as_str();
    client.command_node(id, order).await.map_err(|error| match error {
        NodeCommandError::NotFound => not_there(id),
        NodeCommandError::Full(waiting) => {
            let message = format!("{waiting} commands already wait for node '{id}', so {word} was not sent");
            Failure::new(Code::Conflict, message)
                .hint(format!("it does not handle them; see whether it lives with `tenure node show {id}`"))
        }
        NodeCommandError::Unknown(error) => {
            let message = format!("it is not known whether {word} was sent to node '{id}': {error}");
            Failure::new(Code::Ambiguous, message).hint(format!("look with `tenure node show {id}`"))
        }
        NodeCommandError::Store(error) => {
            Failure::from(error).while_doing(&format!("{word} was not sent to node '{id}'"))
        }
        other => Failure::new(Code::Failed, format!("{word} was not sent to node '{id}': {other}")),
    })
}

pub(super) fn no_reply(id: &NodeId, word: &str, error: WaitCommandError) -> Failure {
    match error {
        WaitCommandError::Deadline(within) => {
            let message =
                format!("node '{id}' has not acknowledged {word} within {}", duration::format(within));
            Failure::new(Code::TimedOut, message).hint(format!(
                "the command stays until it does; wait longer with --wait, or see `tenure node show {id}`"
            ))
        }
        WaitCommandError::Gone => {
            let message = format!("{word} of node '{id}' was withdrawn, and nobody has handled it");
            Failure::new(Code::Conflict, message).hint(format!("see `tenure node show {id}`"))
        }
        WaitCommandError::Store(error) => {
            Failure::from(error).while_doing(&format!("it is not known what came of {word} of node '{id}'"))
        }
        other => {
            Failure::new(Code::Failed, format!("it is not known what came of {word} of node '{id}': {other}"))
        }
    }
}

fn report(
    id: &NodeId,
    word: &'static str,
    sent: &Sent,
    handled: Option<&Handled>,
    output: &Output,
) -> Result<(), Failure> {
    let also = |name: &str| handled.and_then(|handled| handled.record.unknown.get(name));
    if output.is_json {
        return output.object(&NodeCommandReport {
            schema: SCHEMA,
            id: id.as_str(),
            message: word,
            acknowledged_by: handled.map(|handled| handled.by.as_str()),
            ack_seconds: handled.map(|handled| handled.took.as_secs_f64()),
            command: sent.id().as_str(),
            plan: also("plan"),
            planned: also("planned"),
            released: also("released"),
        });
    }
    let Some(handled) = handled else {
        output.note(&format!("{word} was sent to node '{id}'; it has not acknowledged it yet"));
        return output.record([id.as_str(), word, "-", "-"]);
    };
    note_acknowledged(&format!("{word} of node '{id}'"), handled, output);
    if let (Some(planned), Some(released)) = (also("planned"), also("released")) {
        output.note(&format!("it wants to give {planned} tasks away, and gives {released} of them now"));
    }
    output.record([id.as_str(), word, handled.by.as_str(), &format!("{} ms", handled.took.as_millis())])?;
    let text = |parting: &Value, name: &str| parting[name].as_str().unwrap_or("-").to_owned();
    let plan = also("plan").and_then(Value::as_array);
    plan.into_iter().flatten().try_for_each(|parting| {
        output.record(["gives".to_owned(), text(parting, "task"), text(parting, "why")])
    })
}
