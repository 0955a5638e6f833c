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
//! **Invariant**: `unowned` holds exactly the tasks that can be read, have not ended and have no owner.
//!
//! **Invariant**: `loads` adds up to the tasks that have an owner who can be read; nobody is in it with nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::balance::{Load, weight_of};
use crate::kv::KeyValue;
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::name::{NodeId, TaskId};
use crate::picture::FeedItem;
use crate::record::{OwnerRecord, Record, TaskRecord};
use crate::revision::{Revision, Token};

/// All tasks, with their owners.
#[derive(Clone, Debug)]
pub struct Board {
    layout: Layout,
    tasks: BTreeMap<TaskId, Card>,
    /// Owners of tasks that are not there.
    orphans: BTreeMap<TaskId, Owner>,
    unowned: BTreeSet<TaskId>,
    unowned_load: Load,
    loads: BTreeMap<NodeId, Load>,
    /// Nodes whose load is another than when that was last asked.
    shifted: BTreeSet<NodeId>,
    live: usize,
    set_aside: BTreeSet<TaskId>,
    /// What was seen since the last whole picture, newest word for each key.
    pending: BTreeMap<TaskId, Pending>,
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

    fn is_unowned(&self) -> bool {
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

/// The newest words about the two keys of a task.
#[derive(Clone, Debug, Default)]
struct Pending {
    task: Option<Seen<Card>>,
    owner: Option<Seen<Owner>>,
}

#[derive(Clone, Debug)]
enum Seen<T> {
    Here(T),
    Gone,
}

impl<T> Seen<T> {
    fn over(seen: Option<Seen<T>>, before: Option<T>) -> Option<T> {
        match seen {
            Some(Seen::Here(now)) => Some(now),
            Some(Seen::Gone) => None,
            None => before,
        }
    }
}

impl Board {
    /// The board of a namespace; knows of no task yet.
    pub fn new(layout: Layout) -> Board {
        Board {
            layout,
            tasks: BTreeMap::new(),
            orphans: BTreeMap::new(),
            unowned: BTreeSet::new(),
            unowned_load: Load::default(),
            loads: BTreeMap::new(),
            shifted: BTreeSet::new(),
            live: 0,
            set_aside: BTreeSet::new(),
            pending: BTreeMap::new(),
            whole_at: None,
            is_fresh: false,
        }
    }

    /// Something came from the feed.
    pub fn handle_item(&mut self, item: FeedItem, told: &mut impl Extend<BoardChange>) {
        match item {
            FeedItem::Begin => self.is_fresh = false,
            FeedItem::Put(pair) => match self.layout.parse(&pair.key) {
                Some(Key::Task(task)) => {
                    self.pending.entry(task).or_default().task = Some(Seen::Here(read_card(&pair)));
                }
                Some(Key::TaskOwner(task)) => {
                    self.pending.entry(task).or_default().owner = Some(Seen::Here(read_owner(&pair)));
                }
                // Props are read with the claim; a foreign key concerns nobody.
                Some(_) | None => {}
            },
            FeedItem::Delete { key, .. } => match self.layout.parse(&key) {
                Some(Key::Task(task)) => self.pending.entry(task).or_default().task = Some(Seen::Gone),
                Some(Key::TaskOwner(task)) => self.pending.entry(task).or_default().owner = Some(Seen::Gone),
                Some(_) | None => {}
            },
            FeedItem::Whole(revision) => {
                for (task, pending) in std::mem::take(&mut self.pending) {
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

    /// The tasks that can be claimed, in the order of their ids.
    pub fn unowned(&self) -> &BTreeSet<TaskId> {
        &self.unowned
    }

    /// How much work nobody does.
    pub fn unowned_load(&self) -> Load {
        self.unowned_load
    }

    /// How much each node owns; nodes that own nothing are not in it.
    pub fn loads(&self) -> &BTreeMap<NodeId, Load> {
        &self.loads
    }

    /// How much a node owns.
    pub fn load_of(&self, node: &NodeId) -> Load {
        self.loads.get(node).copied().unwrap_or_default()
    }

    /// The nodes whose loads are others than when this was last asked.
    pub fn take_shifted(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.shifted)
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

    fn apply(&mut self, task: TaskId, pending: Pending, told: &mut impl Extend<BoardChange>) {
        let mut before = self.take(&task);
        let owner_before = match &mut before {
            Some(card) => card.owner.clone(),
            None => self.orphans.remove(&task),
        };
        let owner = Seen::over(pending.owner, owner_before.clone());
        let card = Seen::over(pending.task, before.clone()).map(|card| Card { owner: owner.clone(), ..card });

        let is_same_life = before.as_ref().map(|card| card.created) == card.as_ref().map(|card| card.created);
        if let Some(before) = before.as_ref().filter(|_| !is_same_life) {
            told.extend([BoardChange::Gone { task: task.clone(), created: before.created }]);
        }
        let token = owner.as_ref().map(|owner| owner.token);
        if let Some(before) = owner_before.as_ref().filter(|before| Some(before.token) != token) {
            told.extend([BoardChange::OwnerGone { task: task.clone(), token: before.token }]);
        }
        if let Some(card) = &card {
            let was_unowned = is_same_life && before.as_ref().is_some_and(Card::is_unowned);
            let is_new = !is_same_life && !card.is_live();
            let is_rewritten = is_same_life && before.as_ref().is_some_and(|b| b.modified != card.modified);
            if is_new || is_rewritten {
                told.extend([BoardChange::Changed(task.clone())]);
            }
            if let Some(owner) =
                owner.as_ref().filter(|owner| !is_same_life || owner_before.as_ref() != Some(owner))
            {
                let node = owner.node().cloned();
                told.extend([BoardChange::Owned { task: task.clone(), node, token: owner.token }]);
            }
            if card.is_unowned() && !was_unowned {
                told.extend([BoardChange::Unowned(task.clone())]);
            }
        }
        match (card, owner) {
            (Some(card), _) => self.post(task, card),
            (None, Some(owner)) => drop(self.orphans.insert(task, owner)),
            (None, None) => {}
        }
    }

    /// Takes a card off the board and out of everything that is counted.
    fn take(&mut self, task: &TaskId) -> Option<Card> {
        let card = self.tasks.remove(task)?;
        self.live -= usize::from(card.is_live());
        self.set_aside.remove(task);
        let load = Load::of_one(card.weight());
        if self.unowned.remove(task) {
            self.unowned_load = self.unowned_load - load;
        }
        if let Some(node) = card.owner.as_ref().and_then(Owner::node)
            && let Some(owned) = self.loads.get_mut(node)
        {
            *owned = *owned - load;
            if owned.tasks == 0 {
                self.loads.remove(node);
            }
            self.shifted.insert(node.clone());
        }
        Some(card)
    }

    fn post(&mut self, task: TaskId, card: Card) {
        self.live += usize::from(card.is_live());
        let load = Load::of_one(card.weight());
        if card.is_unowned() {
            self.unowned.insert(task.clone());
            self.unowned_load = self.unowned_load + load;
        }
        if card.record.is_err() {
            self.set_aside.insert(task.clone());
        }
        if let Some(node) = card.owner.as_ref().and_then(Owner::node) {
            match self.loads.get_mut(node) {
                Some(owned) => *owned = *owned + load,
                None => drop(self.loads.insert(node.clone(), load)),
            }
            if !self.shifted.contains(node) {
                self.shifted.insert(node.clone());
            }
        }
        self.tasks.insert(task, card);
    }
}

fn read_card(pair: &KeyValue) -> Card {
    let record = TaskRecord::decode(&pair.value).map_err(|error| error.reason());
    Card { created: pair.created, modified: pair.modified, record, owner: None }
}

fn read_owner(pair: &KeyValue) -> Owner {
    let holder = OwnerRecord::decode(&pair.value).map_err(|error| error.reason());
    Owner { token: Token(pair.created), lease: pair.lease, holder }
}

#[cfg(test)]
mod tests;
