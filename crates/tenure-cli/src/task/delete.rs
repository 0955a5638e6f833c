//! `task rm`, `task forget` and `task retry`: deleting the task, deleting its final state, and running it again.

use serde::Serialize;
use tenure::client::{Client, DeleteError, ForgetError, RetryError};
use tenure_core::id::TaskId;

use super::{SCHEMA, nothing_known};
use crate::failure::{Code, Failure};
use crate::output::Output;

#[derive(Serialize)]
struct TaskDeleteReport {
    schema: &'static str,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
}

pub(super) async fn remove(id: &TaskId, client: &Client, output: &Output) -> Result<(), Failure> {
    let deleted = client.delete(id).await.map_err(|error| match error {
        DeleteError::NotFound => Failure::new(Code::NotFound, format!("there is no task '{id}' to delete"))
            .hint(format!(
                "list what there is with `tenure task ls`; an end is forgotten with `tenure task forget {id}`"
            )),
        DeleteError::Unknown(error) => {
            Failure::new(Code::Ambiguous, format!("it is not known whether '{id}' was deleted: {error}"))
                .hint(format!("look with `tenure task show {id}`"))
        }
        DeleteError::Store(error) => Failure::from(error).while_doing(&format!("'{id}' was not deleted")),
        other => Failure::new(Code::Failed, format!("'{id}' was not deleted: {other}")),
    })?;
    let owner = deleted.owner.map(|owner| owner.to_string());
    if let Some(owner) = &owner {
        output.note(&format!("{owner} ran it, and stops it now"));
    }
    report(id, owner, output)
}

pub(super) async fn forget(id: &TaskId, client: &Client, output: &Output) -> Result<(), Failure> {
    client.forget(id).await.map_err(|error| match error {
        ForgetError::NotFound => nothing_known(id),
        ForgetError::Live(state) => Failure::new(
            Code::Conflict,
            format!("'{id}' has not ended, it is {state}, and its owner needs its state"),
        )
        .hint(format!("end it first with `tenure task kill {id}`")),
        ForgetError::Unknown(error) => {
            Failure::new(Code::Ambiguous, format!("it is not known whether '{id}' was forgotten: {error}"))
                .hint(format!("look with `tenure task history {id}`"))
        }
        ForgetError::Store(error) => Failure::from(error).while_doing(&format!("'{id}' was not forgotten")),
        other => Failure::new(Code::Failed, format!("'{id}' was not forgotten: {other}")),
    })?;
    report(id, None, output)
}

pub(super) async fn retry(id: &TaskId, client: &Client, output: &Output) -> Result<(), Failure> {
    let ended = client.retry(id).await.map_err(|error| match error {
        RetryError::NotFound => nothing_known(id),
        RetryError::Live(state) => {
            Failure::new(Code::Conflict, format!("'{id}' was not retried: it has not ended, it is {state}"))
                .hint(format!("let it run with `tenure task resume {id}`, or see `tenure task show {id}`"))
        }
        RetryError::NotKept => {
            let message = format!("'{id}' was not retried: tenure 0.1 ended it, which keeps no kind, labels and props");
            Failure::new(Code::Conflict, message).hint(format!(
                "remove its state with `tenure task forget {id}`, and submit it again with `tenure submit {id}`"
            ))
        }
        RetryError::Unreadable(why) => {
            let message = format!("'{id}' was not retried: its final state cannot be read: {why}");
            Failure::new(Code::Failed, message).hint(format!("`tenure task forget {id}` removes the state"))
        }
        RetryError::Unknown(error) => {
            Failure::new(Code::Ambiguous, format!("it is not known whether '{id}' is retried: {error}"))
                .hint(format!("look with `tenure task show {id}`"))
        }
        RetryError::Store(error) => Failure::from(error).while_doing(&format!("'{id}' was not retried")),
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
