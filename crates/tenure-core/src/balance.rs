//! Who takes which task, and who gives some away.
//!
//! Every node has a balancer of its own and asks it two things: *may I claim this?* for each task that nobody owns, and *what should I give
//! away?* now and then. There is no coordinator: all nodes see the same picture, and each decides for itself. A balancer never waits; it
//! says when to ask again.
//!
//! Nodes ask through [`consider`] and [`planned_releases`], which hold for every balancer, ours and yours: a node does not take back what it has just
//! released while a peer can take it, and it releases nothing that it does not have or that no peer can take. A peer can take a task if it accepts
//! the task's kind and labels and has room: nodes publish both in their records.
//!
//! ```
//! use tenure_core::balance::{Balancer, ClusterLoad, Claimable, Release, ClaimDecision};
//!
//! /// Runs mail and nothing else.
//! struct OnlyMail;
//!
//! impl Balancer for OnlyMail {
//!     fn claim(&mut self, offer: &Claimable<'_>, _: &ClusterLoad<'_>) -> ClaimDecision {
//!         match offer.record.kind.as_deref() {
//!             Some("mail") => ClaimDecision::Claim,
//!             _ => ClaimDecision::wait_secs(60, "it is not mail"),
//!         }
//!     }
//!
//!     fn release(&mut self, _: &ClusterLoad<'_>) -> Vec<Release> {
//!         Vec::new()
//!     }
//!
//!     fn name(&self) -> &'static str {
//!         "only_mail"
//!     }
//! }
//! ```

mod accept_all;
mod capacity;
mod class;
mod cooldown;
mod decision;
mod fair;
mod owned_tasks;
mod rendezvous;
mod share;
mod weighted;
mod worker_loads;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{NodeId, TaskId};
use crate::record::TaskRecord;
use crate::time::Moment;

pub use accept_all::AcceptAll;
pub use capacity::{Capacity, InvalidCapacity, ResourceUsage};
pub use class::{Class, Demand, Profiles};
pub use cooldown::{COOLDOWN, Cooldowns, ReleasedBy, TAKE_BACK_AFTER};
pub use decision::{ClaimDecision, DecisionReason, Release};
pub use fair::Fair;
pub use owned_tasks::{OwnedTask, OwnedTasks, weight_of};
pub use rendezvous::Rendezvous;
pub use share::{InvalidThreshold, ReleaseOrder};
pub use weighted::Weighted;
pub use worker_loads::{Level, Load, LoadMetric, WorkerLoads, WorkerTerms};

/// How long a task waits for the node that should have it before any other takes it.
///
/// Halved, a node that is slow for a moment loses its share; doubled, a task that only one node can run waits longer than people do.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Decides for one worker which tasks it claims and which it releases.
///
/// Every worker has a balancer of its own, and calls it from its own task. A balancer may keep state, and must not block.
pub trait Balancer: Send {
    /// Whether the worker should claim a task that no worker owns.
    ///
    /// Called very often, so it should compare numbers and not iterate over all tasks. A worker of rank *n* is consulted *n* × 250 ms later:
    /// peers that rank before it and have room come first.
    fn claim(&mut self, task: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision;

    /// The tasks that the worker should release now, in this order, each with the reason.
    ///
    /// The call itself releases nothing: a dry run calls it too, and the worker may release fewer of them at a time.
    fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        let _ = cluster;
        Vec::new()
    }

    /// Its name, for logs and for the reply to `balance`.
    fn name(&self) -> &str;
}

/// A task that nobody owns.
#[derive(Clone, Copy, Debug)]
pub struct Claimable<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// What its submitter says of it.
    pub record: &'a TaskRecord,
    /// How much it weighs; see [`weight_of`].
    pub weight: u64,
    /// Which nodes accept it.
    pub class: Class,
    /// How many willing nodes that accept it come before this one by rendezvous; see [`WorkerLoads::rank`].
    pub rank: usize,
    /// How long this node has seen it without an owner.
    pub unowned_for: Duration,
    /// How long it has been there for anybody to take, counted from when a node was last seen working through its share of such tasks:
    /// a task that waits because there are many is not one that nobody wants.
    pub waited: Duration,
}

/// Who has how much, as one node sees it.
#[derive(Clone, Copy, Debug)]
pub struct ClusterLoad<'a> {
    /// The node that decides.
    pub me: &'a NodeId,
    /// The nodes that take tasks: ready, not draining, not frozen, not on their way out; this one among them if it is.
    pub workers: &'a WorkerLoads,
    /// What no node owns, by the nodes that accept it.
    pub unowned: &'a Demand,
    /// What of it this node is just claiming.
    pub claiming: &'a Demand,
    /// What this node has, tasks that it is just claiming among them.
    pub own: &'a OwnedTasks,
    /// What this node has just given away.
    pub cooldowns: &'a Cooldowns,
    /// How much of a resource is used, if somebody measures one.
    pub resource: Option<ResourceUsage>,
    /// Whether this node is giving tasks away already and could not give them all at once. Then it goes on down to its share, although it may be
    /// below the threshold at which it began.
    pub is_releasing: bool,
    /// What time it is.
    pub now: Moment,
}

impl ClusterLoad<'_> {
    /// What no node owns or is being claimed here, of tasks that only nodes can take that accept this class.
    pub fn unowned_of(&self, class: Class) -> Load {
        self.unowned.within(class) - self.claiming.within(class)
    }

    /// How full the nodes that accept a class would be if they shared equally, as far as they have room.
    pub fn level(&self, class: Class, measure: LoadMetric) -> Level {
        self.workers.level(class, self.unowned_of(class), measure)
    }

    /// How long the others have left a task to anybody: a node that has only just come has left nothing yet.
    ///
    /// Without this the first node that comes after a long night takes everything as if nobody else wanted it.
    pub fn left(&self, offer: &Claimable<'_>) -> Duration {
        offer.waited.min(self.now.since(self.workers.arrived_at()))
    }

    /// Whether this node takes tasks at all.
    pub fn takes_tasks(&self) -> bool {
        self.workers.contains(self.me)
    }
}

/// What a node does about an offer: its balancer's verdict, unless the node gave the task away a moment ago.
pub fn consider(
    balancer: &mut dyn Balancer,
    offer: &Claimable<'_>,
    cluster: &ClusterLoad<'_>,
) -> ClaimDecision {
    if !cluster.takes_tasks() {
        return ClaimDecision::Wait { retry_after: PATIENCE, reason: DecisionReason::TakesNoTasks };
    }
    let can_others = cluster.workers.takers(cluster.me, LoadMetric::Tasks, offer.class).next().is_some();
    match cluster.cooldowns.remaining(offer, can_others, cluster) {
        Some(retry_after) => ClaimDecision::Wait { retry_after, reason: DecisionReason::CoolingDown },
        None => balancer.claim(offer, cluster),
    }
}

/// What a node releases: what its balancer returns, as far as the node has it and a peer can take it, each task once.
pub fn planned_releases(balancer: &mut dyn Balancer, cluster: &ClusterLoad<'_>) -> Vec<Release> {
    let mut seen = BTreeSet::new();
    let mut rooms: BTreeMap<&NodeId, u64> = BTreeMap::new();
    let mut partings = balancer.release(cluster);
    partings.retain(|parting| {
        let Some(held) = cluster.own.get(&parting.task) else { return false };
        if seen.contains(&parting.task) {
            return false;
        }
        // Each peer is filled up before the next one, so that a full fleet is not asked to take more than it can.
        let taker = cluster
            .workers
            .takers(cluster.me, LoadMetric::Tasks, held.class)
            .find(|(node, _, room)| room.is_none_or(|room| *rooms.entry(node).or_insert(room) > 0));
        let Some((node, ..)) = taker else { return false };
        if let Some(room) = rooms.get_mut(node) {
            *room -= 1;
        }
        seen.insert(parting.task.clone())
    });
    partings
}

#[cfg(test)]
mod tests;
