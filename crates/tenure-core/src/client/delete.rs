//! Deletes a task; its state stays.
//!
//! The create revision of the task names its incarnation. Once that is gone the task is deleted, by this client or another one; a task
//! that was submitted since is never touched.

use bytes::Bytes;
use thiserror::Error;

use super::Origin;
use super::command::{ReplacedCommand, unhandled_result};
use super::keys::{TaskFound, TaskKeys, modified};
use super::write::{Settled, TaskExchange, TaskWrite};
use crate::audit::AuditEntry;
use crate::error::StoreError;
use crate::id::{NodeId, TaskId};
use crate::kv::KeyValue;
use crate::layout::Layout;
use crate::record::{CommandOutcome, OwnerRecord, Record};
use crate::revision::Revision;
use crate::txn::{Condition, Op, Txn};

/// That a task was deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deleted {
    /// Its owner, which stops it now.
    pub owner: Option<NodeId>,
}

/// Why a task was not deleted.
#[derive(Debug, Error)]
pub enum DeleteError {
    /// There is no such task.
    #[error("there is no such task")]
    NotFound,
    /// The reply was lost, and so was the read of what came of it: read before you try again.
    #[error("it is not known whether the task was deleted")]
    Unknown(#[source] StoreError),
    /// The store did not do it: nothing was deleted.
    #[error("the task was not deleted")]
    Store(#[source] StoreError),
}

/// Deletes one task. A command that no worker has handled goes with it, and its sender gets the outcome `expired`.
#[derive(Clone, Debug)]
pub struct DeleteTask {
    layout: Layout,
    keys: TaskKeys,
    origin: Origin,
    /// One record for all turns: a lost request that was applied has put it.
    audit: AuditEntry,
}

impl DeleteTask {
    /// The deletion of this task.
    pub fn exchange(
        layout: &Layout,
        task: &TaskId,
        origin: Origin,
        audit: AuditEntry,
    ) -> TaskExchange<DeleteTask> {
        let keys = TaskKeys::of(layout, task);
        TaskExchange::new(keys.clone(), DeleteTask { layout: layout.clone(), keys, origin, audit })
    }
}

impl TaskWrite for DeleteTask {
    type Output = Deleted;
    type Error = DeleteError;
    /// The incarnation that is deleted, and its owner.
    type Trace = (Revision, Deleted);

    fn extra(&self, _: &TaskFound, _: Option<&Self::Trace>) -> Option<Bytes> {
        None
    }

    fn decide(
        &mut self,
        found: &TaskFound,
        _: Option<&KeyValue>,
        lost: Option<&Self::Trace>,
    ) -> Result<Settled<Self>, DeleteError> {
        let created = found.task.as_ref().map(|pair| pair.created);
        if let Some((_, deleted)) = lost.filter(|(before, _)| Some(*before) != created) {
            // That incarnation is gone; what is there now is another client's task.
            return Ok(Settled::Done(deleted.clone()));
        }
        let Some(created) = created else { return Err(DeleteError::NotFound) };
        let owner = found.owner.as_ref().and_then(|pair| OwnerRecord::decode(&pair.value).ok());
        let mut txn = Txn::new()
            .when(Condition::created_at(self.keys.task.clone(), created))
            .when(Condition::modified_at(self.keys.command.clone(), modified(found.command.as_ref())))
            .then(Op::delete(self.keys.task.clone()))
            .then(Op::Delete(self.keys.parts.clone()))
            .then(Op::delete(self.keys.command.clone()));
        let id = found.command.as_ref().and_then(|pair| ReplacedCommand::read(pair).id);
        let outcome = (CommandOutcome::Expired, "the task was deleted");
        if let Some(result) = unhandled_result(&self.layout, &self.origin, id, outcome) {
            txn = txn.then(result);
        }
        let deleted = Deleted { owner: owner.map(|owner| owner.node) };
        Ok(Settled::Write(self.audit.add_to(txn), (created, deleted)))
    }

    fn output(&self, (_, deleted): Self::Trace) -> Deleted {
        deleted
    }

    fn unknown(error: StoreError) -> DeleteError {
        DeleteError::Unknown(error)
    }

    fn failed(error: StoreError) -> DeleteError {
        DeleteError::Store(error)
    }
}
