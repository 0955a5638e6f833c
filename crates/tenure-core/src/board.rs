//! All tasks and their owners: the view of the feed of `tasks/`.
//!
//! A task has two keys that change independently: its own key, which stays, and its owner key,
//! which is deleted with the owner's lease. The board joins them. Workers decide by it, and the
//! dashboard and `task ls` show it, so an operator sees what the workers decide by.
//!
//! Intuition: between two complete snapshots a feed delivers changes of single keys. The newest
//! change of each key counts, and only when the snapshot is complete again. So a claim and the end
//! of its task in one revision are one change, not two.
//!
//! An unreadable key affects no other task. A task with an unreadable record is on the board, set
//! aside with the reason, and not claimable. A task with an unreadable owner record is owned, by an
//! unknown worker.
//!
//! **Invariant**: nothing is reported and nothing changes between a gap of the feed and the next complete snapshot.
//!
//! **Invariant**: `unowned` is the sum over the tasks that can be read, have not ended and have no owner.
//!
//! **Invariant**: `loads` is the sum over the tasks with a readable owner; a worker without tasks is not in it.

mod change;
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

pub use change::BoardChange;
use pending::{BoardUpdate, KeyUpdate, TaskUpdates};
use shares::OwnedLoads;

/// All tasks, with their owners.
#[derive(Clone, Debug)]
pub struct Board {
    layout: Layout,
    tasks: BTreeMap<TaskId, Card>,
    /// Owners of tasks that do not exist.
    orphans: BTreeMap<TaskId, Owner>,
    unowned: Load,
    /// The unowned load by class.
    demand: Demand,
    /// The profiles by which tasks are classified.
    profiles: Profiles,
    loads: OwnedLoads,
    live: usize,
    set_aside: BTreeSet<TaskId>,
    /// Tasks with props, including props of tasks that do not exist.
    with_props: BTreeSet<TaskId>,
    /// Claims that began and have no stored outcome. `None` for an unreadable record.
    attempts: BTreeMap<TaskId, BTreeMap<ClaimId, Option<AttemptRecord>>>,
    /// The changes since the last complete snapshot, in their order.
    pending: Vec<(TaskId, BoardUpdate)>,
    whole_at: Option<Revision>,
    is_fresh: bool,
}

/// A task on the board.
#[derive(Clone, PartialEq, Debug)]
pub struct Card {
    /// The create revision of the task, which identifies its incarnation.
    pub created: Revision,
    /// The revision at which its record was last written.
    pub modified: Revision,
    /// The submitted record; or why it cannot be read, without its content.
    pub record: Result<TaskRecord, String>,
    /// The workers that accept it, as a class.
    pub class: Class,
    /// Its owner.
    pub owner: Option<Owner>,
}

impl Card {
    /// Whether it should have an owner: it can be read and has not ended.
    pub fn is_live(&self) -> bool {
        self.record.as_ref().is_ok_and(|record| !record.ended)
    }

    /// Its weight: 1 if the label is absent or invalid.
    pub fn weight(&self) -> u64 {
        self.record.as_ref().map_or(1, |record| weight_of(record).unwrap_or(1))
    }

    /// Whether it can be claimed: it should have an owner, and has none.
    pub fn is_unowned(&self) -> bool {
        self.is_live() && self.owner.is_none()
    }
}

/// The owner of a task.
#[derive(Clone, PartialEq, Debug)]
pub struct Owner {
    /// The token of the claim.
    pub token: Token,
    /// The lease of the claim. `None` if a foreign program has put the key without one.
    pub lease: Option<LeaseId>,
    /// The owner record; or why it cannot be read.
    pub holder: Result<OwnerRecord, String>,
}

impl Owner {
    /// The worker, if the record can be read.
    pub fn node(&self) -> Option<&NodeId> {
        self.holder.as_ref().ok().map(|record| &record.node)
    }
}

impl Board {
    /// Creates the empty board of a namespace.
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

    /// Handles an item of the feed, and adds the resulting changes to `changes`.
    pub fn handle_item(&mut self, item: FeedItem, changes: &mut impl Extend<BoardChange>) {
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
                // Their values are read with the claim.
                Some(Key::TaskProps(task)) => {
                    self.pending.push((task, BoardUpdate::Props(KeyUpdate::Present(()))));
                }
                Some(Key::TaskAttempt(task, claim)) => {
                    let attempt = AttemptRecord::decode(&pair.value).ok();
                    self.pending.push((task, BoardUpdate::Attempt(claim, KeyUpdate::Present(attempt))));
                }
                // A foreign key concerns no task.
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
                // Stable, so that the newest change of a key stays the last. What arrives in key
                // order is sorted already.
                words.sort_by(|(one, _), (other, _)| one.cmp(other));
                let mut words = words.into_iter().peekable();
                while let Some((task, word)) = words.next() {
                    let mut pending = TaskUpdates::default();
                    pending.apply(word);
                    while let Some((_, word)) = words.next_if(|(other, _)| *other == task) {
                        pending.apply(word);
                    }
                    self.apply(task, pending, changes);
                }
                self.whole_at = Some(revision);
                self.is_fresh = true;
            }
        }
    }

    /// Whether the snapshot is complete and the feed is connected, so that decisions may be based
    /// on it.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// The revision of the last complete snapshot. `None` before the first one.
    pub fn whole_at(&self) -> Option<Revision> {
        self.whole_at
    }

    /// A task.
    pub fn get(&self, task: &TaskId) -> Option<&Card> {
        self.tasks.get(task)
    }

    /// Whether a task was submitted with props.
    pub fn has_props(&self, task: &TaskId) -> bool {
        self.with_props.contains(task)
    }

    /// The claims of a task that began and have no stored outcome. `None` for an unreadable record.
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

    /// How many tasks should have an owner: those that can be read and have not ended.
    pub fn live(&self) -> usize {
        self.live
    }

    /// The load of all claimable tasks.
    pub fn unowned(&self) -> Load {
        self.unowned
    }

    /// The load of all claimable tasks, by the workers that accept them.
    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    /// Classifies all tasks by the terms of the workers. Returns whether that was needed: the cost
    /// is proportional to the number of tasks.
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

    /// The load of each worker. Workers without tasks are not in it.
    pub fn loads(&self) -> &BTreeMap<NodeId, Load> {
        self.loads.by_node()
    }

    /// The load of a worker.
    pub fn load_of(&self, node: &NodeId) -> Load {
        self.loads.by_node().get(node).copied().unwrap_or_default()
    }

    /// The workers with a load that has changed since the last call.
    pub fn take_shifted(&mut self) -> BTreeSet<NodeId> {
        self.loads.take_shifted()
    }

    /// The owner of a task, also of one that does not exist.
    pub fn owner_of(&self, task: &TaskId) -> Option<&Owner> {
        self.tasks.get(task).map_or_else(|| self.orphans.get(task), |card| card.owner.as_ref())
    }

    /// The tasks with unreadable records, and the reasons.
    pub fn set_aside(&self) -> impl Iterator<Item = (&TaskId, &str)> {
        let cards = self.set_aside.iter().filter_map(|task| Some((task, self.tasks.get(task)?)));
        cards.filter_map(|(task, card)| Some((task, card.record.as_ref().err()?.as_str())))
    }

    fn apply(&mut self, task: TaskId, mut pending: TaskUpdates, changes: &mut impl Extend<BoardChange>) {
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
            TaskUpdates { task: None, owner: Some(seen), .. } => match self.apply_owner(&task, seen, changes)
            {
                None => return,
                owner => TaskUpdates { owner, ..TaskUpdates::default() },
            },
            pending => pending,
        };
        // The rest compares the task before and after, so its card leaves all sums and is added again.
        let mut before = self.take(&task);
        let was_unowned = before.as_ref().is_some_and(Card::is_unowned);
        let written = before.as_ref().map(|card| (card.created, card.modified));
        let owner_before = match &mut before {
            Some(card) => card.owner.take(),
            None => self.orphans.remove(&task),
        };
        let is_owner_reported = pending.owner.is_some();
        let token_before = owner_before.as_ref().map(|owner| owner.token);
        let is_other_owner = match &pending.owner {
            Some(KeyUpdate::Present(owner)) => owner_before.as_ref() != Some(owner),
            Some(KeyUpdate::Deleted) | None => false,
        };
        let owner = KeyUpdate::over(pending.owner, owner_before);
        let card = KeyUpdate::over(pending.task.map(|seen| *seen), before);

        let is_same_life = written.map(|(created, _)| created) == card.as_ref().map(|card| card.created);
        if let Some((created, _)) = written.filter(|_| !is_same_life) {
            // In this order: the end of the former incarnation, the end of the former claim, then
            // the new state. Receivers release what they hold before they consider the task again.
            changes.extend([BoardChange::Gone { task: task.clone(), created }]);
        }
        let token = owner.as_ref().map(|owner| owner.token);
        if let Some(token) = token_before.filter(|_| is_owner_reported && token_before != token) {
            changes.extend([BoardChange::OwnerGone { task: task.clone(), token }]);
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
            changes.extend([BoardChange::Changed(task.clone())]);
        }
        if let Some(owner) = owner.as_ref().filter(|_| !is_same_life || is_other_owner) {
            let node = owner.node().cloned();
            changes.extend([BoardChange::Owned { task: task.clone(), node, token: owner.token }]);
        }
        card.owner = owner;
        if card.is_unowned() && !(is_same_life && was_unowned) {
            changes.extend([BoardChange::Unowned(task.clone())]);
        }
        self.post(task, card);
    }

    /// The owner of an unchanged task changes: by far the most frequent change. Returns the update
    /// if there is no such task.
    fn apply_owner(
        &mut self,
        task: &TaskId,
        seen: KeyUpdate<Owner>,
        changes: &mut impl Extend<BoardChange>,
    ) -> Option<KeyUpdate<Owner>> {
        let Some(card) = self.tasks.get_mut(task) else { return Some(seen) };
        let (load, was_unowned, class) = (Load::of_one(card.weight()), card.is_unowned(), card.class);
        let before = match seen {
            KeyUpdate::Present(owner) => card.owner.replace(owner),
            KeyUpdate::Deleted => card.owner.take(),
        };
        let token = card.owner.as_ref().map(|owner| owner.token);
        if let Some(before) = before.as_ref().filter(|before| Some(before.token) != token) {
            changes.extend([BoardChange::OwnerGone { task: task.clone(), token: before.token }]);
        }
        if let Some(owner) = card.owner.as_ref().filter(|owner| before.as_ref() != Some(owner)) {
            let node = owner.node().cloned();
            changes.extend([BoardChange::Owned { task: task.clone(), node, token: owner.token }]);
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
                changes.extend([BoardChange::Unowned(task.clone())]);
            }
            (true, true) | (false, false) => {}
        }
        None
    }

    /// Removes a card from the board and from all sums.
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
