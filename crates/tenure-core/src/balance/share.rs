//! An equal share for each: the arithmetic of [`Fair`](super::Fair) and [`Weighted`](super::Weighted).
//!
//! The quota is the ceiling of the mean, so that two tasks on three nodes make a quota of 1 and not of 0. A node takes up to the floor of the mean at
//! once, and from there to the quota only if nobody has less: so the last few go round, too. Beyond its quota it waits for the others, and
//! then takes what nobody wanted, so that nothing starves that only this node can run. Such a task is *unwanted*, and is not given away again until another
//! node has come: otherwise it would be stopped and started for ever.
//!
//! A node that has more than the threshold gives away down to its quota, in as many rounds as that takes. So does one that is above its quota while somebody has not even half: in a large crowd
//! nobody is a fifth above the mean when one newcomer has nothing. A task goes only if whoever is least loaded would then have less than
//! this node has now: a heavy one that would only change places stays.

use std::collections::BTreeSet;
use std::time::Duration;

use thiserror::Error;

use super::crowd::Measure;
use super::holdings::Held;
use super::words::{Parting, Reason, Verdict};
use super::{Loads, Offer, PATIENCE};
use crate::name::{NodeId, TaskId};

/// How soon a node looks again that only waits for others to show what they have: a few times the delay of a watch.
const GLANCE: Duration = Duration::from_millis(250);

/// Which tasks a node gives away first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The newest: it has done the least.
    #[default]
    Newest,
    /// The cheapest to move, as the node counts it.
    Cheapest,
}

/// A threshold at which nodes with an equal share would give tasks away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a threshold of {0} % of the share, it must be at least 100 %")]
pub struct BadThreshold(pub u64);

/// An equal share by some measure.
#[derive(Clone, Debug)]
pub(super) struct Share {
    measure: Measure,
    pub(super) threshold_percent: u64,
    pub(super) order: Order,
    unwanted: Unwanted,
}

impl Share {
    pub(super) fn by(measure: Measure) -> Share {
        Share { measure, threshold_percent: 120, order: Order::Newest, unwanted: Unwanted::default() }
    }

    pub(super) fn threshold_percent(mut self, percent: u64) -> Result<Share, BadThreshold> {
        if percent < 100 {
            return Err(BadThreshold(percent));
        }
        self.threshold_percent = percent;
        Ok(self)
    }

    pub(super) fn may_claim(&mut self, offer: &Offer<'_>, loads: &Loads<'_>) -> Verdict {
        let own = loads.own.load().by(self.measure);
        let weight = match self.measure {
            Measure::Tasks => 1,
            Measure::Weight => offer.weight,
        };
        let nodes = loads.willing.len().max(1);
        let pool = loads.pool().by(self.measure);
        let quota = self.quota(loads);
        let others_least = loads.willing.least_of_others(loads.me, self.measure);
        if own.saturating_add(weight) <= pool / nodes as u64 {
            return Verdict::Take;
        }
        if own < quota && others_least.is_none_or(|least| least >= own) {
            return Verdict::Take;
        }
        let Some(rest) = PATIENCE.checked_sub(loads.left(offer)).filter(|rest| !rest.is_zero()) else {
            self.unwanted.note(offer.task, loads);
            return Verdict::Take;
        };
        let again_in = if own < quota { GLANCE.min(rest) } else { rest };
        Verdict::Wait { again_in, why: Reason::Share { own, quota, nodes } }
    }

    pub(super) fn release(&mut self, loads: &Loads<'_>) -> Vec<Parting> {
        self.unwanted.update(loads);
        let mut others: BTreeSet<(u64, &NodeId)> = loads
            .willing
            .iter()
            .filter(|(node, _)| *node != loads.me)
            .map(|(node, load)| (load.by(self.measure), node))
            .collect();
        let Some((least, _)) = others.first() else { return Vec::new() };
        if !loads.is_willing() {
            return Vec::new();
        }
        let quota = self.quota(loads);
        let wanted = |task: &TaskId| !self.unwanted.tasks.contains(task);
        let kept = self.unwanted.tasks.iter().filter_map(|task| loads.own.get(task));
        let kept: u64 = kept.map(|held| self.weight(held)).sum();
        let mut own = loads.own.load().by(self.measure).saturating_sub(kept);
        let is_far_above = own.saturating_mul(100) > quota.saturating_mul(self.threshold_percent);
        let is_somebody_far_below = least.saturating_mul(2) < quota;
        if !is_far_above && !is_somebody_far_below && !loads.is_giving {
            return Vec::new();
        }
        let candidates: Vec<(&TaskId, &Held)> = match self.order {
            Order::Newest => loads.own.newest().collect(),
            Order::Cheapest => loads.own.cheapest(),
        };
        let mut partings = Vec::new();
        for (task, held) in candidates.into_iter().filter(|(task, _)| wanted(task)) {
            if own <= quota {
                break;
            }
            let weight = self.weight(held);
            let Some((least, node)) = others.first().copied() else { break };
            if least.saturating_add(weight) >= own {
                continue;
            }
            let why = Reason::Share { own, quota, nodes: loads.willing.len() };
            partings.push(Parting { task: task.clone(), why });
            others.pop_first();
            others.insert((least + weight, node));
            own -= weight.min(own);
        }
        partings
    }

    fn quota(&self, loads: &Loads<'_>) -> u64 {
        loads.pool().by(self.measure).div_ceil(loads.willing.len().max(1) as u64).max(1)
    }

    fn weight(&self, held: &Held) -> u64 {
        match self.measure {
            Measure::Tasks => 1,
            Measure::Weight => held.weight,
        }
    }
}

/// Tasks that this node has because nobody else took them.
#[derive(Clone, Debug, Default)]
pub(super) struct Unwanted {
    pub(super) tasks: BTreeSet<TaskId>,
    /// As of how many arrivals: a newcomer may want them.
    arrivals: u64,
}

impl Unwanted {
    /// The node takes this one although it should not have to.
    pub(super) fn note(&mut self, task: &TaskId, loads: &Loads<'_>) {
        self.forget_if_somebody_came(loads);
        self.tasks.insert(task.clone());
    }

    /// Forgets what the node does not have any more, and everything if somebody came.
    pub(super) fn update(&mut self, loads: &Loads<'_>) {
        self.forget_if_somebody_came(loads);
        self.tasks.retain(|task| loads.own.contains(task));
    }

    fn forget_if_somebody_came(&mut self, loads: &Loads<'_>) {
        if self.arrivals != loads.willing.arrivals() {
            self.arrivals = loads.willing.arrivals();
            self.tasks.clear();
        }
    }
}
