//! Taking tasks away: the task itself, or the memory of it.

use tenure_core::name::{NodeId, TaskId};
use tenure_core::record::{CommandOutcome, OwnerRecord, Record, TaskRecord};
use tenure_core::task::{StateKind, StateRecord};
use thiserror::Error;

use super::answer::Replaced;
use super::lease::{ResultLease, own_lease};
use super::task::{Keys, modified};
use super::{Client, LOST_MAX, TRIES_MAX, fought_over};
use crate::audit::AuditAction;
use crate::store::{Condition, LeaseId, Op, Revision, StoreError, Txn};

/// That a task was deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deleted {
    /// Who ran it, and stops now.
    pub owner: Option<NodeId>,
}

/// Why a task was not deleted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeleteError {
    /// There is no such task.
    #[error("there is no such task")]
    NotFound,
    /// The answer was lost, and so was the look at what came of it: look before you try again.
    #[error("it is not known whether the task was deleted")]
    Unknown(#[source] StoreError),
    /// The store did not do it: nothing was deleted.
    #[error("the task was not deleted")]
    Store(#[source] StoreError),
}

/// Why a task's end was not forgotten.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// Nothing is stored about such a task.
    #[error("nothing is known of such a task")]
    NotFound,
    /// The task is there and has not ended: its owner needs its state.
    #[error("the task has not ended, it is {0}")]
    Live(StateKind),
    /// The answer was lost, and so was the look at what came of it: look before you try again.
    #[error("it is not known whether the task's state was forgotten")]
    Unknown(#[source] StoreError),
    /// The store did not do it: nothing was forgotten.
    #[error("the task's state was not forgotten")]
    Store(#[source] StoreError),
}

impl Client {
    /// Deletes a task, whoever runs it: its owner stops it. Its state stays, so that submitted again it goes on where it was.
    ///
    /// A command that nobody has handled goes with it, and its sender is told.
    ///
    /// # Errors
    ///
    /// See [`DeleteError`].
    pub async fn delete(&self, task: &TaskId) -> Result<Deleted, DeleteError> {
        let mut results = ResultLease::default();
        let deleted = self.delete_in_turns(task, &mut results).await;
        results.settle(&self.store).await;
        deleted
    }

    async fn delete_in_turns(
        &self,
        task: &TaskId,
        results: &mut ResultLease,
    ) -> Result<Deleted, DeleteError> {
        let keys = Keys::of(&self.layout, task);
        // One record for all tries: a lost request that was applied has put it.
        let audit = self.audit(AuditAction::DeleteTask, task, None);
        // The last request without an answer, which life of the task it was about, whom it found there, and the lease of the command it would have deleted.
        let mut lost: Option<(StoreError, Revision, Deleted, Option<LeaseId>)> = None;
        let failed = |lost: Option<(StoreError, _, _, _)>, error| match lost {
            Some((lost, ..)) => DeleteError::Unknown(lost),
            None => DeleteError::Store(error),
        };
        for turn in 1..=TRIES_MAX {
            let found = match keys.read(&self.store).await {
                Ok(found) => found,
                Err(error) => return Err(failed(lost, error)),
            };
            let created = found.task.as_ref().map(|pair| pair.created);
            if let Some((_, _, deleted, over)) = lost.take_if(|(_, before, ..)| Some(*before) != created) {
                // That life is over, as we wanted; what is there now is somebody else's task.
                self.leftovers.end(&self.store, over).await;
                return Ok(deleted);
            }
            let Some(created) = created else { return Err(DeleteError::NotFound) };
            let owner = found.owner.as_ref().and_then(|pair| OwnerRecord::decode(&pair.value).ok());
            let deleted = Deleted { owner: owner.map(|owner| owner.node) };
            let mut txn = Txn::new()
                .when(Condition::created_at(keys.task.clone(), created))
                .when(Condition::modified_at(keys.command.clone(), modified(found.command.as_ref())))
                .then(Op::delete(keys.task.clone()))
                .then(Op::Delete(keys.parts.clone()))
                .then(Op::delete(keys.command.clone()));
            let over = own_lease(found.command.as_ref());
            let id = found.command.as_ref().and_then(|pair| Replaced::read(pair).id);
            let told = self.tell_sender(id, (CommandOutcome::Expired, "the task was deleted"), results);
            let told = told.await.map_err(|error| failed(lost.take(), error))?;
            if let Some(told) = &told {
                txn = txn.then(told.put.clone());
            }
            let reply = self.store.txn(audit.add_to(txn)).await;
            if let Some(told) = &told {
                results.note(&told.key, &reply);
            }
            match reply {
                Ok(reply) if reply.succeeded => {
                    self.leftovers.end(&self.store, over).await;
                    return Ok(deleted);
                }
                Ok(_) => {}
                Err(error) if error.is_ambiguous() && turn <= LOST_MAX => {
                    lost = Some((error, created, deleted, over));
                }
                Err(error) if error.is_ambiguous() => return Err(DeleteError::Unknown(error)),
                Err(error) => return Err(failed(lost, error)),
            }
        }
        Err(failed(lost, fought_over()))
    }

    /// Forgets how a task ended, with its whole history. If it was submitted again meanwhile, it runs now.
    ///
    /// # Errors
    ///
    /// See [`ForgetError`].
    pub async fn forget(&self, task: &TaskId) -> Result<(), ForgetError> {
        let keys = Keys::of(&self.layout, task);
        let audit = self.audit(AuditAction::ForgetTask, task, None);
        // The last request without an answer, and which state it was about.
        let mut lost: Option<(StoreError, Revision)> = None;
        let failed = |lost: Option<(StoreError, _)>, error| match lost {
            Some((lost, _)) => ForgetError::Unknown(lost),
            None => ForgetError::Store(error),
        };
        for turn in 1..=TRIES_MAX {
            let found = match keys.read(&self.store).await {
                Ok(found) => found,
                Err(error) => return Err(failed(lost, error)),
            };
            if lost.as_ref().is_some_and(|(_, before)| *before != modified(found.state.as_ref())) {
                // That state is gone, as we wanted; what is there now is of another life.
                return Ok(());
            }
            let Some(state) = &found.state else { return Err(ForgetError::NotFound) };
            // A state that cannot be read keeps its task from being run: forgetting it is the cure.
            let stands = StateRecord::decode(&state.value).ok().map(|record| record.state.kind());
            if let (Some(_), Some(kind)) = (&found.task, stands.filter(|kind| !kind.is_terminal())) {
                return Err(ForgetError::Live(kind));
            }
            let mut txn = Txn::new()
                .when(Condition::modified_at(keys.state.clone(), state.modified))
                .when(Condition::modified_at(keys.task.clone(), modified(found.task.as_ref())))
                .then(Op::delete(keys.state.clone()));
            if let Some(entry) = found.entry(&self.layout, task) {
                txn = txn.then(Op::delete(entry));
            }
            if let Some(pair) = &found.task {
                // Nodes do not watch states: they look again because the task is put again.
                let value = match found.record() {
                    Some(record) => TaskRecord { ended: false, ..record }.encode(),
                    None => pair.value.clone(),
                };
                txn = txn.then(Op::put(keys.task.clone(), value));
            }
            match self.store.txn(audit.add_to(txn)).await {
                Ok(reply) if reply.succeeded => return Ok(()),
                Ok(_) => {}
                Err(error) if error.is_ambiguous() && turn <= LOST_MAX => {
                    lost = Some((error, state.modified));
                }
                Err(error) if error.is_ambiguous() => return Err(ForgetError::Unknown(error)),
                Err(error) => return Err(failed(lost, error)),
            }
        }
        Err(failed(lost, fought_over()))
    }
}
