//! Submitting tasks: each exactly once, many at a time.
//!
//! A submission is one transaction: nobody has the id, and there is no state of an earlier life. If there is one, a second transaction decides on exactly
//! that state: a task that has ended is accepted and marked, so that no node runs it until the state is forgotten.
//!
//! A lost answer is settled by asking the same again: the nonce in the record that is found there tells whether it is ours.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tenure_core::layout::Layout;
use tenure_core::name::{CommandIds, ControlCharacter, TaskId, check_text};
use tenure_core::record::{Record, TaskRecord};
use tenure_core::task::{StateKind, StateRecord};
use thiserror::Error;

use super::task::{Found, Keys, Reading, modified};
use super::{Client, LOST_MAX, TRIES_MAX, fought_over};
use crate::clock::wall_time;
use crate::dice;
use crate::store::{Condition, Op, Revision, StoreError, Txn, TxnReply};

/// How many bytes of props a task may have: every claim carries them. Put more elsewhere, and say where.
pub const PROPS_BYTES_MAX: usize = 256 * 1024;

/// How many tasks are prepared at a time: some forty requests, so that all connections are busy, and a few MiB at most as long as props are small.
const ROUND_LEN: usize = 4_096;

/// Ids for tasks that need no name, as many as you take: each is new, and they sort by the time at which they were made.
pub fn new_task_ids() -> impl Iterator<Item = TaskId> {
    let mut ids = CommandIds::default();
    std::iter::repeat_with(move || {
        let id = ids.next(wall_time(), dice::nonce().to_be_bytes());
        TaskId::parse(id.as_str()).expect("a UUID is a name")
    })
}

/// A task to submit.
#[derive(Clone, PartialEq, Debug)]
pub struct NewTask {
    id: TaskId,
    kind: Option<String>,
    labels: BTreeMap<String, String>,
    props: Option<Props>,
}

/// What the submitter gives a task; may be secret, so only its size is shown.
#[derive(Clone, PartialEq)]
struct Props(Bytes);

impl std::fmt::Debug for Props {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Why something cannot be a task's props.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BadProps {
    /// Not JSON.
    #[error("props are JSON, and this is not: line {} column {}", .0.line(), .0.column())]
    NotJson(#[source] serde_json::Error),
    /// Too many bytes.
    #[error("props of {0} bytes, at most {PROPS_BYTES_MAX} are stored")]
    TooLarge(usize),
}

impl NewTask {
    /// A task with this id, and nothing else to say of it.
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

    /// Something to say of it; `weight` counts for nodes that share work by weight.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> NewTask {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Checks its kind and labels, as [`Client::submit`] does.
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
    /// [`BadProps`] if it cannot be JSON or is too long.
    pub fn props(self, props: &impl Serialize) -> Result<NewTask, BadProps> {
        self.store_props(serde_json::to_vec(props).map_err(BadProps::NotJson)?)
    }

    /// What its handler needs to know, as JSON text; stored to the letter.
    ///
    /// # Errors
    ///
    /// [`BadProps`] if it is not JSON or too long.
    pub fn props_text(self, text: &str) -> Result<NewTask, BadProps> {
        serde_json::from_str::<Value>(text).map_err(BadProps::NotJson)?;
        self.store_props(text.as_bytes().to_vec())
    }

    fn store_props(mut self, bytes: Vec<u8>) -> Result<NewTask, BadProps> {
        if bytes.len() > PROPS_BYTES_MAX {
            return Err(BadProps::TooLarge(bytes.len()));
        }
        self.props = Some(Props(bytes.into()));
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
    /// It is there, and will not run: a task with this id has ended like this before. [`Client::forget`] that, and it runs.
    Ended(StateKind),
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
    /// An earlier task with this id has left a state that cannot be read, so nobody knows whether it has ended: look at it, or forget it.
    #[error("the stored state of an earlier task with this id cannot be read: {0}")]
    UnreadableState(String),
    /// The answer was lost, and what was found does not tell: look before you submit it again.
    #[error("it is not known whether the task was submitted")]
    Unknown(#[source] StoreError),
    /// The store did not take it: nothing was submitted.
    #[error("the task was not submitted")]
    Store(#[source] StoreError),
}

impl Client {
    /// Submits a task.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn submit(&self, task: NewTask) -> Result<Submitted, SubmitError> {
        let mut results = self.submit_many(vec![task]).await;
        results.pop().expect("one task has one result")
    }

    /// Submits many tasks in as few requests as possible. Each has a result of its own, in the order in which they were given;
    /// of several with one id the first counts.
    pub async fn submit_many(&self, tasks: Vec<NewTask>) -> Vec<Result<Submitted, SubmitError>> {
        let mut results: Vec<Option<Result<Submitted, SubmitError>>> = Vec::new();
        results.resize_with(tasks.len(), || None);
        let mut seen = BTreeSet::new();
        let mut tasks = tasks.into_iter().enumerate().peekable();
        while tasks.peek().is_some() {
            let mut round = Vec::new();
            for (place, task) in tasks.by_ref().take(ROUND_LEN) {
                if let Err(invalid) = task.check() {
                    results[place] = Some(Err(SubmitError::Invalid(invalid)));
                } else if seen.insert(task.id.clone()) {
                    round.push((place, Attempt::new(&self.layout, task)));
                } else {
                    results[place] = Some(Err(SubmitError::Exists));
                }
            }
            for (place, result) in self.submit_round(round).await {
                results[place] = Some(result);
            }
        }
        results.into_iter().map(|result| result.expect("every task is in exactly one round")).collect()
    }

    async fn submit_round(
        &self,
        mut open: Vec<(usize, Attempt)>,
    ) -> Vec<(usize, Result<Submitted, SubmitError>)> {
        let mut settled = Vec::with_capacity(open.len());
        while !open.is_empty() {
            let replies = self.store.batch(open.iter().map(|(_, attempt)| attempt.txn()).collect()).await;
            let mut again = Vec::new();
            for ((place, mut attempt), reply) in open.into_iter().zip(replies) {
                match attempt.handle(reply) {
                    Some(result) => settled.push((place, result)),
                    None => again.push((place, attempt)),
                }
            }
            open = again;
        }
        settled
    }
}

/// One submission on its way.
struct Attempt {
    keys: Keys,
    record: TaskRecord,
    props: Option<Bytes>,
    /// The state of an earlier life: when it was written, and how that life ended if it has.
    before: Option<(Revision, Option<StateKind>)>,
    /// The last answer that was lost: from then on the task may have been there.
    lost: Option<StoreError>,
    tries: usize,
}

impl Attempt {
    fn new(layout: &Layout, task: NewTask) -> Attempt {
        let record = TaskRecord {
            submitted_at: wall_time(),
            kind: task.kind,
            labels: task.labels,
            nonce: format!("{:016x}", dice::nonce()),
            ..TaskRecord::default()
        };
        let props = task.props.map(|props| props.0);
        Attempt { keys: Keys::of(layout, &task.id), record, props, before: None, lost: None, tries: 0 }
    }

    /// Puts the task if nobody has it and the state is the one we know. What an earlier life left behind goes: its props, and a command that nobody
    /// has handled and that was not meant for this task.
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
        self.keys.reading(txn, Reading::Otherwise)
    }

    /// What an answer means; none if the transaction must be asked (again).
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
        let found = match Found::in_reply(&reply) {
            Ok(found) => found,
            Err(error) => return Some(Err(self.failed(error))),
        };
        if found.task.is_some() {
            let is_ours = found.record().is_some_and(|record| record.nonce == self.record.nonce);
            return Some(if is_ours { Ok(self.submitted()) } else { Err(SubmitError::Exists) });
        }
        let known = self.before.map(|(revision, _)| revision);
        if let Some(lost) = self.lost.take_if(|_| known != found.state.as_ref().map(|pair| pair.modified)) {
            // Somebody has changed the state since: perhaps by running our task to its end.
            return Some(Err(SubmitError::Unknown(lost)));
        }
        if self.tries >= TRIES_MAX {
            return Some(Err(self.failed(fought_over())));
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

    /// A definite failure now is no failure of what was asked before and never answered.
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
