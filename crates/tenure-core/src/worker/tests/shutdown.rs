//! How a node ends.

use super::events::{ms, seconds, task};
use super::process::HandlerScript;
use super::wire::WireFault;
use super::world::WorkerWorld;
use crate::layout::Key;
use crate::record::MemberState;
use crate::task::{AttemptEnd, TaskStatus};
use crate::worker::{HandlerEnd, StopMode, WorkerEvent, WorkerInput};

#[test]
fn shutdown_stops_releases_and_leaves() {
    let mut world = WorkerWorld::calm(1);
    for name in ["a", "b"] {
        world.submit(name);
    }
    world.settle();
    world.shut_down(0, seconds(30));
    assert_eq!(world.processes[0].announced, MemberState::Draining, "others know at once");
    world.pass(ms(50));
    assert_eq!(world.processes[0].finished, Some(Vec::new()));
    assert_eq!((world.shares(), world.exists("a")), (vec![0], true));
    let state = world.state("a").unwrap();
    let ends: Vec<AttemptEnd> = state.attempts.iter().map(|attempt| attempt.end).collect();
    assert_eq!(
        (state.state, state.attempt(), &ends[..]),
        (TaskStatus::Runnable, 1, &[AttemptEnd::Released][..])
    );
    let node = world.processes[0].config.node.clone();
    assert!(world.get(&Key::Node(node)).is_none());
}

#[test]
fn unresponsive_handler_is_not_released_at_deadline() {
    let mut world = WorkerWorld::calm(1);
    world.submit("good");
    world.settle();
    world.handling = HandlerScript::Deaf;
    world.submit("bad");
    world.settle();
    world.shut_down(0, seconds(3));
    world.pass(ms(2_900));
    assert_eq!(world.processes[0].finished, None);
    world.pass(ms(200));
    assert_eq!(world.processes[0].finished, Some(vec![task("bad")]));
    assert_eq!((world.owner("bad").as_deref(), world.owner("good")), (Some("n0"), None));
}

#[test]
fn handler_without_abort_is_waited_for() {
    let mut world = WorkerWorld::calm(1);
    world.processes[0].config.stop_mode = StopMode::Wait;
    world.crash(0);
    world.handling = HandlerScript::Stubborn;
    world.submit("a");
    world.pass(seconds(30));
    assert_eq!(world.runs_on("a"), Some(0));
    world.shut_down(0, seconds(60));
    world.pass(seconds(20));
    assert!(world.has_noticed(0, |notice| matches!(notice, WorkerEvent::Stuck { .. })));
    assert_eq!((world.runs_on("a"), world.owner("a").as_deref()), (Some(0), Some("n0")));
    world.finish("a", HandlerEnd::Release);
    world.pass(ms(50));
    assert_eq!((world.owner("a"), world.processes[0].finished.clone()), (None, Some(Vec::new())));
}

#[test]
fn nothing_is_claimed_once_a_shutdown_has_begun() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    world.shut_down(0, seconds(30));
    world.submit("b");
    world.pass(seconds(20));
    assert_eq!((world.owner("b"), world.starts_of("b")), (None, 0));
}

#[test]
fn claim_won_during_shutdown_is_released() {
    let mut world = WorkerWorld::calm(1);
    world.holds_replies = true;
    world.submit("a");
    world.pass(ms(10));
    world.shut_down(0, seconds(30));
    world.pass(ms(10));
    assert_eq!(world.processes[0].finished, None, "it waits for the answer");
    world.release_replies();
    world.pass(ms(50));
    assert_eq!((world.owner("a"), world.starts_of("a")), (None, 0));
    assert_eq!(world.processes[0].finished, Some(Vec::new()));
}

#[test]
fn shutdown_without_store_ends_at_deadline() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.fate = WireFault::NotDone;
    world.shut_down(0, seconds(3));
    world.pass(seconds(4));
    assert_eq!(world.processes[0].finished, Some(Vec::new()), "no handler runs any more");
    assert!(world.owner("a").is_some(), "its claim lapses by itself");
}

#[test]
fn a_second_shutdown_can_only_be_sooner() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Stubborn;
    world.submit("a");
    world.settle();
    world.shut_down(0, seconds(300));
    world.pass(seconds(1));
    world.shut_down(0, seconds(2));
    world.shut_down(0, seconds(900));
    world.pass(seconds(2));
    assert_eq!(
        world.processes[0].finished,
        Some(Vec::new()),
        "aborted a second before the deadline, and released"
    );
    assert_eq!(world.owner("a"), None);
}

#[test]
fn finished_worker_requests_nothing() {
    let mut world = WorkerWorld::calm(1);
    world.shut_down(0, seconds(1));
    world.settle();
    world.deliver(0, WorkerInput::Time);
    let now = world.clock(0);
    let machine = &mut world.processes[0].machine;
    assert!(machine.is_finished() && machine.poll_output().is_none());
    assert_eq!(machine.next_wake(now), None, "a driver would spin");
}
