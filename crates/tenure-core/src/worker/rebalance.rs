//! Calls the balancer, and carries out its decisions a part at a time.
//!
//! **Invariant**: a task that is being released does not count as owned, so the balancer is not
//! asked to release it twice.

use std::collections::BTreeMap;

use crate::balance::{
    self, Balancer, ClaimDecision, Claimable, Class, ClusterLoad, Cooldowns, Demand, Load, LoadMetric,
    OwnedTask, OwnedTasks, Release, ResourceUsage, WorkerTerms,
};
use crate::board::{Board, Card};
use crate::id::TaskId;
use crate::time::Moment;

use super::WorkerMachine;
use super::config::{CHURN_DIVISOR, DEBOUNCE, NEXT_ROUND};
use super::event::{ReleaseReason, WorkerEvent};
use super::input::InputTime;
use super::peers::ClaimTurn;
use super::timers::Timer;

/// What a balancer decides on, besides the board and the peers.
pub(super) struct BalanceState {
    pub(super) balancer: Box<dyn Balancer>,
    /// The tasks that this worker owns or is claiming, without those that it is releasing.
    own: OwnedTasks,
    pub(super) cooldowns: Cooldowns,
    pub(super) resource: Option<ResourceUsage>,
    /// Whether the last round could not carry out all releases.
    is_releasing: bool,
    /// Own tasks that the board still shows without an owner. They must not be counted twice.
    unseen: BTreeMap<TaskId, (Class, u64)>,
    unseen_load: Demand,
}

impl BalanceState {
    pub(super) fn new(balancer: Box<dyn Balancer>) -> BalanceState {
        BalanceState {
            balancer,
            own: OwnedTasks::new(),
            cooldowns: Cooldowns::new(),
            resource: None,
            is_releasing: false,
            unseen: BTreeMap::new(),
            unseen_load: Demand::default(),
        }
    }

    /// The worker claims a task.
    pub(super) fn take(&mut self, task: &TaskId, card: &Card, since: Moment) {
        let kind = card.record.as_ref().ok().and_then(|record| record.kind.clone());
        let weight = card.weight();
        let class = card.class;
        self.own.insert(task.clone(), OwnedTask { kind, weight, class, cost: 0, since });
        if self.unseen.insert(task.clone(), (class, weight)).is_none() {
            self.unseen_load.add(class, Load::of_one(weight));
        }
    }

    /// The board shows the owner of a task, or that the task is gone.
    pub(super) fn see(&mut self, task: &TaskId) {
        if let Some((class, weight)) = self.unseen.remove(task) {
            self.unseen_load.sub(class, Load::of_one(weight));
        }
    }

    /// A task is being released, or its claim has failed.
    pub(super) fn part(&mut self, task: &TaskId) {
        self.own.remove(task);
    }

    pub(super) fn load(&self) -> Load {
        self.own.load()
    }

    /// The demand of tasks that the board shows without an owner although this worker is claiming
    /// them.
    pub(super) fn claiming(&self) -> &Demand {
        &self.unseen_load
    }

    /// Follows a new classification of the board.
    fn classify(&mut self, board: &Board) {
        let class_of = |task: &TaskId| board.get(task).map(|card| card.class);
        self.own.classify(class_of);
        self.unseen_load = Demand::default();
        for (task, (class, weight)) in &mut self.unseen {
            *class = class_of(task).unwrap_or(*class);
            self.unseen_load.add(*class, Load::of_one(*weight));
        }
    }
}

impl WorkerMachine {
    /// The balancer, the board, and the loads for its decisions.
    fn balancer(&mut self, now: Moment) -> (&mut dyn Balancer, &Board, ClusterLoad<'_>) {
        let WorkerMachine { balance, peers, board, config, .. } = self;
        let BalanceState { balancer, own, cooldowns, resource, is_releasing, unseen_load, .. } = balance;
        let cluster = ClusterLoad {
            me: &config.node,
            workers: peers.workers(),
            unowned: board.demand(),
            claiming: unseen_load,
            own,
            cooldowns,
            resource: *resource,
            is_releasing: *is_releasing,
            now,
        };
        (balancer.as_mut(), board, cluster)
    }

    /// Asks the balancer about an unowned task.
    pub(super) fn consult_balancer(&mut self, task: &TaskId, turn: ClaimTurn, now: Moment) -> ClaimDecision {
        let (balancer, board, cluster) = self.balancer(now);
        // The board may have changed since the task became ready.
        let Some(card) = board.get(task) else { return ClaimDecision::wait_secs(1, "it is gone") };
        let Ok(record) = &card.record else { return ClaimDecision::wait_secs(1, "it cannot be read") };
        let (weight, class, rank) = (card.weight(), card.class, turn.rank);
        let (waited, unowned_for) = (now.since(turn.idle_since), now.since(turn.unowned_since));
        balance::consider(
            balancer,
            &Claimable { task, record, weight, class, rank, unowned_for, waited },
            &cluster,
        )
    }

    /// The releases that the balancer would return now, with reasons. Releases nothing.
    pub fn plan(&mut self, now: Moment) -> Vec<Release> {
        let (balancer, _, cluster) = self.balancer(now);
        balance::planned_releases(balancer, &cluster)
    }

    /// Enters this worker with its load among the workers that take tasks, or removes it.
    pub(super) fn update_own_load(&mut self, now: InputTime) {
        let load = self.takes_tasks().then(|| self.balance.load());
        if self.peers.set_own_load(load, &self.terms(), now.at) {
            self.peers_changed(now);
        }
    }

    /// The tasks that this worker can take, as its peers read it from its record.
    fn terms(&self) -> WorkerTerms {
        let limit = self.config.capacity.map(|capacity| (capacity + self.slots.parked()) as u64);
        WorkerTerms { accepts: self.config.selector.clone(), limit }
    }

    /// The class of tasks that exactly the workers with the same terms as this one accept.
    pub(super) fn own_class(&self) -> Class {
        self.peers.workers().class_of_peer(&self.config.node)
    }

    /// The set of workers that take tasks has changed.
    pub(super) fn peers_changed(&mut self, now: InputTime) {
        // A new worker enters with an empty load, although it may own tasks from before.
        let nodes: Vec<_> = self.peers.workers().iter().map(|(node, _)| node.clone()).collect();
        for node in nodes {
            self.peers.set_load(&node, self.board.load_of(&node), now.at);
        }
        // The classes are bit sets over the terms of all workers, so new terms change the class of
        // every task.
        if self.board.classify(self.peers.workers().profiles()) {
            self.balance.classify(&self.board);
        }
        self.rank_again();
        // Workers come and go in groups: one round for all of them is enough.
        self.timers.set(Timer::Round, now.at + DEBOUNCE);
    }

    /// Sets the next round that is due only because time has passed.
    pub(super) fn set_periodic(&mut self, now: InputTime) {
        let scattered = self.config.rebalance_every.mul_f64(0.9 + 0.2 * now.jitter.clamp(0.0, 1.0));
        self.timers.set(Timer::Periodic, now.at + scattered);
    }

    /// A resource was measured. If a release is due because of it, the next round must not wait for
    /// its time: the resource may be memory.
    pub(super) fn handle_measured(&mut self, resource: Option<ResourceUsage>, now: InputTime) {
        self.balance.resource = resource;
        let is_for_this = |parting: &Release| matches!(parting.reason, balance::DecisionReason::Used { .. });
        if self.timers.at(&Timer::Round).is_none() && self.plan(now.at).iter().any(is_for_this) {
            self.timers.set(Timer::Round, now.at + DEBOUNCE);
        }
    }

    /// Carries out the releases of the balancer, as many as one round may. Returns the plan and how
    /// many of it were carried out.
    pub(super) fn balance_round(&mut self, now: InputTime) -> (Vec<Release>, usize) {
        // On an incomplete board the loads of the peers are too small, and the worker would release
        // tasks in vain.
        if !self.takes_tasks() || !self.board.is_fresh() {
            self.balance.is_releasing = false;
            return (Vec::new(), 0);
        }
        let plan = self.plan(now.at);
        let parting = plan.len().min(self.churn_max());
        for task in plan.iter().take(parting).map(|parting| parting.task.clone()) {
            self.release(&task, ReleaseReason::Balance, now);
        }
        self.balance.is_releasing = plan.len() > parting;
        if self.balance.is_releasing {
            self.timers.set(Timer::Round, now.at + NEXT_ROUND);
        }
        if !plan.is_empty() {
            self.events.push_back(WorkerEvent::Balanced { plan: plan.clone(), parting });
        }
        (plan, parting)
    }

    /// How many tasks one round may release. If a worker without tasks has just joined, going down
    /// to the share by tenths would only take longer.
    fn churn_max(&mut self) -> usize {
        let (_, _, cluster) = self.balancer(Moment::ORIGIN);
        let class = cluster.own.newest().next().map_or(Class::ANY, |(_, held)| held.class);
        let level = cluster.level(class, LoadMetric::Tasks);
        let quota = cluster.workers.quota(cluster.me, level, LoadMetric::Tasks);
        let (own, quota) = (cluster.own.len(), usize::try_from(quota).unwrap_or(usize::MAX));
        // Twice the quota or more: the excess goes at once, because most of it has to move anyway.
        if own >= quota.saturating_mul(2) {
            return own - quota;
        }
        (own / CHURN_DIVISOR).max(1)
    }
}
