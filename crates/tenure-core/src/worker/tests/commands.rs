//! Commands to tasks: none is lost, none reaches another task, every sender gets a reply.

use super::events::{ms, seconds, task};
use super::process::HandlerScript;
use super::wire::WireFault;
use super::world::WorkerWorld;
use crate::id::CommandId;
use crate::layout::Key;
use crate::record::CommandOutcome::{Done, Expired, Malformed, Refused, Replaced};
use crate::task::{Checkpoint, TaskMessage, TaskState, TaskStatus};
use crate::worker::{HandlerEnd, WorkerEvent, WorkerInput};

fn kill() -> TaskMessage {
    TaskMessage::Kill { reason: None }
}

#[test]
fn pause_stops_handler_before_reply() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let id = world.command("a", TaskMessage::Pause);
    world.settle();
    assert_eq!((world.runs_on("a"), world.status_of("a")), (None, Some(TaskStatus::Paused)));
    assert_eq!(world.owner("a").as_deref(), Some("n0"), "a paused task has an owner");
    let result = world.result(&id).unwrap();
    assert_eq!((result.outcome, result.handled_by.as_str()), (Done, "n0"));
    assert_eq!((result.from, result.to), (Some(TaskState::Runnable), Some(TaskState::Paused)));
    assert!(world.get(&Key::TaskCommand(task("a"))).is_none());
    let id = world.command("a", TaskMessage::Run);
    world.settle();
    assert_eq!((world.runs_on("a"), world.outcome(&id)), (Some(0), Some(Done)));
}

#[test]
fn earlier_command_is_applied_before_start() {
    let mut world = WorkerWorld::new(1, 7);
    world.submit("a");
    let id = world.command("a", TaskMessage::Pause);
    world.settle();
    assert_eq!(
        (world.starts_of("a"), world.status_of("a")),
        (0, Some(TaskStatus::Paused)),
        "stop before run stops"
    );
    assert_eq!(world.outcome(&id), Some(Done));
}

#[test]
fn command_to_deleted_task_does_not_reach_successor() {
    let mut world = WorkerWorld::calm(1);
    let id = world.command("a", kill());
    world.submit_as("a", "{}", None);
    world.settle();
    assert_eq!((world.runs_on("a"), world.outcome(&id)), (Some(0), Some(Expired)));
}

#[test]
fn sleeping_task_wakes_by_time_or_command() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.command("a", TaskMessage::Sleep { until: world.in_ms(30_000) });
    world.pass(seconds(29));
    assert_eq!(world.runs_on("a"), None);
    world.pass(seconds(2));
    assert_eq!(world.runs_on("a"), Some(0));
    world.command("a", TaskMessage::Sleep { until: world.in_ms(3_600_000) });
    world.settle();
    world.command("a", TaskMessage::Run);
    world.settle();
    assert_eq!(world.runs_on("a"), Some(0));
}

/// Both are sent together at any moment: before the task is there, before the handler starts, while it starts, while it runs, while
/// it stops, between two saves.
#[test]
fn pause_then_kill_ends_killed() {
    for moment in 0..200_u64 {
        let mut world = WorkerWorld::calm(2);
        world.is_stormy = true;
        world.rng.0 = moment;
        world.handling = if moment % 3 == 0 { HandlerScript::Random } else { HandlerScript::Obedient };
        world.submit("a");
        world.pass(ms(moment * 3 % 200));
        if world.status_of("a").is_some_and(TaskStatus::is_terminal) {
            continue;
        }
        let pause = world.command("a", TaskMessage::Pause);
        if moment % 2 == 0 {
            world.pass(ms(moment % 7));
        }
        if world.status_of("a").is_some_and(TaskStatus::is_terminal) {
            continue;
        }
        let kill = world.command("a", kill());
        world.is_stormy = false;
        world.pass(seconds(40));
        let is_stuck = |notice: &WorkerEvent| matches!(notice, WorkerEvent::Stuck { .. });
        if world.processes.iter().any(|process| process.events.iter().any(is_stuck)) {
            // A random handler may ignore its abort; then nothing may be stored for it.
            continue;
        }
        let end = world.status_of("a");
        assert_eq!(end, Some(TaskStatus::Killed), "at {moment}");
        assert!(matches!(world.outcome(&pause), Some(Done | Replaced)), "at {moment}");
        assert_eq!(world.outcome(&kill), Some(Done), "at {moment}");
        assert!(!world.exists("a"));
    }
}

#[test]
fn pending_kill_overrides_outcome() {
    for outcome in
        [HandlerEnd::Completed, HandlerEnd::Fault("f".to_owned()), HandlerEnd::Release, HandlerEnd::Pause]
    {
        let mut world = WorkerWorld::calm(1);
        world.handling = HandlerScript::Deaf;
        world.submit("a");
        world.settle();
        let id = world.command("a", kill());
        world.pass(ms(10));
        world.finish("a", outcome);
        world.settle();
        assert_eq!((world.status_of("a"), world.outcome(&id)), (Some(TaskStatus::Killed), Some(Done)));
    }
}

#[test]
fn completion_refuses_pending_command() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    let id = world.command("a", TaskMessage::Pause);
    world.pass(ms(10));
    world.finish("a", HandlerEnd::Completed);
    world.settle();
    assert_eq!(world.status_of("a"), Some(TaskStatus::Completed));
    let result = world.result(&id).unwrap();
    assert_eq!((result.outcome, result.why.as_deref()), (Refused, Some("the task has completed before")));
}

#[test]
fn completion_handles_unseen_command() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let id = world.command("a", kill());
    world.finish("a", HandlerEnd::Completed);
    world.settle();
    assert_eq!(world.status_of("a"), Some(TaskStatus::Killed), "the save found the command, and a kill wins");
    assert_eq!(world.outcome(&id), Some(Done));
}

#[test]
fn fault_with_pending_pause_is_paused() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    let id = world.command("a", TaskMessage::Pause);
    world.pass(ms(10));
    world.finish("a", HandlerEnd::Fault("f".to_owned()));
    world.settle();
    let state = world.state("a").unwrap();
    assert_eq!((state.state, state.faults, world.outcome(&id)), (TaskStatus::Paused, 1, Some(Done)));
}

#[test]
fn illegal_command_is_refused_without_effect() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.command("a", TaskMessage::Pause);
    world.settle();
    let before = world.state("a");
    let id = world.command("a", TaskMessage::Complete);
    world.settle();
    assert_eq!(world.state("a"), before);
    let why = world.result(&id).unwrap().why;
    assert_eq!(
        (world.outcome(&id), why.as_deref()),
        (Some(Refused), Some("a paused task does not take complete"))
    );
}

#[test]
fn malformed_command_is_answered() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let odd = crate::record::CommandRecord { command: "dance".to_owned(), ..Default::default() };
    let id = world.send("a", odd);
    world.settle();
    assert_eq!((world.runs_on("a"), world.outcome(&id)), (Some(0), Some(Malformed)));
    world.put_raw(&Key::TaskCommand(task("a")), "not json");
    world.settle();
    assert_eq!(world.runs_on("a"), Some(0));
    assert!(world.get(&Key::TaskCommand(task("a"))).is_none(), "it is set aside");
    assert!(
        world.has_noticed(0, |n| matches!(
            n,
            WorkerEvent::CommandHandled { outcome: Malformed, id: None, .. }
        ))
    );
}

/// A write without a condition on the command must not advance the known revision: its reply may
/// arrive before the feed shows the command.
#[test]
fn command_put_before_write_is_handled() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let token = world.processes[0].handlers[&task("a")].token;
    world.events_take = Some(ms(500));
    let id = world.command("a", TaskMessage::Pause);
    let blob = Checkpoint::new("progress").unwrap();
    world.deliver(0, WorkerInput::Checkpoint { task: task("a"), token, ask: 1, blob });
    world.settle();
    assert_eq!((world.outcome(&id), world.status_of("a")), (Some(Done), Some(TaskStatus::Paused)));
}

#[test]
fn run_and_checkpoint_do_not_stop_handler() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let run = world.command("a", TaskMessage::Run);
    world.settle();
    let checkpoint = world.command("a", TaskMessage::Checkpoint { blob: None });
    world.settle();
    assert_eq!((world.outcome(&run), world.outcome(&checkpoint)), (Some(Done), Some(Done)));
    assert_eq!((world.starts_of("a"), world.processes[0].nudged.as_slice()), (1, &[task("a")][..]));
    let blob = Checkpoint::new("from outside").unwrap();
    world.command("a", TaskMessage::Checkpoint { blob: Some(blob.clone()) });
    world.settle();
    assert_eq!((world.runs_on("a"), world.state("a").unwrap().checkpoint), (Some(0), Some(blob)));
}

#[test]
fn a_command_to_release_moves_the_task() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let first = world.runs_on("a").unwrap();
    let id = world.command("a", TaskMessage::Release);
    world.settle();
    assert_eq!((world.runs_on("a"), world.outcome(&id)), (Some(1 - first), Some(Done)));
}

#[test]
fn command_to_stuck_handler_stays_unanswered() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    let id = world.command("a", kill());
    world.pass(seconds(30));
    assert_eq!((world.outcome(&id), world.status_of("a"), world.exists("a")), (None, None, true));
    assert!(world.has_noticed(0, |notice| matches!(notice, WorkerEvent::Stuck { .. })));
    world.finish("a", HandlerEnd::Aborted);
    world.settle();
    assert_eq!(
        (world.outcome(&id), world.status_of("a")),
        (Some(Done), Some(TaskStatus::Killed)),
        "until it ends after all"
    );
}

#[test]
fn acknowledgement_with_lost_reply_is_applied_once() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let id = world.command("a", TaskMessage::Error { message: "from outside".to_owned() });
    world.pass(ms(2));
    world.fate = WireFault::LosesReply;
    world.pass(ms(4));
    world.fate = WireFault::Works;
    world.settle();
    let state = world.state("a").unwrap();
    assert_eq!((state.faults, world.outcome(&id)), (1, Some(Done)));
}

#[test]
fn command_to_dead_task_expires() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.finish("a", HandlerEnd::Completed);
    world.settle();
    let id: CommandId = world.command("a", kill());
    world.settle();
    assert_eq!((world.outcome(&id), world.status_of("a")), (None, Some(TaskStatus::Completed)));
    assert!(world.get(&Key::TaskCommand(task("a"))).is_some());
}
