//! `task show` and `task history`: one task in detail.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::Value;
use tenure::Tenure;
use tenure::task::TaskDetails;
use tenure_core::id::TaskId;
use tenure_core::record::CommandRecord;
use tenure_core::task::{AttemptEnd, Checkpoint, HistoryEntry, TaskFailure};

use super::rows::TaskRow;
use super::{SCHEMA, no_such_task};
use crate::failure::Failure;
use crate::node::format_time;
use crate::output::Output;

pub(super) async fn show(id: &TaskId, tenure: &Tenure, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct TaskShowReport {
        schema: &'static str,
        #[serde(flatten)]
        shown: TaskRow,
        #[serde(flatten)]
        more: TaskDetailRows,
        revision: String,
    }
    let details = tenure.task(id).details().await?.ok_or_else(|| no_such_task(id))?;
    let (mut shown, more) = (TaskRow::new(&details), TaskDetailRows::new(&details));
    // The state counts a lost claim only with the next stored outcome.
    let open_lost = more.attempts.iter().filter(|attempt| attempt.is_open_and_lost()).count();
    shown.attempt = shown.attempt.map(|attempt| attempt.saturating_add(open_lost as u64));
    if output.is_json {
        let revision = details.revision.to_string();
        return output.object(&TaskShowReport { schema: SCHEMA, shown, more, revision });
    }
    for why in &shown.unreadable {
        output.note(&format!("task '{id}' cannot be read completely: {why}"));
    }
    if let Some(note) = note(id, &details) {
        output.note(&note);
    }
    let names = ["id", "kind", "state", "owner", "token", "attempt", "submitted", "updated"];
    let until = shown.until.clone();
    let mut rows: Vec<Vec<String>> =
        names.into_iter().zip(shown.into_row()).map(|(name, cell)| vec![name.to_owned(), cell]).collect();
    rows.extend(until.map(|until| vec!["until".to_owned(), until]));
    rows.extend(more.into_rows());
    output.table(&["", ""], &rows)
}

/// A note about a task that does not run, with the reason.
fn note(id: &TaskId, details: &TaskDetails) -> Option<String> {
    let is_submitted_again = details.record().is_some_and(|record| record.ended);
    match (&details.card, details.state()) {
        (Some(_), Some(state)) if is_submitted_again => Some(format!(
            "it was submitted again after it was {state}, so it does not run; `tenure task forget {id}` lets it run"
        )),
        (Some(card), Some(state)) if card.owner.is_none() && !state.is_terminal() => {
            Some("it has no owner; see which nodes claim tasks with `tenure node ls`".to_owned())
        }
        (Some(_) | None, _) => None,
    }
}

/// What `show` prints in addition to listings.
#[derive(Serialize)]
struct TaskDetailRows {
    labels: BTreeMap<String, String>,
    props: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    props_b64: Option<String>,
    faults: Option<u64>,
    errors: Vec<TaskErrorRow>,
    attempts: Vec<AttemptRow>,
    reason: Option<String>,
    /// The node that wrote its state.
    updated_by: Option<String>,
    checkpoint_bytes: Option<usize>,
    command: Option<PendingCommandRow>,
}

#[derive(Serialize)]
struct TaskErrorRow {
    at: String,
    message: String,
}

/// A command that no node has handled.
#[derive(Serialize)]
struct PendingCommandRow {
    command: Option<String>,
    by: Option<String>,
    sent_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

impl PendingCommandRow {
    fn new(command: &Result<CommandRecord, String>) -> PendingCommandRow {
        match command {
            Ok(record) => PendingCommandRow {
                command: Some(record.command.clone()),
                by: Some(record.by.clone()),
                sent_at: format_time(record.sent_at),
                unreadable: None,
            },
            Err(why) => {
                PendingCommandRow { command: None, by: None, sent_at: None, unreadable: Some(why.clone()) }
            }
        }
    }
}

impl TaskDetailRows {
    fn new(details: &TaskDetails) -> TaskDetailRows {
        let state = details.state_record.as_ref().ok();
        let bytes = details.props.as_deref();
        let props: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
        let is_foreign = bytes.is_some() && props.is_none();
        TaskDetailRows {
            labels: details.labels().cloned().unwrap_or_default(),
            props_b64: bytes.filter(|_| is_foreign).map(|bytes| BASE64_STANDARD.encode(bytes)),
            props,
            faults: state.map(|state| state.faults),
            errors: state.map(|state| state.errors.iter().map(failed).collect()).unwrap_or_default(),
            attempts: attempts(details),
            reason: state.and_then(|state| state.reason.clone()),
            updated_by: state.and_then(|state| state.by.as_ref()).map(ToString::to_string),
            checkpoint_bytes: state
                .and_then(|state| state.checkpoint.as_ref())
                .map(Checkpoint::bytes)
                .map(bytes::Bytes::len),
            command: details.command.as_ref().map(PendingCommandRow::new),
        }
    }

    fn into_rows(self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut row = |name: &str, cell: String| rows.push(vec![name.to_owned(), cell]);
        for (name, value) in &self.labels {
            row("label", format!("{name}={value}"));
        }
        if let Some(props) = &self.props {
            row("props", props.to_string());
        }
        if let Some(props) = self.props_b64 {
            row("props_b64", props);
        }
        if let Some(by) = self.updated_by {
            row("updated by", by);
        }
        if let Some(reason) = self.reason {
            row("reason", reason);
        }
        if let Some(bytes) = self.checkpoint_bytes {
            row("checkpoint", format!("{bytes} bytes"));
        }
        for attempt in &self.attempts {
            row("tried", attempt.to_string());
        }
        for error in self.errors {
            row("error", format!("{} {}", error.at, error.message));
        }
        if let Some(command) = self.command {
            let what = command.command.or(command.unreadable).unwrap_or_default();
            let by = command.by.filter(|by| !by.is_empty()).unwrap_or_else(|| "an unknown sender".to_owned());
            row("waiting", format!("{what}, sent by {by}"));
        }
        rows
    }
}

/// One attempt at a task.
#[derive(Serialize)]
struct AttemptRow {
    node: String,
    started: String,
    /// `None` while it runs, and for a lost attempt until the next claim.
    ended: Option<String>,
    end: &'static str,
}

impl AttemptRow {
    fn is_open_and_lost(&self) -> bool {
        self.ended.is_none() && self.end == AttemptEnd::Lost.as_str()
    }
}

impl std::fmt::Display for AttemptRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ended = self.ended.as_deref().unwrap_or("-");
        write!(f, "{} from {} to {ended}: {}", self.node, self.started, self.end)
    }
}

/// All stored attempts: those that ended, then those without a stored outcome.
fn attempts(details: &TaskDetails) -> Vec<AttemptRow> {
    let ended = details.state_record.as_ref().ok().map(|state| &state.attempts[..]);
    let ended = ended.unwrap_or_default().iter().map(|attempt| AttemptRow {
        node: attempt.node.to_string(),
        started: attempt.started.to_string(),
        ended: Some(attempt.ended.to_string()),
        end: attempt.end.as_str(),
    });
    let owner = details.card.as_ref().and_then(|card| card.owner.as_ref()?.holder.as_ref().ok());
    let running = owner.map(|owner| owner.nonce.as_str());
    let open = details.attempts.iter().map(|(claim, attempt)| AttemptRow {
        node: attempt.node.to_string(),
        started: attempt.started.to_string(),
        ended: None,
        end: if running == Some(claim.as_str()) { "running" } else { AttemptEnd::Lost.as_str() },
    });
    ended.chain(open).collect()
}

fn failed(error: &TaskFailure) -> TaskErrorRow {
    TaskErrorRow { at: error.at.to_string(), message: error.message.clone() }
}

pub(super) async fn history(id: &TaskId, tenure: &Tenure, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct TaskHistoryReport {
        schema: &'static str,
        id: String,
        state: &'static str,
        history: Vec<StepRow>,
        errors: Vec<TaskErrorRow>,
    }
    #[derive(Serialize)]
    struct StepRow {
        at: String,
        from: &'static str,
        message: &'static str,
        to: &'static str,
        by: String,
    }
    let task = tenure.task(id).summary().await?.ok_or_else(|| no_such_task(id))?;
    let state = task.state_record.map_err(|why| {
        let message = format!("the state of '{id}' cannot be read: {why}");
        Failure::new(crate::failure::Code::Failed, message).hint(format!(
            "no node runs the task while this state exists; `tenure task forget {id}` deletes it"
        ))
    })?;
    if output.is_json {
        let step = |step: &HistoryEntry| StepRow {
            at: step.at.to_string(),
            from: step.from.as_str(),
            message: step.message.as_str(),
            to: step.to.as_str(),
            by: step.by.to_string(),
        };
        let history = state.history.iter().map(step).collect();
        let errors = state.errors.iter().map(failed).collect();
        let state = state.state.kind().as_str();
        return output.object(&TaskHistoryReport {
            schema: SCHEMA,
            id: id.to_string(),
            state,
            history,
            errors,
        });
    }
    if state.history.is_empty() {
        output.note(&format!("the state of '{id}' has not changed yet"));
    }
    for error in &state.errors {
        output.note(&format!("{} failed: {}", error.at, error.message));
    }
    let row = |step: &HistoryEntry| {
        let (at, by) = (step.at.to_string(), step.by.to_string());
        let [from, message, to] = [step.from.as_str(), step.message.as_str(), step.to.as_str()];
        vec![at, from.to_owned(), message.to_owned(), to.to_owned(), by]
    };
    let rows: Vec<Vec<String>> = state.history.iter().map(row).collect();
    output.table(&["at", "from", "message", "to", "by"], &rows)
}
