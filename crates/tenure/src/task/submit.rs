//! Submits tasks: each exactly once, many at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tenure_core::backoff::Backoff;
use tenure_core::client::{
    InvalidText, PROPS_BYTES_MAX, SubmitTaskError as CoreError, SubmitTasks, TaskSpec, check_texts,
};
use tenure_core::error::Cause;
use tenure_core::id::{CommandIds, InvalidName, TaskId};
use tenure_core::task::TaskState;
use thiserror::Error;

use super::access::TaskAccess;
use super::handle::TaskHandle;
use crate::clock::wall_time;
use crate::error::{ErrorClass, classified};
use crate::id::IntoId;
use crate::retry::Attempts;
use crate::rng;
use crate::store::StoreError;
use crate::tenure::request;

/// How many tasks are prepared at a time: some forty requests, so that all connections are busy, and a few MiB at most as long as props are small.
const ROUND_LEN: usize = 4_096;

/// Ids for tasks that need no name, as many as are taken: each is new, and they sort by the time at which they were made.
pub fn new_task_ids() -> impl Iterator<Item = TaskId> {
    let mut ids = CommandIds::default();
    std::iter::repeat_with(move || new_task_id(&mut ids))
}

fn new_task_id(ids: &mut CommandIds) -> TaskId {
    let id = ids.next(wall_time(), rng::nonce().to_be_bytes());
    TaskId::parse(id.as_str()).expect("a UUID is a valid name")
}

/// A task to submit. Wrong ids, props and labels are reported by the submission.
///
/// ```
/// use tenure::NewTask;
///
/// let task = NewTask::new("mail").id("mail-1").label("zone", "eu").props(&("a@example.org", "Hello"));
/// assert!(task.check().is_ok());
/// assert!(NewTask::new("mail").props_json("{").check().is_err());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a task is stored by `submit`"]
pub struct NewTask {
    id: Option<Result<TaskId, InvalidName>>,
    kind: String,
    labels: BTreeMap<String, String>,
    props: Result<Option<Props>, InvalidProps>,
    rerun: bool,
}

/// May be secret, so only their size is shown.
#[derive(Clone)]
struct Props(Bytes);

impl fmt::Debug for Props {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Why something cannot be the props of a task.
#[derive(Clone, Debug)]
enum InvalidProps {
    NotJson(String),
    TooLarge(usize),
}

impl From<InvalidProps> for SubmitError {
    fn from(invalid: InvalidProps) -> SubmitError {
        match invalid {
            InvalidProps::NotJson(reason) => SubmitError::InvalidProps(reason),
            InvalidProps::TooLarge(bytes) => SubmitError::PropsTooLarge { bytes, max: PROPS_BYTES_MAX },
        }
    }
}

impl NewTask {
    /// A task of this kind, by which workers choose a handler. An empty kind is none: only [`WorkerBuilder::handle_any`] runs it.
    ///
    /// [`WorkerBuilder::handle_any`]: crate::WorkerBuilder::handle_any
    pub fn new(kind: impl Into<String>) -> NewTask {
        NewTask { id: None, kind: kind.into(), labels: BTreeMap::new(), props: Ok(None), rerun: false }
    }

    /// The id; otherwise a new one, by which tasks sort in the order of their submission.
    pub fn id(mut self, id: impl IntoId<TaskId>) -> NewTask {
        self.id = Some(id.into_id());
        self
    }

    /// A label, for balancers, workers and queries; `weight` counts for workers that share work by weight.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> NewTask {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// The props of the handler, as JSON; at most 256 KiB.
    pub fn props(mut self, props: &(impl Serialize + ?Sized)) -> NewTask {
        self.props = match serde_json::to_vec(props) {
            Ok(json) => stored_props(json),
            Err(error) => Err(InvalidProps::NotJson(format!("the props cannot be written as JSON: {error}"))),
        };
        self
    }

    /// The props of the handler as JSON text, stored to the letter.
    pub fn props_json(mut self, text: &str) -> NewTask {
        self.props = match serde_json::from_str::<Value>(text) {
            Ok(_) => stored_props(text.as_bytes().to_vec()),
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                let reason = format!("props are JSON, and this is not: line {line} column {column}");
                Err(InvalidProps::NotJson(reason))
            }
        };
        self
    }

    /// If a task with this id is finished, forgets how it ended and submits the new one, in one transaction.
    pub fn rerun(mut self) -> NewTask {
        self.rerun = true;
        self
    }

    /// Checks everything that a submission checks before it sends anything.
    ///
    /// # Errors
    ///
    /// [`SubmitError::InvalidName`], [`SubmitError::InvalidText`], [`SubmitError::InvalidProps`] or [`SubmitError::PropsTooLarge`].
    pub fn check(&self) -> Result<(), SubmitError> {
        if let Some(Err(invalid)) = &self.id {
            return Err(invalid.clone().into());
        }
        check_texts(Some(&self.kind), &self.labels)?;
        self.props.as_ref().map(drop).map_err(|invalid| invalid.clone().into())
    }

    fn into_spec(self, ids: &mut CommandIds) -> Result<TaskSpec, SubmitError> {
        self.check()?;
        let NewTask { id, kind, labels, props, rerun } = self;
        Ok(TaskSpec {
            id: id.unwrap_or_else(|| Ok(new_task_id(ids)))?,
            kind: Some(kind).filter(|kind| !kind.is_empty()),
            labels,
            props: props?.map(|props| props.0),
            rerun,
        })
    }
}

fn stored_props(json: Vec<u8>) -> Result<Option<Props>, InvalidProps> {
    if json.len() > PROPS_BYTES_MAX {
        return Err(InvalidProps::TooLarge(json.len()));
    }
    Ok(Some(Props(json.into())))
}

/// A task about to be submitted. Awaiting it gives a [`TaskHandle`].
///
/// # Guarantees
///
/// The task is submitted once, also if a reply of the store is lost: the submission writes a nonce, and recognizes its own task by it.
///
/// # Not guaranteed
///
/// * That the task runs: that takes a worker with a handler for its kind.
/// * *Exactly once*: a task runs at least once, and the fencing tokens of its claims distinguish its runs.
///
/// # Cancellation
///
/// The task may be submitted or not, as a whole.
///
/// # Errors
///
/// [`SubmitError`].
#[derive(Clone, Debug)]
#[must_use = "nothing is submitted before this is awaited"]
pub struct Submit {
    access: TaskAccess,
    task: NewTask,
    timeout: Option<Duration>,
}

request!(Submit => Result<TaskHandle, SubmitError>);

impl Submit {
    pub(crate) fn new(access: &TaskAccess, task: NewTask) -> Submit {
        Submit { access: access.clone(), task, timeout: None }
    }

    /// How long the submission may take, then [`SubmitError::Ambiguous`]. Unless set, the request timeouts of the store bound it.
    pub fn timeout(mut self, timeout: Duration) -> Submit {
        self.timeout = Some(timeout);
        self
    }

    async fn send(self) -> Result<TaskHandle, SubmitError> {
        let Submit { access, task, timeout } = self;
        match access.within(timeout, access.submit_all(vec![task])).await {
            Some(mut results) => results.pop().expect("one task has one result"),
            None => {
                let cause = format!("no reply within {:?}", timeout.unwrap_or_default());
                Err(SubmitError::Ambiguous(StoreError::Ambiguous(Cause::new(cause))))
            }
        }
    }
}

impl TaskAccess {
    /// Submits tasks in as few requests as possible.
    pub(crate) async fn submit_all(&self, tasks: Vec<NewTask>) -> Vec<Result<TaskHandle, SubmitError>> {
        let mut ids = CommandIds::default();
        let mut results = Vec::with_capacity(tasks.len());
        let mut submit = SubmitTasks::default();
        let mut tasks = tasks.into_iter().peekable();
        while tasks.peek().is_some() {
            for task in tasks.by_ref().take(ROUND_LEN) {
                results.push(task.into_spec(&mut ids).map(|task| {
                    let id = task.id.clone();
                    submit.push(&self.layout, task, format!("{:016x}", rng::nonce()), wall_time());
                    TaskHandle::new(self, Ok(id))
                }));
            }
            let mut attempts = Attempts::new(&self.clock, Backoff::REQUEST);
            while !submit.is_done() {
                let replies = self.store.batch(submit.txns()).await;
                if let Some(error) = submit.handle(replies) {
                    attempts.wait("task submit", &error).await;
                }
            }
        }
        let mut sent = submit.into_results().into_iter();
        let mut settle = |task| match sent.next() {
            Some(result) => result.map(|()| task).map_err(SubmitError::from),
            None => Err(SubmitError::Store(StoreError::Closed)),
        };
        // A task that was refused before it was sent has no result of the store.
        results.into_iter().map(|result| result.and_then(&mut settle)).collect()
    }
}

/// Why a task was not submitted.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The text is not an id. Nothing was submitted.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The kind or a label contains control characters. Nothing was submitted.
    #[error(transparent)]
    InvalidText(#[from] InvalidText),
    /// The props cannot be JSON. Nothing was submitted.
    #[error("{0}")]
    InvalidProps(String),
    /// Every claim carries the props: store larger ones elsewhere, and their address here. Nothing was submitted.
    #[error("props of {bytes} bytes, at most {max} are stored")]
    PropsTooLarge {
        /// Their size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A task with this id exists: take another id, or delete that task.
    #[error("a task with this id exists already: it is {state}")]
    Exists {
        /// Its state.
        state: TaskState,
    },
    /// A task with this id is finished, and nothing was stored: take another id, or submit it with [`NewTask::rerun`].
    #[error("a task with this id is finished already: it is {state}")]
    Finished {
        /// Its final state.
        state: TaskState,
    },
    /// The stored state of an earlier task with this id cannot be read: forget it.
    #[error("the stored state of an earlier task with this id cannot be read: {0}")]
    UnreadableState(String),
    /// The reply was lost, and the task may be submitted: read before submitting it again.
    #[error("the task may or may not be submitted")]
    Ambiguous(#[source] StoreError),
    /// The store failed. Nothing was submitted.
    #[error("the task was not submitted")]
    Store(#[source] StoreError),
}

impl SubmitError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            SubmitError::InvalidName(_)
            | SubmitError::InvalidText(_)
            | SubmitError::InvalidProps(_)
            | SubmitError::PropsTooLarge { .. } => ErrorClass::Invalid,
            SubmitError::Exists { .. } | SubmitError::Finished { .. } | SubmitError::UnreadableState(_) => {
                ErrorClass::Conflict
            }
            SubmitError::Ambiguous(_) => ErrorClass::Ambiguous,
            SubmitError::Store(error) => error.into(),
        }
    }
}

classified!(SubmitError);

impl From<CoreError> for SubmitError {
    fn from(error: CoreError) -> SubmitError {
        match error {
            CoreError::Invalid(invalid) => SubmitError::InvalidText(invalid),
            CoreError::Exists(state) => SubmitError::Exists { state },
            CoreError::Finished(state) => SubmitError::Finished { state },
            CoreError::UnreadableState(reason) => SubmitError::UnreadableState(reason),
            CoreError::Unknown(error) => SubmitError::Ambiguous(error),
            CoreError::Store(error) => SubmitError::Store(error),
        }
    }
}
