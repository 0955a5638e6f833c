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
    unowned: Load,
    loads: Shares,
    live: usize,
    set_aside: BTreeSet<TaskId>,
    /// Tasks that have props, also such as are not there.
    with_props: BTreeSet<TaskId>,
    /// What was seen since the last whole picture, in that order.
    pending: Vec<(TaskId, Word)>,
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

/// How much each node owns.
#[derive(Clone, Debug, Default)]
struct Shares {
    by_node: BTreeMap<NodeId, Load>,
    /// Nodes whose load is another than when that was last asked.
    shifted: BTreeSet<NodeId>,
}

impl Shares {
    fn add(&mut self, node: &NodeId, load: Load) {
        match self.by_node.get_mut(node) {
            Some(owned) => *owned = *owned + load,
            None => drop(self.by_node.insert(node.clone(), load)),
        }
        self.shift(node);
    }

    fn sub(&mut self, node: &NodeId, load: Load) {
        let Some(owned) = self.by_node.get_mut(node) else { return };
        *owned = *owned - load;
        if owned.tasks == 0 {
            self.by_node.remove(node);
        }
        self.shift(node);
    }

    /// Lets an owner's name be the one that is known: a hundred thousand tasks would keep a hundred thousand copies of a few names.
    fn share_name(&self, owner: &mut Owner) {
        if let Ok(record) = &mut owner.holder
            && let Some((known, _)) = self.by_node.get_key_value(&record.node)
        {
            record.node = known.clone();
        }
    }

    fn shift(&mut self, node: &NodeId) {
        if !self.shifted.contains(node) {
            self.shifted.insert(node.clone());
        }
    }
}

/// What was seen of one key of a task.
#[derive(Clone, Debug)]
enum Word {
    /// Apart, because it is much larger than the others and seldom there.
    Task(Box<Seen<Card>>),
    Owner(Seen<Owner>),
    Props(Seen<()>),
}

/// The newest words about the keys of a task.
#[derive(Clone, Debug, Default)]
struct Pending {
    task: Option<Box<Seen<Card>>>,
    owner: Option<Seen<Owner>>,
    props: Option<Seen<()>>,
}

impl Pending {
    fn hear(&mut self, word: Word) {
        match word {
            Word::Task(seen) => self.task = Some(seen),
            Word::Owner(seen) => self.owner = Some(seen),
            Word::Props(seen) => self.props = Some(seen),
        }
    }
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
            unowned: Load::default(),
            loads: Shares::default(),
            live: 0,
            set_aside: BTreeSet::new(),
            with_props: BTreeSet::new(),
            pending: Vec::new(),
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
                    self.pending.push((task, Word::Task(Box::new(Seen::Here(read_card(&pair))))));
                }
                Some(Key::TaskOwner(task)) => {
                    let mut owner = read_owner(&pair);
                    self.loads.share_name(&mut owner);
                    self.pending.push((task, Word::Owner(Seen::Here(owner))));
                }
                // What they say is read with the claim.
                Some(Key::TaskProps(task)) => self.pending.push((task, Word::Props(Seen::Here(())))),
                // A foreign key concerns nobody.
                Some(_) | None => {}
            },
            FeedItem::Delete { key, .. } => match self.layout.parse(&key) {
                Some(Key::Task(task)) => self.pending.push((task, Word::Task(Box::new(Seen::Gone)))),
                Some(Key::TaskOwner(task)) => self.pending.push((task, Word::Owner(Seen::Gone))),
                Some(Key::TaskProps(task)) => self.pending.push((task, Word::Props(Seen::Gone))),
                Some(_) | None => {}
            },
            FeedItem::Whole(revision) => {
                let mut words = std::mem::take(&mut self.pending);
                // Stable, so that the newest word about a key stays the last; and what comes in key order is in order already.
                words.sort_by(|(one, _), (other, _)| one.cmp(other));
                let mut words = words.into_iter().peekable();
                while let Some((task, word)) = words.next() {
                    let mut pending = Pending::default();
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

    /// How much each node owns; nodes that own nothing are not in it.
    pub fn loads(&self) -> &BTreeMap<NodeId, Load> {
        &self.loads.by_node
    }

    /// How much a node owns.
    pub fn load_of(&self, node: &NodeId) -> Load {
        self.loads.by_node.get(node).copied().unwrap_or_default()
    }

    /// The nodes whose loads are others than when this was last asked.
    pub fn take_shifted(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.loads.shifted)
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

    fn apply(&mut self, task: TaskId, mut pending: Pending, told: &mut impl Extend<BoardChange>) {
        match pending.props.take() {
            Some(Seen::Here(())) => drop(self.with_props.insert(task.clone())),
            Some(Seen::Gone) => drop(self.with_props.remove(&task)),
            None => {}
        }
        let pending = match pending {
            Pending { task: None, owner: None, .. } => return,
            Pending { task: None, owner: Some(seen), .. } => match self.apply_owner(&task, seen, told) {
                None => return,
                owner => Pending { owner, ..Pending::default() },
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
            Some(Seen::Here(owner)) => owner_before.as_ref() != Some(owner),
            Some(Seen::Gone) | None => false,
        };
        let owner = Seen::over(pending.owner, owner_before);
        let card = Seen::over(pending.task.map(|seen| *seen), before);

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
        seen: Seen<Owner>,
        told: &mut impl Extend<BoardChange>,
    ) -> Option<Seen<Owner>> {
        let Some(card) = self.tasks.get_mut(task) else { return Some(seen) };
        let (load, was_unowned) = (Load::of_one(card.weight()), card.is_unowned());
        let before = match seen {
            Seen::Here(owner) => card.owner.replace(owner),
            Seen::Gone => card.owner.take(),
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
            (true, false) => self.unowned = self.unowned - load,
            (false, true) => {
                self.unowned = self.unowned + load;
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
        }
        if let Some(node) = card.owner.as_ref().and_then(Owner::node) {
            self.loads.sub(node, load);
        }
        Some(card)
    }

    fn post(&mut self, task: TaskId, card: Card) {
        self.live += usize::from(card.is_live());
        let load = Load::of_one(card.weight());
        if card.is_unowned() {
            self.unowned = self.unowned + load;
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
