//! The distribution of tasks over workers.

use super::events::{ms, seconds};
use super::world::WorkerWorld;
use crate::balance::{Capacity, ResourceUsage};
use crate::worker::{ReleaseReason, WorkerEvent, WorkerInput};

fn submit(world: &mut WorkerWorld, tasks: usize) {
    for n in 0..tasks {
        world.submit(&format!("t{n}"));
    }
}

#[test]
fn tasks_are_shared_with_second_worker() {
    let mut world = WorkerWorld::calm(1);
    submit(&mut world, 6);
    world.settle();
    world.add_node(1);
    world.pass(seconds(10));
    assert_eq!(world.shares(), [3, 3]);
}

#[test]
fn thousand_tasks_are_shared_by_three_workers() {
    let mut world = WorkerWorld::calm(3);
    submit(&mut world, 1_000);
    world.pass(seconds(10));
    let shares = world.shares();
    assert_eq!(shares.iter().sum::<usize>(), 1_000);
    assert!(shares.iter().all(|share| (332..=335).contains(share)), "{shares:?}");
}

#[test]
fn two_tasks_on_three_nodes_release_nothing() {
    let mut world = WorkerWorld::calm(3);
    submit(&mut world, 2);
    world.pass(seconds(2_000));
    let released = |notice: &WorkerEvent| matches!(notice, WorkerEvent::Released { .. });
    assert!((0..3).all(|n| !world.has_noticed(n, released)));
    assert_eq!(world.shares().iter().sum::<usize>(), 2);
}

#[test]
fn a_node_that_shuts_down_is_not_counted() {
    let mut world = WorkerWorld::calm(3);
    world.handling = super::process::HandlerScript::Deaf;
    submit(&mut world, 9);
    world.settle();
    assert_eq!(world.shares(), [3, 3, 3]);
    world.shut_down(2, seconds(300));
    world.settle();
    for n in 9..15 {
        world.submit(&format!("t{n}"));
    }
    world.pass(seconds(5));
    assert_eq!(world.shares(), [6, 6, 3]);
}

#[test]
fn worker_above_limit_releases_per_measurement() {
    let mut world = WorkerWorld::calm(2);
    submit(&mut world, 10);
    world.settle();
    world.processes[0].machine.balance.balancer = Box::new(Capacity::new(50, 80).unwrap());
    let released = |world: &WorkerWorld| {
        let events = world.processes[0].events.iter();
        events.filter(|notice| matches!(notice, WorkerEvent::Released { .. })).count()
    };
    for (used, expected) in [(60, 0), (80, 0), (81, 1), (95, 2), (80, 2)] {
        let resource = ResourceUsage { used, total: 100, read_at: world.now };
        world.deliver(0, WorkerInput::Measured(Some(resource)));
        world.pass(seconds(2));
        assert_eq!(released(&world), expected, "{used} % were used");
    }
}

#[test]
fn no_task_bounces_between_two_nodes() {
    let mut world = WorkerWorld::calm(1);
    submit(&mut world, 20);
    world.settle();
    world.add_node(1);
    world.pass(seconds(3_600));
    assert_eq!(world.shares(), [10, 10]);
    let why = ReleaseReason::Balance;
    let moves = |n: usize| {
        let events = world.processes[n].events.iter();
        events
            .filter(|notice| matches!(notice, WorkerEvent::Released { why: said, .. } if *said == why))
            .count()
    };
    assert_eq!((moves(0), moves(1)), (10, 0), "each moved once, and stays");
}

#[test]
fn round_releases_a_tenth_each_second() {
    let mut world = WorkerWorld::calm(2);
    submit(&mut world, 100);
    world.pass(seconds(5));
    world.add_node(2);
    let mut rounds = Vec::new();
    for _ in 0..12 {
        world.pass(ms(500));
        rounds.push(100 - world.shares()[0] - world.shares()[1]);
    }
    world.pass(seconds(10));
    assert!(world.shares().iter().all(|share| (32..=36).contains(share)), "{:?}", world.shares());
    let most = rounds.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
    assert!(most <= 10, "at most a tenth of each of two nodes at a time: {rounds:?}");
}

#[test]
fn tasks_of_dead_worker_go_to_peers() {
    let mut world = WorkerWorld::calm(3);
    submit(&mut world, 30);
    world.settle();
    world.processes[0].is_cut = true;
    world.pass(super::world::TTL + ms(1_500));
    let shares = world.shares();
    assert_eq!((shares[0], shares[1] + shares[2]), (0, 30), "within the TTL and 1.5 s: {shares:?}");
}

/// It had released them to the peer a moment ago, and for a minute no worker ran them.
#[test]
fn released_task_of_dead_peer_is_claimed_again() {
    for dies in [true, false] {
        let mut world = WorkerWorld::calm(1);
        submit(&mut world, 6);
        world.settle();
        world.add_node(1);
        world.pass(seconds(5));
        assert_eq!(world.shares(), [3, 3]);
        if dies {
            world.processes[1].is_cut = true;
        } else {
            world.shut_down(1, seconds(5));
        }
        world.pass(super::world::TTL + ms(1_500));
        assert_eq!(world.shares(), [6, 0], "within the TTL and 1.5 s");
    }
}
