//! `task ls`.

use clap::Args;
use serde::Serialize;
use tenure::Tenure;
use tenure::task::TaskQuery;
use tenure_core::task::TaskState;

use super::rows::TaskRow;
use super::{SCHEMA, parse_node};
use crate::failure::Failure;
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Include ended tasks, of which only the final state is left.
    #[arg(long)]
    ended: bool,
}

impl ListArgs {
    /// Refuses what is wrong whatever the store holds.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.filter.check()
    }
}

/// The flags that select tasks.
#[derive(Args, Debug)]
pub(crate) struct FilterArgs {
    /// Only tasks in this state; may be given several times. A final state includes ended tasks.
    #[arg(long = "state", value_name = "STATE", value_parser = parse_state)]
    states: Vec<TaskState>,
    /// Only tasks that this node owns, or owned last if they have ended.
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// Only tasks of this kind.
    #[arg(long, value_name = "K")]
    kind: Option<String>,
}

impl FilterArgs {
    /// Refuses a node that is no id.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.node.as_deref().map_or(Ok(()), |node| parse_node(node).map(drop))
    }

    /// The tasks that the flags select.
    pub(super) fn query(&self, tenure: &Tenure) -> Result<TaskQuery, Failure> {
        let mut query = self.states.iter().fold(tenure.tasks(), |query, state| query.state(*state));
        if let Some(node) = &self.node {
            query = query.owner(parse_node(node)?);
        }
        if let Some(kind) = &self.kind {
            query = query.kind(kind);
        }
        Ok(query)
    }

    /// Whether the flags contain this state.
    pub(super) fn names(&self, state: TaskState) -> bool {
        self.states.contains(&state)
    }

    /// The flags as text, for hints.
    pub(super) fn flags(&self) -> String {
        let states = self.states.iter().map(|state| format!("--state {}", state.as_str()));
        let node = self.node.iter().map(|node| format!("--node {node}"));
        let kind = self.kind.iter().map(|kind| format!("--kind {kind}"));
        states.chain(node).chain(kind).collect::<Vec<_>>().join(" ")
    }
}

fn parse_state(text: &str) -> Result<TaskState, String> {
    TaskState::parse(text).ok_or_else(|| {
        let states: Vec<&str> = TaskState::ALL.iter().map(|state| state.as_str()).collect();
        // Running is not a stored state: a runnable task with an owner runs.
        let states = states.join(", ");
        format!(
            "there is no state {text:?}; a running task is runnable and has an owner; use one of {states}"
        )
    })
}

pub(super) async fn list(args: &ListArgs, tenure: &Tenure, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct TaskListReport {
        schema: &'static str,
        tasks: Vec<TaskRow>,
        revision: String,
    }
    let query = args.filter.query(tenure)?;
    let query = if args.ended { query.finished() } else { query };
    let listing = query.list().await?;
    let tasks: Vec<TaskRow> = listing.tasks.iter().map(TaskRow::new).collect();
    if output.is_json {
        return output.object(&TaskListReport {
            schema: SCHEMA,
            tasks,
            revision: listing.revision.to_string(),
        });
    }
    for task in tasks.iter().filter(|task| !task.unreadable.is_empty()) {
        output.note(&format!("task '{}' cannot be read completely: {}", task.id, task.unreadable.join("; ")));
    }
    let rows: Vec<Vec<String>> = tasks.into_iter().map(TaskRow::into_row).collect();
    output.table(&["id", "kind", "state", "owner", "token", "attempt", "submitted", "updated"], &rows)
}
