//! Which tasks there are and who owns them: the fold of the feed of `tasks/`, and nothing else.
//!
//! A task is two keys of which each may change without the other: the task's own, which stays, and its owner's, which dies with the
//! owner's lease. The board puts them together. Nodes decide with it, and the dashboard and `task ls` show it, so
//! what the operator sees is computed by what the nodes decide with.
//!
//! Intuition: what a feed says between two whole pictures is a heap of words about single keys. The newest word about each key counts,
//! and only when the picture is whole again; so a claim and the end of its task in one revision are one change, not two.
//!
//! A key that cannot be read harms nobody else. A task whose record cannot be read is on the board, set aside with the reason, and
//! not up for claiming; one whose owner cannot be read is owned, by nobody we know.
//!
//! **Invariant**: nothing is told and nothing changes between a break and the next whole picture.
//!
//! **Invariant**: `unowned` adds up to the tasks that can be read, have not ended and have no owner.
//!
//! **Invariant**: `loads` adds up to the tasks that have an owner who can be read; nobody is in it with nothing.

mod pending;
mod shares;

use std::collections::{BTreeMap, BTreeSet};

use crate::balance::{Class, Demand, Load, Profiles, weight_of};
use crate::id::{ClaimId, NodeId, TaskId};
use crate::kv::KeyValue;
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::record::{OwnerRecord, Record, TaskRecord};
use crate::revision::{Revision, Token};
use crate::snapshot::FeedItem;
use crate::task::AttemptRecord;

use pending::{BoardUpdate, KeyUpdate, TaskUpdates};
use shares::OwnedLoads;

/// All tasks, with their owners.
#[derive(Clone, Debug)]
pub struct Board {
    layout: Layout,
    tasks: BTreeMap<TaskId, Card>,
    /// Owners of tasks that are not there.
    orphans: BTreeMap<TaskId, Owner>,
    unowned: Load,
    /// The same by class.
    demand: Demand,
    /// What nodes accept, by which tasks are classified.
    profiles: Profiles,
    loads: OwnedLoads,
    live: usize,
    set_aside: BTreeSet<TaskId>,
    /// Tasks that have props, also such as are not there.
    with_props: BTreeSet<TaskId>,
    /// Claims that began and have no stored outcome; of an unreadable one that it is there.
    attempts: BTreeMap<TaskId, BTreeMap<ClaimId, Option<AttemptRecord>>>,
    /// What was seen since the last whole picture, in that order.
    pending: Vec<(TaskId, BoardUpdate)>,
    whole_at: Option<Revision>,
    is_fresh: bool,
}

/// A task on the board.
#[derive(Clone, PartialEq, Debug)]
pub struct Card {
    /// When this life of the task began.
    pub created: Revision,
    /// When its record was last written.
    pub modified: Revision,
    /// What was submitted; or why it cannot be read, never what it holds.
    pub record: Result<TaskRecord, String>,
    /// Which nodes accept it.
    pub class: Class,
    /// Who owns it.
    pub owner: Option<Owner>,
}

impl Card {
    /// Whether somebody should own it: it can be read, and it has not ended.
    pub fn is_live(&self) -> bool {
        self.record.as_ref().is_ok_and(|record| !record.ended)
    }

    /// What it weighs: 1 if it does not say, or says nonsense.
    pub fn weight(&self) -> u64 {
        self.record.as_ref().map_or(1, |record| weight_of(record).unwrap_or(1))
    }

    /// Whether it can be claimed: somebody should own it, and nobody does.
    pub fn is_unowned(&self) -> bool {
        self.is_live() && self.owner.is_none()
    }
}

/// Who owns a task.
#[derive(Clone, PartialEq, Debug)]
pub struct Owner {
    /// The claim's token.
    pub token: Token,
    /// The lease it dies with; none if somebody put the key without one.
    pub lease: Option<LeaseId>,
    /// Who; or why that cannot be read.
    pub holder: Result<OwnerRecord, String>,
}

impl Owner {
    /// The node, if it can be read.
    pub fn node(&self) -> Option<&NodeId> {
        self.holder.as_ref().ok().map(|record| &record.node)
    }
}

/// What changed on the board.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BoardChange {
    /// A life of a task is over: it was deleted.
    Gone {
        /// The task.
        task: TaskId,
        /// When that life began.
        created: Revision,
    },
    /// An owner that was told before is no more.
    OwnerGone {
        /// The task.
        task: TaskId,
        /// The claim that is over.
        token: Token,
    },
    /// A task's record was written again, or one came that nobody can claim: ended, or not to be read.
    Changed(TaskId),
    /// A task has an owner.
    Owned {
        /// The task.
        task: TaskId,
        /// Who; none if that cannot be read.
        node: Option<NodeId>,
        /// The claim.
        token: Token,
    },
    /// A task can be claimed.
    Unowned(TaskId),
}

impl Board {
    /// The board of a namespace; knows of no task yet.
    pub fn new(layout: Layout) -> Board {
        Board {
            layout,
            tasks: BTreeMap::new(),
            orphans: BTreeMap::new(),
            unowned: Load::default(),
            demand: Demand::default(),
            profiles: Profiles::default(),
            loads: OwnedLoads::default(),
            live: 0,
            set_aside: BTreeSet::new(),
            with_props: BTreeSet::new(),
            attempts: BTreeMap::new(),
            pending: Vec::new(),
            whole_at: None,
            is_fresh: false,
        }
    }

    /// Something came from the feed.
    pub fn handle_item(&mut self, item: FeedItem, told: &mut impl Extend<BoardChange>) {
        match item {
            FeedItem::SnapshotBegin => self.is_fresh = false,
            FeedItem::Put(pair) => match self.layout.parse(&pair.key) {
                Some(Key::Task(task)) => {
                    self.pending
                        .push((task, BoardUpdate::Task(Box::new(KeyUpdate::Present(read_card(&pair))))));
                }
                Some(Key::TaskOwner(task)) => {
                    let mut owner = read_owner(&pair);
                    self.loads.share_name(&mut owner);
                    self.pending.push((task, BoardUpdate::Owner(KeyUpdate::Present(owner))));
                }
                // What they say is read with the claim.
                Some(Key::TaskProps(task)) => {
                    self.pending.push((task, BoardUpdate::Props(KeyUpdate::Present(()))));
                }
                Some(Key::TaskAttempt(task, claim)) => {
                    let attempt = AttemptRecord::decode(&pair.value).ok();
                    self.pending.push((task, BoardUpdate::Attempt(claim, KeyUpdate::Present(attempt))));
                }
                // A foreign key concerns nobody.
                Some(_) | None => {}
            },
            FeedItem::Delete { key, .. } => match self.layout.parse(&key) {
                Some(Key::Task(task)) => {
                    self.pending.push((task, BoardUpdate::Task(Box::new(KeyUpdate::Deleted))));
                }
                Some(Key::TaskOwner(task)) => {
                    self.pending.push((task, BoardUpdate::Owner(KeyUpdate::Deleted)));
                }
                Some(Key::TaskProps(task)) => {
                    self.pending.push((task, BoardUpdate::Props(KeyUpdate::Deleted)));
                }
                Some(Key::TaskAttempt(task, claim)) => {
                    self.pending.push((task, BoardUpdate::Attempt(claim, KeyUpdate::Deleted)));
                }
                Some(_) | None => {}
            },
            FeedItem::Synced(revision) => {
                let mut words = std::mem::take(&mut self.pending);
                // Stable, so that the newest word about a key stays the last; and what comes in key order is in order already.
                words.sort_by(|(one, _), (other, _)| one.cmp(other));
                let mut words = words.into_iter().peekable();
                while let Some((task, word)) = words.next() {
                    let mut pending = TaskUpdates::default();
                    pending.hear(word);
                    while let Some((_, word)) = words.next_if(|(other, _)| *other == task) {
                        pending.hear(word);
                    }
                    self.apply(task, pending, told);
                }
                self.whole_at = Some(revision);
                self.is_fresh = true;
            }
        }
    }

    /// Whether the picture is whole and followed, so that it may be acted on.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// The revision of the last whole picture; none before there was one.
    pub fn whole_at(&self) -> Option<Revision> {
        self.whole_at
    }

    /// One task.
    pub fn get(&self, task: &TaskId) -> Option<&Card> {
        self.tasks.get(task)
    }

    /// Whether a task was submitted with props.
    pub fn has_props(&self, task: &TaskId) -> bool {
        self.with_props.contains(task)
    }

    /// The claims of a task that began and have no stored outcome; none instead of a record that cannot be read.
    pub fn attempts_of(&self, task: &TaskId) -> impl Iterator<Item = (&ClaimId, Option<&AttemptRecord>)> {
        let attempts = self.attempts.get(task).into_iter().flatten();
        attempts.map(|(claim, attempt)| (claim, attempt.as_ref()))
    }

    /// All tasks, in the order of their ids.
    pub fn tasks(&self) -> impl Iterator<Item = (&TaskId, &Card)> {
        self.tasks.iter()
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// How many tasks somebody should own: those that can be read and have not ended.
    pub fn live(&self) -> usize {
        self.live
    }

    /// How much work nobody does: the tasks that can be claimed.
    pub fn unowned(&self) -> Load {
        self.unowned
    }

    /// The same by the nodes that accept it.
    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    /// Classifies all tasks by what nodes accept now. Returns whether that was needed: it takes time for each task.
    pub fn classify(&mut self, profiles: &Profiles) -> bool {
        if self.profiles.version() == profiles.version() {
            return false;
        }
        self.profiles = profiles.clone();
        self.demand = Demand::default();
        for card in self.tasks.values_mut() {
            card.class = class_of(&self.profiles, card);
            if card.is_unowned() {
                self.demand.add(card.class, Load::of_one(card.weight()));
            }
        }
        true
    }

    /// How much each node owns; nodes that own nothing are not in it.
    pub fn loads(&self) -> &BTreeMap<NodeId, Load> {
        self.loads.by_node()
    }

    /// How much a node owns.
    pub fn load_of(&self, node: &NodeId) -> Load {
        self.loads.by_node().get(node).copied().unwrap_or_default()
    }

    /// The nodes whose loads are others than when this was last asked.
    pub fn take_shifted(&mut self) -> BTreeSet<NodeId> {
        self.loads.take_shifted()
    }

    /// Who owns a task, also one that is not there.
    pub fn owner_of(&self, task: &TaskId) -> Option<&Owner> {
        self.tasks.get(task).map_or_else(|| self.orphans.get(task), |card| card.owner.as_ref())
    }

    /// The tasks whose records cannot be read, with the reasons.
    pub fn set_aside(&self) -> impl Iterator<Item = (&TaskId, &str)> {
        let cards = self.set_aside.iter().filter_map(|task| Some((task, self.tasks.get(task)?)));
        cards.filter_map(|(task, card)| Some((task, card.record.as_ref().err()?.as_str())))
    }

    fn apply(&mut self, task: TaskId, mut pending: TaskUpdates, told: &mut impl Extend<BoardChange>) {
        match pending.props.take() {
            Some(KeyUpdate::Present(())) => drop(self.with_props.insert(task.clone())),
            Some(KeyUpdate::Deleted) => drop(self.with_props.remove(&task)),
            None => {}
        }
        for (claim, seen) in pending.attempts.drain(..) {
            match seen {
                KeyUpdate::Present(attempt) => {
                    self.attempts.entry(task.clone()).or_default().insert(claim, attempt);
                }
                KeyUpdate::Deleted => {
                    if let Some(attempts) = self.attempts.get_mut(&task) {
                        attempts.remove(&claim);
                        if attempts.is_empty() {
                            self.attempts.remove(&task);
                        }
                    }
                }
            }
        }
        let pending = match pending {
            TaskUpdates { task: None, owner: None, .. } => return,
            TaskUpdates { task: None, owner: Some(seen), .. } => match self.apply_owner(&task, seen, told) {
                None => return,
                owner => TaskUpdates { owner, ..TaskUpdates::default() },
            },
            pending => pending,
        };
        let mut before = self.take(&task);
        let was_unowned = before.as_ref().is_some_and(Card::is_unowned);
        let written = before.as_ref().map(|card| (card.created, card.modified));
        let owner_before = match &mut before {
            Some(card) => card.owner.take(),
            None => self.orphans.remove(&task),
        };
        let is_owner_told = pending.owner.is_some();
        let token_before = owner_before.as_ref().map(|owner| owner.token);
        let is_other_owner = match &pending.owner {
            Some(KeyUpdate::Present(owner)) => owner_before.as_ref() != Some(owner),
            Some(KeyUpdate::Deleted) | None => false,
        };
        let owner = KeyUpdate::over(pending.owner, owner_before);
        let card = KeyUpdate::over(pending.task.map(|seen| *seen), before);

        let is_same_life = written.map(|(created, _)| created) == card.as_ref().map(|card| card.created);
        if let Some((created, _)) = written.filter(|_| !is_same_life) {
            told.extend([BoardChange::Gone { task: task.clone(), created }]);
        }
        let token = owner.as_ref().map(|owner| owner.token);
        if let Some(token) = token_before.filter(|_| is_owner_told && token_before != token) {
            told.extend([BoardChange::OwnerGone { task: task.clone(), token }]);
        }
        let Some(mut card) = card else {
            if let Some(owner) = owner {
                self.orphans.insert(task, owner);
            }
            return;
        };
        let is_new = !is_same_life && !card.is_live();
        let is_rewritten = is_same_life && written.is_some_and(|(_, modified)| modified != card.modified);
        if is_new || is_rewritten {
            told.extend([BoardChange::Changed(task.clone())]);
        }
        if let Some(owner) = owner.as_ref().filter(|_| !is_same_life || is_other_owner) {
            let node = owner.node().cloned();
            told.extend([BoardChange::Owned { task: task.clone(), node, token: owner.token }]);
        }
        card.owner = owner;
        if card.is_unowned() && !(is_same_life && was_unowned) {
            told.extend([BoardChange::Unowned(task.clone())]);
        }
        self.post(task, card);
    }

    /// A task that stays as it is gets or loses its owner: by far the most frequent change. Gives back what was seen if there is no such task.
    fn apply_owner(
        &mut self,
        task: &TaskId,
        seen: KeyUpdate<Owner>,
        told: &mut impl Extend<BoardChange>,
    ) -> Option<KeyUpdate<Owner>> {
        let Some(card) = self.tasks.get_mut(task) else { return Some(seen) };
        let (load, was_unowned, class) = (Load::of_one(card.weight()), card.is_unowned(), card.class);
        let before = match seen {
            KeyUpdate::Present(owner) => card.owner.replace(owner),
            KeyUpdate::Deleted => card.owner.take(),
        };
        let token = card.owner.as_ref().map(|owner| owner.token);
        if let Some(before) = before.as_ref().filter(|before| Some(before.token) != token) {
            told.extend([BoardChange::OwnerGone { task: task.clone(), token: before.token }]);
        }
        if let Some(owner) = card.owner.as_ref().filter(|owner| before.as_ref() != Some(owner)) {
            let node = owner.node().cloned();
            told.extend([BoardChange::Owned { task: task.clone(), node, token: owner.token }]);
        }
        let is_unowned = card.is_unowned();
        if let Some(node) = before.as_ref().and_then(Owner::node) {
            self.loads.sub(node, load);
        }
        if let Some(node) = card.owner.as_ref().and_then(Owner::node) {
            self.loads.add(node, load);
        }
        match (was_unowned, is_unowned) {
            (true, false) => {
                self.unowned = self.unowned - load;
                self.demand.sub(class, load);
            }
            (false, true) => {
                self.unowned = self.unowned + load;
                self.demand.add(class, load);
                told.extend([BoardChange::Unowned(task.clone())]);
            }
            (true, true) | (false, false) => {}
        }
        None
    }

    /// Takes a card off the board and out of everything that is counted.
    fn take(&mut self, task: &TaskId) -> Option<Card> {
        let card = self.tasks.remove(task)?;
        self.live -= usize::from(card.is_live());
        self.set_aside.remove(task);
        let load = Load::of_one(card.weight());
        if card.is_unowned() {
            self.unowned = self.unowned - load;
            self.demand.sub(card.class, load);
        }
        if let Some(node) = card.owner.as_ref().and_then(Owner::node) {
            self.loads.sub(node, load);
        }
        Some(card)
    }

    fn post(&mut self, task: TaskId, mut card: Card) {
        card.class = class_of(&self.profiles, &card);
        self.live += usize::from(card.is_live());
        let load = Load::of_one(card.weight());
        if card.is_unowned() {
            self.unowned = self.unowned + load;
            self.demand.add(card.class, load);
        }
        if card.record.is_err() {
            self.set_aside.insert(task.clone());
        }
        if let Some(node) = card.owner.as_ref().and_then(Owner::node) {
            self.loads.add(node, load);
        }
        self.tasks.insert(task, card);
    }
}

fn class_of(profiles: &Profiles, card: &Card) -> Class {
    card.record.as_ref().map_or(Class::ANY, |record| profiles.class_of(record))
}

fn read_card(pair: &KeyValue) -> Card {
    let record = TaskRecord::decode(&pair.value).map_err(|error| error.reason());
    Card { created: pair.created, modified: pair.modified, record, class: Class::ANY, owner: None }
}

pub(crate) fn read_owner(pair: &KeyValue) -> Owner {
    let holder = OwnerRecord::decode(&pair.value).map_err(|error| error.reason());
    Owner { token: Token(pair.created), lease: pair.lease, holder }
}

#[cfg(test)]
mod tests;
