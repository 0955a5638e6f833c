//! `task rm`, `task forget` and `task retry`: delete a task, delete its final state, or run it again.

use serde::Serialize;
use tenure::Tenure;
use tenure::task::TaskRequestError;
use tenure_core::id::TaskId;

use super::{SCHEMA, no_such_task};
use crate::failure::{Code, Failure};
use crate::output::Output;

#[derive(Serialize)]
struct TaskDeleteReport {
    schema: &'static str,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
}

pub(super) async fn remove(
    id: &TaskId,
    reason: &str,
    tenure: &Tenure,
    output: &Output,
) -> Result<(), Failure> {
    let deleted = tenure.task(id).delete().reason(reason).await.map_err(|error| match error {
        TaskRequestError::NotFound => {
            Failure::new(Code::NotFound, format!("there is no task '{id}' to delete")).hint(format!(
                "list the tasks with `tenure task ls`; `tenure task forget {id}` deletes the state of an ended one"
            ))
        }
        TaskRequestError::Ambiguous(error) => {
            Failure::new(Code::Ambiguous, format!("'{id}' may or may not have been deleted: {error}"))
                .hint(format!("see whether it exists with `tenure task show {id}`"))
        }
        TaskRequestError::Store(error) => {
            Failure::from(error).while_doing(&format!("'{id}' was not deleted"))
        }
        other => Failure::new(Code::Failed, format!("'{id}' was not deleted: {other}")),
    })?;
    let owner = deleted.owner.map(|owner| owner.to_string());
    if let Some(owner) = &owner {
        output.note(&format!("the owner {owner} stops it now"));
    }
    report(id, owner, output)
}

pub(super) async fn forget(
    id: &TaskId,
    reason: &str,
    tenure: &Tenure,
    output: &Output,
) -> Result<(), Failure> {
    tenure.task(id).forget().reason(reason).await.map_err(|error| match error {
        TaskRequestError::NotFound => no_such_task(id),
        TaskRequestError::NotFinished { state } => Failure::new(
            Code::Conflict,
            format!(
                "'{id}' was not forgotten: it has not ended, it is {state}, and its owner needs the state"
            ),
        )
        .hint(format!("end it first with `tenure task kill {id}`")),
        TaskRequestError::Ambiguous(error) => {
            Failure::new(Code::Ambiguous, format!("'{id}' may or may not have been forgotten: {error}"))
                .hint(format!("see whether its history exists with `tenure task history {id}`"))
        }
        TaskRequestError::Store(error) => {
            Failure::from(error).while_doing(&format!("'{id}' was not forgotten"))
        }
        other => Failure::new(Code::Failed, format!("'{id}' was not forgotten: {other}")),
    })?;
    report(id, None, output)
}

pub(super) async fn retry(id: &TaskId, tenure: &Tenure, output: &Output) -> Result<(), Failure> {
    let ended = tenure.task(id).retry().await.map_err(|error| match error {
        TaskRequestError::NotFound => no_such_task(id),
        TaskRequestError::NotFinished { state } => {
            Failure::new(Code::Conflict, format!("'{id}' was not retried: it has not ended, it is {state}"))
                .hint(format!("let it run with `tenure task resume {id}`, or see `tenure task show {id}`"))
        }
        TaskRequestError::NotKept => {
            let message = format!("'{id}' was not retried: tenure 0.1 ended it, which keeps no kind, labels and props");
            Failure::new(Code::Conflict, message).hint(format!(
                "remove its state with `tenure task forget {id}`, and submit it again with `tenure submit {id}`"
            ))
        }
        TaskRequestError::Unreadable(why) => {
            let message = format!("'{id}' was not retried: its final state cannot be read: {why}");
            Failure::new(Code::Failed, message).hint(format!("`tenure task forget {id}` removes the state"))
        }
        TaskRequestError::Ambiguous(error) => {
            Failure::new(Code::Ambiguous, format!("'{id}' may or may not have been retried: {error}"))
                .hint(format!("see whether it exists with `tenure task show {id}`"))
        }
        TaskRequestError::Store(error) => Failure::from(error).while_doing(&format!("'{id}' was not retried")),
        other => Failure::new(Code::Failed, format!("'{id}' was not retried: {other}")),
    })?;
    output.note(&format!("'{id}' was {ended} and runs again"));
    report(id, None, output)
}

fn report(id: &TaskId, owner: Option<String>, output: &Output) -> Result<(), Failure> {
    if output.is_json {
        return output.object(&TaskDeleteReport { schema: SCHEMA, id: id.to_string(), owner });
    }
    output.record([id.as_str()])
}
