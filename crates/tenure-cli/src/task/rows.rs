//! Tasks as `--json` and tables show them.

use serde::Serialize;
use tenure::task::TaskSummary;
use tenure_core::task::{StateRecord, TaskState, TaskStatus};

use crate::node::format_time;

/// A task as listings show it.
#[derive(Serialize)]
pub(super) struct TaskRow {
    pub(super) id: String,
    kind: Option<String>,
    /// `None` if it cannot be read.
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<String>,
    owner: Option<String>,
    token: Option<String>,
    pub(super) attempt: Option<u64>,
    submitted_at: Option<String>,
    updated_at: Option<String>,
    /// The unreadable parts, and why they cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unreadable: Vec<String>,
}

impl TaskRow {
    pub(super) fn new(task: &TaskSummary) -> TaskRow {
        let state = task.state_record.as_ref().ok();
        TaskRow {
            id: task.id.to_string(),
            kind: task.kind().map(str::to_owned),
            state: task.state().map(TaskState::as_str),
            until: state.and_then(until),
            owner: task.owner().map(ToString::to_string),
            token: task.token().map(|token| token.to_string()),
            attempt: task.attempt(),
            submitted_at: task.submitted().and_then(|record| format_time(record.submitted_at)),
            updated_at: state.and_then(|record| format_time(record.updated_at)),
            unreadable: unreadable(task),
        }
    }

    pub(super) fn into_row(self) -> Vec<String> {
        let dash = || "-".to_owned();
        vec![
            self.id,
            self.kind.unwrap_or_else(dash),
            self.state.unwrap_or("unreadable").to_owned(),
            self.owner.unwrap_or_else(dash),
            self.token.unwrap_or_else(dash),
            self.attempt.map_or_else(dash, |attempt| attempt.to_string()),
            self.submitted_at.unwrap_or_else(dash),
            self.updated_at.unwrap_or_else(dash),
        ]
    }
}

/// When its sleep ends.
pub(super) fn until(record: &StateRecord) -> Option<String> {
    match record.state {
        TaskStatus::Sleeping { until } => Some(until.to_string()),
        TaskStatus::Runnable
        | TaskStatus::Fault
        | TaskStatus::Paused
        | TaskStatus::Completed
        | TaskStatus::Failed
        | TaskStatus::Killed => None,
    }
}

/// The unreadable parts of a task, and why; never their stored bytes.
pub(crate) fn unreadable(task: &TaskSummary) -> Vec<String> {
    let card = task.card.as_ref();
    let record = card.and_then(|card| card.record.as_ref().err());
    let owner = card.and_then(|card| card.owner.as_ref()).and_then(|owner| owner.holder.as_ref().err());
    let state = task.state_record.as_ref().err();
    [("record", record), ("owner", owner), ("state", state)]
        .into_iter()
        .filter_map(|(what, why)| why.map(|why| format!("its {what}: {why}")))
        .collect()
}
