//! The nodes that take tasks, and how many each has.
//!
//! Kept up to date change by change, because a node asks for the least loaded one at every offer.
//!
//! **Invariant**: `total` is the sum over `nodes`, and each order holds every node once, with its present load.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Add, Sub};

use super::class::{Class, Profile, Profiles};
use crate::id::{NodeId, TaskId};
use crate::record::{AcceptedTasks, MemberRecord};
use crate::rendezvous;
use crate::time::Moment;

/// How much work there is somewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Load {
    /// How many tasks.
    pub tasks: u64,
    /// What they weigh together.
    pub weight: u64,
}

impl Load {
    /// The load of one task.
    pub const fn of_one(weight: u64) -> Load {
        Load { tasks: 1, weight }
    }

    /// The number that is meant.
    pub const fn by(self, measure: LoadMetric) -> u64 {
        match measure {
            LoadMetric::Tasks => self.tasks,
            LoadMetric::Weight => self.weight,
        }
    }
}

impl Add for Load {
    type Output = Load;

    fn add(self, other: Load) -> Load {
        Load {
            tasks: self.tasks.saturating_add(other.tasks),
            weight: self.weight.saturating_add(other.weight),
        }
    }
}

impl Sub for Load {
    type Output = Load;

    fn sub(self, other: Load) -> Load {
        Load {
            tasks: self.tasks.saturating_sub(other.tasks),
            weight: self.weight.saturating_sub(other.weight),
        }
    }
}

/// By what cluster are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadMetric {
    /// By the number of tasks.
    Tasks,
    /// By what they weigh.
    Weight,
}

/// The nodes that take tasks. One with no tasks is one of them.
#[derive(Clone, Debug, Default)]
pub struct WorkerLoads {
    nodes: BTreeMap<NodeId, WorkerLoad>,
    by_tasks: BTreeSet<(u64, NodeId)>,
    by_weight: BTreeSet<(u64, NodeId)>,
    /// Nodes with a limit, the smallest first: the order in which a rising water level passes them.
    by_limit: BTreeSet<(u64, NodeId)>,
    profiles: Profiles,
    total: Load,
    arrivals: u64,
    arrived_at: Moment,
}

/// One node of a crowd.
#[derive(Clone, Copy, Debug)]
struct WorkerLoad {
    load: Load,
    profile: Profile,
    limit: Option<u64>,
}

impl WorkerLoad {
    fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.load.tasks < limit)
    }
}

/// What a node can take.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerTerms {
    /// Which tasks.
    pub accepts: AcceptedTasks,
    /// How many it can own in all; none for no limit.
    pub limit: Option<u64>,
}

impl WorkerTerms {
    /// What a node's record publishes. Parked tasks use no capacity, so it can own that many more. A node that publishes nothing, as those of
    /// version 0.1, accepts everything.
    pub fn of(record: &MemberRecord) -> WorkerTerms {
        let parked = record.load.map_or(0, |load| load.parked);
        WorkerTerms {
            accepts: record.accepts.clone().unwrap_or_default(),
            limit: record.capacity.map(|capacity| capacity.saturating_add(parked)),
        }
    }
}

impl WorkerLoads {
    /// No nodes.
    pub fn new() -> WorkerLoads {
        WorkerLoads::default()
    }

    /// This node takes tasks and has this much; new or not. A new one accepts everything until [`WorkerLoads::set_terms`].
    pub fn set(&mut self, node: &NodeId, load: Load, now: Moment) {
        match self.nodes.get_mut(node) {
            Some(peer) if peer.load == load => return,
            Some(peer) => {
                let before = std::mem::replace(&mut peer.load, load);
                let profile = peer.profile;
                self.forget(node, before);
                self.profiles.shift(profile, before, load);
            }
            None => {
                let profile = self.profiles.enter(&AcceptedTasks::default(), load);
                self.nodes.insert(node.clone(), WorkerLoad { load, profile, limit: None });
                (self.arrivals, self.arrived_at) = (self.arrivals + 1, now);
            }
        }
        self.by_tasks.insert((load.tasks, node.clone()));
        self.by_weight.insert((load.weight, node.clone()));
        self.total = self.total + load;
    }

    /// What a node of the crowd can take. Returns whether it now accepts other tasks than before.
    pub fn set_terms(&mut self, node: &NodeId, terms: &WorkerTerms) -> bool {
        let Some(peer) = self.nodes.get_mut(node) else { return false };
        if peer.limit != terms.limit {
            if let Some(before) = peer.limit {
                self.by_limit.remove(&(before, node.clone()));
            }
            if let Some(limit) = terms.limit {
                self.by_limit.insert((limit, node.clone()));
            }
            self.profiles.limit(peer.profile, peer.limit.is_some(), terms.limit.is_some());
            peer.limit = terms.limit;
        }
        if *self.profiles.wanted(peer.profile) == terms.accepts {
            return false;
        }
        let is_limited = peer.limit.is_some();
        self.profiles.limit(peer.profile, is_limited, false);
        self.profiles.leave(peer.profile, peer.load);
        peer.profile = self.profiles.enter(&terms.accepts, peer.load);
        self.profiles.limit(peer.profile, false, is_limited);
        true
    }

    /// This node takes no tasks any more.
    pub fn remove(&mut self, node: &NodeId) {
        self.set_terms(node, &WorkerTerms::default());
        if let Some(before) = self.nodes.remove(node) {
            self.profiles.leave(before.profile, before.load);
            self.forget(node, before.load);
        }
    }

    fn forget(&mut self, node: &NodeId, load: Load) {
        self.by_tasks.remove(&(load.tasks, node.clone()));
        self.by_weight.remove(&(load.weight, node.clone()));
        self.total = self.total - load;
    }

    /// Whether this node takes tasks.
    pub fn contains(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node)
    }

    /// What a node has; none if it takes no tasks.
    pub fn load(&self, node: &NodeId) -> Option<Load> {
        self.nodes.get(node).map(|peer| peer.load)
    }

    /// How many nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, Load)> {
        self.nodes.iter().map(|(node, peer)| (node, peer.load))
    }

    /// What all of them have together.
    pub fn total(&self) -> Load {
        self.total
    }

    /// What the nodes accept, in the order of the bits of a [`Class`].
    pub fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    /// How often a node came to take tasks: a balancer that remembers that no peer took a task asks again when this has grown.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// When the last of them came. Before that nothing waited for it.
    pub fn arrived_at(&self) -> Moment {
        self.arrived_at
    }

    /// Whether a node accepts tasks of a class.
    pub fn accepts(&self, node: &NodeId, class: Class) -> bool {
        self.nodes.get(node).is_some_and(|peer| class.has(peer.profile))
    }

    /// Tasks that are accepted by nodes that accept what this one does, and by no others.
    pub fn class_of_peer(&self, node: &NodeId) -> Class {
        self.nodes.get(node).map_or(Class::ANY, |peer| Class::only(peer.profile))
    }

    /// How many nodes accept tasks of a class.
    pub fn acceptors(&self, class: Class) -> usize {
        self.profiles.count(class)
    }

    /// How many more tasks of a class the other nodes have room for; none for no limit.
    pub fn room_of_others(&self, me: &NodeId, class: Class) -> Option<u64> {
        let others = self.nodes.iter().filter(|(node, peer)| *node != me && class.has(peer.profile));
        others
            .map(|(_, peer)| peer.limit.map(|limit| limit.saturating_sub(peer.load.tasks)))
            .try_fold(0_u64, |sum, room| Some(sum.saturating_add(room?)))
    }

    /// The other nodes that accept tasks of a class and have room, with their cluster and how many more each can take; the least loaded first.
    pub fn takers<'a>(
        &'a self,
        me: &'a NodeId,
        measure: LoadMetric,
        class: Class,
    ) -> impl Iterator<Item = (&'a NodeId, Load, Option<u64>)> {
        let order = match measure {
            LoadMetric::Tasks => &self.by_tasks,
            LoadMetric::Weight => &self.by_weight,
        };
        order.iter().filter(move |(_, node)| node != me).filter_map(move |(_, node)| {
            let peer = self.nodes.get(node).filter(|peer| class.has(peer.profile) && peer.has_room())?;
            Some((node, peer.load, peer.limit.map(|limit| limit - peer.load.tasks)))
        })
    }

    /// What the least loaded of the others has that accept a class and have room; none if there are none.
    pub fn least_of_others(&self, me: &NodeId, measure: LoadMetric, class: Class) -> Option<u64> {
        self.takers(me, measure, class).next().map(|(_, load, _)| load.by(measure))
    }

    /// How full each node that accepts a class would be if all of them were equally full, as far as their limits allow, with so much that no
    /// node owns.
    pub fn level(&self, class: Class, unowned: Load, measure: LoadMetric) -> Level {
        let mut nodes = self.profiles.count(class) as u64;
        let mut rest = self.profiles.total(class) + unowned;
        if self.profiles.has_limits(class) {
            let limited = self.by_limit.iter().filter_map(|(limit, node)| {
                let peer = self.nodes.get(node).filter(|peer| class.has(peer.profile))?;
                Some((*limit, peer))
            });
            for (limit, peer) in limited {
                match measure {
                    // Every later node has a larger limit, so none of them stays below the level either.
                    LoadMetric::Tasks if limit.saturating_mul(nodes) > rest.tasks => break,
                    LoadMetric::Tasks => {
                        rest = rest - Load { tasks: limit, weight: 0 };
                        nodes -= 1;
                    }
                    // A limit says nothing about weight: a full node keeps what it has.
                    LoadMetric::Weight if peer.has_room() => {}
                    LoadMetric::Weight => {
                        rest = rest - peer.load;
                        nodes -= 1;
                    }
                }
            }
        }
        let rest = rest.by(measure);
        match nodes {
            0 => Level { floor: u64::MAX, ceiling: u64::MAX },
            nodes => Level { floor: rest / nodes, ceiling: rest.div_ceil(nodes) },
        }
    }

    /// What a node should have at most at a level, by the number of tasks or by weight.
    pub fn quota(&self, node: &NodeId, level: Level, measure: LoadMetric) -> u64 {
        let limit = self.nodes.get(node).and_then(|peer| peer.limit);
        match (measure, limit) {
            (LoadMetric::Tasks, Some(limit)) => level.ceiling.min(limit).max(1),
            (LoadMetric::Tasks | LoadMetric::Weight, _) => level.ceiling.max(1),
        }
    }

    /// How many more tasks of a class a node takes that wants its share of the level, by number.
    ///
    /// It takes up to the floor, and the one beyond it only if no node with room has less. A node that does not accept the class takes none.
    pub fn room(&self, node: &NodeId, class: Class, level: Level) -> u64 {
        let Some(peer) = self.nodes.get(node).filter(|peer| class.has(peer.profile)) else { return 0 };
        let tasks = peer.load.tasks;
        let below = level.floor.min(peer.limit.unwrap_or(u64::MAX)).saturating_sub(tasks);
        let is_least =
            || self.least_of_others(node, LoadMetric::Tasks, class).is_none_or(|least| least >= tasks);
        if below == 0 && peer.has_room() && tasks < level.ceiling && is_least() { 1 } else { below }
    }

    /// How many of the others come before a node for a task, computed alike by everybody: 0 if it is meant.
    pub fn rank(&self, node: &NodeId, task: &TaskId) -> usize {
        let key = task.as_str().as_bytes();
        rendezvous::rank_of(key, node.as_str().as_bytes(), self.nodes.keys().map(NodeId::as_str))
    }

    /// The node that is meant to have a task: of those that accept its class and have room, and of the one that owns it.
    pub fn meant(&self, task: &TaskId, class: Class, owner: Option<&NodeId>) -> Option<&NodeId> {
        let able = self
            .nodes
            .iter()
            .filter(|(node, peer)| class.has(peer.profile) && (peer.has_room() || Some(*node) == owner));
        let names = able.map(|(node, _)| NamedLoad(node));
        rendezvous::pick(task.as_str().as_bytes(), names).map(|named| named.0)
    }
}

/// How full nodes would be if they shared equally.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// The mean, rounded down.
    pub floor: u64,
    /// The mean, rounded up.
    pub ceiling: u64,
}

/// A node as a candidate.
struct NamedLoad<'a>(&'a NodeId);

impl AsRef<[u8]> for NamedLoad<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_str().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(n: usize) -> NodeId {
        NodeId::parse(&format!("n{n}")).unwrap()
    }

    proptest! {
        #[test]
        fn whatever_changes_the_numbers_are_those_of_the_nodes(
            changes in prop::collection::vec((0..5_usize, prop::option::of((0..9_u64, 0..9_u64))), 0..60)
        ) {
            let mut crowd = WorkerLoads::new();
            for (n, load) in changes {
                match load {
                    Some((tasks, weight)) => crowd.set(&node(n), Load { tasks, weight }, Moment::ORIGIN),
                    None => crowd.remove(&node(n)),
                }
                let total = crowd.iter().fold(Load::default(), |sum, (_, load)| sum + load);
                prop_assert_eq!(crowd.total(), total);
                prop_assert_eq!((crowd.by_tasks.len(), crowd.by_weight.len()), (crowd.len(), crowd.len()));
                for me in 0..5 {
                    for measure in [LoadMetric::Tasks, LoadMetric::Weight] {
                        let others = crowd.iter().filter(|(other, _)| **other != node(me));
                        let least = others.map(|(_, load)| load.by(measure)).min();
                        prop_assert_eq!(crowd.least_of_others(&node(me), measure, Class::ANY), least);
                    }
                }
            }
        }
    }

    #[test]
    fn who_is_meant_has_rank_0() {
        let mut crowd = WorkerLoads::new();
        for n in 0..7 {
            crowd.set(&node(n), Load::default(), Moment::ORIGIN);
        }
        for n in 0..100 {
            let task = TaskId::parse(&format!("t{n}")).unwrap();
            let meant = crowd.meant(&task, Class::ANY, None).unwrap();
            assert_eq!(crowd.rank(meant, &task), 0);
            let mut ranks: Vec<usize> = crowd.iter().map(|(node, _)| crowd.rank(node, &task)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6]);
        }
    }
}
