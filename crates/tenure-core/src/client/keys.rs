//! The keys of one task, and what was found under them in one transaction.

use bytes::Bytes;

use crate::error::StoreError;
use crate::id::TaskId;
use crate::kv::{Get, KeyValue, Page, Selection};
use crate::layout::{Key, Layout};
use crate::record::{Record, TaskRecord};
use crate::revision::Revision;
use crate::task::{StateRecord, TaskState};
use crate::txn::{Op, OpReply, Txn, TxnReply};

/// The keys of one task.
#[derive(Clone, Debug)]
pub struct TaskKeys {
    /// The task itself.
    pub task: Bytes,
    /// Its props.
    pub props: Bytes,
    /// Props, owner and attempts.
    pub parts: Selection,
    /// Its claims without an outcome.
    pub attempts: Selection,
    /// Its owner.
    pub owner: Bytes,
    /// Its state.
    pub state: Bytes,
    /// The command that waits for it.
    pub command: Bytes,
}

impl TaskKeys {
    /// The keys of this task.
    pub fn of(layout: &Layout, task: &TaskId) -> TaskKeys {
        TaskKeys {
            task: layout.encode(&Key::Task(task.clone())),
            props: layout.encode(&Key::TaskProps(task.clone())),
            parts: layout.task_parts(task),
            attempts: layout.task_attempts(task),
            owner: layout.encode(&Key::TaskOwner(task.clone())),
            state: layout.encode(&Key::TaskState(task.clone())),
            command: layout.encode(&Key::TaskCommand(task.clone())),
        }
    }

    /// Reads everything but the props and attempts. [`TaskFound::in_reply`] reads the reply.
    pub fn read(&self) -> Txn {
        self.gets().fold(Txn::new(), Txn::then)
    }

    /// The same where the conditions of a transaction do not hold: why they did not is known without another request.
    pub(super) fn read_otherwise(&self, txn: Txn) -> Txn {
        self.gets().fold(txn, Txn::otherwise)
    }

    fn gets(&self) -> impl Iterator<Item = Op> {
        [&self.task, &self.owner, &self.state, &self.command].into_iter().map(|key| Op::get(key.clone()))
    }

    /// Reads everything about the task, with its attempts and props at the end.
    pub fn read_whole(&self) -> Txn {
        self.read().then(Op::Get(Get::new(self.attempts.clone()))).then(Op::get(self.props.clone()))
    }
}

/// The pages of attempts and props in the reply to [`TaskKeys::read_whole`].
pub fn attempts_and_props(reply: TxnReply) -> Result<(Page, Page), StoreError> {
    let mut results = reply.results.into_iter().rev();
    match (results.next(), results.next()) {
        (Some(OpReply::Get(props)), Some(OpReply::Get(attempts))) => Ok((attempts, props)),
        _ => Err(StoreError::Corrupt("a read has no reply".into())),
    }
}

/// What there is of a task.
#[derive(Clone, Debug)]
pub struct TaskFound {
    /// The task itself.
    pub task: Option<KeyValue>,
    /// Its owner.
    pub owner: Option<KeyValue>,
    /// Its state.
    pub state: Option<KeyValue>,
    /// The command that waits for it.
    pub command: Option<KeyValue>,
    /// When it was so.
    pub revision: Revision,
}

impl TaskFound {
    /// What [`TaskKeys::read`] has read.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if the reply is none to that.
    pub fn in_reply(reply: &TxnReply) -> Result<TaskFound, StoreError> {
        let mut pages = reply.results.iter().map(|result| match result {
            OpReply::Get(page) => Ok(page.pairs.first().cloned()),
            OpReply::Put | OpReply::Delete { .. } => {
                Err(StoreError::Corrupt("a read has no reply".to_owned()))
            }
        });
        let mut next = || pages.next().unwrap_or(Ok(None));
        Ok(TaskFound {
            task: next()?,
            owner: next()?,
            state: next()?,
            command: next()?,
            revision: reply.revision,
        })
    }

    /// Its state. Without a stored state it is runnable.
    ///
    /// # Errors
    ///
    /// Why the state cannot be read.
    pub fn state(&self) -> Result<StateRecord, String> {
        let read = |pair: &KeyValue| StateRecord::decode(&pair.value).map_err(|bad| bad.reason());
        self.state.as_ref().map_or_else(|| Ok(StateRecord::default()), read)
    }

    /// In which terminal state it is, if it has ended.
    pub fn ended(&self) -> Option<TaskState> {
        let state = self.state().ok().map(|record| record.state.kind());
        state.filter(|kind| kind.is_terminal())
    }

    /// The key that is kept with the final state; none if the task has not ended.
    pub fn entry(&self, layout: &Layout, task: &TaskId) -> Option<Bytes> {
        let state = self.state.as_ref().and_then(|pair| StateRecord::decode(&pair.value).ok())?;
        let key = Key::EndedTask(state.updated_at, task.clone());
        state.state.is_terminal().then(|| layout.encode(&key))
    }

    /// The props in the entry of a task that has ended, if they are of the state that was found.
    pub fn kept_props(&self, entry: Option<&KeyValue>) -> Option<Bytes> {
        // One that was put with another state is of another incarnation.
        let state = self.state.as_ref().map(|state| state.modified);
        let entry = entry.filter(|entry| Some(entry.modified) == state)?;
        (!entry.value.is_empty()).then(|| entry.value.clone())
    }

    /// What was submitted, if it is there and can be read.
    pub fn record(&self) -> Option<TaskRecord> {
        self.task.as_ref().and_then(|pair| TaskRecord::decode(&pair.value).ok())
    }
}

/// When a pair was last put; zero if it is not there, which compares as absent.
pub(super) fn modified(pair: Option<&KeyValue>) -> Revision {
    pair.map_or(Revision::ZERO, |pair| pair.modified)
}
