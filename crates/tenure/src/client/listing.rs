//! Looking at tasks: one, or all of them in one picture.

use std::collections::BTreeMap;

use tenure_core::board::{Board, Card};
use tenure_core::client::{
    ReadAllStates, ReadEffort, TaskFound, TaskKeys, TaskStates, attempts_and_props, read_states, state_keys,
};
use tenure_core::id::{ClaimId, NodeId, TaskId};
use tenure_core::layout::Key;
use tenure_core::record::{CommandRecord, Record, TaskRecord};
use tenure_core::snapshot::FeedItem;
use tenure_core::task::{AttemptRecord, StateRecord, TaskState};

use super::Client;
use crate::store::{KeyValue, Revision, StoreError};

/// How often a listing begins again because the history it stood on was compacted away meanwhile.
const LISTINGS_MAX: usize = 3;

/// A task as it was at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskView {
    /// Its id.
    pub id: TaskId,
    /// What was submitted and who owns it; none if only its state is left.
    pub card: Option<Card>,
    /// How it stands; or why that cannot be read.
    pub state: Result<StateRecord, String>,
}

impl TaskView {
    /// What was submitted, if it is there and can be read.
    pub fn record(&self) -> Option<&TaskRecord> {
        self.card.as_ref().and_then(|card| card.record.as_ref().ok())
    }

    /// What was submitted, also if the task has ended and its final state keeps that.
    pub fn submitted(&self) -> Option<&TaskRecord> {
        let kept = || self.state.as_ref().ok().and_then(|state| state.task.as_ref());
        self.record().or_else(kept)
    }

    /// What kind of work it is.
    pub fn kind(&self) -> Option<&str> {
        self.submitted().and_then(|record| record.kind.as_deref())
    }

    /// The node that ran it last, if it has ended and its state is left.
    fn ended_on(&self) -> Option<&NodeId> {
        let state = self.state.as_ref().ok().filter(|state| state.state.is_terminal())?;
        state.attempts.last().map(|attempt| &attempt.node).or(state.by.as_ref())
    }

    /// Who owns it.
    pub fn owner(&self) -> Option<&NodeId> {
        self.card.as_ref()?.owner.as_ref()?.node()
    }

    /// In which state it is, if that can be read.
    pub fn state_kind(&self) -> Option<TaskState> {
        self.state.as_ref().ok().map(|record| record.state.kind())
    }

    /// Which attempt it is in, from 1 on; none if its state cannot be read.
    pub fn attempt(&self) -> Option<u64> {
        self.state.as_ref().ok().map(StateRecord::attempt)
    }
}

/// Everything that is stored about one task, as it was at one revision.
#[derive(Clone, PartialEq)]
pub struct TaskDossier {
    /// The task; none if there is none, nor any memory of one.
    pub task: Option<TaskView>,
    /// What its submitter gave it.
    pub props: Option<bytes::Bytes>,
    /// Claims that began and have no stored outcome, the oldest first: the running one, and those that were lost.
    pub attempts: Vec<(ClaimId, AttemptRecord)>,
    /// The command that nobody has handled yet; or why it cannot be read.
    pub command: Option<Result<CommandRecord, String>>,
    /// When it was so.
    pub revision: Revision,
}

/// Props may be secret, so only their size is shown.
impl std::fmt::Debug for TaskDossier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let props = self.props.as_ref().map(bytes::Bytes::len);
        write!(f, "TaskDossier({:?}, {props:?} bytes of props, {:?})", self.task, self.command)
    }
}

/// Which tasks to list. All must hold.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TaskFilter {
    states: Vec<TaskState>,
    node: Option<NodeId>,
    kind: Option<String>,
    ended: bool,
}

impl TaskFilter {
    /// Every task that is there.
    pub fn new() -> TaskFilter {
        TaskFilter::default()
    }

    /// Only those in this state, or in one of several. A terminal state also finds what only its state is left of.
    #[must_use]
    pub fn state(mut self, state: TaskState) -> TaskFilter {
        self.ended |= state.is_terminal();
        self.states.push(state);
        self
    }

    /// Only those that this node owns, and of those that have ended, that it ran last.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> TaskFilter {
        self.node = Some(node);
        self
    }

    /// Only those of this kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> TaskFilter {
        self.kind = Some(kind.into());
        self
    }

    /// Also those that have ended, and of which only their state is left.
    #[must_use]
    pub fn with_ended(mut self) -> TaskFilter {
        self.ended = true;
        self
    }

    fn takes(&self, task: &TaskView) -> bool {
        let is_state =
            self.states.is_empty() || task.state_kind().is_some_and(|kind| self.states.contains(&kind));
        // What has ended is known by its state: one that an older program wrote does not tell the kind.
        let is_card = match &task.card {
            Some(card) => self.takes_card(card),
            None => {
                (self.node.is_none() || task.ended_on() == self.node.as_ref())
                    && (self.kind.is_none() || task.kind() == self.kind.as_deref())
            }
        };
        is_state && is_card
    }

    fn takes_card(&self, card: &Card) -> bool {
        let node = card.owner.as_ref().and_then(|owner| owner.node());
        let kind = card.record.as_ref().ok().and_then(|record| record.kind.as_ref());
        (self.node.is_none() || node == self.node.as_ref())
            && (self.kind.is_none() || kind == self.kind.as_ref())
    }
}

/// Tasks as they were at one revision, in the order of their ids.
#[derive(Clone, PartialEq, Debug)]
pub struct Listing {
    /// The tasks.
    pub tasks: Vec<TaskView>,
    /// When it was so.
    pub revision: Revision,
}

impl Client {
    /// One task; none if there is none, nor any memory of one.
    pub async fn get(&self, task: &TaskId) -> Result<Option<TaskView>, StoreError> {
        Ok(self.view_of(task, self.read(task, ReadEffort::Once).await?))
    }

    /// Everything about one task, with its props and the command that waits for it.
    pub async fn dossier(&self, task: &TaskId) -> Result<TaskDossier, StoreError> {
        let reply = self.store.txn(TaskKeys::of(&self.layout, task).read_whole()).await?;
        let found = TaskFound::in_reply(&reply)?;
        let (attempts, props) = attempts_and_props(reply)?;
        let props = match (&found.task, found.entry(&self.layout, task)) {
            (Some(_), _) => props.pairs.first().map(|pair| pair.value.clone()),
            (None, Some(entry)) => found.kept_props(self.store.get_key(entry).await?.as_ref()),
            (None, None) => None,
        };
        let attempts = self.attempts_in(&attempts.pairs);
        let command = found.command.as_ref();
        let command = command.map(|pair| CommandRecord::decode(&pair.value).map_err(|bad| bad.reason()));
        let revision = found.revision;
        Ok(TaskDossier { task: self.view_of(task, found), props, attempts, command, revision })
    }

    /// Attempt records, the oldest first. One that cannot be read says nothing.
    fn attempts_in(&self, pairs: &[KeyValue]) -> Vec<(ClaimId, AttemptRecord)> {
        let read = |pair: &KeyValue| match self.layout.parse(&pair.key)? {
            Key::TaskAttempt(_, claim) => Some((claim, AttemptRecord::decode(&pair.value).ok()?)),
            _ => None,
        };
        let mut attempts: Vec<_> = pairs.iter().filter_map(read).collect();
        attempts.sort_by_key(|(_, attempt)| attempt.started);
        attempts
    }

    fn view_of(&self, task: &TaskId, found: TaskFound) -> Option<TaskView> {
        if found.task.is_none() && found.state.is_none() {
            return None;
        }
        let state = found.state();
        let board = self.board(found.task.into_iter().chain(found.owner), found.revision);
        Some(TaskView { id: task.clone(), card: board.get(task).cloned(), state })
    }

    /// What a task has been through: its state with the newest errors and steps. None if nothing is stored about it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if what is stored cannot be read.
    pub async fn state(&self, task: &TaskId) -> Result<Option<StateRecord>, StoreError> {
        let key = self.layout.encode(&Key::TaskState(task.clone()));
        let Some(pair) = self.store.get_key(key).await? else { return Ok(None) };
        let unreadable = |why| StoreError::Corrupt(format!("the state of the task is {why}"));
        StateRecord::decode(&pair.value).map(Some).map_err(|bad| unreadable(bad.reason()))
    }

    /// What the submitter gave a task, also to one that has ended; none if it gave nothing, or there is no such task.
    pub async fn props(&self, task: &TaskId) -> Result<Option<bytes::Bytes>, StoreError> {
        Ok(self.dossier(task).await?.props)
    }

    /// Tasks, with their owners and states, as they were at one revision.
    pub async fn tasks(&self, filter: &TaskFilter) -> Result<Listing, StoreError> {
        let mut tries = 1;
        loop {
            match self.list(filter).await {
                Err(StoreError::Compacted { .. }) if tries < LISTINGS_MAX => tries += 1,
                listed => return listed,
            }
        }
    }

    async fn list(&self, filter: &TaskFilter) -> Result<Listing, StoreError> {
        let page = self.store.list(self.layout.tasks()).await?;
        let revision = page.revision;
        let board = self.board(page.pairs, revision);
        let mut cards: BTreeMap<TaskId, Card> = BTreeMap::new();
        for (id, card) in board.tasks() {
            // States are read only of what can be in the listing.
            if filter.takes_card(card) {
                cards.insert(id.clone(), card.clone());
            }
        }
        let states = if filter.ended {
            self.run("task states", &mut ReadAllStates::new(&self.layout, revision)).await?
        } else {
            self.states_of(cards.keys(), revision).await?
        };
        let mut tasks: BTreeMap<TaskId, TaskView> = BTreeMap::new();
        for (id, card) in cards {
            let view = TaskView { id: id.clone(), card: Some(card), state: Ok(StateRecord::default()) };
            tasks.insert(id, view);
        }
        for (id, state) in states {
            // A task that is there but was left out already is not brought back by its state.
            if let Some(view) = tasks.get_mut(&id) {
                view.state = state;
            } else if board.get(&id).is_none() {
                tasks.insert(id.clone(), TaskView { id, card: None, state });
            }
        }
        let tasks = tasks.into_values().filter(|task| filter.takes(task)).collect();
        Ok(Listing { tasks, revision })
    }

    fn board(&self, pairs: impl IntoIterator<Item = KeyValue>, revision: Revision) -> Board {
        let mut board = Board::new(self.layout.clone());
        let mut changes = Vec::new();
        for pair in pairs {
            board.handle_item(FeedItem::Put(pair), &mut changes);
        }
        board.handle_item(FeedItem::Synced(revision), &mut changes);
        board
    }

    async fn states_of(
        &self,
        tasks: impl Iterator<Item = &TaskId>,
        revision: Revision,
    ) -> Result<TaskStates, StoreError> {
        let keys = state_keys(&self.layout, tasks);
        Ok(read_states(&self.layout, self.store.get_each(&keys, revision).await?))
    }
}
