//! Commands to nodes: one at a time, in their order, each answered.

use super::events::{ms, seconds, task};
use super::process::HandlerScript;
use super::world::WorkerWorld;
use crate::command::{AfterDrain, BalanceMode, NodeCommand};
use crate::id::CommandId;
use crate::layout::Key;
use crate::record::CommandOutcome::{Done, Expired, Malformed, Refused};
use crate::record::MemberState;
use crate::task::TaskStatus;
use crate::txn::{Op, Txn};
use crate::worker::{FeedId, HandlerEnd, WorkerEvent};

#[test]
fn frozen_worker_keeps_tasks_and_claims_none() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let id = world.order(0, NodeCommand::Freeze);
    world.settle();
    world.submit("b");
    world.pass(seconds(10));
    assert_eq!((world.outcome(&id), world.runs_on("a"), world.owner("b")), (Some(Done), Some(0), None));
    let id = world.order(0, NodeCommand::Unfreeze);
    world.settle();
    assert_eq!((world.outcome(&id), world.runs_on("b")), (Some(Done), Some(0)));
    let frozen = |notice: &&WorkerEvent| matches!(notice, WorkerEvent::Frozen | WorkerEvent::Unfrozen);
    let told: Vec<_> = world.processes[0].events.iter().filter(frozen).collect();
    assert_eq!(told, [&WorkerEvent::Frozen, &WorkerEvent::Unfrozen]);
}

#[test]
fn a_node_is_still_frozen_after_a_restart() {
    let mut world = WorkerWorld::calm(1);
    world.order(0, NodeCommand::Freeze);
    world.settle();
    world.crash(0);
    world.submit("a");
    world.pass(seconds(30));
    assert_eq!((world.owner("a"), world.processes[0].announced), (None, MemberState::Ready));
}

#[test]
fn frozen_worker_is_not_counted_in_shares() {
    let mut world = WorkerWorld::calm(2);
    world.order(0, NodeCommand::Freeze);
    world.settle();
    for n in 0..6 {
        world.submit(&format!("t{n}"));
    }
    world.pass(ms(400));
    assert_eq!(world.shares(), [0, 6], "at once: no worker waits for a peer that takes no tasks");
}

#[test]
fn release_and_stop_command_reply_when_done() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let first = world.runs_on("a").unwrap();
    let id = world.order(first, NodeCommand::ReleaseTask(task("a")));
    world.settle();
    assert_eq!((world.outcome(&id), world.runs_on("a")), (Some(Done), Some(1 - first)));
    let id = world.order(1 - first, NodeCommand::StopTask(task("a")));
    world.settle();
    world.pass(seconds(2));
    assert_eq!(world.outcome(&id), Some(Done));
    let now = world.runs_on("a").expect("no task stays idle, although both have had it a moment ago");
    let id = world.order(1 - now, NodeCommand::StopTask(task("a")));
    world.settle();
    assert_eq!(world.outcome(&id), Some(Refused), "it does not run there");
}

#[test]
fn stopped_task_that_completes_is_completed() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    world.order(0, NodeCommand::StopTask(task("a")));
    world.pass(ms(10));
    world.finish("a", HandlerEnd::Completed);
    world.settle();
    assert_eq!(world.status_of("a"), Some(TaskStatus::Completed));
}

#[test]
fn command_for_stuck_handler_is_refused() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    let release = world.order(0, NodeCommand::ReleaseTask(task("a")));
    let freeze = world.order(0, NodeCommand::Freeze);
    world.pass(seconds(3));
    assert_eq!((world.outcome(&release), world.outcome(&freeze)), (None, None), "one at a time");
    world.pass(seconds(10));
    assert_eq!((world.outcome(&release), world.outcome(&freeze)), (Some(Refused), Some(Done)));
    assert_eq!(world.owner("a").as_deref(), Some("n0"), "and it is not released while it runs");
}

#[test]
fn node_commands_are_handled_by_id() {
    let mut world = WorkerWorld::calm(1);
    let node_commands: Vec<_> =
        [NodeCommand::Freeze, NodeCommand::Unfreeze, NodeCommand::Freeze, NodeCommand::Unfreeze]
            .into_iter()
            .map(|command| world.order(0, command))
            .collect();
    for n in 0..50 {
        world.submit(&format!("t{n}"));
    }
    world.settle();
    assert!(node_commands.iter().all(|id| world.outcome(id) == Some(Done)));
    let handled = world.processes[0].events.iter().filter_map(|notice| match notice {
        WorkerEvent::NodeCommandHandled { id, .. } => Some(id.clone()),
        _ => None,
    });
    assert_eq!(handled.collect::<Vec<_>>(), node_commands);
    assert_eq!((world.shares(), world.processes[0].machine.is_frozen()), (vec![50], false));
}

#[test]
fn an_order_that_makes_no_sense_is_answered() {
    let mut world = WorkerWorld::calm(1);
    let id = world.next_id();
    let node = world.processes[0].config.node.clone();
    world.put_raw(&Key::NodeCommand(node, id.clone()), r#"{"command":"melt"}"#);
    world.settle();
    assert_eq!(world.outcome(&id), Some(Malformed));
}

#[test]
fn drained_node_releases_all_tasks_and_leaves() {
    let mut world = WorkerWorld::calm(2);
    for n in 0..6 {
        world.submit(&format!("t{n}"));
    }
    world.settle();
    let id = world.order(0, NodeCommand::Drain(AfterDrain::TakeTasks));
    world.pass(ms(20));
    assert_eq!(world.processes[0].announced, MemberState::Draining);
    world.pass(seconds(5));
    assert_eq!((world.outcome(&id), world.shares()), (Some(Done), vec![0, 6]));
    assert_eq!(world.processes[0].finished, Some(Vec::new()));
    let node = world.processes[0].config.node.clone();
    assert!(world.get(&Key::Node(node.clone())).is_none() && world.get(&Key::Frozen(node)).is_none());
    assert!(world.has_noticed(0, |notice| matches!(notice, WorkerEvent::Draining { .. })));
    assert!(world.has_noticed(0, |notice| *notice == WorkerEvent::Drained));
}

/// A rolling restart with fixed ids left every node frozen.
#[test]
fn restarted_node_takes_tasks_after_drain() {
    let mut world = WorkerWorld::calm(1);
    let id = world.order(0, NodeCommand::Drain(AfterDrain::TakeTasks));
    world.pass(seconds(5));
    assert_eq!((world.outcome(&id), world.processes[0].finished.is_some()), (Some(Done), true));
    world.submit("a");
    world.crash(0);
    world.pass(seconds(20));
    assert_eq!(world.runs_on("a"), Some(0));
}

#[test]
fn restarted_node_stays_frozen_if_drained_so() {
    let mut world = WorkerWorld::calm(1);
    world.order(0, NodeCommand::Drain(AfterDrain::StayFrozen));
    world.pass(seconds(5));
    world.submit("a");
    world.crash(0);
    world.pass(seconds(20));
    assert_eq!((world.runs_on("a"), world.processes[0].machine.is_frozen()), (None, true));
}

/// Drain, kill -9, restart: the next process with the id drained again.
#[test]
fn node_command_expires_with_its_incarnation() {
    let mut world = WorkerWorld::calm(1);
    world.crash(0);
    let id = world.order(0, NodeCommand::Drain(AfterDrain::TakeTasks));
    world.submit("a");
    world.pass(seconds(30));
    assert_eq!(world.outcome(&id), Some(Expired));
    assert_eq!((world.runs_on("a"), world.processes[0].finished.is_none()), (Some(0), true));
}

#[test]
fn drain_waits_for_stuck_handler() {
    let mut world = WorkerWorld::calm(1);
    world.handling = HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    let id = world.order(0, NodeCommand::Drain(AfterDrain::TakeTasks));
    world.pass(seconds(30));
    assert_eq!((world.outcome(&id), world.owner("a").as_deref()), (None, Some("n0")));
    world.finish("a", HandlerEnd::Release);
    world.settle();
    assert_eq!((world.outcome(&id), world.owner("a")), (Some(Done), None));
}

#[test]
fn dry_run_returns_plan_without_releases() {
    let mut world = WorkerWorld::calm(1);
    for n in 0..6 {
        world.submit(&format!("t{n}"));
    }
    world.settle();
    world.add_node(1);
    world.pass(ms(100));
    let id = world.order(0, NodeCommand::Balance(BalanceMode::DryRun));
    world.pass(ms(100));
    let result = world.result(&id).unwrap();
    let plan = result.unknown["plan"].as_array().unwrap();
    assert_eq!((result.outcome, plan.len(), &result.unknown["released"]), (Done, 3, &0.into()));
    assert_eq!(plan[0]["why"], "this node has 6, and the share of each of 2 is 3");
    assert_eq!(world.shares(), [6, 0]);
    let id = world.order(0, NodeCommand::Balance(BalanceMode::Act));
    world.pass(ms(100));
    assert_eq!(world.result(&id).unwrap().unknown["released"], 3);
}

/// Only names that are UUIDs were commands; all others were ignored without a word.
#[test]
fn command_with_any_name_is_handled_in_order() {
    let mut world = WorkerWorld::calm(1);
    let put = |world: &mut WorkerWorld, name: &str, command: &str| {
        let id = CommandId::parse(name).unwrap();
        let node = world.processes[0].config.node.clone();
        world.put_raw(&Key::NodeCommand(node, id.clone()), &format!("{{\"command\":\"{command}\"}}"));
        id
    };
    let first = put(&mut world, "1-stop taking", "freeze");
    let second = put(&mut world, "2/unknown", "dance");
    world.settle();
    assert_eq!((world.outcome(&first), world.outcome(&second)), (Some(Done), Some(Malformed)));
    assert!(world.processes[0].machine.is_frozen());
    let again = put(&mut world, "1-stop taking", "unfreeze");
    world.settle();
    assert_eq!(world.outcome(&again), Some(Done));
    assert!(!world.processes[0].machine.is_frozen(), "a name can be used again");
}

#[test]
fn command_with_unreadable_key_is_set_aside() {
    let mut world = WorkerWorld::calm(1);
    let key = format!("{}a\nb", "/t/nodes/n0/commands/");
    world.apply(&Txn::new().then(Op::put(key, "{\"command\":\"freeze\"}")));
    let id = world.order(0, NodeCommand::Freeze);
    world.settle();
    assert_eq!(world.outcome(&id), Some(Done));
    world.break_feed(0, FeedId::Nodes);
    world.settle();
    let postponed = |notice: &&WorkerEvent| matches!(notice, WorkerEvent::CommandSetAside { .. });
    let told: Vec<_> = world.processes[0].events.iter().filter(postponed).collect();
    assert_eq!(told, [&WorkerEvent::CommandSetAside { key: "/t/nodes/n0/commands/a\\nb".to_owned() }]);
}
