//! Submits tasks: each exactly once, many at a time.
//!
//! A submission is one transaction: the id is free, and there is no state of an earlier incarnation. If there is one, a second transaction
//! decides on exactly that state: a task that has ended is accepted and marked, so that no worker runs it until the state is forgotten.
//!
//! A lost reply is settled by sending the same again: the nonce in the record that is found decides whether it is this submission's.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::keys::{TaskFound, TaskKeys, modified};
use super::{LOST_MAX, TRIES_MAX, contended};
use crate::error::StoreError;
use crate::id::{ControlCharacter, TaskId, check_text};
use crate::layout::Layout;
use crate::record::{Record, TaskRecord, Timestamp};
use crate::revision::Revision;
use crate::task::{StateRecord, TaskState};
use crate::txn::{Condition, Op, Txn, TxnReply};

/// How many bytes of props a task may have: every claim carries them. Store larger data elsewhere,
/// and put its location into the props.
pub const PROPS_BYTES_MAX: usize = 256 * 1024;

/// A task to submit.
#[derive(Clone, PartialEq, Debug)]
pub struct NewTask {
    id: TaskId,
    kind: Option<String>,
    labels: BTreeMap<String, String>,
    props: Option<TaskProps>,
}

/// What the submitter gives a task; may be secret, so only its size is shown.
#[derive(Clone, PartialEq)]
struct TaskProps(Bytes);

impl std::fmt::Debug for TaskProps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Why something cannot be a task's props.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidProps {
    /// Not JSON.
    #[error("props are JSON, and this is not: line {} column {}", .0.line(), .0.column())]
    NotJson(#[source] serde_json::Error),
    /// Too many bytes.
    #[error("props of {0} bytes, at most {PROPS_BYTES_MAX} are stored")]
    TooLarge(usize),
}

impl NewTask {
    /// Creates a task with this id, and without kind, labels and props.
    pub fn new(id: TaskId) -> NewTask {
        NewTask { id, kind: None, labels: BTreeMap::new(), props: None }
    }

    /// Its id.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// What kind of work it is, so that nodes can choose.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> NewTask {
        self.kind = Some(kind.into());
        self
    }

    /// Adds a label. The label `weight` counts for workers that share tasks by weight.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> NewTask {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Checks its kind and labels, as a submission does.
    ///
    /// # Errors
    ///
    /// [`InvalidText`] for the first with a control character: a NUL in it could not be handed to a program, a line break forges log lines.
    pub fn check(&self) -> Result<(), InvalidText> {
        self.kind.as_deref().map_or(Ok(()), check_text).map_err(InvalidText::Kind)?;
        for (name, value) in &self.labels {
            check_text(name).map_err(|bad| InvalidText::LabelName { name: name.clone(), bad })?;
            check_text(value).map_err(|bad| InvalidText::LabelValue { name: name.clone(), bad })?;
        }
        Ok(())
    }

    /// What its handler needs to know, as anything that can be JSON.
    ///
    /// # Errors
    ///
    /// [`InvalidProps`] if it cannot be JSON or is too long.
    pub fn props(self, props: &impl Serialize) -> Result<NewTask, InvalidProps> {
        self.store_props(serde_json::to_vec(props).map_err(InvalidProps::NotJson)?)
    }

    /// What its handler needs to know, as JSON text; stored to the letter.
    ///
    /// # Errors
    ///
    /// [`InvalidProps`] if it is not JSON or too long.
    pub fn props_text(self, text: &str) -> Result<NewTask, InvalidProps> {
        serde_json::from_str::<Value>(text).map_err(InvalidProps::NotJson)?;
        self.store_props(text.as_bytes().to_vec())
    }

    fn store_props(mut self, bytes: Vec<u8>) -> Result<NewTask, InvalidProps> {
        if bytes.len() > PROPS_BYTES_MAX {
            return Err(InvalidProps::TooLarge(bytes.len()));
        }
        self.props = Some(TaskProps(bytes.into()));
        Ok(self)
    }
}

/// Why a text cannot be a task's kind or label.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidText {
    /// The kind.
    #[error("the kind {0}")]
    Kind(ControlCharacter),
    /// The name of a label.
    #[error("the name of the label {name:?} {bad}")]
    LabelName {
        /// The name.
        name: String,
        /// What is wrong with it.
        bad: ControlCharacter,
    },
    /// The value of a label.
    #[error("the value of the label {name:?} {bad}")]
    LabelValue {
        /// The name of the label.
        name: String,
        /// What is wrong with the value.
        bad: ControlCharacter,
    },
}

/// That a task was submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// It will run.
    Accepted,
    /// It is there, and will not run: a task with this id has ended like this before. Forget that, and it runs.
    Ended(TaskState),
}

/// Why a task was not submitted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Its kind or one of its labels is not accepted: nothing was submitted.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// A task with this id is there: take another id, or delete that one.
    #[error("a task with this id exists already")]
    Exists,
    /// An earlier task with this id has left a state that cannot be read, so it is not known whether it has ended: read it, or forget it.
    #[error("the stored state of an earlier task with this id cannot be read: {0}")]
    UnreadableState(String),
    /// The reply was lost, and what was found does not decide it: read before you submit it again.
    #[error("it is not known whether the task was submitted")]
    Unknown(#[source] StoreError),
    /// The store did not take it: nothing was submitted.
    #[error("the task was not submitted")]
    Store(#[source] StoreError),
}

/// Submits many tasks: as long as it is not done, [`SubmitTasks::txns`] are sent together and their replies given to [`SubmitTasks::handle`].
#[derive(Debug, Default)]
pub struct SubmitTasks {
    /// The ids so far: of several tasks with one id the first counts.
    seen: BTreeSet<TaskId>,
    results: Vec<Option<Result<Submitted, SubmitError>>>,
    open: Vec<(usize, Submission)>,
}

impl SubmitTasks {
    /// Adds a task, with a nonce of its own, submitted at this time.
    pub fn push(&mut self, layout: &Layout, task: NewTask, nonce: String, at: Timestamp) {
        let result = if let Err(invalid) = task.check() {
            Some(Err(SubmitError::Invalid(invalid)))
        } else if self.seen.insert(task.id.clone()) {
            self.open.push((self.results.len(), Submission::new(layout, task, (nonce, at))));
            None
        } else {
            Some(Err(SubmitError::Exists))
        };
        self.results.push(result);
    }

    /// Whether every task has its result.
    pub fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// What to send now.
    pub fn txns(&self) -> Vec<Txn> {
        self.open.iter().map(|(_, submission)| submission.txn()).collect()
    }

    /// Takes the replies to [`SubmitTasks::txns`], in their order. Returns an error after which to wait before the next ones are sent.
    pub fn handle(
        &mut self,
        replies: impl IntoIterator<Item = Result<TxnReply, StoreError>>,
    ) -> Option<StoreError> {
        let mut lost = None;
        let replies = replies.into_iter().chain(std::iter::repeat(Err(StoreError::Closed)));
        for ((place, mut submission), reply) in std::mem::take(&mut self.open).into_iter().zip(replies) {
            let error = reply.as_ref().err().cloned();
            match submission.handle(reply) {
                Some(result) => self.results[place] = Some(result),
                None => {
                    lost = lost.or(error);
                    self.open.push((place, submission));
                }
            }
        }
        lost
    }

    /// One result for each task, in the order in which they were added.
    pub fn into_results(self) -> Vec<Result<Submitted, SubmitError>> {
        let pending = || Err(SubmitError::Store(StoreError::Closed));
        self.results.into_iter().map(|result| result.unwrap_or_else(pending)).collect()
    }
}

/// One submission in flight.
#[derive(Debug)]
struct Submission {
    keys: TaskKeys,
    record: TaskRecord,
    props: Option<Bytes>,
    /// The state of an earlier incarnation: when it was written, and how that ended if it has.
    before: Option<(Revision, Option<TaskState>)>,
    /// The last lost reply: from then on the task may have been there.
    lost: Option<StoreError>,
    tries: usize,
}

impl Submission {
    fn new(layout: &Layout, task: NewTask, (nonce, at): (String, Timestamp)) -> Submission {
        let record = TaskRecord {
            submitted_at: at,
            kind: task.kind,
            labels: task.labels,
            nonce,
            ..TaskRecord::default()
        };
        let props = task.props.map(|props| props.0);
        Submission { keys: TaskKeys::of(layout, &task.id), record, props, before: None, lost: None, tries: 0 }
    }

    /// Puts the task if it does not exist and the state is the known one. What an earlier incarnation left goes: its props, and a command that
    /// no worker has handled and that was not meant for this task.
    fn txn(&self) -> Txn {
        let (state, ending) = self.before.unwrap_or((Revision::ZERO, None));
        let record = TaskRecord { ended: ending.is_some(), ..self.record.clone() };
        let props = match &self.props {
            Some(props) => Op::put(self.keys.props.clone(), props.clone()),
            None => Op::delete(self.keys.props.clone()),
        };
        let txn = Txn::new()
            .when(Condition::absent(self.keys.task.clone()))
            .when(Condition::modified_at(self.keys.state.clone(), state))
            .then(Op::put(self.keys.task.clone(), record.encode()))
            .then(props)
            .then(Op::delete(self.keys.command.clone()));
        self.keys.read_otherwise(txn)
    }

    /// What a reply means; none if the transaction must be sent (again).
    fn handle(&mut self, reply: Result<TxnReply, StoreError>) -> Option<Result<Submitted, SubmitError>> {
        self.tries += 1;
        let reply = match reply {
            Ok(reply) if reply.succeeded => return Some(Ok(self.submitted())),
            Ok(reply) => reply,
            Err(error) if error.is_ambiguous() => {
                if self.tries > LOST_MAX {
                    return Some(Err(SubmitError::Unknown(error)));
                }
                self.lost = Some(error);
                return None;
            }
            Err(error) => return Some(Err(self.failed(error))),
        };
        let found = match TaskFound::in_reply(&reply) {
            Ok(found) => found,
            Err(error) => return Some(Err(self.failed(error))),
        };
        if found.task.is_some() {
            let is_ours = found.record().is_some_and(|record| record.nonce == self.record.nonce);
            return Some(if is_ours { Ok(self.submitted()) } else { Err(SubmitError::Exists) });
        }
        let known = self.before.map(|(revision, _)| revision);
        if let Some(lost) = self.lost.take_if(|_| known != found.state.as_ref().map(|pair| pair.modified)) {
            // The state was changed since: perhaps by a worker that ran this very task to its end.
            return Some(Err(SubmitError::Unknown(lost)));
        }
        if self.tries >= TRIES_MAX {
            return Some(Err(self.failed(contended())));
        }
        self.before = match &found.state {
            None => None,
            Some(pair) => match StateRecord::decode(&pair.value) {
                Err(bad) => return Some(Err(SubmitError::UnreadableState(bad.reason()))),
                Ok(_) => Some((modified(found.state.as_ref()), found.ended())),
            },
        };
        None
    }

    /// A definite failure now is no failure of an earlier request without a reply.
    fn failed(&mut self, error: StoreError) -> SubmitError {
        match self.lost.take() {
            Some(lost) => SubmitError::Unknown(lost),
            None => SubmitError::Store(error),
        }
    }

    fn submitted(&self) -> Submitted {
        match self.before {
            Some((_, Some(ending))) => Submitted::Ended(ending),
            Some((_, None)) | None => Submitted::Accepted,
        }
    }
}

#[cfg(test)]
mod tests;
