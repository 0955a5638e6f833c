//! Equal shares: the arithmetic of [`Fair`](super::Fair) and [`Weighted`](super::Weighted).
//!
//! Only workers that accept a task's class share it, each up to its limit. What does not fit into a
//! small worker is shared by the others, as water fills vessels of different height.
//!
//! The quota is the ceiling of the mean, so two tasks on three workers make a quota of 1 and not of
//! 0. A worker claims up to the floor of the mean immediately. From there to the quota it claims
//! only if no peer owns less, so that the last few tasks are spread as well. Beyond its quota it
//! waits for its peers, and then claims what they have left, so that no task starves that only this
//! worker can run. Such a task is *unwanted*. It is not released again until another worker has
//! joined or some time has passed, which grows each time; otherwise it would be stopped and started
//! for ever.
//!
//! A worker above the threshold releases down to its quota, in as many rounds as that takes. So
//! does a worker above its quota while a peer owns less than half of its own: in a large fleet no
//! worker is a fifth above the mean when one newcomer owns nothing. A task is released only if the
//! least loaded peer would then own less than this worker owns now. A heavy task that would only
//! change places stays.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

use super::class::Class;
use super::decision::{ClaimDecision, DecisionReason, Release};
use super::owned_tasks::OwnedTask;
use super::worker_loads::LoadMetric;
use super::{Claimable, ClusterLoad, PATIENCE};
use crate::id::{NodeId, TaskId};
use crate::time::Moment;

/// How soon a worker decides again that only waits for the board to show the claims of its peers: a
/// few times the delay of a watch.
const GLANCE: Duration = Duration::from_millis(250);

/// How long a node keeps a task that no peer took, at first. Longer than a peer waits for its turn; doubled, tasks that a slow peer would
/// have taken stay where they are for twice as long.
const UNWANTED_FIRST: Duration = Duration::from_secs(5);

/// How much longer it keeps them each time no peer takes them again. Halved, a task that no peer wants is stopped about twice as often.
const UNWANTED_GROWTH: u32 = 4;

/// The longest that it keeps them: a task that no peer ever takes is stopped about once a day.
const UNWANTED_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Which tasks a worker releases first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReleaseOrder {
    /// The newest: it has done the least.
    #[default]
    Newest,
    /// The cheapest to move, as the node counts it.
    Cheapest,
}

/// A threshold at which nodes with an equal share would give tasks away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a threshold of {0} % of the share, it must be at least 100 %")]
pub struct InvalidThreshold(pub u64);

/// An equal share by one metric.
#[derive(Clone, Debug)]
pub(super) struct Share {
    measure: LoadMetric,
    pub(super) threshold_percent: u64,
    pub(super) order: ReleaseOrder,
    unwanted: Unwanted,
}

impl Share {
    pub(super) fn by(measure: LoadMetric) -> Share {
        Share { measure, threshold_percent: 120, order: ReleaseOrder::Newest, unwanted: Unwanted::default() }
    }

    pub(super) fn threshold_percent(mut self, percent: u64) -> Result<Share, InvalidThreshold> {
        if percent < 100 {
            return Err(InvalidThreshold(percent));
        }
        self.threshold_percent = percent;
        Ok(self)
    }

    pub(super) fn claim(&mut self, offer: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision {
        let own = cluster.own.load().by(self.measure);
        let weight = match self.measure {
            LoadMetric::Tasks => 1,
            LoadMetric::Weight => offer.weight,
        };
        let nodes = cluster.workers.acceptors(offer.class);
        let level = cluster.level(offer.class, self.measure);
        let quota = cluster.workers.quota(cluster.me, level, self.measure);
        let others_least = cluster.workers.least_of_others(cluster.me, self.measure, offer.class);
        // No peer has room, so nothing is gained by waiting for one.
        if others_least.is_none() || own.saturating_add(weight) <= level.floor {
            return ClaimDecision::Claim;
        }
        // Between floor and ceiling the worker with the smallest load claims first, so that the
        // remainder is spread.
        if own < quota && others_least.is_none_or(|least| least >= own) {
            return ClaimDecision::Claim;
        }
        // The peers had their time. The task is claimed above the share, and marked so that it is
        // not released at once.
        let Some(rest) = PATIENCE.checked_sub(cluster.left(offer)).filter(|rest| !rest.is_zero()) else {
            self.unwanted.note(offer.task, cluster);
            return ClaimDecision::Claim;
        };
        let retry_after = if own < quota { GLANCE.min(rest) } else { rest };
        ClaimDecision::Wait { retry_after, reason: DecisionReason::Share { own, quota, nodes } }
    }

    pub(super) fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        self.unwanted.update(cluster);
        if !cluster.takes_tasks() {
            return Vec::new();
        }
        // Unwanted tasks do not count towards the excess: no peer takes them, and other tasks would
        // be released in their place.
        let kept = self.unwanted.tasks.keys().filter_map(|task| cluster.own.get(task));
        let kept: u64 = kept.map(|held| self.weight(held)).sum();
        let mut own = cluster.own.load().by(self.measure).saturating_sub(kept);
        let mut groups: BTreeMap<Class, Option<ShareGroup<'_>>> = BTreeMap::new();
        let mut grown: BTreeMap<&NodeId, (u64, u64)> = BTreeMap::new();
        let candidates: Vec<(&TaskId, &OwnedTask)> = match self.order {
            ReleaseOrder::Newest => cluster.own.newest().collect(),
            ReleaseOrder::Cheapest => cluster.own.cheapest(),
        };
        let mut releases = Vec::new();
        for (task, held) in candidates.into_iter().filter(|(task, _)| !self.unwanted.contains(task)) {
            let group = groups.entry(held.class).or_insert_with(|| self.group(held.class, own, cluster));
            let Some(group) = group.as_ref().filter(|group| own > group.quota) else { continue };
            // Tasks that are planned for a peer count as if it owned them, whichever class they are
            // of.
            let weight = self.weight(held);
            let takers = group.takers.iter().filter_map(|(node, load, room)| {
                let (more, tasks) = grown.get(node).copied().unwrap_or_default();
                room.is_none_or(|room| tasks < room).then_some((load.saturating_add(more), *node))
            });
            let Some((least, node)) = takers.min() else { continue };
            // After this move the peer would own as much as this worker: the task would only change
            // places.
            if least.saturating_add(weight) >= own {
                continue;
            }
            let reason = DecisionReason::Share { own, quota: group.quota, nodes: group.nodes };
            releases.push(Release { task: task.clone(), reason });
            let (more, tasks) = grown.entry(node).or_default();
            (*more, *tasks) = (more.saturating_add(weight), *tasks + 1);
            own -= weight.min(own);
        }
        releases
    }

    /// The peers that could take tasks of a class from this worker. `None` if the difference is too
    /// small to move any.
    fn group<'a>(&self, class: Class, own: u64, cluster: &ClusterLoad<'a>) -> Option<ShareGroup<'a>> {
        let level = cluster.level(class, self.measure);
        let quota = cluster.workers.quota(cluster.me, level, self.measure);
        let (me, willing) = (cluster.me, cluster.workers);
        let takers = willing
            .takers(me, self.measure, class)
            .map(|(node, load, room)| (node, load.by(self.measure), room));
        let takers: Vec<_> = takers.collect();
        let (_, least, _) = takers.first()?;
        let is_far_above = own.saturating_mul(100) > quota.saturating_mul(self.threshold_percent);
        let is_peer_far_below = least.saturating_mul(2) < quota;
        let is_due = is_far_above || is_peer_far_below || cluster.is_releasing;
        is_due.then(|| ShareGroup { quota, nodes: willing.acceptors(class), takers })
    }

    fn weight(&self, held: &OwnedTask) -> u64 {
        match self.measure {
            LoadMetric::Tasks => 1,
            LoadMetric::Weight => held.weight,
        }
    }
}

/// Where tasks of one class could go.
struct ShareGroup<'a> {
    /// What this node should have at most.
    quota: u64,
    /// How many nodes share.
    nodes: usize,
    /// The peers with room, the least loaded first, with their loads and how many more each can take.
    takers: Vec<(&'a NodeId, u64, Option<u64>)>,
}

/// Tasks that this node has because no peer took them in time.
///
/// A peer may only have been slow: on a starved host the whole patience passes before it has claimed. So a mark ends, and the node offers
/// such a task again if it is above its share. Each time no peer takes it the next marks last longer.
#[derive(Clone, Debug, Default)]
pub(super) struct Unwanted {
    /// Until when each of them stays.
    tasks: BTreeMap<TaskId, Moment>,
    /// How often marks have ended and the node had to take such a task again.
    refusals: u32,
    /// Whether a mark has ended since the last was made.
    has_ended: bool,
    /// As of how many arrivals: a newcomer may want them.
    arrivals: u64,
}

impl Unwanted {
    /// The node takes this one although it should not have to.
    pub(super) fn note(&mut self, task: &TaskId, cluster: &ClusterLoad<'_>) {
        self.update(cluster);
        self.refusals = self.refusals.saturating_add(u32::from(std::mem::take(&mut self.has_ended)));
        let growth = UNWANTED_GROWTH.saturating_pow(self.refusals);
        let until = cluster.now + UNWANTED_FIRST.saturating_mul(growth).min(UNWANTED_MAX);
        self.tasks.insert(task.clone(), until);
    }

    pub(super) fn contains(&self, task: &TaskId) -> bool {
        self.tasks.contains_key(task)
    }

    /// Forgets what the node does not have any more, what has stayed long enough, and everything if a node came.
    pub(super) fn update(&mut self, cluster: &ClusterLoad<'_>) {
        self.forget_if_peer_joined(cluster);
        let Unwanted { tasks, has_ended, .. } = self;
        tasks.retain(|task, until| {
            let is_owned = cluster.own.contains(task);
            *has_ended |= is_owned && *until <= cluster.now;
            is_owned && *until > cluster.now
        });
    }

    fn forget_if_peer_joined(&mut self, cluster: &ClusterLoad<'_>) {
        if self.arrivals != cluster.workers.arrivals() {
            *self = Unwanted { arrivals: cluster.workers.arrivals(), ..Unwanted::default() };
        }
    }
}
