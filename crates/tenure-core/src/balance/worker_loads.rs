//! The workers that take tasks, and the load of each.
//!
//! Updated change by change, because a balancer needs the least loaded worker for each claimable
//! task.
//!
//! **Invariant**: `total` is the sum over `nodes`, and each index holds every worker once, with its
//! present load.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Add, Sub};

use super::class::{Class, Profile, Profiles};
use crate::id::{NodeId, TaskId};
use crate::record::{AcceptedTasks, MemberRecord};
use crate::rendezvous;
use crate::time::Moment;

/// A number of tasks and their weight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Load {
    /// The number of tasks.
    pub tasks: u64,
    /// The sum of their weights.
    pub weight: u64,
}

impl Load {
    /// The load of one task.
    pub const fn of_one(weight: u64) -> Load {
        Load { tasks: 1, weight }
    }

    /// The load by one metric.
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

/// The metric by which loads are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadMetric {
    /// By the number of tasks.
    Tasks,
    /// By the sum of their weights.
    Weight,
}

/// The workers that take tasks, including those that own none.
#[derive(Clone, Debug, Default)]
pub struct WorkerLoads {
    nodes: BTreeMap<NodeId, WorkerLoad>,
    by_tasks: BTreeSet<(u64, NodeId)>,
    by_weight: BTreeSet<(u64, NodeId)>,
    /// Workers with a limit, the smallest first: the order in which a rising water level passes
    /// them.
    by_limit: BTreeSet<(u64, NodeId)>,
    profiles: Profiles,
    total: Load,
    arrivals: u64,
    arrived_at: Moment,
}

/// One worker.
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

/// What a worker can take.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerTerms {
    /// The tasks that it accepts.
    pub accepts: AcceptedTasks,
    /// How many it can own in all. `None` for no limit.
    pub limit: Option<u64>,
}

impl WorkerTerms {
    /// The terms that a worker's record publishes. Parked tasks use no capacity, so it can own that
    /// many more. A worker of version 0.1 publishes no terms, and accepts everything.
    pub fn of(record: &MemberRecord) -> WorkerTerms {
        let parked = record.load.map_or(0, |load| load.parked);
        WorkerTerms {
            accepts: record.accepts.clone().unwrap_or_default(),
            limit: record.capacity.map(|capacity| capacity.saturating_add(parked)),
        }
    }
}

impl WorkerLoads {
    /// No workers.
    pub fn new() -> WorkerLoads {
        WorkerLoads::default()
    }

    /// Sets the load of a worker that takes tasks. A new worker accepts everything until
    /// [`WorkerLoads::set_terms`].
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

    /// Sets the terms of a worker. Returns whether it now accepts other tasks than before.
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

    /// Removes a worker that takes no tasks any more.
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

    /// Whether a worker takes tasks.
    pub fn contains(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node)
    }

    /// The load of a worker. `None` if it takes no tasks.
    pub fn load(&self, node: &NodeId) -> Option<Load> {
        self.nodes.get(node).map(|peer| peer.load)
    }

    /// How many workers there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, Load)> {
        self.nodes.iter().map(|(node, peer)| (node, peer.load))
    }

    /// The sum of their loads.
    pub fn total(&self) -> Load {
        self.total
    }

    /// What the workers accept, in the order of the bits of a [`Class`].
    pub fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    /// How often a worker has joined them. A balancer that remembers that no peer took a task
    /// decides again when this has grown.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// When the last of them joined. Before that no task waited for it.
    pub fn arrived_at(&self) -> Moment {
        self.arrived_at
    }

    /// Whether a worker accepts the tasks of a class.
    pub fn accepts(&self, node: &NodeId, class: Class) -> bool {
        self.nodes.get(node).is_some_and(|peer| class.has(peer.profile))
    }

    /// The class of tasks that exactly the workers with the profile of this one accept.
    pub fn class_of_peer(&self, node: &NodeId) -> Class {
        self.nodes.get(node).map_or(Class::ANY, |peer| Class::only(peer.profile))
    }

    /// How many workers accept the tasks of a class.
    pub fn acceptors(&self, class: Class) -> usize {
        self.profiles.count(class)
    }

    /// How many more tasks of a class the peers have room for. `None` for no limit.
    pub fn room_of_others(&self, me: &NodeId, class: Class) -> Option<u64> {
        let others = self.nodes.iter().filter(|(node, peer)| *node != me && class.has(peer.profile));
        others
            .map(|(_, peer)| peer.limit.map(|limit| limit.saturating_sub(peer.load.tasks)))
            .try_fold(0_u64, |sum, room| Some(sum.saturating_add(room?)))
    }

    /// The peers that accept a class and have room, with their loads and how many more tasks each
    /// can take; the least loaded first.
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

    /// The load of the least loaded peer that accepts a class and has room. `None` if there is no
    /// such peer.
    pub fn least_of_others(&self, me: &NodeId, measure: LoadMetric, class: Class) -> Option<u64> {
        self.takers(me, measure, class).next().map(|(_, load, _)| load.by(measure))
    }

    /// How full each worker that accepts a class would be if all of them were equally full, as far
    /// as their limits allow, with this unowned load.
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
                    // Every later worker has a larger limit, so none of them stays below the level
                    // either.
                    LoadMetric::Tasks if limit.saturating_mul(nodes) > rest.tasks => break,
                    LoadMetric::Tasks => {
                        rest = rest - Load { tasks: limit, weight: 0 };
                        nodes -= 1;
                    }
                    // A limit bounds the number of tasks and not their weight: a full worker keeps
                    // its tasks.
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

    /// The quota of a worker at a level, by number of tasks or by weight.
    pub fn quota(&self, node: &NodeId, level: Level, measure: LoadMetric) -> u64 {
        let limit = self.nodes.get(node).and_then(|peer| peer.limit);
        match (measure, limit) {
            (LoadMetric::Tasks, Some(limit)) => level.ceiling.min(limit).max(1),
            (LoadMetric::Tasks | LoadMetric::Weight, _) => level.ceiling.max(1),
        }
    }

    /// How many more tasks of a class a worker claims to reach its share of the level, by number.
    ///
    /// It claims up to the floor, and the one beyond it only if no worker with room owns less. A
    /// worker that does not accept the class claims none.
    pub fn room(&self, node: &NodeId, class: Class, level: Level) -> u64 {
        let Some(peer) = self.nodes.get(node).filter(|peer| class.has(peer.profile)) else { return 0 };
        let tasks = peer.load.tasks;
        let below = level.floor.min(peer.limit.unwrap_or(u64::MAX)).saturating_sub(tasks);
        let is_least =
            || self.least_of_others(node, LoadMetric::Tasks, class).is_none_or(|least| least >= tasks);
        if below == 0 && peer.has_room() && tasks < level.ceiling && is_least() { 1 } else { below }
    }

    /// How many peers rank before a worker for a task. All workers compute the same result; 0 for
    /// the first.
    pub fn rank(&self, node: &NodeId, task: &TaskId) -> usize {
        let key = task.as_str().as_bytes();
        rendezvous::rank_of(key, node.as_str().as_bytes(), self.nodes.keys().map(NodeId::as_str))
    }

    /// The worker that rendezvous hashing names for a task, of those that accept its class and have
    /// room, or own it.
    pub fn meant(&self, task: &TaskId, class: Class, owner: Option<&NodeId>) -> Option<&NodeId> {
        let able = self
            .nodes
            .iter()
            .filter(|(node, peer)| class.has(peer.profile) && (peer.has_room() || Some(*node) == owner));
        let names = able.map(|(node, _)| NamedLoad(node));
        rendezvous::pick(task.as_str().as_bytes(), names).map(|named| named.0)
    }
}

/// How full the workers would be with equal shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// The mean, rounded down.
    pub floor: u64,
    /// The mean, rounded up.
    pub ceiling: u64,
}

/// A worker as a candidate of rendezvous hashing.
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
        fn sums_match_after_any_change(
            changes in prop::collection::vec((0..5_usize, prop::option::of((0..9_u64, 0..9_u64))), 0..60)
        ) {
            let mut workers = WorkerLoads::new();
            for (n, load) in changes {
                match load {
                    Some((tasks, weight)) => workers.set(&node(n), Load { tasks, weight }, Moment::ORIGIN),
                    None => workers.remove(&node(n)),
                }
                let total = workers.iter().fold(Load::default(), |sum, (_, load)| sum + load);
                prop_assert_eq!(workers.total(), total);
                prop_assert_eq!((workers.by_tasks.len(), workers.by_weight.len()), (workers.len(), workers.len()));
                for me in 0..5 {
                    for measure in [LoadMetric::Tasks, LoadMetric::Weight] {
                        let others = workers.iter().filter(|(other, _)| **other != node(me));
                        let least = others.map(|(_, load)| load.by(measure)).min();
                        prop_assert_eq!(workers.least_of_others(&node(me), measure, Class::ANY), least);
                    }
                }
            }
        }
    }

    #[test]
    fn first_by_hash_has_rank_0() {
        let mut workers = WorkerLoads::new();
        for n in 0..7 {
            workers.set(&node(n), Load::default(), Moment::ORIGIN);
        }
        for n in 0..100 {
            let task = TaskId::parse(&format!("t{n}")).unwrap();
            let meant = workers.meant(&task, Class::ANY, None).unwrap();
            assert_eq!(workers.rank(meant, &task), 0);
            let mut ranks: Vec<usize> = workers.iter().map(|(node, _)| workers.rank(node, &task)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6]);
        }
    }
}
