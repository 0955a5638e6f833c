//! Submits tasks: each exactly once, many at a time.
//!
//! A submission is one transaction: the id is free, and no state of an earlier incarnation is stored. If one is stored, a second transaction
//! requires exactly that state: a deleted task goes on from it, and a rerun deletes a final one. Without a rerun a finished id is refused.
//!
//! A lost reply is settled by sending the same again: the nonce in the record that is found decides whether it is this submission's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
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

/// How many bytes of props a task may have: every claim carries them. Store larger data elsewhere, and put its location into the props.
pub const PROPS_BYTES_MAX: usize = 256 * 1024;

/// A task to submit.
#[derive(Clone, PartialEq)]
pub struct TaskSpec {
    /// Its id.
    pub id: TaskId,
    /// The kind, by which workers choose a handler.
    pub kind: Option<String>,
    /// The labels; `weight` counts for workers that share work by weight.
    pub labels: BTreeMap<String, String>,
    /// The props, at most [`PROPS_BYTES_MAX`] bytes of JSON.
    pub props: Option<Bytes>,
    /// Whether a finished task with this id is forgotten and replaced.
    pub rerun: bool,
}

/// Props may be secret, so only their size is shown.
impl fmt::Debug for TaskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TaskSpec { id, kind, labels, props, rerun } = self;
        let props = props.as_ref().map(Bytes::len);
        write!(f, "TaskSpec({id}, {kind:?}, {labels:?}, {props:?} bytes of props, rerun {rerun})")
    }
}

impl TaskSpec {
    /// A task with this id, without kind, labels and props.
    pub fn new(id: TaskId) -> TaskSpec {
        TaskSpec { id, kind: None, labels: BTreeMap::new(), props: None, rerun: false }
    }

    /// Checks its kind and labels, as a submission does.
    ///
    /// # Errors
    ///
    /// [`InvalidText`] for the first with a control character: a NUL in it could not be handed to a program, a line break forges log lines.
    pub fn check(&self) -> Result<(), InvalidText> {
        check_texts(self.kind.as_deref(), &self.labels)
    }
}

/// Checks a kind and labels.
///
/// # Errors
///
/// [`InvalidText`] for the first with a control character.
pub fn check_texts(kind: Option<&str>, labels: &BTreeMap<String, String>) -> Result<(), InvalidText> {
    kind.map_or(Ok(()), check_text).map_err(InvalidText::Kind)?;
    for (name, value) in labels {
        check_text(name).map_err(|bad| InvalidText::LabelName { name: name.clone(), bad })?;
        check_text(value).map_err(|bad| InvalidText::LabelValue { name: name.clone(), bad })?;
    }
    Ok(())
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

/// Why a task was not submitted.
#[derive(Debug, Error)]
pub enum SubmitTaskError {
    /// Its kind or one of its labels is not accepted: nothing was submitted.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// A task with this id exists: take another id, or delete that task.
    #[error("a task with this id exists already")]
    Exists(TaskState),
    /// A task with this id is finished, and its final state is kept: take another id, forget the state, or submit it as a rerun.
    #[error("a task with this id is finished already, it is {0}")]
    Finished(TaskState),
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
    results: Vec<Option<Result<(), SubmitTaskError>>>,
    open: Vec<(usize, Submission)>,
}

impl SubmitTasks {
    /// Adds a task, with a nonce of its own, submitted at this time.
    pub fn push(&mut self, layout: &Layout, task: TaskSpec, nonce: String, at: Timestamp) {
        let result = if let Err(invalid) = task.check() {
            Some(Err(SubmitTaskError::Invalid(invalid)))
        } else if self.seen.insert(task.id.clone()) {
            self.open.push((self.results.len(), Submission::new(layout, task, (nonce, at))));
            None
        } else {
            Some(Err(SubmitTaskError::Exists(TaskState::Runnable)))
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
    pub fn into_results(self) -> Vec<Result<(), SubmitTaskError>> {
        let pending = || Err(SubmitTaskError::Store(StoreError::Closed));
        self.results.into_iter().map(|result| result.unwrap_or_else(pending)).collect()
    }
}

/// One submission in flight.
#[derive(Debug)]
struct Submission {
    keys: TaskKeys,
    record: TaskRecord,
    props: Option<Bytes>,
    layout: Layout,
    task: TaskId,
    /// Whether a final state of an earlier incarnation is deleted.
    rerun: bool,
    /// The state of an earlier incarnation.
    before: Option<EarlierState>,
    /// The last lost reply: from then on the task may have been there.
    lost: Option<StoreError>,
    tries: usize,
}

/// The stored state of an earlier incarnation.
#[derive(Debug)]
struct EarlierState {
    modified: Revision,
    /// The entry of a finished task among the ended ones: the state goes with it.
    entry: Option<Bytes>,
}

impl Submission {
    fn new(layout: &Layout, task: TaskSpec, (nonce, at): (String, Timestamp)) -> Submission {
        let record = TaskRecord {
            submitted_at: at,
            kind: task.kind,
            labels: task.labels,
            nonce,
            ..TaskRecord::default()
        };
        Submission {
            keys: TaskKeys::of(layout, &task.id),
            record,
            props: task.props,
            layout: layout.clone(),
            task: task.id,
            rerun: task.rerun,
            before: None,
            lost: None,
            tries: 0,
        }
    }

    /// Puts the task if it does not exist and the state is the known one. Props of an earlier incarnation are deleted, and so is a command
    /// that no worker has handled: it was not meant for this task.
    fn txn(&self) -> Txn {
        let state = self.before.as_ref().map_or(Revision::ZERO, |before| before.modified);
        let props = match &self.props {
            Some(props) => Op::put(self.keys.props.clone(), props.clone()),
            None => Op::delete(self.keys.props.clone()),
        };
        let mut txn = Txn::new()
            .when(Condition::absent(self.keys.task.clone()))
            .when(Condition::modified_at(self.keys.state.clone(), state))
            .then(Op::put(self.keys.task.clone(), self.record.encode()))
            .then(props)
            .then(Op::delete(self.keys.command.clone()));
        // A final state and its entry are deleted together: retention finds the state by its entry.
        if let Some(entry) = self.before.as_ref().and_then(|before| before.entry.clone()) {
            txn = txn.then(Op::delete(self.keys.state.clone())).then(Op::delete(entry));
        }
        self.keys.read_otherwise(txn)
    }

    /// What a reply means; none if the transaction must be sent (again).
    fn handle(&mut self, reply: Result<TxnReply, StoreError>) -> Option<Result<(), SubmitTaskError>> {
        self.tries += 1;
        let reply = match reply {
            Ok(reply) if reply.succeeded => return Some(Ok(())),
            Ok(reply) => reply,
            Err(error) if error.is_ambiguous() => {
                if self.tries > LOST_MAX {
                    return Some(Err(SubmitTaskError::Unknown(error)));
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
            let record = found.record();
            if record.as_ref().is_some_and(|record| record.nonce == self.record.nonce) {
                return Some(Ok(()));
            }
            let state = found.state().map_or(TaskState::Runnable, |record| record.state.kind());
            // A version before 0.2 submitted a finished task again, and marked it.
            let is_finished = record.is_some_and(|record| record.ended) && state.is_terminal();
            return Some(Err(if is_finished {
                SubmitTaskError::Finished(state)
            } else {
                SubmitTaskError::Exists(state)
            }));
        }
        let known = self.before.as_ref().map(|before| before.modified);
        if let Some(lost) = self.lost.take_if(|_| known != found.state.as_ref().map(|pair| pair.modified)) {
            // The state was changed since: perhaps by a worker that ran this very task to its end.
            return Some(Err(SubmitTaskError::Unknown(lost)));
        }
        if self.tries >= TRIES_MAX {
            return Some(Err(self.failed(contended())));
        }
        self.before = match &found.state {
            None => None,
            Some(pair) => match StateRecord::decode(&pair.value) {
                Err(bad) => return Some(Err(SubmitTaskError::UnreadableState(bad.reason()))),
                Ok(record) if record.state.is_terminal() && !self.rerun => {
                    return Some(Err(SubmitTaskError::Finished(record.state.kind())));
                }
                Ok(_) => Some(EarlierState {
                    modified: modified(found.state.as_ref()),
                    entry: found.entry(&self.layout, &self.task),
                }),
            },
        };
        None
    }

    /// A definite failure now is no failure of an earlier request without a reply.
    fn failed(&mut self, error: StoreError) -> SubmitTaskError {
        match self.lost.take() {
            Some(lost) => SubmitTaskError::Unknown(lost),
            None => SubmitTaskError::Store(error),
        }
    }
}

#[cfg(test)]
mod tests;
