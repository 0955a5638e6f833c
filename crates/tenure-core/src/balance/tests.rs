//! The single decisions of each balancer; `world` lets many of them decide at once.

mod unwanted;
mod world;

use std::time::Duration;

use super::*;

fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

fn task(n: u64) -> TaskId {
    TaskId::parse(&format!("t{n}")).unwrap()
}

/// One node's view: it is `a`, and these are the willing nodes with their tasks, of weight 1 each.
struct BalanceCase {
    me: NodeId,
    workers: WorkerLoads,
    own: OwnedTasks,
    cooldowns: Cooldowns,
    claiming: Demand,
    unowned: Demand,
    resource: Option<ResourceUsage>,
    now: Moment,
}

impl BalanceCase {
    fn of(counts: &[(&str, u64)]) -> BalanceCase {
        let mut scene = BalanceCase {
            me: node("a"),
            workers: WorkerLoads::new(),
            own: OwnedTasks::new(),
            cooldowns: Cooldowns::new(),
            claiming: Demand::default(),
            unowned: Demand::default(),
            resource: None,
            now: Moment::from_ms(1_000_000),
        };
        for (name, tasks) in counts {
            scene.workers.set(&node(name), Load { tasks: *tasks, weight: *tasks }, Moment::ORIGIN);
        }
        let own = counts.iter().find(|(name, _)| *name == "a").map_or(0, |(_, tasks)| *tasks);
        for n in 0..own {
            scene.hold(n, 1);
        }
        scene
    }

    /// With one more own task, newer than the others. The loads of the workers include it.
    fn hold(&mut self, n: u64, weight: u64) {
        let since = Moment::from_ms(n);
        self.own.insert(task(n), OwnedTask { kind: None, weight, class: Class::ANY, cost: 0, since });
        if self.workers.contains(&self.me) {
            self.workers.set(&self.me, self.own.load(), Moment::ORIGIN);
        }
    }

    /// The class of a task without kind and labels.
    fn class(&self) -> Class {
        self.workers.profiles().class_of(&TaskRecord::default())
    }

    fn unowned(mut self, tasks: u64) -> BalanceCase {
        self.unowned = Demand::of(self.class(), Load { tasks, weight: tasks });
        self
    }

    fn loads(&self) -> ClusterLoad<'_> {
        ClusterLoad {
            me: &self.me,
            workers: &self.workers,
            unowned: &self.unowned,
            claiming: &self.claiming,
            own: &self.own,
            cooldowns: &self.cooldowns,
            resource: self.resource,
            is_releasing: false,
            now: self.now,
        }
    }

    /// The decision about a task that has waited this long.
    fn offered(&self, balancer: &mut dyn Balancer, waited_ms: u64) -> ClaimDecision {
        self.offered_task(balancer, &task(9_999), 1, waited_ms)
    }

    fn offered_task(
        &self,
        balancer: &mut dyn Balancer,
        task: &TaskId,
        weight: u64,
        waited_ms: u64,
    ) -> ClaimDecision {
        let record = TaskRecord::default();
        let rank = self.workers.rank(&self.me, task);
        let (class, waited) = (self.class(), Duration::from_millis(waited_ms));
        let offer = Claimable { task, record: &record, weight, class, rank, unowned_for: waited, waited };
        consider(balancer, &offer, &self.loads())
    }

    fn released(&self, balancer: &mut dyn Balancer) -> Vec<u64> {
        let releases = planned_releases(balancer, &self.loads());
        releases.iter().map(|release| release.task.as_str()[1..].parse().unwrap()).collect()
    }
}

fn takes(verdict: &ClaimDecision) -> bool {
    *verdict == ClaimDecision::Claim
}

#[test]
fn second_worker_gets_half_of_tasks() {
    let scene = BalanceCase::of(&[("a", 6), ("b", 0)]);
    assert_eq!(scene.released(&mut Fair::new()), [5, 4, 3], "the newest three");
}

#[test]
fn a_node_in_shutdown_is_not_counted() {
    // `c` is on its way out, so it is not willing, and neither are its tasks to be shared.
    let scene = BalanceCase::of(&[("a", 6), ("b", 0)]);
    assert_eq!(scene.released(&mut Fair::new()).len(), 3);
    let scene = BalanceCase::of(&[("a", 6), ("b", 0), ("c", 0)]);
    assert_eq!(scene.released(&mut Fair::new()).len(), 4, "and if it were willing, it would be");
}

#[test]
fn two_tasks_on_three_nodes_release_nothing() {
    for name in ["a", "b", "c"] {
        let mut scene = BalanceCase::of(&[("a", 1), ("b", 1), ("c", 0)]);
        scene.me = node(name);
        assert_eq!(scene.released(&mut Fair::new()), [0; 0]);
        assert_eq!(scene.released(&mut Weighted::new()), [0; 0]);
    }
}

#[test]
fn a_node_without_tasks_counts() {
    let alone = BalanceCase::of(&[("a", 10)]);
    assert_eq!(alone.released(&mut Fair::new()), [0; 0]);
    let beside_an_idle_one = BalanceCase::of(&[("a", 10), ("b", 0)]);
    assert_eq!(beside_an_idle_one.released(&mut Fair::new()).len(), 5);
    assert!(!takes(&beside_an_idle_one.unowned(1).offered(&mut Fair::new(), 0)));
}

#[test]
fn small_differences_move_nothing() {
    for counts in [[("a", 12), ("b", 10), ("c", 8)], [("a", 12), ("b", 9), ("c", 9)]] {
        assert_eq!(BalanceCase::of(&counts).released(&mut Fair::new()), [0; 0], "12 is 1.2 times 10");
    }
    assert_eq!(BalanceCase::of(&[("a", 13), ("b", 9), ("c", 8)]).released(&mut Fair::new()), [12, 11, 10]);
}

/// With the threshold alone, one node that joins nine gets nothing: each of the nine is only a ninth above the mean.
#[test]
fn newcomer_to_large_fleet_gets_share() {
    let mut counts: Vec<(String, u64)> = (0..9).map(|n| (format!("n{n}"), 111)).collect();
    counts[0].0 = "a".to_owned();
    counts.push(("new".to_owned(), 0));
    let counts: Vec<(&str, u64)> = counts.iter().map(|(name, tasks)| (name.as_str(), *tasks)).collect();
    assert_eq!(BalanceCase::of(&counts).released(&mut Fair::new()).len(), 11, "down to the quota of 100");
}

#[test]
fn worker_releases_only_own_tasks() {
    /// Releases its own tasks twice, and one that it does not own.
    struct TooMuch;
    impl Balancer for TooMuch {
        fn claim(&mut self, _: &Claimable<'_>, _: &ClusterLoad<'_>) -> ClaimDecision {
            ClaimDecision::Claim
        }
        fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
            let reason = DecisionReason::Other("enough".to_owned());
            let everything = cluster.own.newest().chain(cluster.own.newest()).map(|(task, _)| task.clone());
            everything.chain([task(77)]).map(|task| Release { task, reason: reason.clone() }).collect()
        }
        fn name(&self) -> &'static str {
            "too_much"
        }
    }
    assert_eq!(BalanceCase::of(&[("a", 3), ("b", 0)]).released(&mut TooMuch), [2, 1, 0]);
    assert_eq!(BalanceCase::of(&[("a", 3)]).released(&mut TooMuch), [0; 0], "no peer can take any");
    // The board may show more own tasks than there are, for example while claims end.
    let mut scene = BalanceCase::of(&[("a", 2), ("b", 0)]);
    scene.workers.set(&node("a"), Load { tasks: 50, weight: 50 }, Moment::ORIGIN);
    assert!(scene.released(&mut Fair::new()).len() <= 2);
}

#[test]
fn every_balancer_leaves_released_task_to_peers() {
    let mut scene = BalanceCase::of(&[("a", 0), ("b", 9)]).unowned(1);
    scene.cooldowns.note(&task(9_999), COOLDOWN, ReleasedBy::Node, scene.now);
    let mut all: [Box<dyn Balancer>; 4] =
        [Box::new(AcceptAll), Box::new(Fair::new()), Box::new(Weighted::new()), Box::new(Rendezvous::new())];
    for balancer in &mut all {
        let retry_after = Duration::from_millis(1);
        let wait = ClaimDecision::Wait { retry_after, reason: DecisionReason::CoolingDown };
        assert_eq!(scene.offered(balancer.as_mut(), 999), wait, "{}", balancer.name());
        assert!(takes(&scene.offered(balancer.as_mut(), 2_000)), "{}", balancer.name());
        scene.workers.set_terms(&node("b"), &WorkerTerms { limit: Some(9), ..WorkerTerms::default() });
        let verdict = scene.offered(balancer.as_mut(), 0);
        assert!(takes(&verdict), "no peer has room, {}: {verdict:?}", balancer.name());
        scene.workers.set_terms(&node("b"), &WorkerTerms::default());
    }
}

#[test]
fn frozen_worker_claims_and_releases_nothing() {
    let mut scene = BalanceCase::of(&[("b", 0)]).unowned(5);
    scene.hold(1, 1);
    scene.hold(2, 1);
    assert_eq!(
        scene.offered(&mut AcceptAll, 60_000),
        ClaimDecision::Wait { retry_after: PATIENCE, reason: DecisionReason::TakesNoTasks }
    );
    assert_eq!(scene.released(&mut Fair::new()), [0; 0], "a frozen node keeps what it has");
    assert_eq!(scene.released(&mut Rendezvous::new()), [0; 0]);
}

#[test]
fn a_fair_node_takes_its_share_at_once() {
    assert!(takes(
        &BalanceCase::of(&[("a", 332), ("b", 0), ("c", 0)]).unowned(668).offered(&mut Fair::new(), 0)
    ));
    assert!(takes(&BalanceCase::of(&[("a", 0), ("b", 0), ("c", 0)]).unowned(1).offered(&mut Fair::new(), 0)));
    assert!(takes(&BalanceCase::of(&[("a", 1), ("b", 1), ("c", 1)]).unowned(1).offered(&mut Fair::new(), 0)));
}

#[test]
fn last_tasks_go_to_least_loaded() {
    let retry_after = |scene: BalanceCase| match scene.offered(&mut Fair::new(), 0) {
        ClaimDecision::Claim => None,
        ClaimDecision::Wait { retry_after, .. } => Some(retry_after),
    };
    let full = BalanceCase::of(&[("a", 2), ("b", 1), ("c", 2)]).unowned(1);
    assert_eq!(retry_after(full), Some(PATIENCE));
    let nearly_full = BalanceCase::of(&[("a", 3), ("b", 2), ("c", 3)]).unowned(2);
    assert_eq!(retry_after(nearly_full), Some(Duration::from_millis(250)), "others may only be slow to show");
    let behind = BalanceCase::of(&[("a", 2), ("b", 3), ("c", 3)]).unowned(2);
    assert_eq!(retry_after(behind), None);
}

/// A task that only this node can run must not starve, and must not be stopped and started for ever either.
#[test]
fn unwanted_task_is_claimed_and_kept() {
    let mut fair = Fair::new();
    let mut scene = BalanceCase::of(&[("a", 10), ("b", 0)]).unowned(10);
    let verdict = scene.offered_task(&mut fair, &task(10), 1, 1_999);
    assert!(
        matches!(verdict, ClaimDecision::Wait { retry_after, .. } if retry_after == Duration::from_millis(1))
    );
    for n in 10..20 {
        assert!(takes(&scene.offered_task(&mut fair, &task(n), 1, 2_000)));
        scene.hold(n, 1);
        let class = scene.class();
        scene.unowned.sub(class, Load::of_one(1));
    }
    assert_eq!(scene.released(&mut fair), [0; 0], "20 of 20, and none that a peer would take");
    assert_eq!(scene.released(&mut Fair::new()).len(), 10, "one that does not remember gives them away");
    // A newcomer may want them.
    scene.workers.set(&node("c"), Load::default(), scene.now);
    assert_eq!(scene.released(&mut fair).len(), 13, "down to the quota of 7");
}

/// Tasks that were there before any node was have waited long, but not for the others.
#[test]
fn unseen_task_is_not_unwanted() {
    let mut scene = BalanceCase::of(&[("a", 10), ("b", 0)]).unowned(10);
    scene.workers.set(&node("c"), Load::default(), scene.now - Duration::from_millis(500));
    let verdict = scene.offered(&mut Fair::new(), 3_600_000);
    assert!(
        matches!(verdict, ClaimDecision::Wait { retry_after, .. } if retry_after == Duration::from_millis(1_500))
    );
    let elsewhere =
        (0..).map(task).find(|task| scene.workers.meant(task, Class::ANY, None) != Some(&scene.me)).unwrap();
    let verdict = scene.offered_task(&mut Rendezvous::new(), &elsewhere, 1, 3_600_000);
    assert!(
        matches!(verdict, ClaimDecision::Wait { retry_after, .. } if retry_after == Duration::from_millis(1_500))
    );
}

#[test]
fn the_cheapest_goes_first_if_the_user_likes() {
    let mut scene = BalanceCase::of(&[("a", 4), ("b", 0)]);
    let held =
        |cost, ms| OwnedTask { kind: None, weight: 1, class: Class::ANY, cost, since: Moment::from_ms(ms) };
    for (n, cost) in [(0, 5), (1, 9), (2, 1), (3, 7)] {
        scene.own.insert(task(n), held(cost, n));
    }
    assert_eq!(scene.released(&mut Fair::new().order(ReleaseOrder::Cheapest)), [2, 0]);
    assert_eq!(scene.released(&mut Fair::new()), [3, 2]);
}

#[test]
fn a_threshold_below_the_share_itself_is_refused() {
    assert_eq!(Fair::new().threshold_percent(99).unwrap_err(), InvalidThreshold(99));
    assert!(Weighted::new().threshold_percent(0).is_err());
    let mut exact = Fair::new().threshold_percent(100).unwrap();
    assert_eq!(BalanceCase::of(&[("a", 11), ("b", 9)]).released(&mut exact), [10]);
}

#[test]
fn weights_are_shared_and_not_numbers() {
    let mut scene = BalanceCase::of(&[("a", 0), ("b", 0)]);
    for (n, weight) in [(0, 10), (1, 1), (2, 1)] {
        scene.hold(n, weight);
    }
    assert_eq!(scene.released(&mut Weighted::new()), [2, 1], "the heavy one would only change places");
    scene.workers.set(&node("b"), Load { tasks: 2, weight: 10 }, Moment::ORIGIN);
    assert_eq!(scene.released(&mut Weighted::new()), [0; 0]);
    assert!(takes(&scene.unowned(1).offered_task(&mut Weighted::new(), &task(7), 1, 2_000)));
}

#[test]
fn heavy_task_goes_to_least_loaded() {
    let mut idle = BalanceCase::of(&[("a", 0), ("b", 5)]);
    idle.unowned = Demand::of(idle.class(), Load::of_one(1_000));
    assert!(takes(&idle.offered_task(&mut Weighted::new(), &task(1), 1_000, 0)));
    let mut busy = BalanceCase::of(&[("a", 5), ("b", 0)]);
    busy.unowned = Demand::of(busy.class(), Load::of_one(1_000));
    assert!(!takes(&busy.offered_task(&mut Weighted::new(), &task(7), 1_000, 0)));
}

#[test]
fn rendezvous_follows_hash() {
    let mut scene = BalanceCase::of(&[("a", 0), ("b", 0), ("c", 0)]);
    let mut balancer = Rendezvous::new();
    let (mut at_once, mut elsewhere) = (0, Vec::new());
    for n in 0..300 {
        let is_meant = scene.workers.meant(&task(n), Class::ANY, None) == Some(&scene.me);
        assert_eq!(takes(&scene.offered_task(&mut balancer, &task(n), 1, 0)), is_meant);
        at_once += u64::from(is_meant);
        if !is_meant {
            elsewhere.push(n);
        }
    }
    assert!((70..=130).contains(&at_once), "{at_once}");
    for n in 0..300 {
        scene.hold(n, 1);
    }
    elsewhere.reverse();
    assert_eq!(scene.released(&mut balancer), elsewhere);
    let late = elsewhere[0];
    assert!(takes(&scene.offered_task(&mut balancer, &task(late), 1, 2_000)), "no peer took it");
    assert_eq!(scene.released(&mut balancer), elsewhere[1..], "so it is kept");
}

#[test]
fn invalid_capacity_limits_are_refused() {
    for (claim, release) in [(80, 80), (90, 80)] {
        assert_eq!(
            Capacity::new(claim, release).unwrap_err(),
            InvalidCapacity::ClaimNotBelowRelease { claim, release }
        );
    }
    assert_eq!(Capacity::new(0, 80).unwrap_err(), InvalidCapacity::ClaimsNothing);
    assert_eq!(Capacity::new(80, 101).unwrap_err(), InvalidCapacity::ReleasesNothing(101));
    assert_eq!(
        Capacity::new(90, 80).unwrap_err().to_string(),
        "tasks are claimed below 90 % and released above 80 %: the first must be less"
    );
}

#[test]
fn capacity_claims_below_and_releases_above() {
    let mut capacity = Capacity::new(70, 90).unwrap();
    let mut scene = BalanceCase::of(&[("a", 3), ("b", 0)]).unowned(9);
    let mut at = |used: u64| {
        scene.resource = Some(ResourceUsage { used, total: 1_000, read_at: Moment::from_ms(used) });
        (takes(&scene.offered(&mut capacity, 60_000)), scene.released(&mut capacity))
    };
    assert_eq!(at(699), (false, vec![]), "69.9 % is not below 70 % once rounded up");
    assert_eq!(at(690), (true, vec![]));
    assert_eq!(at(800), (false, vec![]));
    assert_eq!(at(900), (false, vec![]));
    assert_eq!(at(901), (false, vec![2]), "the newest, and then it is measured again");
}

#[test]
fn claims_per_measurement_are_bounded() {
    let mut capacity = Capacity::new(70, 90).unwrap();
    let mut scene = BalanceCase::of(&[("a", 0)]).unowned(10_000);
    for read_at in [1, 2, 3] {
        scene.resource = Some(ResourceUsage { used: 0, total: 1, read_at: Moment::from_ms(read_at) });
        let taken = (0..1_000).filter(|_| takes(&scene.offered(&mut capacity, 0))).count();
        assert_eq!(taken, 16);
    }
    scene.resource = None;
    assert!(matches!(
        scene.offered(&mut capacity, 0),
        ClaimDecision::Wait { reason: DecisionReason::NoReading, .. }
    ));
    scene.resource = Some(ResourceUsage { used: 0, total: 0, read_at: Moment::from_ms(9) });
    assert!(!takes(&scene.offered(&mut capacity, 0)), "of nothing there is nothing left");
}

#[test]
fn accept_all_claims_all_and_releases_none() {
    let scene = BalanceCase::of(&[("a", 1_000), ("b", 0)]).unowned(1);
    assert!(takes(&scene.offered(&mut AcceptAll, 0)));
    assert_eq!(scene.released(&mut AcceptAll), [0; 0]);
}

/// A dry run asks as a real one does, and changes nothing by asking.
#[test]
fn planned_releases_change_nothing() {
    let scene = BalanceCase::of(&[("a", 6), ("b", 0)]);
    let mut fair = Fair::new();
    let first = planned_releases(&mut fair, &scene.loads());
    assert_eq!(planned_releases(&mut fair, &scene.loads()), first);
    assert_eq!(first[0].reason.to_string(), "this node has 6, and the share of each of 2 is 3");
}

/// What a node accepts: one kind, and as many tasks as that.
fn terms(kind: &str, limit: Option<u64>) -> WorkerTerms {
    let mut terms = WorkerTerms { limit, ..WorkerTerms::default() };
    terms.accepts.kinds.insert(kind.to_owned());
    terms
}

/// A view in which nodes differ: each with its kind, its tasks and its limit. The tasks of `a` are of its kind.
fn mixed(nodes: &[(&str, &str, u64, Option<u64>)]) -> BalanceCase {
    let counts: Vec<(&str, u64)> = nodes.iter().map(|(name, _, tasks, _)| (*name, *tasks)).collect();
    let mut scene = BalanceCase::of(&counts);
    for (name, kind, _, limit) in nodes {
        scene.workers.set_terms(&node(name), &terms(kind, *limit));
    }
    let kind = nodes.iter().find(|(name, ..)| *name == "a").map(|(_, kind, ..)| (*kind).to_owned());
    let class = scene.workers.profiles().class_of(&TaskRecord { kind, ..TaskRecord::default() });
    scene.own.classify(|_| Some(class));
    scene
}

fn all_balancers() -> [Box<dyn Balancer>; 5] {
    [
        Box::new(AcceptAll),
        Box::new(Fair::new()),
        Box::new(Weighted::new()),
        Box::new(Rendezvous::new()),
        Box::new(Capacity::new(50, 80).unwrap()),
    ]
}

/// 40 tasks of kind mail ran on one worker. A worker for videos joined, and 20 of them were stopped and idle for a minute.
#[test]
fn peer_of_another_kind_gets_nothing() {
    let mut scene = mixed(&[("a", "mail", 40, None), ("b", "video", 0, None)]);
    scene.resource = Some(ResourceUsage { used: 99, total: 100, read_at: scene.now });
    for balancer in &mut all_balancers() {
        assert_eq!(scene.released(balancer.as_mut()), [0; 0], "{}", balancer.name());
    }
    let mut peer = mixed(&[("a", "mail", 40, None), ("b", "mail", 0, None)]);
    peer.resource = scene.resource;
    assert_eq!(peer.released(&mut Fair::new()).len(), 20, "a peer of the same kind gets its share");
    assert_eq!(peer.released(&mut Capacity::new(50, 80).unwrap()).len(), 1);
}

#[test]
fn limited_peer_gets_up_to_its_limit() {
    let scene = mixed(&[("a", "mail", 40, None), ("b", "mail", 0, Some(5))]);
    for balancer in [&mut Fair::new() as &mut dyn Balancer, &mut Weighted::new(), &mut Rendezvous::new()] {
        assert_eq!(scene.released(balancer).len(), 5, "{}", balancer.name());
    }
    let full = mixed(&[("a", "mail", 35, None), ("b", "mail", 5, Some(5))]);
    for balancer in &mut all_balancers() {
        assert_eq!(full.released(balancer.as_mut()), [0; 0], "{}", balancer.name());
    }
}

#[test]
fn groups_share_separately() {
    let scene = mixed(&[
        ("a", "long", 40, None),
        ("b", "long", 10, None),
        ("c", "long", 10, None),
        ("d", "mail", 0, None),
        ("e", "mail", 0, None),
        ("f", "mail", 0, None),
    ]);
    assert_eq!(scene.released(&mut Fair::new()).len(), 20);
}

/// 20 tasks on limits of 4, 8 and 16: the level is 8 in the larger two.
#[test]
fn level_fills_small_nodes_to_their_limits() {
    let scene = mixed(&[("a", "mail", 0, Some(16)), ("b", "mail", 0, Some(8)), ("c", "mail", 0, Some(4))]);
    let class = scene
        .workers
        .profiles()
        .class_of(&TaskRecord { kind: Some("mail".to_owned()), ..TaskRecord::default() });
    let quotas = |tasks: u64| {
        let level = scene.workers.level(class, Load { tasks, weight: tasks }, LoadMetric::Tasks);
        ["a", "b", "c"].map(|name| scene.workers.quota(&node(name), level, LoadMetric::Tasks))
    };
    assert_eq!((quotas(9), quotas(20), quotas(24)), ([3, 3, 3], [8, 8, 4], [12, 8, 4]));
    assert_eq!(quotas(300), [16, 8, 4]);
}
