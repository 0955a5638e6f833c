//! A hundred thousand tasks: no claim races, and the work per task is the same as for ten thousand.
//! Steps are counted, not seconds.

use std::time::Duration;

use super::world::WorkerWorld;
use crate::id::{NodeId, TaskId};
use crate::layout::Key;
use crate::txn::{Op, Txn};
use crate::worker::WorkerStats;

/// Submits many tasks at once to eight workers, and returns the counts of all of them.
fn claim_all(tasks: usize) -> WorkerStats {
    let mut world = WorkerWorld::calm(8);
    let before = total(&world);
    submit_all(&mut world, tasks);
    world.pass(Duration::from_secs(12));
    let shares = world.shares();
    assert_eq!(shares.iter().sum::<usize>(), tasks, "{shares:?}");
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(most * 10 <= least * 12, "{shares:?}");
    since(&world, before)
}

/// How much all nodes have worked since.
fn since(world: &WorkerWorld, before: WorkerStats) -> WorkerStats {
    let after = total(world);
    WorkerStats {
        considered: after.considered - before.considered,
        claims_sent: after.claims_sent - before.claims_sent,
        won: after.won - before.won,
        timers: after.timers - before.timers,
        changes: after.changes - before.changes,
    }
}

fn submit_all(world: &mut WorkerWorld, tasks: usize) {
    for chunk in (0..tasks).collect::<Vec<_>>().chunks(100) {
        let mut txn = Txn::new();
        for n in chunk {
            let key = Key::Task(TaskId::parse(&format!("t{n}")).unwrap());
            txn = txn.then(Op::put(world.layout.encode(&key), "{}"));
        }
        world.apply(&txn);
    }
}

/// Freezes all nodes, or lets all of them go on, at one revision.
fn freeze_all(world: &mut WorkerWorld, freeze: bool) {
    let mut txn = Txn::new();
    for n in 0..world.processes.len() {
        let key = world.layout.encode(&Key::Frozen(NodeId::parse(&format!("n{n}")).unwrap()));
        txn = txn.then(if freeze { Op::put(key, "{}") } else { Op::delete(key) });
    }
    world.apply(&txn);
}

/// They had waited longer than the patience of every worker, so every worker tried to claim all of
/// them.
#[test]
fn old_tasks_cause_no_claim_races() {
    let mut world = WorkerWorld::calm(8);
    freeze_all(&mut world, true);
    world.pass(Duration::from_secs(1));
    submit_all(&mut world, 400);
    world.pass(Duration::from_secs(60));
    let before = total(&world);
    freeze_all(&mut world, false);
    world.pass(Duration::from_secs(4));
    let worked = since(&world, before);
    assert_eq!((world.shares().iter().sum::<usize>(), worked.won), (400, 400));
    assert!(worked.claims_sent * 10 <= worked.won * 11, "{worked:?}");
}

/// Tasks that rank first at a worker with a full share were left for a quarter of a second or more,
/// although every peer could see that share.
#[test]
fn tasks_above_share_go_to_peers() {
    let mut world = WorkerWorld::calm(8);
    submit_all(&mut world, 1_001);
    world.pass(Duration::from_millis(100));
    let shares = world.shares();
    assert_eq!(shares.iter().sum::<usize>(), 1_001, "{shares:?}");
    assert!(shares.iter().all(|share| (125..=126).contains(share)), "{shares:?}");
    let worked = total(&world);
    assert!(worked.claims_sent * 10 <= worked.won * 11, "{worked:?}");
}

/// After three seconds every worker lost patience with its peers. Until then each considered all
/// tasks of the others four times a second.
#[test]
fn slow_store_causes_no_claim_races() {
    let mut world = WorkerWorld::calm(8);
    world.operations_take = Some(Duration::from_millis(1));
    let before = total(&world);
    submit_all(&mut world, 6_000);
    world.pass(Duration::from_secs(12));
    let (worked, shares) = (since(&world, before), world.shares());
    assert_eq!(shares.iter().sum::<usize>(), 6_000, "{shares:?}");
    assert!(worked.claims_sent * 10 <= worked.won * 11, "{worked:?}");
    assert!(worked.considered <= 6_000 * 8 * 2, "each worker considers each task about once: {worked:?}");
    assert!(worked.timers <= 600, "{worked:?}");
}

/// One of eight workers reached its share long before the others. It lost patience as the backlog
/// shrank, although it saw all peers claim, and took the rest.
#[test]
fn fast_worker_leaves_share_of_slow_peer() {
    let mut world = WorkerWorld::calm(8);
    (world.operations_take, world.swift) = (Some(Duration::from_millis(1)), Some(3));
    let before = total(&world);
    submit_all(&mut world, 8_000);
    world.pass(Duration::from_secs(12));
    let (worked, shares) = (since(&world, before), world.shares());
    assert_eq!(shares.iter().sum::<usize>(), 8_000, "{shares:?}");
    assert!(shares.iter().all(|share| (950..=1_050).contains(share)), "{shares:?}");
    assert!(worked.claims_sent * 10 <= worked.won * 11, "{worked:?}");
}

fn total(world: &WorkerWorld) -> WorkerStats {
    world.processes.iter().map(|process| process.machine.stats()).fold(WorkerStats::default(), |sum, one| {
        WorkerStats {
            considered: sum.considered + one.considered,
            claims_sent: sum.claims_sent + one.claims_sent,
            won: sum.won + one.won,
            timers: sum.timers + one.timers,
            changes: sum.changes + one.changes,
        }
    })
}

/// Five thousand in every check, a hundred thousand only when it is asked for: `TENURE_SOAK=1`.
#[test]
fn soak_claim_cost_is_linear() {
    let is_soak = std::env::var_os("TENURE_SOAK").is_some();
    let (few, many) = if is_soak { (10_000, 100_000) } else { (500, 5_000) };
    let (small, large) = (claim_all(few), claim_all(many));
    let per = |stats: WorkerStats, tasks: usize| {
        let tasks = tasks as u64;
        (stats.considered * 100 / tasks, stats.timers * 100 / tasks, stats.changes * 100 / tasks)
    };
    assert_eq!(large.won, many as u64);
    assert!(large.claims_sent * 10 <= large.won * 11, "{large:?}");
    let (small, large) = (per(small, few), per(large, many));
    assert!(large.0 <= small.0 * 3 / 2 + 100, "weighing: {small:?} {large:?}");
    assert!(large.1 <= small.1 * 3 / 2 + 100, "timers: {small:?} {large:?}");
    assert_eq!(large.2, small.2, "changes of the board");
}
