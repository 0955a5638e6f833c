//! Who takes which task, and who gives some away.
//!
//! Every node has a balancer of its own and asks it two things: *may I claim this?* for each task that nobody owns, and *what should I give
//! away?* now and then. There is no coordinator: all nodes see the same picture, and each decides for itself. A balancer never waits; it
//! says when to ask again.
//!
//! Nodes ask through [`consider`] and [`partings`], which hold for every balancer, ours and yours: a node does not take back what it has just
//! released while a peer can take it, and it releases nothing that it does not have or that no peer can take. A peer can take a task if it accepts
//! the task's kind and labels and has room: nodes publish both in their records.
//!
//! ```
//! use tenure_core::balance::{Balancer, ClusterLoad, Offer, Parting, Verdict};
//!
//! /// Runs mail and nothing else.
//! struct OnlyMail;
//!
//! impl Balancer for OnlyMail {
//!     fn may_claim(&mut self, offer: &Offer<'_>, _: &ClusterLoad<'_>) -> Verdict {
//!         match offer.record.kind.as_deref() {
//!             Some("mail") => Verdict::Take,
//!             _ => Verdict::wait_secs(60, "it is not mail"),
//!         }
//!     }
//!
//!     fn release(&mut self, _: &ClusterLoad<'_>) -> Vec<Parting> {
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
pub use capacity::{Capacity, InvalidCapacity, Resource};
pub use class::{Class, Demand, Profiles};
pub use cooldown::{COOL_DOWN, Cooldowns, Release, TAKE_BACK_AFTER};
pub use decision::{Parting, Reason, Verdict};
pub use fair::Fair;
pub use owned_tasks::{Held, OwnedTasks, weight_of};
pub use rendezvous::Rendezvous;
pub use share::{InvalidThreshold, Order};
pub use weighted::Weighted;
pub use worker_loads::{Level, Load, Measure, Terms, WorkerLoads};

/// How long a task waits for the node that should have it before any other takes it.
///
/// Halved, a node that is slow for a moment loses its share; doubled, a task that only one node can run waits longer than people do.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Decides for one node. It is told everything, remembers what it likes, and never waits.
pub trait Balancer: Send {
    /// Whether the node should take a task that nobody owns. Asked very often: it should look at numbers, not at all tasks.
    fn may_claim(&mut self, offer: &Offer<'_>, loads: &ClusterLoad<'_>) -> Verdict;

    /// What the node should give away now, the first first, each with the reason. Nothing is done by saying so: a dry run asks too, and the
    /// node may give away fewer at a time.
    fn release(&mut self, loads: &ClusterLoad<'_>) -> Vec<Parting>;

    /// What it is called.
    fn name(&self) -> &'static str;
}

/// A task that nobody owns.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
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
    pub willing: &'a WorkerLoads,
    /// What no node owns, by the nodes that accept it.
    pub unowned: &'a Demand,
    /// What of it this node is just claiming.
    pub claiming: &'a Demand,
    /// What this node has, tasks that it is just claiming among them.
    pub own: &'a OwnedTasks,
    /// What this node has just given away.
    pub cooling: &'a Cooldowns,
    /// How much of a resource is used, if somebody measures one.
    pub resource: Option<Resource>,
    /// Whether this node is giving tasks away already and could not give them all at once. Then it goes on down to its share, although it may be
    /// below the threshold at which it began.
    pub is_giving: bool,
    /// What time it is.
    pub now: Moment,
}

impl ClusterLoad<'_> {
    /// What no node owns or is being claimed here, of tasks that only nodes can take that accept this class.
    pub fn unowned_of(&self, class: Class) -> Load {
        self.unowned.within(class) - self.claiming.within(class)
    }

    /// How full the nodes that accept a class would be if they shared equally, as far as they have room.
    pub fn level(&self, class: Class, measure: Measure) -> Level {
        self.willing.level(class, self.unowned_of(class), measure)
    }

    /// How long the others have left a task to anybody: a node that has only just come has left nothing yet.
    ///
    /// Without this the first node that comes after a long night takes everything as if nobody else wanted it.
    pub fn left(&self, offer: &Offer<'_>) -> Duration {
        offer.waited.min(self.now.since(self.willing.arrived_at()))
    }

    /// Whether this node takes tasks at all.
    pub fn is_willing(&self) -> bool {
        self.willing.contains(self.me)
    }
}

/// What a node does about an offer: its balancer's verdict, unless the node gave the task away a moment ago.
pub fn consider(balancer: &mut dyn Balancer, offer: &Offer<'_>, loads: &ClusterLoad<'_>) -> Verdict {
    if !loads.is_willing() {
        return Verdict::Wait { again_in: PATIENCE, why: Reason::NotWilling };
    }
    let can_others = loads.willing.takers(loads.me, Measure::Tasks, offer.class).next().is_some();
    match loads.cooling.remaining(offer, can_others, loads) {
        Some(again_in) => Verdict::Wait { again_in, why: Reason::CoolingDown },
        None => balancer.may_claim(offer, loads),
    }
}

/// What a node releases: what its balancer returns, as far as the node has it and a peer can take it, each task once.
pub fn partings(balancer: &mut dyn Balancer, loads: &ClusterLoad<'_>) -> Vec<Parting> {
    let mut seen = BTreeSet::new();
    let mut rooms: BTreeMap<&NodeId, u64> = BTreeMap::new();
    let mut partings = balancer.release(loads);
    partings.retain(|parting| {
        let Some(held) = loads.own.get(&parting.task) else { return false };
        if seen.contains(&parting.task) {
            return false;
        }
        // Each peer is filled up before the next one, so that a full fleet is not asked to take more than it can.
        let taker = loads
            .willing
            .takers(loads.me, Measure::Tasks, held.class)
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
