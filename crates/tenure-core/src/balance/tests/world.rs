//! Nodes that come and go, each with a balancer of its own, deciding on the same picture until nothing moves.
//!
//! Time advances in steps of 250 ms. In each step every worker sees the snapshot of the step
//! before, so all decide on slightly old data. It claims what its balancer allows, later the higher
//! its rank. Once a second it releases a tenth of its tasks at most.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const STEP_MS: u64 = 250;

/// Long enough for every cool-down to end and every late taker to come, several times over.
const SETTLING_STEPS: u64 = 4 * 60 * 4;

type NewBalancer = fn() -> Box<dyn Balancer>;

struct WorldWorker {
    balancer: Box<dyn Balancer>,
    workers: WorkerLoads,
    own: OwnedTasks,
    cooldowns: Cooldowns,
}

struct BalanceWorld {
    new_balancer: NewBalancer,
    workers: BTreeMap<NodeId, WorldWorker>,
    tasks: BTreeMap<TaskId, TaskRecord>,
    unowned_since: BTreeMap<TaskId, u64>,
    step: u64,
    turns: usize,
    moves: u64,
    /// How many tasks fit into the memory of one node.
    room: u64,
}

impl BalanceWorld {
    fn new(new_balancer: NewBalancer) -> BalanceWorld {
        BalanceWorld {
            new_balancer,
            workers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            unowned_since: BTreeMap::new(),
            step: 0,
            turns: 0,
            moves: 0,
            room: 1_000,
        }
    }

    fn submit(&mut self, count: u64, weights: &[u64]) {
        for _ in 0..count {
            let n = self.tasks.len() as u64;
            let mut record = TaskRecord::default();
            if !weights.is_empty() {
                let weight = weights[self.tasks.len() % weights.len()];
                record.labels.insert("weight".to_owned(), weight.to_string());
            }
            self.tasks.insert(task(n), record);
            self.unowned_since.insert(task(n), self.step);
        }
    }

    fn join(&mut self, name: &str) {
        let worker = WorldWorker {
            balancer: (self.new_balancer)(),
            workers: WorkerLoads::new(),
            own: OwnedTasks::new(),
            cooldowns: Cooldowns::new(),
        };
        self.workers.entry(node(name)).or_insert(worker);
    }

    fn leave(&mut self, name: &str) {
        let Some(gone) = self.workers.remove(&node(name)) else { return };
        self.unowned_since.extend(gone.own.iter().map(|(task, _)| (task.clone(), self.step)));
    }

    fn counts(&self) -> Vec<u64> {
        self.workers.values().map(|worker| worker.own.len() as u64).collect()
    }

    fn settle(&mut self, steps: u64) {
        for _ in 0..steps {
            self.advance();
        }
    }

    fn advance(&mut self) {
        let now = Moment::from_ms(self.step * STEP_MS);
        let seen: Vec<(NodeId, Load)> =
            self.workers.iter().map(|(node, worker)| (node.clone(), worker.own.load())).collect();
        let offers: Vec<(TaskId, u64)> =
            self.unowned_since.iter().map(|(task, since)| (task.clone(), *since)).collect();
        let unowned = offers.iter().fold(Load::default(), |sum, (task, _)| {
            sum + Load::of_one(weight_of(&self.tasks[task]).unwrap())
        });
        let (unowned, claiming) = (Demand::of(Class::ANY, unowned), Demand::default());
        let mut names: Vec<NodeId> = self.workers.keys().cloned().collect();
        // No worker is always the first.
        let first = self.turns % names.len().max(1);
        names.rotate_left(first);
        self.turns += 1;
        for me in &names {
            let worker = self.workers.get_mut(me).unwrap();
            for gone in worker.workers.iter().map(|(node, _)| node.clone()).collect::<Vec<_>>() {
                if !names.contains(&gone) {
                    worker.workers.remove(&gone);
                }
            }
            for (node, load) in &seen {
                worker.workers.set(node, *load, now);
            }
            let used = worker.own.len() as u64;
            let resource = Some(ResourceUsage { used, total: self.room, read_at: now });
            for (task, since) in &offers {
                let waited = Duration::from_millis((self.step - since) * STEP_MS);
                let rank = worker.workers.rank(me, task);
                if !self.unowned_since.contains_key(task)
                    || waited < Duration::from_millis((rank as u64 * STEP_MS).min(1_000))
                {
                    continue;
                }
                let record = &self.tasks[task];
                let weight = weight_of(record).unwrap();
                let (class, unowned_for) = (Class::ANY, waited);
                let offer = Claimable { task, record, weight, class, rank, unowned_for, waited };
                let cluster = ClusterLoad {
                    me,
                    workers: &worker.workers,
                    unowned: &unowned,
                    claiming: &claiming,
                    own: &worker.own,
                    cooldowns: &worker.cooldowns,
                    resource,
                    is_releasing: false,
                    now,
                };
                if takes(&consider(worker.balancer.as_mut(), &offer, &cluster)) {
                    let held = OwnedTask { kind: None, weight, class, cost: 0, since: now };
                    worker.own.insert(task.clone(), held);
                    self.unowned_since.remove(task);
                    self.moves += 1;
                }
            }
            if self.step.is_multiple_of(4) {
                let cluster = ClusterLoad {
                    me,
                    workers: &worker.workers,
                    unowned: &unowned,
                    claiming: &claiming,
                    own: &worker.own,
                    cooldowns: &worker.cooldowns,
                    resource,
                    is_releasing: false,
                    now,
                };
                let cap = worker.own.len().div_ceil(10).max(1);
                for release in planned_releases(worker.balancer.as_mut(), &cluster).into_iter().take(cap) {
                    worker.own.remove(&release.task).expect("it owns what it releases");
                    worker.cooldowns.note(&release.task, COOLDOWN, ReleasedBy::Node, now);
                    self.unowned_since.insert(release.task, self.step);
                    self.moves += 1;
                }
            }
        }
        self.step += 1;
    }

    /// Waits until nothing can be on its way any more, and sees that nothing moves from then on.
    fn assert_settles(&mut self) {
        self.settle(SETTLING_STEPS);
        let before = self.moves;
        self.settle(SETTLING_STEPS);
        assert_eq!(self.moves, before, "tasks still move: {:?}", self.counts());
        if !self.workers.is_empty() {
            assert!(self.unowned_since.is_empty(), "{} tasks are unowned", self.unowned_since.len());
        }
    }
}

fn spread(counts: &[u64]) -> u64 {
    counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
}

#[test]
fn fair_workers_differ_by_one_at_most() {
    for (nodes, tasks) in [(3, 1_000), (8, 1_001), (5, 3), (7, 100), (2, 6), (20, 19)] {
        let mut world = BalanceWorld::new(|| Box::new(Fair::new()));
        for n in 0..nodes {
            world.join(&format!("n{n}"));
        }
        world.submit(tasks, &[]);
        world.settle(20);
        let counts = world.counts();
        assert!(spread(&counts) <= 1, "{tasks} tasks on {nodes} nodes: {counts:?}");
        assert_eq!(world.moves, tasks, "each was claimed once and none was released");
    }
}

#[test]
fn unowned_task_is_claimed_without_delay() {
    let mut world = BalanceWorld::new(|| Box::new(Fair::new()));
    for name in ["a", "b", "c"] {
        world.join(name);
    }
    for _ in 0..50 {
        world.submit(1, &[]);
        world.settle(4);
        assert!(world.unowned_since.is_empty(), "{:?}", world.counts());
        assert!(spread(&world.counts()) <= 1, "{:?}", world.counts());
    }
}

#[test]
fn two_workers_settle_at_half_each() {
    let mut world = BalanceWorld::new(|| Box::new(Fair::new()));
    world.join("a");
    world.submit(6, &[]);
    world.settle(20);
    world.join("b");
    world.assert_settles();
    assert_eq!(world.counts(), [3, 3]);
    assert_eq!(world.moves, 6 + 3 + 3, "three tasks moved, once each");
}

#[test]
fn peers_share_tasks_of_dead_worker() {
    let mut world = BalanceWorld::new(|| Box::new(Fair::new()));
    for name in ["a", "b", "c"] {
        world.join(name);
    }
    world.submit(1_000, &[]);
    world.settle(20);
    world.leave("b");
    world.settle(20);
    assert_eq!(world.counts(), [500, 500]);
}

#[test]
fn workers_fill_up_to_capacity() {
    let mut world = BalanceWorld::new(|| Box::new(Capacity::new(50, 80).unwrap()));
    world.room = 100;
    for name in ["a", "b", "c"] {
        world.join(name);
    }
    world.submit(500, &[]);
    world.settle(40);
    let moves = world.moves;
    assert!(world.counts().iter().all(|count| (50..=66).contains(count)), "{:?}", world.counts());
    // The hosts shrink: each worker releases what does not fit, one task at a time, and no peer
    // claims it.
    world.room = 50;
    world.settle(4 * 40);
    assert!(world.counts().iter().all(|count| *count == 40), "{:?}", world.counts());
    assert_eq!(world.moves, moves + moves - 120);
}

#[derive(Clone, Debug)]
enum FleetChange {
    Join(u8),
    Leave(u8),
    Submit(u8),
    Pass(u8),
}

fn acts() -> impl Strategy<Value = Vec<FleetChange>> {
    let act = prop_oneof![
        (0..6_u8).prop_map(FleetChange::Join),
        (0..6_u8).prop_map(FleetChange::Leave),
        (1..40_u8).prop_map(FleetChange::Submit),
        (1..40_u8).prop_map(FleetChange::Pass),
    ];
    prop::collection::vec(act, 1..12)
}

/// Whether workers leave during a cooldown. Then the worker that should own a task may not claim it
/// yet, and another one keeps it.
#[derive(Clone, Copy, PartialEq)]
enum LeaveTiming {
    AtAnyTime,
    WhenAllIsQuiet,
}

fn run_changes(
    new_balancer: NewBalancer,
    acts: &[FleetChange],
    weights: &[u64],
    leaving: LeaveTiming,
) -> BalanceWorld {
    let mut world = BalanceWorld::new(new_balancer);
    for act in acts {
        match act {
            FleetChange::Join(n) => world.join(&format!("n{n}")),
            FleetChange::Leave(n) => {
                if leaving == LeaveTiming::WhenAllIsQuiet {
                    world.settle(4 * 70);
                }
                world.leave(&format!("n{n}"));
            }
            FleetChange::Submit(count) => world.submit(u64::from(*count), weights),
            FleetChange::Pass(steps) => world.settle(u64::from(*steps)),
        }
    }
    world.join("survivor");
    world.assert_settles();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_balancer_settles(acts in acts(), weights in prop::collection::vec(1..20_u64, 1..5)) {
        let all: [NewBalancer; 4] =
            [|| Box::new(AcceptAll), || Box::new(Fair::new()), || Box::new(Weighted::new()), || Box::new(Rendezvous::new())];
        for new_balancer in all {
            run_changes(new_balancer, &acts, &weights, LeaveTiming::AtAnyTime);
        }
    }

    #[test]
    fn fair_nodes_come_to_rest_near_their_share(acts in acts()) {
        let world = run_changes(|| Box::new(Fair::new()), &acts, &[], LeaveTiming::WhenAllIsQuiet);
        let counts = world.counts();
        let quota = (world.tasks.len() as u64).div_ceil(counts.len() as u64);
        let most = counts.iter().max().copied().unwrap_or(0);
        prop_assert!(most * 100 <= quota * 120, "{:?}", counts);
        let least = counts.iter().min().copied().unwrap_or(0);
        prop_assert!(most <= quota || least * 2 >= quota, "{:?}", counts);
    }

    #[test]
    fn rendezvous_settles_at_hash(acts in acts()) {
        let world = run_changes(|| Box::new(Rendezvous::new()), &acts, &[], LeaveTiming::WhenAllIsQuiet);
        for (name, worker) in &world.workers {
            for (task, _) in worker.own.iter() {
                prop_assert_eq!(worker.workers.meant(task, Class::ANY, None), Some(name));
            }
        }
    }
}
