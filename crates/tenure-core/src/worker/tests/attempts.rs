//! Claims that end without an outcome: counted in the claim's own transaction, and a reason to fail their task.

use super::events::{ms, seconds, task};
use super::world::WorkerWorld;
use crate::kv::Get;
use crate::loss::LossReason;
use crate::task::{AttemptEnd, TaskStatus};
use crate::worker::{HandlerEnd, WorkerInput};

impl WorkerWorld {
    /// How many claims of a task have no stored outcome.
    fn open_attempts(&mut self, name: &str) -> usize {
        let select = self.layout.task_attempts(&task(name));
        self.store.get(&Get::new(select), self.now).unwrap().pairs.len()
    }

    /// Kills a process while it runs a task, and waits until the task runs again or has ended.
    fn kill_worker_of(&mut self, name: &str) {
        let n = self.runs_on(name).expect("it runs");
        self.crash(n);
        self.pass(seconds(20));
    }
}

/// Four workers were lost to one task, which was still in its first attempt.
#[test]
fn task_that_kills_three_workers_is_quarantined() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.submit_as("other", "{}", None);
    world.settle();
    for _ in 0..3 {
        world.kill_worker_of("a");
    }
    let state = world.state("a").unwrap();
    assert_eq!((state.state, state.lost, world.exists("a")), (TaskStatus::Failed, 3, false));
    let reason = state.reason.unwrap();
    assert!(reason.starts_with("quarantined: 3 claims in a row ended without an outcome"), "{reason}");
    let ends: Vec<AttemptEnd> = state.attempts.iter().map(|attempt| attempt.end).collect();
    let lost = ends.iter().filter(|end| **end == AttemptEnd::Lost);
    assert_eq!(lost.count(), 3, "{ends:?}");
    assert!(state.attempts.is_sorted_by_key(|attempt| attempt.started));
    assert!(state.attempts.iter().all(|attempt| attempt.started <= attempt.ended));
    assert_eq!(world.open_attempts("a"), 0);
}

#[test]
fn lost_claims_count_as_attempts() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.kill_worker_of("a");
    world.kill_worker_of("a");
    assert_eq!(world.processes[0].handlers[&task("a")].start.state.attempt(), 3);
    assert_eq!(world.open_attempts("a"), 3, "two are lost, one runs");
}

#[test]
fn unlimited_lost_claims_quarantine_nothing() {
    let mut world = WorkerWorld::calm(1);
    world.processes[0].config.lost_claims_max = None;
    world.crash(0);
    world.pass(seconds(20));
    world.submit("a");
    world.settle();
    for _ in 0..5 {
        world.kill_worker_of("a");
    }
    assert_eq!(world.runs_on("a"), Some(0));
}

#[test]
fn outcome_resets_lost_claims() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    for _ in 0..2 {
        world.kill_worker_of("a");
    }
    let until = world.in_ms(100);
    world.finish("a", HandlerEnd::Sleep { until });
    world.pass(seconds(1));
    let state = world.state("a").unwrap();
    let ends: Vec<AttemptEnd> = state.attempts.iter().map(|attempt| attempt.end).collect();
    assert_eq!(ends, [AttemptEnd::Lost, AttemptEnd::Lost, AttemptEnd::Sleeping]);
    assert_eq!(world.open_attempts("a"), 1, "it runs again, and that is written");
    for _ in 0..2 {
        world.kill_worker_of("a");
    }
    assert_eq!(world.runs_on("a"), Some(0));
    assert_eq!(world.processes[0].handlers[&task("a")].start.state.attempt(), 5);
}

/// A task that is moved between two deaths is not less to blame for them.
#[test]
fn release_keeps_lost_claims() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.kill_worker_of("a");
    world.kill_worker_of("a");
    world.finish("a", HandlerEnd::Release);
    world.pass(ms(50));
    assert_eq!(world.open_attempts("a"), 2);
    world.pass(seconds(90));
    world.kill_worker_of("a");
    let state = world.state("a").unwrap();
    let ends: Vec<AttemptEnd> = state.attempts.iter().map(|attempt| attempt.end).collect();
    let expected = [AttemptEnd::Lost, AttemptEnd::Lost, AttemptEnd::Released, AttemptEnd::Lost];
    assert_eq!((state.state, &ends[..]), (TaskStatus::Failed, &expected[..]));
}

#[test]
fn worker_killed_while_task_sleeps_is_not_counted() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let until = world.in_ms(3_600_000);
    world.finish("a", HandlerEnd::Sleep { until });
    for _ in 0..4 {
        world.settle();
        assert_eq!(world.open_attempts("a"), 0);
        world.crash(0);
        world.pass(seconds(20));
    }
    assert_eq!(world.state("a").unwrap().lost, 0);
}

/// A store that is away for longer than a TTL must not count against all tasks.
#[test]
fn claim_lost_by_living_worker_is_not_counted() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    for starts in 2..6 {
        let lease = world.processes[0].lease.unwrap();
        world.change_lease(0);
        world.deliver(0, WorkerInput::LeaseLost { lease, why: LossReason::Lapsed });
        world.pass(seconds(30));
        assert_eq!((world.runs_on("a"), world.starts_of("a")), (Some(0), starts));
        assert_eq!(world.open_attempts("a"), 1, "only the running one");
    }
    world.pass(ms(10));
    assert_eq!(world.processes[0].handlers[&task("a")].start.state.attempt(), 1);
}
