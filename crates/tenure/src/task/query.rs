//! Many tasks at once: which ones, a list of them, and requests to all of them.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::board::Card;
use tenure_core::client::{ReadAllStates, TaskStates, read_states, state_keys};
use tenure_core::id::{InvalidName, NodeId, TaskId};
use tenure_core::layout::Key;
use tenure_core::task::{StateRecord, TaskMessage, TaskState};

use super::access::TaskAccess;
use super::bulk::{BulkAction, BulkRequest};
use super::details::{TaskList, TaskSummary, board_of};
use super::wait::WaitTasks;
use crate::error::Error;
use crate::id::IntoId;
use crate::store::{Get, Page, Revision, StoreError};

/// How often a listing begins again because the store has compacted its revision meanwhile.
const LISTINGS_MAX: usize = 3;

/// Tasks by filter: all filters must match. [`TaskQuery::list`], [`TaskQuery::count`] and [`TaskQuery::wait`] read, the other requests change.
///
/// ```
/// use tenure::task::TaskState;
/// use tenure::{NewTask, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// tenure.submit(NewTask::new("mail").id("mail-1").label("zone", "eu")).await?;
/// tenure.submit(NewTask::new("mail").id("mail-2").label("zone", "us")).await?;
///
/// let in_eu = tenure.tasks().kind("mail").label("zone", "eu");
/// assert_eq!(in_eu.list().await?[0].id.as_str(), "mail-1");
/// assert_eq!(in_eu.state(TaskState::Paused).count().await?, 0);
///
/// let deleted = tenure.tasks().ids(["mail-1", "mail-2"]).delete().reason("wrong input").await?;
/// assert_eq!(deleted.done, 2);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// A list is a snapshot: tasks, owners and states as they were at one revision.
///
/// # Cancellation
///
/// Reading leaves nothing behind.
///
/// # Errors
///
/// [`Error::InvalidName`] for a wrong id, otherwise [`Error::Store`].
#[derive(Clone, Debug)]
pub struct TaskQuery {
    pub(super) access: TaskAccess,
    filter: Result<TaskFilter, InvalidName>,
}

#[derive(Clone, Debug, Default)]
struct TaskFilter {
    ids: Option<BTreeSet<TaskId>>,
    states: Vec<TaskState>,
    owner: Option<NodeId>,
    kind: Option<String>,
    labels: BTreeMap<String, String>,
    finished: bool,
}

impl TaskFilter {
    fn matches(&self, task: &TaskSummary) -> bool {
        let is_state =
            self.states.is_empty() || task.state().is_some_and(|state| self.states.contains(&state));
        // An unfinished task has its owner on its card, a finished one in its final state.
        let matches_card = match &task.card {
            Some(card) => self.matches_card(card),
            None => {
                (self.owner.is_none() || task.finished_on() == self.owner.as_ref())
                    && (self.kind.is_none() || task.kind() == self.kind.as_deref())
                    && self.matches_labels(task.labels())
            }
        };
        is_state && matches_card
    }

    fn matches_card(&self, card: &Card) -> bool {
        let owner = card.owner.as_ref().and_then(|owner| owner.node());
        let record = card.record.as_ref().ok();
        let kind = record.and_then(|record| record.kind.as_ref());
        (self.owner.is_none() || owner == self.owner.as_ref())
            && (self.kind.is_none() || kind == self.kind.as_ref())
            && self.matches_labels(record.map(|record| &record.labels))
    }

    fn matches_labels(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.labels.iter().all(|(name, value)| labels.and_then(|labels| labels.get(name)) == Some(value))
    }

    /// Whether the ids are the only filter.
    fn is_ids_only(&self) -> bool {
        self.states.is_empty() && self.owner.is_none() && self.kind.is_none() && self.labels.is_empty()
    }
}

impl TaskQuery {
    pub(crate) fn new(access: &TaskAccess) -> TaskQuery {
        TaskQuery { access: access.clone(), filter: Ok(TaskFilter::default()) }
    }

    /// Only tasks of this kind.
    pub fn kind(self, kind: impl Into<String>) -> TaskQuery {
        self.with(|filter| filter.kind = Some(kind.into()))
    }

    /// Only tasks in this state; called again, also those in the other. A final state implies [`TaskQuery::finished`].
    pub fn state(self, state: TaskState) -> TaskQuery {
        self.with(|filter| {
            filter.finished |= state.is_terminal();
            filter.states.push(state);
        })
    }

    /// Only tasks with this label; called again, with this one too.
    pub fn label(self, name: impl Into<String>, value: impl Into<String>) -> TaskQuery {
        self.with(|filter| drop(filter.labels.insert(name.into(), value.into())))
    }

    /// Only tasks that this worker owns, and finished ones that it ran last.
    pub fn owner(mut self, node: impl IntoId<NodeId>) -> TaskQuery {
        self.filter =
            self.filter.and_then(|filter| Ok(TaskFilter { owner: Some(node.into_id()?), ..filter }));
        self
    }

    /// Only these tasks, also finished ones. Called again, also the others.
    pub fn ids<I: IntoId<TaskId>>(mut self, ids: impl IntoIterator<Item = I>) -> TaskQuery {
        let ids: Result<BTreeSet<TaskId>, InvalidName> = ids.into_iter().map(IntoId::into_id).collect();
        self.filter = self.filter.and_then(|mut filter| {
            filter.ids.get_or_insert_default().extend(ids?);
            filter.finished = true;
            Ok(filter)
        });
        self
    }

    /// Also finished tasks of which only the final state is left.
    pub fn finished(self) -> TaskQuery {
        self.with(|filter| filter.finished = true)
    }

    /// The tasks at one revision, in the order of their ids.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn list(&self) -> Result<TaskList, Error> {
        let filter = self.filter.as_ref().map_err(Clone::clone)?;
        let mut tries = 1;
        loop {
            match self.list_once(filter).await {
                Err(StoreError::Compacted { .. }) if tries < LISTINGS_MAX => tries += 1,
                listed => return Ok(listed?),
            }
        }
    }

    /// The number of tasks.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn count(&self) -> Result<usize, Error> {
        Ok(self.list().await?.len())
    }

    /// Pauses each task that is not finished.
    pub fn pause(&self) -> BulkRequest {
        self.send(TaskMessage::Pause)
    }

    /// Resumes each task that is not finished.
    pub fn resume(&self) -> BulkRequest {
        self.send(TaskMessage::Run)
    }

    /// Ends each task that is not finished, without completing it. An empty reason is none.
    pub fn kill(&self, reason: impl Into<String>) -> BulkRequest {
        let reason = Some(reason.into()).filter(|reason| !reason.is_empty());
        self.send(TaskMessage::Kill { reason })
    }

    /// Moves each task that is not finished to another worker.
    pub fn release(&self) -> BulkRequest {
        self.send(TaskMessage::Release)
    }

    /// Deletes each task that is not finished. Its state stays.
    pub fn delete(&self) -> BulkRequest {
        BulkRequest::new(self, BulkAction::Delete)
    }

    /// Forgets how each finished task ended.
    pub fn forget(&self) -> BulkRequest {
        BulkRequest::new(&self.clone().finished(), BulkAction::Forget)
    }

    /// Waits until each task is finished. Tasks that are submitted later are not waited for.
    pub fn wait(&self) -> WaitTasks {
        WaitTasks { query: self.clone(), timeout: None }
    }

    fn send(&self, message: TaskMessage) -> BulkRequest {
        BulkRequest::new(self, BulkAction::Command(message))
    }

    fn with(mut self, change: impl FnOnce(&mut TaskFilter)) -> TaskQuery {
        self.filter = self.filter.map(|mut filter| {
            change(&mut filter);
            filter
        });
        self
    }

    /// The ids if nothing else is asked for, so that each has a result of its own, also a task that does not exist.
    pub(super) fn only_ids(&self) -> Option<Vec<TaskId>> {
        let filter = self.filter.as_ref().ok().filter(|filter| filter.is_ids_only())?;
        Some(filter.ids.as_ref()?.iter().cloned().collect())
    }

    pub(super) async fn ids_or_found(&self) -> Result<Vec<TaskId>, Error> {
        if let Some(ids) = self.only_ids() {
            return Ok(ids);
        }
        Ok(self.list().await?.into_iter().map(|task| task.id).collect())
    }

    async fn list_once(&self, filter: &TaskFilter) -> Result<TaskList, StoreError> {
        let access = &self.access;
        let page = self.read_tasks(filter).await?;
        let revision = page.revision;
        let board = board_of(access, page.pairs, revision);
        let mut cards: BTreeMap<TaskId, Card> = BTreeMap::new();
        for (id, card) in board.tasks() {
            // States are read only of tasks that may match.
            if filter.matches_card(card) {
                cards.insert(id.clone(), card.clone());
            }
        }
        let states = match &filter.ids {
            Some(ids) => self.states_of(ids.iter(), revision).await?,
            None if filter.finished => {
                access.run("task states", &mut ReadAllStates::new(&access.layout, revision)).await?
            }
            None => self.states_of(cards.keys(), revision).await?,
        };
        let mut tasks: BTreeMap<TaskId, TaskSummary> = BTreeMap::new();
        for (id, card) in cards {
            let state_record = Ok(StateRecord::default());
            tasks.insert(id.clone(), TaskSummary { id, card: Some(card), state_record });
        }
        for (id, state) in states {
            // A card that does not match is left out, and its state must not bring it back.
            if let Some(task) = tasks.get_mut(&id) {
                task.state_record = state;
            } else if board.get(&id).is_none() {
                tasks.insert(id.clone(), TaskSummary { id, card: None, state_record: state });
            }
        }
        let tasks = tasks.into_values().filter(|task| filter.matches(task)).collect();
        Ok(TaskList { tasks, revision })
    }

    /// The keys of all tasks and owners, or only of the tasks with the ids.
    async fn read_tasks(&self, filter: &TaskFilter) -> Result<Page, StoreError> {
        let (store, layout) = (&self.access.store, &self.access.layout);
        let Some(ids) = &filter.ids else { return store.list(layout.tasks()).await };
        // The smallest read that has a revision, at which the keys are then read in several requests.
        let first = store.get(Get::new(layout.everything()).limit(1).keys_only()).await?;
        let keys: Vec<_> = ids
            .iter()
            .flat_map(|id| [Key::Task(id.clone()), Key::TaskOwner(id.clone())])
            .map(|key| layout.encode(&key))
            .collect();
        Ok(Page { pairs: store.get_each(&keys, first.revision).await?, ..first })
    }

    async fn states_of(
        &self,
        tasks: impl Iterator<Item = &TaskId>,
        revision: Revision,
    ) -> Result<TaskStates, StoreError> {
        let (store, layout) = (&self.access.store, &self.access.layout);
        let keys = state_keys(layout, tasks);
        Ok(read_states(layout, store.get_each(&keys, revision).await?))
    }
}
