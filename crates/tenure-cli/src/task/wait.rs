//! `task wait` and `submit --wait`: wait until tasks have ended; the exit code reports how.

use std::time::Duration;

use serde::Serialize;
use tenure::task::{Finished, WaitTaskError};
use tenure::{Error, Tenure};
use tenure_core::id::TaskId;
use tenure_core::task::TaskState;

use super::{SCHEMA, no_such_task};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// Up to this many tasks get a watch each. More share one feed, which delivers every task of the namespace.
const ALONE_MAX: usize = 1;

/// Waits for all tasks, reports how each ended, and fails as the worst of them.
pub(crate) async fn wait_for(
    ids: Vec<TaskId>,
    within: Duration,
    tenure: &Tenure,
    output: &Output,
) -> Result<(), Failure> {
    let ends: Vec<(TaskId, Result<Finished, WaitTaskError>)> = match &ids[..] {
        [id] if ids.len() <= ALONE_MAX => vec![(id.clone(), tenure.task(id).wait().timeout(within).await)],
        _ => {
            let ends = tenure.tasks().ids(&ids).wait().timeout(within).await;
            ends.map_err(not_seen)?.into_iter().collect()
        }
    };
    report(&ends, output)?;
    let mut failures: Vec<Failure> = ends.into_iter().filter_map(|(id, end)| failure(&id, end)).collect();
    // An unknown end comes first, then the worst known one.
    failures.sort_by_key(|failure| match failure.code {
        Code::TaskKilled => 2,
        Code::TaskFailed => 1,
        _ => 0,
    });
    let count = failures.len();
    match failures.into_iter().next() {
        None => Ok(()),
        Some(failure) if count == 1 => Err(failure),
        Some(failure) => Err(failure.while_doing(&format!("{count} tasks have not completed; the first is"))),
    }
}

#[derive(Serialize)]
struct TaskWaitReport {
    schema: &'static str,
    tasks: Vec<TaskEndRow>,
}

#[derive(Serialize)]
struct TaskEndRow {
    id: String,
    state: Option<&'static str>,
    by: Option<String>,
    reason: Option<String>,
}

fn report(ends: &[(TaskId, Result<Finished, WaitTaskError>)], output: &Output) -> Result<(), Failure> {
    let shown = |(id, end): &(TaskId, Result<Finished, WaitTaskError>)| {
        let state = end.as_ref().ok().map(|end| &end.record);
        TaskEndRow {
            id: id.to_string(),
            state: state.map(|state| state.state.kind().as_str()),
            by: state.and_then(|state| state.by.as_ref()).map(ToString::to_string),
            reason: state.and_then(|state| state.reason.clone()),
        }
    };
    let tasks: Vec<TaskEndRow> = ends.iter().map(shown).collect();
    if output.is_json {
        return output.object(&TaskWaitReport { schema: SCHEMA, tasks });
    }
    let dash = || "-".to_owned();
    let row = |task: TaskEndRow| {
        vec![task.id, task.state.unwrap_or("unknown").to_owned(), task.by.unwrap_or_else(dash)]
    };
    let rows: Vec<Vec<String>> = tasks.into_iter().map(row).collect();
    output.table(&["id", "state", "by"], &rows)
}

fn failure(id: &TaskId, end: Result<Finished, WaitTaskError>) -> Option<Failure> {
    let finished = match end {
        Ok(end) => end,
        Err(error) => return Some(end_unknown(Some(id), error)),
    };
    let why = finished.reason.map(|why| format!(": {why}")).unwrap_or_default();
    let code = match finished.state {
        TaskState::Failed => Code::TaskFailed,
        TaskState::Killed => Code::TaskKilled,
        TaskState::Completed
        | TaskState::Runnable
        | TaskState::Sleeping
        | TaskState::Fault
        | TaskState::Paused => return None,
    };
    let hint = format!("see `tenure task history {id}`; `tenure task retry {id}` runs it again");
    Some(Failure::new(code, format!("task '{id}' is {}{why}", finished.state)).hint(hint))
}

/// Why the ends of many were not seen.
fn not_seen(error: Error) -> Failure {
    match error {
        Error::Store(error) => end_unknown(None, WaitTaskError::Store(error)),
        other => Failure::new(Code::Failed, format!("the end of the tasks was not seen: {other}")),
    }
}

/// The failure of a wait that did not see the end of a task.
fn end_unknown(id: Option<&TaskId>, error: WaitTaskError) -> Failure {
    let name = id.map_or("the tasks".to_owned(), |id| format!("task '{id}'"));
    match (error, id) {
        (WaitTaskError::NotFound, Some(id)) => no_such_task(id),
        (WaitTaskError::Timeout { after: within }, _) => {
            let message = format!("{name} has not ended within {}", duration::format(within));
            Failure::new(Code::TimedOut, message).hint("it goes on; see its state with `tenure task show`")
        }
        (WaitTaskError::Deleted, _) => {
            Failure::new(Code::NotFound, format!("{name} was deleted before it ended"))
                .hint("list the tasks with `tenure task ls`")
        }
        (WaitTaskError::Store(error), _) => {
            Failure::from(error).while_doing(&format!("the state of {name} could not be read"))
        }
        (other, _) => Failure::new(Code::Failed, format!("the state of {name} could not be read: {other}")),
    }
}
