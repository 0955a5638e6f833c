//! How a node's balancer is asked, and how much of what it says is done at a time.
//!
//! **Invariant**: what is leaving is not among what the node has, so nobody is asked to give it away twice.

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

/// What a balancer looks at, beside the board and the company.
pub(super) struct BalanceState {
    pub(super) balancer: Box<dyn Balancer>,
    /// What the node has and is just claiming, without what is leaving.
    own: OwnedTasks,
    pub(super) cooldowns: Cooldowns,
    pub(super) resource: Option<ResourceUsage>,
    /// Whether the last round could not do all that the balancer said.
    is_releasing: bool,
    /// Tasks of ours that the board still shows as nobody's: they must not be counted twice.
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

    /// The node claims a task.
    pub(super) fn take(&mut self, task: &TaskId, card: &Card, since: Moment) {
        let kind = card.record.as_ref().ok().and_then(|record| record.kind.clone());
        let weight = card.weight();
        let class = card.class;
        self.own.insert(task.clone(), OwnedTask { kind, weight, class, cost: 0, since });
        if self.unseen.insert(task.clone(), (class, weight)).is_none() {
            self.unseen_load.add(class, Load::of_one(weight));
        }
    }

    /// The board shows who owns a task, or that it is gone.
    pub(super) fn see(&mut self, task: &TaskId) {
        if let Some((class, weight)) = self.unseen.remove(task) {
            self.unseen_load.sub(class, Load::of_one(weight));
        }
    }

    /// A task is leaving, or is not ours after all.
    pub(super) fn part(&mut self, task: &TaskId) {
        self.own.remove(task);
    }

    pub(super) fn load(&self) -> Load {
        self.own.load()
    }

    /// What the board shows without an owner although this node is claiming it.
    pub(super) fn claiming(&self) -> &Demand {
        &self.unseen_load
    }

    /// The board has classified its tasks again.
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
    /// The balancer, the board, and everything else that a balancer is told.
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

    /// Asks the balancer about a task that nobody owns.
    pub(super) fn ask_balancer(&mut self, task: &TaskId, turn: ClaimTurn, now: Moment) -> ClaimDecision {
        let (balancer, board, cluster) = self.balancer(now);
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

    /// What the balancer would give away now, with reasons; nothing is done.
    pub fn plan(&mut self, now: Moment) -> Vec<Release> {
        let (balancer, _, cluster) = self.balancer(now);
        balance::planned_releases(balancer, &cluster)
    }

    /// Counts this node among those who take tasks, or not, with what it has.
    pub(super) fn update_own_load(&mut self, now: InputTime) {
        let load = self.takes_tasks().then(|| self.balance.load());
        if self.peers.set_own_load(load, &self.terms(), now.at) {
            self.peers_changed(now);
        }
    }

    /// What this node can take, as its peers know it from its record.
    fn terms(&self) -> WorkerTerms {
        let limit = self.config.capacity.map(|capacity| (capacity + self.slots.parked()) as u64);
        WorkerTerms { accepts: self.config.selector.clone(), limit }
    }

    /// The class of tasks that nodes accept that accept the same as this one.
    pub(super) fn own_class(&self) -> Class {
        self.peers.workers().class_of_peer(&self.config.node)
    }

    /// Others take tasks than before.
    pub(super) fn peers_changed(&mut self, now: InputTime) {
        let nodes: Vec<_> = self.peers.workers().iter().map(|(node, _)| node.clone()).collect();
        for node in nodes {
            self.peers.set_load(&node, self.board.load_of(&node), now.at);
        }
        if self.board.classify(self.peers.workers().profiles()) {
            self.balance.classify(&self.board);
        }
        self.rank_again();
        self.timers.set(Timer::Round, now.at + DEBOUNCE);
    }

    /// The next round that is due for no other reason than time.
    pub(super) fn set_periodic(&mut self, now: InputTime) {
        let scattered = self.config.rebalance_every.mul_f64(0.9 + 0.2 * now.jitter.clamp(0.0, 1.0));
        self.timers.set(Timer::Periodic, now.at + scattered);
    }

    /// Somebody has looked how much of a resource is used. If that is too much the next round cannot wait for its time: what is short may be
    /// memory.
    pub(super) fn handle_measured(&mut self, resource: Option<ResourceUsage>, now: InputTime) {
        self.balance.resource = resource;
        let is_for_this = |parting: &Release| matches!(parting.reason, balance::DecisionReason::Used { .. });
        if self.timers.at(&Timer::Round).is_none() && self.plan(now.at).iter().any(is_for_this) {
            self.timers.set(Timer::Round, now.at + DEBOUNCE);
        }
    }

    /// Gives away what the balancer says, as far as one round may; says what it said and how much of it is done.
    pub(super) fn balance_round(&mut self, now: InputTime) -> (Vec<Release>, usize) {
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

    /// How much may be given away in one round. When somebody has just joined who has nothing, going down to the share by tenths would only take longer.
    fn churn_max(&mut self) -> usize {
        let (_, _, cluster) = self.balancer(Moment::ORIGIN);
        let class = cluster.own.newest().next().map_or(Class::ANY, |(_, held)| held.class);
        let level = cluster.level(class, LoadMetric::Tasks);
        let quota = cluster.workers.quota(cluster.me, level, LoadMetric::Tasks);
        let (own, quota) = (cluster.own.len(), usize::try_from(quota).unwrap_or(usize::MAX));
        if own >= quota.saturating_mul(2) {
            return own - quota;
        }
        (own / CHURN_DIVISOR).max(1)
    }
}
