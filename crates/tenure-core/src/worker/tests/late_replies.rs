//! Replies and outcomes that belong to something else than what the node has now.

use super::events::{ms, seconds, task};
use super::process::HandlerScript;
use super::world::WorkerWorld;
use crate::loss::LossReason;
use crate::revision::{RequestId, Revision, Token};
use crate::task::TaskMessage;
use crate::worker::{HandlerEnd, StateWriteReply, StopReason, WorkerEvent, WorkerInput, WorkerOutput};

/// A worker that has requested a write that ends a task, without a reply yet; and the id of that
/// request.
fn ending() -> (WorkerWorld, RequestId) {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.holds_replies = true;
    world.finish("a", HandlerEnd::Completed);
    world.pass(ms(5));
    let epoch = last_save(&world);
    (world, epoch)
}

fn last_save(world: &WorkerWorld) -> RequestId {
    let saves = world.withheld.iter().rev();
    let mut epochs = saves.filter_map(|(_, _, event)| match event {
        WorkerInput::StateWritten { epoch, .. } => Some(*epoch),
        _ => None,
    });
    epochs.next().expect("a save was requested")
}

fn has_ended(world: &WorkerWorld) -> bool {
    world.has_noticed(0, |notice| matches!(notice, WorkerEvent::Ended { .. }))
}

#[test]
fn reply_of_earlier_save_is_ignored() {
    let (mut world, epoch) = ending();
    let applied = StateWriteReply::Applied { revision: Revision(99) };
    world.deliver(
        0,
        WorkerInput::StateWritten { task: task("a"), epoch: RequestId(epoch.0 - 1), reply: applied.clone() },
    );
    assert!(!has_ended(&world) && world.processes[0].machine.owned() == 1);
    world.deliver(0, WorkerInput::StateWritten { task: task("a"), epoch, reply: applied });
    assert!(has_ended(&world), "the reply that was waited for counts");
}

/// An ambiguous write of a task that now has another owner and another state was not applied: the
/// claim was lost.
#[test]
fn ambiguous_save_with_other_state_is_lost() {
    let (mut world, epoch) = ending();
    world.deliver(0, WorkerInput::StateWritten { task: task("a"), epoch, reply: StateWriteReply::Ambiguous });
    world.pass(seconds(5));
    let epoch = last_save(&world);
    let reply = StateWriteReply::NotOwner { state: Some(r#"{"state":"paused"}"#.into()) };
    world.deliver(0, WorkerInput::StateWritten { task: task("a"), epoch, reply });
    assert!(!has_ended(&world));
    assert!(world.has_noticed(0, |notice| matches!(notice, WorkerEvent::Lost { .. })));
}

/// A handler that is stopping for another reason may believe that it has its whole grace; a lost claim leaves it one second.
#[test]
fn stopping_handler_is_notified_of_lost_lease() {
    for message in [TaskMessage::Pause, TaskMessage::Release] {
        let mut world = WorkerWorld::calm(1);
        world.handling = HandlerScript::Deaf;
        world.submit("a");
        world.settle();
        world.command("a", message);
        world.pass(ms(20));
        let lease = world.processes[0].lease.unwrap();
        let now = world.clock(0);
        let machine = &mut world.processes[0].machine;
        machine.handle(WorkerInput::LeaseLost { lease, why: LossReason::Lapsed }, now);
        let outputs: Vec<WorkerOutput> = std::iter::from_fn(|| machine.poll_output()).collect();
        let is_lost =
            |action: &WorkerOutput| matches!(action, WorkerOutput::Stop { why: StopReason::Lost, .. });
        assert!(outputs.iter().any(is_lost), "{outputs:?}");
    }
}

#[test]
fn outcome_of_earlier_claim_is_ignored() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let token = Token(Revision(1));
    world.deliver(0, WorkerInput::HandlerEnded { task: task("a"), token, outcome: HandlerEnd::Completed });
    world.settle();
    assert_eq!((world.runs_on("a"), world.exists("a"), has_ended(&world)), (Some(0), true, false));
}
