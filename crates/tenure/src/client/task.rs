//! The keys of one task, and what was found under them in one step.

use bytes::Bytes;
use tenure_core::layout::{Key, Layout};
use tenure_core::name::TaskId;
use tenure_core::record::{Record, TaskRecord};
use tenure_core::task::{StateKind, StateRecord};

use crate::store::{KeyValue, Op, OpReply, Revision, Selection, Store, StoreError, Txn, TxnReply};

/// Where one task lies.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) task: Bytes,
    pub(super) props: Bytes,
    /// Props, owner and attempts.
    pub(super) parts: Selection,
    pub(super) attempts: Selection,
    pub(super) owner: Bytes,
    pub(super) state: Bytes,
    pub(super) command: Bytes,
}

impl Keys {
    pub(super) fn of(layout: &Layout, task: &TaskId) -> Keys {
        Keys {
            task: layout.encode(&Key::Task(task.clone())),
            props: layout.encode(&Key::TaskProps(task.clone())),
            parts: layout.task_parts(task),
            attempts: layout.task_attempts(task),
            owner: layout.encode(&Key::TaskOwner(task.clone())),
            state: layout.encode(&Key::TaskState(task.clone())),
            command: layout.encode(&Key::TaskCommand(task.clone())),
        }
    }

    /// Everything about the task but its props, at one revision.
    pub(super) async fn read(&self, store: &Store) -> Result<Found, StoreError> {
        Found::in_reply(&store.txn(self.reading(Txn::new(), Reading::Always)).await?)
    }

    /// Reads everything but the props in one branch of a transaction.
    pub(super) fn reading(&self, mut txn: Txn, when: Reading) -> Txn {
        for key in [&self.task, &self.owner, &self.state, &self.command] {
            let op = Op::get(key.clone());
            txn = match when {
                Reading::Always => txn.then(op),
                Reading::Otherwise => txn.otherwise(op),
            };
        }
        txn
    }
}

/// In which branch of a transaction to read.
#[derive(Clone, Copy)]
pub(super) enum Reading {
    /// In the first: there are no conditions.
    Always,
    /// In the second: to see why they did not hold.
    Otherwise,
}

/// What there is of a task.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) task: Option<KeyValue>,
    pub(super) owner: Option<KeyValue>,
    pub(super) state: Option<KeyValue>,
    pub(super) command: Option<KeyValue>,
    pub(super) revision: Revision,
}

impl Found {
    /// What [`Keys::reading`] has read.
    pub(super) fn in_reply(reply: &TxnReply) -> Result<Found, StoreError> {
        let mut pages = reply.results.iter().map(|result| match result {
            OpReply::Get(page) => Ok(page.pairs.first().cloned()),
            OpReply::Put | OpReply::Delete { .. } => {
                Err(StoreError::Corrupt("a read was not answered as one".to_owned()))
            }
        });
        let mut next = || pages.next().unwrap_or(Ok(None));
        Ok(Found {
            task: next()?,
            owner: next()?,
            state: next()?,
            command: next()?,
            revision: reply.revision,
        })
    }

    /// How it stands, as far as that can be read. Without a stored state it is runnable.
    pub(super) fn state(&self) -> Result<StateRecord, String> {
        let read = |pair: &KeyValue| StateRecord::decode(&pair.value).map_err(|bad| bad.reason());
        self.state.as_ref().map_or_else(|| Ok(StateRecord::default()), read)
    }

    /// In which terminal state it is, if it has ended: the state says so, or the submission was told so.
    pub(super) fn ended(&self) -> Option<StateKind> {
        let state = self.state().ok().map(|record| record.state.kind());
        state.filter(|kind| kind.is_terminal())
    }

    /// The key that is kept with the final state; none if the task has not ended.
    pub(super) fn entry(&self, layout: &Layout, task: &TaskId) -> Option<Bytes> {
        let state = self.state.as_ref().and_then(|pair| StateRecord::decode(&pair.value).ok())?;
        let key = Key::EndedTask(state.updated_at, task.clone());
        state.state.is_terminal().then(|| layout.encode(&key))
    }

    pub(super) fn record(&self) -> Option<TaskRecord> {
        self.task.as_ref().and_then(|pair| TaskRecord::decode(&pair.value).ok())
    }
}

/// When a pair was last put; zero if it is not there, which compares as absent.
pub(super) fn modified(pair: Option<&KeyValue>) -> Revision {
    pair.map_or(Revision::ZERO, |pair| pair.modified)
}
