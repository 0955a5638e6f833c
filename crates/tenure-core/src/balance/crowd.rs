//! The nodes that take tasks, and how many each has.
//!
//! Kept up to date change by change, because a node asks for the least loaded one at every offer.
//!
//! **Invariant**: `total` is the sum over `nodes`, and each order holds every node once, with its present load.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Add, Sub};

use crate::name::{NodeId, TaskId};
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
    pub const fn by(self, measure: Measure) -> u64 {
        match measure {
            Measure::Tasks => self.tasks,
            Measure::Weight => self.weight,
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

/// By what loads are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// By the number of tasks.
    Tasks,
    /// By what they weigh.
    Weight,
}

/// The nodes that take tasks. One with no tasks is one of them.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    nodes: BTreeMap<NodeId, Load>,
    by_tasks: BTreeSet<(u64, NodeId)>,
    by_weight: BTreeSet<(u64, NodeId)>,
    total: Load,
    arrivals: u64,
    arrived_at: Moment,
}

impl Crowd {
    /// Nobody.
    pub fn new() -> Crowd {
        Crowd::default()
    }

    /// This node takes tasks and has this much; new or not.
    pub fn set(&mut self, node: &NodeId, load: Load, now: Moment) {
        match self.nodes.get_mut(node) {
            Some(before) if *before == load => return,
            Some(before) => {
                let before = std::mem::replace(before, load);
                self.forget(node, before);
            }
            None => {
                self.nodes.insert(node.clone(), load);
                (self.arrivals, self.arrived_at) = (self.arrivals + 1, now);
            }
        }
        self.by_tasks.insert((load.tasks, node.clone()));
        self.by_weight.insert((load.weight, node.clone()));
        self.total = self.total + load;
    }

    /// This node takes no tasks any more.
    pub fn remove(&mut self, node: &NodeId) {
        if let Some(before) = self.nodes.remove(node) {
            self.forget(node, before);
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
        self.nodes.get(node).copied()
    }

    /// How many nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nobody takes tasks.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, Load)> {
        self.nodes.iter().map(|(node, load)| (node, *load))
    }

    /// What all of them have together.
    pub fn total(&self) -> Load {
        self.total
    }

    /// How often a node came to take tasks: whoever remembers that nobody else wanted a task asks again when this has grown.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// When the last of them came. Before that nothing waited for it.
    pub fn arrived_at(&self) -> Moment {
        self.arrived_at
    }

    /// What the least loaded of the others has; none if there are no others.
    pub fn least_of_others(&self, me: &NodeId, measure: Measure) -> Option<u64> {
        let order = match measure {
            Measure::Tasks => &self.by_tasks,
            Measure::Weight => &self.by_weight,
        };
        order.iter().find(|(_, node)| node != me).map(|(load, _)| *load)
    }

    /// How many more of so many tasks a node takes that wants an equal share, by number.
    ///
    /// It takes up to the floor of the mean, and the one beyond it only if nobody has less.
    pub fn room(&self, node: &NodeId, pool: u64) -> u64 {
        let Some(load) = self.nodes.get(node) else { return 0 };
        let nodes = self.nodes.len() as u64;
        let below = (pool / nodes).saturating_sub(load.tasks);
        let is_least = || self.by_tasks.first().is_none_or(|(least, _)| *least >= load.tasks);
        if below == 0 && load.tasks < pool.div_ceil(nodes) && is_least() { 1 } else { below }
    }

    /// How many of the others come before a node for a task, computed alike by everybody: 0 if it is meant.
    pub fn rank(&self, node: &NodeId, task: &TaskId) -> usize {
        let key = task.as_str().as_bytes();
        rendezvous::rank_of(key, node.as_str().as_bytes(), self.nodes.keys().map(NodeId::as_str))
    }

    /// The node that is meant to have a task; none if nobody takes tasks.
    pub fn meant(&self, task: &TaskId) -> Option<&NodeId> {
        let names = self.nodes.keys().map(Named);
        rendezvous::pick(task.as_str().as_bytes(), names).map(|named| named.0)
    }
}

/// A node as a candidate.
struct Named<'a>(&'a NodeId);

impl AsRef<[u8]> for Named<'_> {
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
            let mut crowd = Crowd::new();
            for (n, load) in changes {
                match load {
                    Some((tasks, weight)) => crowd.set(&node(n), Load { tasks, weight }, Moment::ORIGIN),
                    None => crowd.remove(&node(n)),
                }
                let total = crowd.iter().fold(Load::default(), |sum, (_, load)| sum + load);
                prop_assert_eq!(crowd.total(), total);
                prop_assert_eq!((crowd.by_tasks.len(), crowd.by_weight.len()), (crowd.len(), crowd.len()));
                for me in 0..5 {
                    for measure in [Measure::Tasks, Measure::Weight] {
                        let others = crowd.iter().filter(|(other, _)| **other != node(me));
                        let least = others.map(|(_, load)| load.by(measure)).min();
                        prop_assert_eq!(crowd.least_of_others(&node(me), measure), least);
                    }
                }
            }
        }
    }

    #[test]
    fn who_is_meant_has_rank_0() {
        let mut crowd = Crowd::new();
        for n in 0..7 {
            crowd.set(&node(n), Load::default(), Moment::ORIGIN);
        }
        for n in 0..100 {
            let task = TaskId::parse(&format!("t{n}")).unwrap();
            let meant = crowd.meant(&task).unwrap();
            assert_eq!(crowd.rank(meant, &task), 0);
            let mut ranks: Vec<usize> = crowd.iter().map(|(node, _)| crowd.rank(node, &task)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6]);
        }
    }
}
