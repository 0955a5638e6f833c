//! Looking at tasks: one, or all of them in one picture.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use tenure_core::board::{Board, Card};
use tenure_core::layout::Key;
use tenure_core::name::{ClaimId, NodeId, TaskId};
use tenure_core::picture::FeedItem;
use tenure_core::record::{CommandRecord, Record, TaskRecord};
use tenure_core::task::{AttemptRecord, StateKind, StateRecord};

use super::Client;
use super::task::{Found, Keys, Reading};
use crate::store::{Get, KeyValue, Op, OpReply, Revision, Selection, StoreError, Txn};

/// How many states are read in one request: a state with a checkpoint may be long, and this many of the longest still fit into one answer.
const STATES_PER_REQUEST: u32 = 100;

/// How many such requests are under way at once.
const REQUESTS_IN_FLIGHT: usize = 4;

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
    pub fn state_kind(&self) -> Option<StateKind> {
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
    states: Vec<StateKind>,
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
    pub fn state(mut self, state: StateKind) -> TaskFilter {
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
        Ok(self.view_of(task, Keys::of(&self.layout, task).read(&self.store).await?))
    }

    /// Everything about one task, with its props and the command that waits for it.
    pub async fn dossier(&self, task: &TaskId) -> Result<TaskDossier, StoreError> {
        let keys = Keys::of(&self.layout, task);
        let all = keys.reading(Txn::new(), Reading::Always);
        let all = all.then(Op::Get(Get::new(keys.attempts.clone()))).then(Op::get(keys.props.clone()));
        let reply = self.store.txn(all).await?;
        let found = Found::in_reply(&reply)?;
        let props = match reply.results.last() {
            Some(OpReply::Get(page)) => page.pairs.first().map(|pair| pair.value.clone()),
            Some(OpReply::Put | OpReply::Delete { .. }) | None => None,
        };
        let props = match found.task {
            Some(_) => props,
            None => self.kept_props(task, &found).await?,
        };
        let attempts = match reply.results.iter().rev().nth(1) {
            Some(OpReply::Get(page)) => self.attempts_in(&page.pairs),
            Some(OpReply::Put | OpReply::Delete { .. }) | None => Vec::new(),
        };
        let command = found.command.as_ref();
        let command = command.map(|pair| CommandRecord::decode(&pair.value).map_err(|bad| bad.reason()));
        let revision = found.revision;
        Ok(TaskDossier { task: self.view_of(task, found), props, attempts, command, revision })
    }

    /// The props that are kept of a task that has ended.
    pub(super) async fn kept_props(
        &self,
        task: &TaskId,
        found: &Found,
    ) -> Result<Option<bytes::Bytes>, StoreError> {
        let Some(entry) = found.entry(&self.layout, task) else { return Ok(None) };
        let pair = self.store.get_key(entry).await?;
        // One that was put with another state is of another life.
        let pair =
            pair.filter(|pair| Some(pair.modified) == found.state.as_ref().map(|state| state.modified));
        Ok(pair.map(|pair| pair.value).filter(|props| !props.is_empty()))
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

    fn view_of(&self, task: &TaskId, found: Found) -> Option<TaskView> {
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
            self.all_states(revision).await?
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
        board.handle_item(FeedItem::Whole(revision), &mut changes);
        board
    }

    /// The stored states of these tasks. The states of all tasks that ever were may be many more.
    async fn states_of(
        &self,
        tasks: impl Iterator<Item = &TaskId>,
        revision: Revision,
    ) -> Result<Vec<(TaskId, Result<StateRecord, String>)>, StoreError> {
        let keys: Vec<_> = tasks.map(|task| self.layout.encode(&Key::TaskState(task.clone()))).collect();
        let txns = keys.chunks(STATES_PER_REQUEST as usize).map(|keys| {
            let get = |key: &bytes::Bytes| Op::Get(Get::key(key.clone()).at(revision));
            Txn { then: keys.iter().map(get).collect(), ..Txn::default() }
        });
        // Written out first: a stream that borrows what it maps would keep callers from sending the future to another thread.
        let requests: Vec<_> = txns.map(|txn| self.store.txn(txn)).collect();
        let replies: Vec<_> = stream::iter(requests).buffered(REQUESTS_IN_FLIGHT).try_collect().await?;
        let results = replies.into_iter().flat_map(|reply| reply.results);
        let pairs = results.flat_map(|result| match result {
            OpReply::Get(page) => page.pairs,
            OpReply::Put | OpReply::Delete { .. } => Vec::new(),
        });
        Ok(self.read_states(pairs))
    }

    /// The stored states of all tasks, those that have ended among them.
    async fn all_states(
        &self,
        revision: Revision,
    ) -> Result<Vec<(TaskId, Result<StateRecord, String>)>, StoreError> {
        let select = self.layout.states();
        let Some(end) = select.end() else { return Ok(Vec::new()) };
        let mut from = select.first().clone();
        let mut pairs = Vec::new();
        loop {
            let rest = Get::new(Selection::Range(from, end.clone())).at(revision);
            let page = self.store.get(rest.limit(STATES_PER_REQUEST)).await?;
            let last = page.pairs.last().map(|pair| Selection::Key(pair.key.clone()));
            pairs.extend(page.pairs);
            match last.and_then(|last| last.end()) {
                Some(next) if page.more => from = next,
                Some(_) | None => return Ok(self.read_states(pairs)),
            }
        }
    }

    fn read_states(
        &self,
        pairs: impl IntoIterator<Item = KeyValue>,
    ) -> Vec<(TaskId, Result<StateRecord, String>)> {
        let read = |pair: KeyValue| match self.layout.parse(&pair.key) {
            Some(Key::TaskState(task)) => {
                Some((task, StateRecord::decode(&pair.value).map_err(|bad| bad.reason())))
            }
            // A stranger's key is nobody's state.
            Some(_) | None => None,
        };
        pairs.into_iter().filter_map(read).collect()
    }
}
