//! Forgets how a task ended: its final state, its entry among the ended tasks, and the mark of one that was submitted again.

use bytes::Bytes;
use thiserror::Error;

use super::keys::{TaskFound, TaskKeys, modified};
use super::write::{Settled, TaskExchange, TaskWrite};
use crate::audit::AuditEntry;
use crate::error::StoreError;
use crate::id::TaskId;
use crate::kv::KeyValue;
use crate::layout::Layout;
use crate::record::{Record, TaskRecord};
use crate::revision::Revision;
use crate::task::{StateRecord, TaskState};
use crate::txn::{Condition, Op, Txn};

/// Why a task's end was not forgotten.
#[derive(Debug, Error)]
pub enum ForgetError {
    /// Nothing is stored about such a task.
    #[error("nothing is known of such a task")]
    NotFound,
    /// The task is there and has not ended: its owner needs its state.
    #[error("the task has not ended, it is {0}")]
    Live(TaskState),
    /// The reply was lost, and so was the read of what came of it: read before you try again.
    #[error("it is not known whether the task's state was forgotten")]
    Unknown(#[source] StoreError),
    /// The store did not do it: nothing was forgotten.
    #[error("the task's state was not forgotten")]
    Store(#[source] StoreError),
}

/// Forgets how one task ended.
#[derive(Clone, Debug)]
pub struct ForgetTask {
    layout: Layout,
    task: TaskId,
    keys: TaskKeys,
    audit: AuditEntry,
}

impl ForgetTask {
    /// Forgets the end of this task.
    pub fn exchange(layout: &Layout, task: &TaskId, audit: AuditEntry) -> TaskExchange<ForgetTask> {
        let keys = TaskKeys::of(layout, task);
        let write = ForgetTask { layout: layout.clone(), task: task.clone(), keys: keys.clone(), audit };
        TaskExchange::new(keys, write)
    }
}

impl TaskWrite for ForgetTask {
    type Output = ();
    type Error = ForgetError;
    /// When the state was put that is deleted.
    type Trace = Revision;

    fn extra(&self, _: &TaskFound, _: Option<&Revision>) -> Option<Bytes> {
        None
    }

    fn decide(
        &mut self,
        found: &TaskFound,
        _: Option<&KeyValue>,
        lost: Option<&Revision>,
    ) -> Result<Settled<Self>, ForgetError> {
        if lost.is_some_and(|before| *before != modified(found.state.as_ref())) {
            // That state is gone; what is there now is of another incarnation.
            return Ok(Settled::Done(()));
        }
        let Some(state) = &found.state else { return Err(ForgetError::NotFound) };
        // A state that cannot be read keeps its task from being run: to forget it is the cure.
        let kind = StateRecord::decode(&state.value).ok().map(|record| record.state.kind());
        if let (Some(_), Some(kind)) = (&found.task, kind.filter(|kind| !kind.is_terminal())) {
            return Err(ForgetError::Live(kind));
        }
        let mut txn = Txn::new()
            .when(Condition::modified_at(self.keys.state.clone(), state.modified))
            .when(Condition::modified_at(self.keys.task.clone(), modified(found.task.as_ref())))
            .then(Op::delete(self.keys.state.clone()));
        if let Some(entry) = found.entry(&self.layout, &self.task) {
            txn = txn.then(Op::delete(entry));
        }
        if let Some(pair) = &found.task {
            // Workers do not watch states: they decide again because the task is put again.
            let value = match found.record() {
                Some(record) => TaskRecord { ended: false, ..record }.encode(),
                None => pair.value.clone(),
            };
            txn = txn.then(Op::put(self.keys.task.clone(), value));
        }
        Ok(Settled::Write(self.audit.add_to(txn), state.modified))
    }

    fn output(&self, _: Revision) {}

    fn unknown(error: StoreError) -> ForgetError {
        ForgetError::Unknown(error)
    }

    fn failed(error: StoreError) -> ForgetError {
        ForgetError::Store(error)
    }
}
