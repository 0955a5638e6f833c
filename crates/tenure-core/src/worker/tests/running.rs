//! The life of a claimed task.

use super::events::{ms, seconds, task};
use super::process::HandlerScript;
use super::wire::WireFault;
use super::world::WorkerWorld;
use crate::layout::Key;
use crate::loss::LossReason;
use crate::record::Timestamp;
use crate::task::{Checkpoint, TaskState, TaskStatus};
use crate::worker::{HandlerEnd, ReleaseReason, WorkerEvent, WorkerInput};

#[test]
fn completed_task_is_deleted_and_state_stays() {
    let mut world = WorkerWorld::calm(1);
    for name in ["t1", "t10", "t11"] {
        world.submit_as(name, "{}", Some("{}"));
    }
    world.settle();
    world.finish("t1", HandlerEnd::Completed);
    world.settle();
    assert_eq!(world.status_of("t1"), Some(TaskStatus::Completed));
    assert_eq!((world.exists("t1"), world.owner("t1")), (false, None));
    assert!(world.get(&Key::TaskProps(task("t1"))).is_none());
    for name in ["t10", "t11"] {
        assert_eq!(world.runs_on(name), Some(0), "{name} is another task");
    }
    assert!(
        world.has_noticed(0, |notice| matches!(
            notice,
            WorkerEvent::Ended { state: TaskState::Completed, .. }
        ))
    );
}

#[test]
fn deleted_task_stops_without_writes() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.delete("a");
    let before = world.store.revision();
    world.pass(ms(10));
    assert_eq!((world.runs_on("a"), world.store.revision()), (None, before));
    assert!(
        world.has_noticed(0, |notice| matches!(notice, WorkerEvent::Lost { why: LossReason::Deleted, .. }))
    );
}

#[test]
fn orphaned_owner_key_does_not_block_resubmission() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let key = world.layout.encode(&Key::Task(task("a")));
    world.apply(&crate::txn::Txn::new().then(crate::txn::Op::delete(key)));
    world.settle();
    assert_eq!((world.runs_on("a"), world.owner("a")), (None, None), "the claim went with it");
    world.submit("a");
    world.settle();
    assert_eq!(world.runs_on("a"), Some(0));
}

#[test]
fn fault_sleeps_ten_minutes_and_retries() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.finish("a", HandlerEnd::Fault("panicked".to_owned()));
    world.pass(seconds(599));
    assert!(matches!(world.status_of("a"), Some(TaskStatus::Sleeping { .. })));
    assert_eq!((world.owner("a").as_deref(), world.runs_on("a")), (Some("n0"), None), "it is still owned");
    world.pass(seconds(2));
    assert_eq!((world.status_of("a"), world.runs_on("a")), (Some(TaskStatus::Runnable), Some(0)));
    assert_eq!(world.processes[0].handlers[&task("a")].start.state.attempt(), 2);
}

#[test]
fn eight_faults_in_four_hours_are_too_many() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    for _ in 0..8 {
        world.pass(seconds(601));
        world.finish("a", HandlerEnd::Fault("broken".to_owned()));
    }
    world.settle();
    assert_eq!((world.status_of("a"), world.exists("a")), (Some(TaskStatus::Failed), false));
    assert_eq!(world.state("a").unwrap().reason.as_deref(), Some("exceeded error rate"));
}

#[test]
fn moved_sleeper_wakes_at_same_wall_time() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let until = world.in_ms(60_000);
    let first = world.runs_on("a").unwrap();
    world.finish("a", HandlerEnd::Sleep { until });
    world.pass(seconds(5));
    world.crash(first);
    world.processes[first].is_cut = true;
    world.pass(seconds(30));
    assert_eq!(world.owner("a"), Some(format!("n{}", 1 - first)), "a sleeping task has an owner too");
    let second = 1 - first;
    world.pass(seconds(40));
    let (.., at) = world.processes[second].starts.last().unwrap().clone();
    let woke = Timestamp(1_700_000_000_000 + u64::try_from(at.since_origin().as_millis()).unwrap());
    assert!((until.0..until.0 + 20).contains(&woke.0), "{until} {woke}");
}

#[test]
fn sleeper_follows_wall_clock_changes() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let until = world.in_ms(3_600_000);
    world.finish("a", HandlerEnd::Sleep { until });
    world.settle();
    world.processes[0].wall_skew = 3_600_000;
    world.pass(seconds(61));
    assert_eq!(world.runs_on("a"), Some(0));
}

#[test]
fn checkpoint_reaches_next_owner() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let first = world.runs_on("a").unwrap();
    let token = world.processes[first].handlers[&task("a")].token;
    let blob = Checkpoint::new("half way").unwrap();
    world.deliver(first, WorkerInput::Checkpoint { task: task("a"), token, ask: 5, blob: blob.clone() });
    world.pass(ms(10));
    assert_eq!(world.processes[first].kept, [(task("a"), 5, Ok(()))]);
    world.deliver(first, WorkerInput::Checkpoint { task: task("a"), token, ask: 6, blob: blob.clone() });
    assert_eq!(world.processes[first].kept.len(), 2, "the same again needs no write");
    world.finish("a", HandlerEnd::Release);
    world.settle();
    assert_eq!(world.runs_on("a"), Some(1 - first));
    assert_eq!(world.processes[1 - first].handlers[&task("a")].start.state.checkpoint, Some(blob));
}

#[test]
fn checkpoint_of_stopping_handler_is_stored() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Stubborn;
    world.submit("a");
    world.settle();
    world.command("a", crate::task::TaskMessage::Pause);
    world.pass(ms(10));
    let token = world.processes[0].handlers[&task("a")].token;
    let blob = Checkpoint::new("nearly").unwrap();
    world.deliver(0, WorkerInput::Checkpoint { task: task("a"), token, ask: 1, blob: blob.clone() });
    world.pass(ms(10));
    assert_eq!(world.processes[0].kept, [(task("a"), 1, Ok(()))], "before it has ended");
    world.finish("a", HandlerEnd::Release);
    world.settle();
    assert_eq!(
        world.state("a").map(|record| (record.state, record.checkpoint)),
        Some((TaskStatus::Paused, Some(blob)))
    );
}

#[test]
fn task_released_by_handler_goes_to_peer() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let first = world.runs_on("a").unwrap();
    world.finish("a", HandlerEnd::Release);
    world.settle();
    assert_eq!(world.runs_on("a"), Some(1 - first));
    let why = ReleaseReason::Handler;
    assert!(world.has_noticed(first, |notice| *notice == WorkerEvent::Released { task: task("a"), why }));
}

#[test]
fn released_task_is_not_claimed_during_cooldown() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.finish("a", HandlerEnd::Release);
    world.pass(seconds(59));
    assert_eq!(world.owner("a"), None);
    world.pass(seconds(3));
    assert_eq!(world.runs_on("a"), Some(0));
}

#[test]
fn failed_write_is_retried_under_valid_claim() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.fate = WireFault::NotDone;
    world.finish("a", HandlerEnd::Completed);
    world.pass(seconds(4));
    assert!(world.exists("a"));
    world.fate = WireFault::Works;
    world.pass(seconds(3));
    assert_eq!(
        (world.status_of("a"), world.exists("a"), world.starts_of("a")),
        (Some(TaskStatus::Completed), false, 1)
    );
}

#[test]
fn write_with_lost_reply_is_recognized() {
    for outcome in
        [HandlerEnd::Completed, HandlerEnd::Release, HandlerEnd::Pause, HandlerEnd::Fault("f".to_owned())]
    {
        let mut world = WorkerWorld::calm(1);
        world.submit("a");
        world.settle();
        world.fate = WireFault::LosesReply;
        world.finish("a", outcome.clone());
        world.pass(ms(3));
        world.fate = WireFault::Works;
        world.settle();
        assert!(!world.has_noticed(0, |notice| matches!(notice, WorkerEvent::Lost { .. })), "{outcome:?}");
        assert!(world.state("a").map_or(0, |record| record.faults) <= 1);
        assert_eq!(world.starts_of("a"), 1);
    }
}

#[test]
fn late_write_does_not_undo_later_one() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let token = world.processes[0].handlers[&task("a")].token;
    world.fate = WireFault::Late;
    let blob = Checkpoint::new("old").unwrap();
    world.deliver(0, WorkerInput::Checkpoint { task: task("a"), token, ask: 1, blob });
    world.pass(ms(2));
    world.fate = WireFault::Works;
    world.pass(ms(400));
    world.finish("a", HandlerEnd::Pause);
    world.pass(seconds(20));
    assert_eq!(world.status_of("a"), Some(TaskStatus::Paused));
}

#[test]
fn session_lost_during_write_keeps_task() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let first = world.runs_on("a").unwrap();
    world.processes[first].is_cut = true;
    world.finish("a", HandlerEnd::Completed);
    world.pass(seconds(30));
    assert!(world.exists("a"), "its completion could not be stored");
    assert_eq!(world.runs_on("a"), Some(1 - first), "so it is run again: at least once");
}

#[test]
fn unreadable_state_is_set_aside() {
    let mut world = WorkerWorld::calm(1);
    world.put_raw(&Key::TaskState(task("a")), "not json");
    world.submit_as("a", "{}", None);
    world.submit("b");
    world.settle();
    assert_eq!((world.starts_of("a"), world.owner("a"), world.exists("a")), (0, None, true));
    assert_eq!(world.runs_on("b"), Some(0));
    assert!(world.has_noticed(0, |notice| matches!(notice, WorkerEvent::SetAside { .. })));
    world.put_raw(&Key::TaskState(task("a")), r#"{"state":"runnable"}"#);
    world.pass(seconds(61));
    assert_eq!(world.runs_on("a"), Some(0), "after a while it is tried again");
}

#[test]
fn props_that_are_not_json_are_set_aside() {
    let mut world = WorkerWorld::calm(1);
    world.submit_as("a", "{}", Some("{"));
    world.settle();
    assert_eq!((world.starts_of("a"), world.owner("a"), world.exists("a")), (0, None, true));
}

#[test]
fn unreadable_record_does_not_end_task() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.put_raw(&Key::Task(task("a")), "?");
    world.settle();
    assert_eq!(world.runs_on("a"), Some(0));
    world.finish("a", HandlerEnd::Completed);
    world.settle();
    assert_eq!((world.status_of("a"), world.exists("a")), (Some(TaskStatus::Completed), false));
}

#[test]
fn unresponsive_handler_is_aborted_after_grace() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Stubborn;
    world.submit("a");
    world.settle();
    world.delete("a");
    world.pass(ms(900));
    assert_eq!(world.runs_on("a"), Some(0), "a second, once the claim is lost");
    world.pass(ms(200));
    assert_eq!(world.runs_on("a"), None);
}

/// Clients of Metafora put a task without a value. It was set aside as unreadable.
#[test]
fn task_with_an_empty_value_runs() {
    let mut world = WorkerWorld::calm(1);
    world.submit_as("a", "", Some("{\"n\":1}"));
    world.settle();
    assert_eq!(world.runs_on("a"), Some(0));
    world.finish("a", HandlerEnd::Completed);
    world.settle();
    assert_eq!(world.status_of("a"), Some(TaskStatus::Completed));
}

#[test]
fn unreadable_task_is_reported_and_blocks_nothing() {
    let mut world = WorkerWorld::calm(1);
    world.submit_as("a", "not JSON", None);
    world.submit("b");
    world.settle();
    assert_eq!((world.runs_on("a"), world.runs_on("b")), (None, Some(0)));
    let is_it = |notice: &WorkerEvent| matches!(notice, WorkerEvent::SetAside { task, why } if task.as_str() == "a" && why.contains("cannot be read"));
    assert_eq!(world.processes[0].events.iter().filter(|notice| is_it(notice)).count(), 1);
    world.put_raw(&Key::Task(task("a")), "{}");
    world.settle();
    assert_eq!(world.runs_on("a"), Some(0), "mended");
}
