//! The state of a namespace at one revision: members, tasks, locks and elections, as an operator or a dashboard sees them.
//!
//! [`ClusterFold`] interprets keys; a driver reads them. The driver decides nothing but the revision: [`ClusterPart::reads`] lists what it has to
//! read for each part, and the fold takes the pages in any order.
//!
//! **Invariant**: all keys that a fold takes are as they were at its revision, so two parts of one snapshot never contradict each other.
//!
//! **Invariant**: a key that cannot be read is reported with the reason and never with its value, and it hides no other key.

mod queues;

use std::collections::{BTreeMap, BTreeSet};

use crate::board::{Board, Owner, read_owner};
use crate::id::{NodeId, TaskId};
use crate::kv::{KeyValue, Selection};
use crate::layout::{Key, Layout};
use crate::presence::{NodePresence, PresenceSet, PresenceSnapshot};
use crate::record::{FrozenRecord, MemberRecord, MemberState, Record};
use crate::revision::Revision;
use crate::snapshot::FeedItem;
use crate::task::StateRecord;
use crate::time::Moment;

pub use queues::{Candidate, ElectionSnapshot, Holder, Leader, LockSnapshot, elections_in, locks_in};

/// A part of the state of a namespace. Reading one costs nothing for the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ClusterPart {
    /// The members, the frozen nodes, and how many commands each node has not handled.
    Members,
    /// The tasks and the worker that owns each, without records and props.
    Owners,
    /// The tasks with their records and owners.
    Tasks,
    /// The stored states of these tasks.
    States,
    /// The locks with their holders and waiters.
    Locks,
    /// The elections with their leaders and candidates.
    Elections,
}

impl ClusterPart {
    /// All parts.
    pub const ALL: [ClusterPart; 6] = [
        ClusterPart::Members,
        ClusterPart::Owners,
        ClusterPart::Tasks,
        ClusterPart::States,
        ClusterPart::Locks,
        ClusterPart::Elections,
    ];

    /// The keys to read with their values. [`ClusterPart::States`] is read by [`ClusterFold::state_keys`], [`ClusterPart::Owners`] by
    /// [`ClusterFold::handle_task_keys`].
    pub fn reads(self, layout: &Layout) -> Vec<Selection> {
        match self {
            ClusterPart::Members => vec![layout.nodes(), layout.frozen()],
            ClusterPart::Tasks => vec![layout.tasks()],
            ClusterPart::Owners | ClusterPart::States => Vec::new(),
            ClusterPart::Locks => vec![layout.locks()],
            ClusterPart::Elections => vec![layout.elections()],
        }
    }
}

/// The state of a namespace at one revision. A part that was not read is empty: see
/// [`ClusterSnapshot::parts`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterSnapshot {
    /// The revision.
    pub revision: Revision,
    /// What was read.
    pub parts: BTreeSet<ClusterPart>,
    /// The members, and the node keys that cannot be read.
    pub members: PresenceSnapshot<NodeId, MemberRecord>,
    /// The nodes that take no new tasks, also those that are not alive.
    pub frozen: BTreeMap<NodeId, FrozenRecord>,
    /// How many commands each node has not handled, also for those that are not alive.
    pub pending_commands: BTreeMap<NodeId, usize>,
    /// The owner of each task that has one.
    pub owners: BTreeMap<TaskId, Owner>,
    /// The tasks.
    pub tasks: Board,
    /// The states of the tasks that have a stored one; or why it cannot be read.
    pub states: BTreeMap<TaskId, Result<StateRecord, String>>,
    /// The locks that have a holder or a waiter, by name.
    pub locks: Vec<LockSnapshot>,
    /// The elections that have a candidate, by name.
    pub elections: Vec<ElectionSnapshot>,
}

impl ClusterSnapshot {
    /// Whether a node is a member that takes new tasks.
    pub fn takes_tasks(&self, node: &NodeId) -> bool {
        let is_ready = |member: &MemberRecord| member.state == MemberState::Ready;
        !self.frozen.contains_key(node) && self.members.get(node).is_some_and(|one| is_ready(&one.record))
    }

    /// How many tasks each node owns. Nodes that own none are left out.
    pub fn owned(&self) -> BTreeMap<&NodeId, u64> {
        let mut owned = BTreeMap::new();
        for node in self.owners.values().filter_map(Owner::node) {
            *owned.entry(node).or_default() += 1;
        }
        owned
    }

    /// The state of a task. One that nothing is stored for is runnable.
    pub fn state_of(&self, task: &TaskId) -> Result<StateRecord, String> {
        self.states.get(task).cloned().unwrap_or_else(|| Ok(StateRecord::default()))
    }
}

/// Makes a [`ClusterSnapshot`] of keys.
#[derive(Clone, Debug)]
pub struct ClusterFold {
    layout: Layout,
    revision: Revision,
    parts: BTreeSet<ClusterPart>,
    roster: PresenceSet<NodePresence>,
    frozen: BTreeMap<NodeId, FrozenRecord>,
    pending_commands: BTreeMap<NodeId, usize>,
    owners: BTreeMap<TaskId, Owner>,
    /// The tasks that a listing of keys has shown.
    listed: BTreeSet<TaskId>,
    board: Board,
    states: BTreeMap<TaskId, Result<StateRecord, String>>,
    locks: Vec<KeyValue>,
    elections: Vec<KeyValue>,
}

impl ClusterFold {
    /// Takes keys of a namespace as they were at a revision. Selecting states selects the tasks, and selecting tasks their owners.
    pub fn new(
        layout: Layout,
        revision: Revision,
        parts: impl IntoIterator<Item = ClusterPart>,
    ) -> ClusterFold {
        let mut parts: BTreeSet<ClusterPart> = parts.into_iter().collect();
        if parts.contains(&ClusterPart::States) {
            parts.insert(ClusterPart::Tasks);
        }
        ClusterFold {
            roster: PresenceSet::new(NodePresence(layout.clone())),
            board: Board::new(layout.clone()),
            layout,
            revision,
            parts,
            frozen: BTreeMap::new(),
            pending_commands: BTreeMap::new(),
            owners: BTreeMap::new(),
            listed: BTreeSet::new(),
            states: BTreeMap::new(),
            locks: Vec::new(),
            elections: Vec::new(),
        }
    }

    /// The parts to read.
    pub fn parts(&self) -> &BTreeSet<ClusterPart> {
        &self.parts
    }

    /// Takes keys with their values.
    pub fn handle(&mut self, pairs: impl IntoIterator<Item = KeyValue>) {
        for pair in pairs {
            match self.layout.parse(&pair.key) {
                Some(Key::Frozen(node)) => {
                    // That it is there counts; a record that cannot be read names neither the time nor the sender.
                    self.frozen.insert(node, FrozenRecord::decode(&pair.value).unwrap_or_default());
                }
                Some(Key::NodeCommand(node, _)) => *self.pending_commands.entry(node).or_default() += 1,
                Some(Key::Node(_)) => {
                    self.roster.handle_item(FeedItem::Put(pair), Moment::ORIGIN, &mut Vec::new());
                }
                Some(Key::TaskOwner(task)) if !self.parts.contains(&ClusterPart::Tasks) => {
                    self.owners.insert(task, read_owner(&pair));
                }
                Some(Key::Task(_) | Key::TaskProps(_) | Key::TaskOwner(_) | Key::TaskAttempt(..)) => {
                    self.board.handle_item(FeedItem::Put(pair), &mut Vec::new());
                }
                Some(Key::TaskState(task)) => {
                    let state = StateRecord::decode(&pair.value).map_err(|bad| bad.reason());
                    self.states.insert(task, state);
                }
                Some(Key::Waiter(..)) => self.locks.push(pair),
                Some(Key::Candidate(..)) => self.elections.push(pair),
                // A key that the layout does not have concerns no part.
                Some(_) | None => {}
            }
        }
    }

    /// Takes the keys of all tasks without their values, and returns those of the owners: their values are to be read.
    pub fn handle_task_keys(&mut self, pairs: impl IntoIterator<Item = KeyValue>) -> Vec<bytes::Bytes> {
        let mut owners = Vec::new();
        for pair in pairs {
            match self.layout.parse(&pair.key) {
                Some(Key::Task(task)) => drop(self.listed.insert(task)),
                Some(Key::TaskOwner(_)) => owners.push(pair.key),
                Some(_) | None => {}
            }
        }
        owners
    }

    /// The keys of the states of the tasks taken so far. The states of all tasks that ever were may be many more.
    pub fn state_keys(&mut self) -> Vec<bytes::Bytes> {
        self.board.handle_item(FeedItem::Synced(self.revision), &mut Vec::new());
        self.board.tasks().map(|(task, _)| self.layout.encode(&Key::TaskState(task.clone()))).collect()
    }

    /// The snapshot.
    pub fn finish(mut self) -> ClusterSnapshot {
        let revision = self.revision;
        self.roster.handle_item(FeedItem::Synced(revision), Moment::ORIGIN, &mut Vec::new());
        self.board.handle_item(FeedItem::Synced(revision), &mut Vec::new());
        if self.parts.contains(&ClusterPart::Tasks) {
            let owned =
                |(task, card): (&TaskId, &crate::board::Card)| Some((task.clone(), card.owner.clone()?));
            self.owners = self.board.tasks().filter_map(owned).collect();
        } else {
            // The owner of a task that is not there owns nothing.
            self.owners.retain(|task, _| self.listed.contains(task));
        }
        ClusterSnapshot {
            revision,
            parts: self.parts,
            members: self.roster.snapshot().expect("a roster that was made whole has a snapshot"),
            frozen: self.frozen,
            pending_commands: self.pending_commands,
            owners: self.owners,
            tasks: self.board,
            states: self.states,
            locks: locks_in(&self.layout, self.locks, revision).into_values().collect(),
            elections: elections_in(&self.layout, self.elections, revision).into_values().collect(),
        }
    }
}

#[cfg(test)]
mod tests;
