//! Balancers decide for a worker which tasks it claims and which it releases.
//!
//! Every worker has a balancer of its own. It decides whether to claim each unowned task, and from
//! time to time which tasks to release. There is no coordinator: all workers see the same snapshot,
//! and each decides for itself. A balancer never blocks; it returns after how long it is asked
//! again.
//!
//! Workers call a balancer through [`consider`] and [`planned_releases`], which hold for built-in
//! and custom balancers alike. A worker does not claim a task that it has just released while a
//! peer can take it. It releases only tasks that it owns and that a peer can take. A peer can take
//! a task if it accepts the task's kind and labels and has room; workers publish both in their
//! records.
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

/// How long a task waits for the worker that should own it before any other worker claims it.
///
/// Halved, a worker that is slow for a moment loses its share. Doubled, a task that only one worker
/// can run waits longer than a user expects.
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

/// A task that no worker owns.
#[derive(Clone, Copy, Debug)]
pub struct Claimable<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// The submitted record.
    pub record: &'a TaskRecord,
    /// How much it weighs; see [`weight_of`].
    pub weight: u64,
    /// The workers that accept it, as a class.
    pub class: Class,
    /// How many workers that take tasks and accept it rank before this one by rendezvous hashing;
    /// see [`WorkerLoads::rank`].
    pub rank: usize,
    /// For how long this worker has seen it without an owner.
    pub unowned_for: Duration,
    /// For how long any worker could have claimed it, counted from when a peer was last seen
    /// working through its share of such tasks. A task that waits because there are many is not one
    /// that no worker wants.
    pub waited: Duration,
}

/// The loads of all workers, as one worker sees them.
#[derive(Clone, Copy, Debug)]
pub struct ClusterLoad<'a> {
    /// The worker that decides.
    pub me: &'a NodeId,
    /// The workers that take tasks: ready, not draining, not frozen, not shutting down. Includes
    /// this one if it takes tasks.
    pub workers: &'a WorkerLoads,
    /// The unowned tasks, by the workers that accept them.
    pub unowned: &'a Demand,
    /// Those of them that this worker is claiming.
    pub claiming: &'a Demand,
    /// The tasks that this worker owns or is claiming.
    pub own: &'a OwnedTasks,
    /// The tasks that this worker has released recently.
    pub cooldowns: &'a Cooldowns,
    /// The last measurement of a resource, if one is measured.
    pub resource: Option<ResourceUsage>,
    /// Whether this worker could not release all that its last round planned. Then it continues
    /// down to its share, even below the threshold at which it began.
    pub is_releasing: bool,
    /// The present time.
    pub now: Moment,
}

impl ClusterLoad<'_> {
    /// The unowned tasks that only workers that accept this class can take, without those that this
    /// worker is claiming.
    pub fn unowned_of(&self, class: Class) -> Load {
        self.unowned.within(class) - self.claiming.within(class)
    }

    /// How full the workers that accept a class would be with equal shares, as far as they have
    /// room.
    pub fn level(&self, class: Class, measure: LoadMetric) -> Level {
        self.workers.level(class, self.unowned_of(class), measure)
    }

    /// For how long the peers have left a task to any worker. A worker that has just joined has
    /// left nothing yet.
    ///
    /// Without this, the first worker that joins after an idle time would claim all tasks, as if no
    /// other worker wanted them.
    pub fn left(&self, offer: &Claimable<'_>) -> Duration {
        offer.waited.min(self.now.since(self.workers.arrived_at()))
    }

    /// Whether this worker takes tasks.
    pub fn takes_tasks(&self) -> bool {
        self.workers.contains(self.me)
    }
}

/// Decides whether to claim a task: the balancer's decision, unless this worker released the task
/// recently.
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

/// The tasks to release: those that the balancer returns, that this worker owns, and that a peer
/// can take; each once.
pub fn planned_releases(balancer: &mut dyn Balancer, cluster: &ClusterLoad<'_>) -> Vec<Release> {
    let mut seen = BTreeSet::new();
    let mut rooms: BTreeMap<&NodeId, u64> = BTreeMap::new();
    let mut partings = balancer.release(cluster);
    partings.retain(|parting| {
        let Some(held) = cluster.own.get(&parting.task) else { return false };
        if seen.contains(&parting.task) {
            return false;
        }
        // Each peer is filled up before the next one. Otherwise a fleet with one free slot would
        // get all of them.
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
