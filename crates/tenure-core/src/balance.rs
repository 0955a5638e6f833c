//! Who takes which task, and who gives some away.
//!
//! Every node has a balancer of its own and asks it two things: *may I claim this?* for each task that nobody owns, and *what should I give
//! away?* now and then. There is no coordinator: all nodes see the same picture, and each decides for itself. A balancer never waits; it
//! says when to ask again.
//!
//! Nodes ask through [`consider`] and [`partings`], which hold for every balancer, ours and yours: what a node has just given away it does
//! not take back before its cool-down is over or whoever took or could take it is gone, and nobody gives away what it does not have.
//!
//! ```
//! use tenure_core::balance::{Balancer, Loads, Offer, Parting, Verdict};
//!
//! /// Runs mail and nothing else.
//! struct OnlyMail;
//!
//! impl Balancer for OnlyMail {
//!     fn may_claim(&mut self, offer: &Offer<'_>, _: &Loads<'_>) -> Verdict {
//!         match offer.record.kind.as_deref() {
//!             Some("mail") => Verdict::Take,
//!             _ => Verdict::wait_secs(60, "it is not mail"),
//!         }
//!     }
//!
//!     fn release(&mut self, _: &Loads<'_>) -> Vec<Parting> {
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
mod cooling;
mod crowd;
mod fair;
mod holdings;
mod rendezvous;
mod share;
mod weighted;
mod words;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::name::{NodeId, TaskId};
use crate::record::TaskRecord;
use crate::time::Moment;

pub use accept_all::AcceptAll;
pub use capacity::{BadCapacity, Capacity, Resource};
pub use cooling::{COOL_DOWN, Cooling};
pub use crowd::{Crowd, Load, Measure};
pub use fair::Fair;
pub use holdings::{Held, Holdings, weight_of};
pub use rendezvous::Rendezvous;
pub use share::{BadThreshold, Order};
pub use weighted::Weighted;
pub use words::{Parting, Reason, Verdict};

/// How long a task waits for the node that should have it before any other takes it.
///
/// Halved, a node that is slow for a moment loses its share; doubled, a task that only one node can run waits longer than people do.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Decides for one node. It is told everything, remembers what it likes, and never waits.
pub trait Balancer: Send {
    /// Whether the node should take a task that nobody owns. Asked very often: it should look at numbers, not at all tasks.
    fn may_claim(&mut self, offer: &Offer<'_>, loads: &Loads<'_>) -> Verdict;

    /// What the node should give away now, the first first, each with the reason. Nothing is done by saying so: a dry run asks too, and the
    /// node may give away fewer at a time.
    fn release(&mut self, loads: &Loads<'_>) -> Vec<Parting>;

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
    /// How many willing nodes come before this one by rendezvous; see [`Crowd::rank`].
    pub rank: usize,
    /// How long it has been there for anybody to take, counted from when a node was last seen working through its share of such tasks:
    /// a task that waits because there are many is not one that nobody wants.
    pub waited: Duration,
}

/// Who has how much, as one node sees it.
#[derive(Clone, Copy, Debug)]
pub struct Loads<'a> {
    /// The node that decides.
    pub me: &'a NodeId,
    /// The nodes that take tasks: ready, not draining, not frozen, not on their way out; this one among them if it is.
    pub willing: &'a Crowd,
    /// What nobody owns.
    pub unowned: Load,
    /// What this node has, tasks that it is just claiming among them.
    pub own: &'a Holdings,
    /// What this node has just given away.
    pub cooling: &'a Cooling,
    /// How much of a resource is used, if somebody measures one.
    pub resource: Option<Resource>,
    /// Whether this node is giving tasks away already and could not give them all at once. Then it goes on down to its share, although it may be
    /// below the threshold at which it began.
    pub is_giving: bool,
    /// What time it is.
    pub now: Moment,
}

impl Loads<'_> {
    /// What the willing nodes share: what they own, and what nobody does. What others hold on to is not theirs to share.
    pub fn pool(&self) -> Load {
        self.willing.total() + self.unowned
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
pub fn consider(balancer: &mut dyn Balancer, offer: &Offer<'_>, loads: &Loads<'_>) -> Verdict {
    if !loads.is_willing() {
        return Verdict::Wait { again_in: PATIENCE, why: Reason::NotWilling };
    }
    match loads.cooling.remaining(offer.task, loads.willing, loads.now) {
        Some(again_in) => Verdict::Wait { again_in, why: Reason::CoolingDown },
        None => balancer.may_claim(offer, loads),
    }
}

/// What a node gives away: what its balancer says, as far as the node has it, each task once.
pub fn partings(balancer: &mut dyn Balancer, loads: &Loads<'_>) -> Vec<Parting> {
    let mut said = BTreeSet::new();
    let mut partings = balancer.release(loads);
    partings.retain(|parting| loads.own.contains(&parting.task) && said.insert(parting.task.clone()));
    partings
}

#[cfg(test)]
mod tests;
