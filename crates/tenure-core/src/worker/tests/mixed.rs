//! Fleets with different workers: in the tasks that they accept, and in their capacity.

use super::events::{ms, seconds};
use super::process::WorkerProcess;
use super::world::WorkerWorld;
use crate::id::NodeId;
use crate::task::TaskStatus;
use crate::worker::{HandlerEnd, WorkerConfig};

/// A node that accepts one kind and has a capacity.
fn join(world: &mut WorkerWorld, kind: &str, capacity: Option<usize>) -> usize {
    let n = world.processes.len();
    let mut config = WorkerConfig::new(NodeId::parse(&format!("n{n}")).unwrap(), 77 + n as u64);
    config.selector.kinds.insert(kind.to_owned());
    config.capacity = capacity;
    world.processes.push(WorkerProcess::new(config, world.layout.clone()));
    world.boot(n);
    n
}

fn submit(world: &mut WorkerWorld, kind: &str, tasks: usize) {
    for n in 0..tasks {
        world.submit_as(&format!("{kind}{n}"), &format!(r#"{{"kind":"{kind}"}}"#), None);
    }
}

#[test]
fn joining_worker_of_another_kind_stops_no_task() {
    let mut world = WorkerWorld::calm(0);
    join(&mut world, "mail", None);
    submit(&mut world, "mail", 40);
    world.pass(seconds(5));
    join(&mut world, "video", None);
    for _ in 0..100 {
        world.pass(ms(100));
        assert_eq!(world.shares(), [40, 0]);
    }
}

#[test]
fn joining_worker_with_capacity_gets_what_fits() {
    let mut world = WorkerWorld::calm(0);
    join(&mut world, "mail", None);
    submit(&mut world, "mail", 40);
    world.pass(seconds(5));
    join(&mut world, "mail", Some(5));
    world.pass(seconds(10));
    assert_eq!(world.shares(), [35, 5]);
}

#[test]
fn groups_share_evenly_and_separately() {
    let mut world = WorkerWorld::calm(0);
    for _ in 0..3 {
        join(&mut world, "mail", None);
    }
    join(&mut world, "long", None);
    submit(&mut world, "long", 60);
    world.pass(seconds(5));
    join(&mut world, "long", None);
    join(&mut world, "long", None);
    world.pass(seconds(20));
    assert_eq!(world.shares(), [0, 0, 0, 20, 20, 20]);
}

#[test]
fn limited_workers_share_up_to_their_capacity() {
    let mut world = WorkerWorld::calm(0);
    for capacity in [4, 8, 16] {
        join(&mut world, "mail", Some(capacity));
    }
    world.settle();
    submit(&mut world, "mail", 20);
    world.pass(seconds(5));
    assert_eq!(world.shares(), [4, 8, 8]);
}

/// Two failing tasks filled a worker with two slots, and five good ones waited for ten minutes.
#[test]
fn sleeping_tasks_use_no_capacity() {
    let mut world = WorkerWorld::calm(0);
    join(&mut world, "mail", Some(2));
    submit(&mut world, "mail", 7);
    world.pass(seconds(2));
    for _ in 0..7 {
        let running: Vec<_> = world.processes[0].handlers.keys().cloned().collect();
        assert_eq!(running.len().min(2), running.len(), "never more than two run");
        let Some(task) = running.first() else { break };
        world.finish(task.as_str(), HandlerEnd::Fault("it fails".to_owned()));
        world.pass(seconds(1));
    }
    let machine = &world.processes[0].machine;
    assert_eq!((machine.owned(), world.processes[0].starts.len()), (7, 7), "each ran and sleeps");
    assert_eq!(world.processes[0].load.parked, 7, "which peers can read");
    let awake =
        machine.held.values().filter(|held| !matches!(held.record.state, TaskStatus::Sleeping { .. }));
    assert_eq!(awake.count(), 0);
    world.pass(seconds(11 * 60));
    assert_eq!(world.processes[0].handlers.len(), 2, "all woke, and two run");
}

/// Sleepers that wake on a full node go to a peer that has room.
#[test]
fn woken_task_without_slot_moves_to_a_peer() {
    let mut world = WorkerWorld::calm(0);
    join(&mut world, "mail", Some(1));
    submit(&mut world, "mail", 2);
    world.pass(seconds(1));
    let first = world.processes[0].handlers.keys().next().unwrap().clone();
    world.finish(first.as_str(), HandlerEnd::Fault("it fails".to_owned()));
    world.pass(seconds(1));
    assert_eq!((world.processes[0].machine.owned(), world.processes[0].handlers.len()), (2, 1));
    world.pass(seconds(9 * 60));
    join(&mut world, "mail", Some(1));
    world.pass(seconds(2 * 60));
    let running: Vec<usize> = world.processes.iter().map(|process| process.handlers.len()).collect();
    assert_eq!(running, [1, 1]);
}
