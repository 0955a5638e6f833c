//! What becomes of a task that is ours.

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
fn a_task_that_is_done_is_deleted_with_its_claim_and_its_state_stays() {
    let mut world = WorkerWorld::calm(1);
    for name in ["t1", "t10", "t11"] {
        world.submit_as(name, "{}", Some("{}"));
    }
    world.settle();
    world.finish("t1", HandlerEnd::Completed);
    world.settle();
    assert_eq!(world.stands("t1"), Some(TaskStatus::Completed));
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
fn a_task_deleted_while_it_runs_stops_and_nothing_is_written_for_it() {
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
fn a_task_deleted_without_its_owner_can_be_submitted_and_claimed_again() {
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
fn a_fault_sleeps_for_ten_minutes_and_then_runs_again() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.finish("a", HandlerEnd::Fault("panicked".to_owned()));
    world.pass(seconds(599));
    assert!(matches!(world.stands("a"), Some(TaskStatus::Sleeping { .. })));
    assert_eq!((world.owner("a").as_deref(), world.runs_on("a")), (Some("n0"), None), "it is still owned");
    world.pass(seconds(2));
    assert_eq!((world.stands("a"), world.runs_on("a")), (Some(TaskStatus::Runnable), Some(0)));
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
    assert_eq!((world.stands("a"), world.exists("a")), (Some(TaskStatus::Failed), false));
    assert_eq!(world.state("a").unwrap().reason.as_deref(), Some("exceeded error rate"));
}

#[test]
fn a_sleeping_task_that_moves_wakes_at_the_same_time_on_the_wall() {
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
fn a_task_sleeps_by_the_wall_even_if_somebody_sets_the_clock() {
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
fn a_checkpoint_is_kept_and_arrives_at_the_next_owner() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let first = world.runs_on("a").unwrap();
    let token = world.processes[first].handlers[&task("a")].token;
    let blob = Checkpoint::new("half way").unwrap();
    world.tell(first, WorkerInput::Checkpoint { task: task("a"), token, ask: 5, blob: blob.clone() });
    world.pass(ms(10));
    assert_eq!(world.processes[first].kept, [(task("a"), 5, Ok(()))]);
    world.tell(first, WorkerInput::Checkpoint { task: task("a"), token, ask: 6, blob: blob.clone() });
    assert_eq!(world.processes[first].kept.len(), 2, "the same again needs no write");
    world.finish("a", HandlerEnd::Release);
    world.settle();
    assert_eq!(world.runs_on("a"), Some(1 - first));
    assert_eq!(world.processes[1 - first].handlers[&task("a")].start.state.checkpoint, Some(blob));
}

#[test]
fn a_checkpoint_that_a_handler_asks_for_while_it_stops_is_kept() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Stubborn;
    world.submit("a");
    world.settle();
    world.command("a", crate::task::TaskMessage::Pause);
    world.pass(ms(10));
    let token = world.processes[0].handlers[&task("a")].token;
    let blob = Checkpoint::new("nearly").unwrap();
    world.tell(0, WorkerInput::Checkpoint { task: task("a"), token, ask: 1, blob: blob.clone() });
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
fn what_its_handler_releases_goes_to_another_node_and_does_not_come_back() {
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
fn what_a_node_released_it_does_not_take_back_before_its_cool_down_is_over() {
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
fn a_save_that_fails_is_tried_again_while_the_claim_is_valid() {
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
        (world.stands("a"), world.exists("a"), world.starts_of("a")),
        (Some(TaskStatus::Completed), false, 1)
    );
}

#[test]
fn a_save_whose_answer_was_lost_knows_itself_again() {
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
fn a_save_that_arrives_late_does_not_undo_a_later_one() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let token = world.processes[0].handlers[&task("a")].token;
    world.fate = WireFault::Late;
    let blob = Checkpoint::new("old").unwrap();
    world.tell(0, WorkerInput::Checkpoint { task: task("a"), token, ask: 1, blob });
    world.pass(ms(2));
    world.fate = WireFault::Works;
    world.pass(ms(400));
    world.finish("a", HandlerEnd::Pause);
    world.pass(seconds(20));
    assert_eq!(world.stands("a"), Some(TaskStatus::Paused));
}

#[test]
fn a_session_lost_in_the_middle_of_a_save_loses_neither_the_task_nor_its_state() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let first = world.runs_on("a").unwrap();
    world.processes[first].is_cut = true;
    world.finish("a", HandlerEnd::Completed);
    world.pass(seconds(30));
    assert!(world.exists("a"), "nobody could say that it was done");
    assert_eq!(world.runs_on("a"), Some(1 - first), "so it is run again: at least once");
}

#[test]
fn a_state_that_cannot_be_read_is_set_aside_and_neither_run_nor_changed() {
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
    assert_eq!(world.runs_on("a"), Some(0), "after a while it looks again");
}

#[test]
fn props_that_are_not_json_are_set_aside() {
    let mut world = WorkerWorld::calm(1);
    world.submit_as("a", "{}", Some("{"));
    world.settle();
    assert_eq!((world.starts_of("a"), world.owner("a"), world.exists("a")), (0, None, true));
}

#[test]
fn a_record_that_becomes_unreadable_does_not_end_the_task() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.put_raw(&Key::Task(task("a")), "?");
    world.settle();
    assert_eq!(world.runs_on("a"), Some(0));
    world.finish("a", HandlerEnd::Completed);
    world.settle();
    assert_eq!((world.stands("a"), world.exists("a")), (Some(TaskStatus::Completed), false));
}

#[test]
fn a_handler_that_ignores_stop_is_aborted_after_its_grace() {
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
    assert_eq!(world.stands("a"), Some(TaskStatus::Completed));
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
