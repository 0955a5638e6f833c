//! Running a task again that has ended.
//!
//! One transaction puts the task as it was submitted, with its props, and replaces the final state. It requires that state unchanged, so a
//! task is retried once however many clients ask for it, and a lost reply is settled by a look at the state.

use bytes::Bytes;
use tenure_core::name::TaskId;
use tenure_core::record::{Record, TaskRecord};
use tenure_core::task::{StateKind, StateRecord};
use thiserror::Error;

use super::task::{Found, Keys, modified};
use super::{Client, LOST_MAX, TRIES_MAX, fought_over};
use crate::clock::wall_time;
use crate::dice;
use crate::store::{Condition, Op, StoreError, Txn};

/// Why a task was not retried.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RetryError {
    /// Nothing is stored about such a task.
    #[error("nothing is known of such a task")]
    NotFound,
    /// The task has not ended.
    #[error("the task has not ended, it is {0}")]
    Live(StateKind),
    /// What was submitted is not kept: a version before 0.2 ended the task. Submit it again.
    #[error("what was submitted is not kept with the final state")]
    NotKept,
    /// The final state cannot be read.
    #[error("the final state of the task cannot be read: {0}")]
    Unreadable(String),
    /// The reply was lost, and so was the look at what came of it: look before you try again.
    #[error("it is not known whether the task is retried")]
    Unknown(#[source] StoreError),
    /// The store did not do it: nothing was changed.
    #[error("the task is not retried")]
    Store(#[source] StoreError),
}

impl Client {
    /// Runs a task again that has ended, with its kind, labels, props and time of submission. Returns how it had ended.
    ///
    /// Earlier errors do not count any more; its history and attempts are kept. A task that was not completed goes on from its checkpoint.
    ///
    /// # Errors
    ///
    /// See [`RetryError`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves it open whether the task is retried.
    pub async fn retry(&self, task: &TaskId) -> Result<StateKind, RetryError> {
        let keys = Keys::of(&self.layout, task);
        // The last request without a reply, the state that it would have put, and how the task had ended.
        let mut lost: Option<(StoreError, Bytes, StateKind)> = None;
        let failed = |lost: Option<(StoreError, _, _)>, error| match lost {
            Some((lost, ..)) => RetryError::Unknown(lost),
            None => RetryError::Store(error),
        };
        for turn in 1..=TRIES_MAX {
            let found = match keys.read(&self.store).await {
                Ok(found) => found,
                Err(error) => return Err(failed(lost, error)),
            };
            if let Some((_, _, ended)) = lost.as_ref().filter(|(_, put, _)| was_put(&found, put)) {
                return Ok(*ended);
            }
            let (state, ended) = match final_state(&found) {
                Ok(state) => state,
                Err(error) => return Err(lost.map_or(error, |(lost, ..)| RetryError::Unknown(lost))),
            };
            let Some(retried) = state.retried(wall_time(), &self.name) else {
                return Err(RetryError::Live(ended));
            };
            let value = retried.encode();
            let txn = match self.retry_txn(task, &keys, &found, state, value.clone()).await {
                Ok(txn) => txn,
                Err(RetryError::Store(error)) => return Err(failed(lost, error)),
                Err(error) => return Err(error),
            };
            match self.store.txn(txn).await {
                Ok(reply) if reply.succeeded => return Ok(ended),
                Ok(_) => {}
                Err(error) if error.is_ambiguous() && turn <= LOST_MAX => lost = Some((error, value, ended)),
                Err(error) if error.is_ambiguous() => return Err(RetryError::Unknown(error)),
                Err(error) => return Err(failed(lost, error)),
            }
        }
        Err(failed(lost, fought_over()))
    }

    /// Puts the task and replaces its final state, if nothing has changed since.
    async fn retry_txn(
        &self,
        task: &TaskId,
        keys: &Keys,
        found: &Found,
        state: StateRecord,
        retried: Bytes,
    ) -> Result<Txn, RetryError> {
        let mut txn = Txn::new()
            .when(Condition::modified_at(keys.state.clone(), modified(found.state.as_ref())))
            .when(Condition::modified_at(keys.task.clone(), modified(found.task.as_ref())))
            .then(Op::put(keys.state.clone(), retried));
        if let Some(entry) = found.entry(&self.layout, task) {
            txn = txn.then(Op::delete(entry));
        }
        // Submitted again since, it is there with props of its own, and only marked as ended.
        if let Some(record) = found.record() {
            return Ok(txn.then(Op::put(keys.task.clone(), TaskRecord { ended: false, ..record }.encode())));
        }
        let record = state.task.ok_or(RetryError::NotKept)?;
        let nonce = format!("{:016x}", dice::nonce());
        let record = TaskRecord { ended: false, nonce, ..record };
        let props = match self.kept_props(task, found).await.map_err(RetryError::Store)? {
            Some(props) => Op::put(keys.props.clone(), props),
            None => Op::delete(keys.props.clone()),
        };
        // A command that no node has handled was not meant for this run.
        Ok(txn
            .then(Op::put(keys.task.clone(), record.encode()))
            .then(props)
            .then(Op::delete(keys.command.clone())))
    }
}

/// The final state of a task, and its name.
fn final_state(found: &Found) -> Result<(StateRecord, StateKind), RetryError> {
    if found.state.is_none() && found.task.is_none() {
        return Err(RetryError::NotFound);
    }
    let state = found.state().map_err(RetryError::Unreadable)?;
    let kind = state.state.kind();
    if kind.is_terminal() { Ok((state, kind)) } else { Err(RetryError::Live(kind)) }
}

/// Whether this state is stored. A node may have changed it already; then it has begun, and its history tells.
fn was_put(found: &Found, put: &Bytes) -> bool {
    if found.state.as_ref().is_some_and(|pair| pair.value == *put) {
        return true;
    }
    let (Ok(now), Ok(put)) = (found.state(), StateRecord::decode(put)) else { return false };
    put.history.last().is_some_and(|step| now.history.contains(step))
}
