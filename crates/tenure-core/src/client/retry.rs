//! Runs a task again that has ended.
//!
//! One transaction puts the task as it was submitted, with its props, and replaces the final state. It requires that state unchanged, so a
//! task is retried once however many clients request it, and a lost reply is settled by the state.

use bytes::Bytes;
use thiserror::Error;

use super::Origin;
use super::keys::{TaskFound, TaskKeys, modified};
use super::write::{Settled, TaskExchange, TaskWrite};
use crate::error::StoreError;
use crate::id::TaskId;
use crate::kv::KeyValue;
use crate::layout::Layout;
use crate::record::{Record, TaskRecord};
use crate::task::{StateRecord, TaskState};
use crate::txn::{Condition, Op, Txn};

/// Why a task was not retried.
#[derive(Debug, Error)]
pub enum RetryError {
    /// Nothing is stored about such a task.
    #[error("nothing is known of such a task")]
    NotFound,
    /// The task has not ended.
    #[error("the task has not ended, it is {0}")]
    Live(TaskState),
    /// What was submitted is not kept: a version before 0.2 ended the task. Submit it again.
    #[error("what was submitted is not kept with the final state")]
    NotKept,
    /// The final state cannot be read.
    #[error("the final state of the task cannot be read: {0}")]
    Unreadable(String),
    /// The reply was lost, and so was the read of what came of it: read before you try again.
    #[error("it is not known whether the task is retried")]
    Unknown(#[source] StoreError),
    /// The store did not do it: nothing was changed.
    #[error("the task is not retried")]
    Store(#[source] StoreError),
}

/// Retries one task.
#[derive(Clone, Debug)]
pub struct RetryTask {
    layout: Layout,
    task: TaskId,
    keys: TaskKeys,
    origin: Origin,
    /// Of the task that is put.
    nonce: String,
}

impl RetryTask {
    /// The retry of this task, which is put with this nonce.
    pub fn exchange(
        layout: &Layout,
        task: &TaskId,
        origin: Origin,
        nonce: String,
    ) -> TaskExchange<RetryTask> {
        let keys = TaskKeys::of(layout, task);
        let (layout, task) = (layout.clone(), task.clone());
        TaskExchange::new(keys.clone(), RetryTask { layout, task, keys, origin, nonce })
    }

    /// Puts the task and replaces its final state, if nothing has changed since.
    fn txn(
        &self,
        found: &TaskFound,
        kept_props: Option<Bytes>,
        state: StateRecord,
        retried: Bytes,
    ) -> Result<Txn, RetryError> {
        let mut txn = Txn::new()
            .when(Condition::modified_at(self.keys.state.clone(), modified(found.state.as_ref())))
            .when(Condition::modified_at(self.keys.task.clone(), modified(found.task.as_ref())))
            .then(Op::put(self.keys.state.clone(), retried));
        if let Some(entry) = found.entry(&self.layout, &self.task) {
            txn = txn.then(Op::delete(entry));
        }
        // Submitted again since, it is there with props of its own, and only marked as ended.
        if let Some(record) = found.record() {
            let record = TaskRecord { ended: false, ..record };
            return Ok(txn.then(Op::put(self.keys.task.clone(), record.encode())));
        }
        let record = state.task.ok_or(RetryError::NotKept)?;
        let record = TaskRecord { ended: false, nonce: self.nonce.clone(), ..record };
        let props = match kept_props {
            Some(props) => Op::put(self.keys.props.clone(), props),
            None => Op::delete(self.keys.props.clone()),
        };
        // A command that no worker has handled was not meant for this run.
        Ok(txn
            .then(Op::put(self.keys.task.clone(), record.encode()))
            .then(props)
            .then(Op::delete(self.keys.command.clone())))
    }
}

impl TaskWrite for RetryTask {
    type Output = TaskState;
    type Error = RetryError;
    /// The state that is put, and how the task had ended.
    type Trace = (Bytes, TaskState);

    /// The entry of the ended task keeps its props.
    fn extra(&self, found: &TaskFound, _: Option<&Self::Trace>) -> Option<Bytes> {
        if found.record().is_some() { None } else { found.entry(&self.layout, &self.task) }
    }

    fn decide(
        &mut self,
        found: &TaskFound,
        entry: Option<&KeyValue>,
        lost: Option<&Self::Trace>,
    ) -> Result<Settled<Self>, RetryError> {
        if let Some((_, ended)) = lost.filter(|(put, _)| was_put(found, put)) {
            return Ok(Settled::Done(*ended));
        }
        let (state, ended) = final_state(found)?;
        let retried = state.retried(self.origin.at, &self.origin.name).ok_or(RetryError::Live(ended))?;
        let retried = retried.encode();
        let txn = self.txn(found, found.kept_props(entry), state, retried.clone())?;
        Ok(Settled::Write(txn, (retried, ended)))
    }

    fn output(&self, (_, ended): Self::Trace) -> TaskState {
        ended
    }

    fn unknown(error: StoreError) -> RetryError {
        RetryError::Unknown(error)
    }

    fn failed(error: StoreError) -> RetryError {
        RetryError::Store(error)
    }
}

/// The final state of a task, and its name.
fn final_state(found: &TaskFound) -> Result<(StateRecord, TaskState), RetryError> {
    if found.state.is_none() && found.task.is_none() {
        return Err(RetryError::NotFound);
    }
    let state = found.state().map_err(RetryError::Unreadable)?;
    let kind = state.state.kind();
    if kind.is_terminal() { Ok((state, kind)) } else { Err(RetryError::Live(kind)) }
}

/// Whether this state is stored. A worker may have changed it already; then it has begun, and its history contains the step.
fn was_put(found: &TaskFound, put: &Bytes) -> bool {
    if found.state.as_ref().is_some_and(|pair| pair.value == *put) {
        return true;
    }
    let (Ok(now), Ok(put)) = (found.state(), StateRecord::decode(put)) else { return false };
    put.history.last().is_some_and(|step| now.history.contains(step))
}
