//! Commands and results that have expired: refused by workers, deleted by one of them, and never together with what was put since.

use super::events::{ms, seconds, task};
use super::wire::WireFault;
use super::world::WorkerWorld;
use crate::command::NodeCommand;
use crate::id::{CommandId, NodeId};
use crate::kv::{Get, Selection};
use crate::layout::{COMMAND_EXPIRES_AFTER, Key, RESULT_EXPIRES_AFTER};
use crate::record::CommandOutcome::{Done, Expired};
use crate::record::{CommandRecord, Record, ResultRecord, Timestamp};
use crate::revision::RequestId;
use crate::task::{TaskMessage, TaskStatus};
use crate::txn::{Op, Txn};
use crate::worker::{
    ExpiredKey, RetentionReply, RetentionRequest, RetentionStep, WorkerEvent, WorkerInput, request,
};

impl WorkerWorld {
    /// Sends a command that expires then. Nothing else is sent to a task that does not exist.
    fn expiring(&mut self, name: &str, message: TaskMessage, expires_at: Timestamp) -> CommandId {
        self.send(name, CommandRecord { expires_at: Some(expires_at), ..message.into_command() })
    }

    fn keys(&mut self, select: Selection) -> usize {
        self.store.get(&Get::new(select), self.now).unwrap().pairs.len()
    }

    fn commands_left(&mut self) -> usize {
        self.keys(self.layout.task_commands())
    }

    fn results_left(&mut self) -> usize {
        self.keys(self.layout.results())
    }

    fn put_result(&mut self, id: &str, expires_at: Option<Timestamp>) {
        let node = NodeId::parse("n").unwrap();
        let result = ResultRecord { expires_at, ..ResultRecord::new(node, Done, self.wall()) };
        let key = self.layout.encode(&Key::CommandResult(CommandId::parse(id).unwrap()));
        self.apply(&Txn::new().then(Op::put(key, result.encode())));
    }

    fn retained(&self, n: usize, is_it: impl Fn(&RetentionStep) -> bool) -> usize {
        self.processes[n].retained.iter().filter(|step| is_it(step)).count()
    }

    fn reads_of_results(&self, n: usize) -> usize {
        self.retained(n, |step| matches!(step, RetentionStep::ReadResults { .. }))
    }

    /// Long enough for a pass to begin and end.
    fn sweep_round(&mut self) {
        self.pass(seconds(61));
    }
}

#[test]
fn expired_command_is_not_executed() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let late = world.expiring("a", TaskMessage::Pause, world.in_ms(0));
    world.settle();
    assert_eq!(
        (world.outcome(&late), world.status_of("a"), world.runs_on("a")),
        (Some(Expired), None, Some(0))
    );
    let why = world.result(&late).unwrap().why.unwrap();
    assert_eq!(why, "it expired before a worker read it");
    let in_time = world.expiring("a", TaskMessage::Pause, world.in_ms(60_000));
    world.settle();
    assert_eq!((world.outcome(&in_time), world.status_of("a")), (Some(Done), Some(TaskStatus::Paused)));
}

/// A worker that claims a task refuses the command that expired while no worker had it.
#[test]
fn command_that_expired_before_claim_is_refused() {
    let mut world = WorkerWorld::calm(0);
    world.submit("a");
    let id = world.expiring("a", TaskMessage::Kill { reason: None }, world.in_ms(1_000));
    world.pass(seconds(2));
    world.add_node(0);
    world.settle();
    assert_eq!((world.outcome(&id), world.runs_on("a")), (Some(Expired), Some(0)));
}

/// It was read in time; the handler takes until after that to stop.
#[test]
fn command_read_in_time_outlasts_slow_stop() {
    let mut world = WorkerWorld::calm(1);
    world.handling = super::process::HandlerScript::Deaf;
    world.submit("a");
    world.settle();
    let id = world.expiring("a", TaskMessage::Pause, world.in_ms(1_000));
    world.pass(seconds(2));
    world.finish("a", crate::worker::HandlerEnd::Aborted);
    world.settle();
    assert_eq!((world.outcome(&id), world.status_of("a")), (Some(Done), Some(TaskStatus::Paused)));
}

#[test]
fn expired_command_to_node_is_not_executed() {
    let mut world = WorkerWorld::calm(1);
    let id = world.next_id();
    let node = world.processes[0].config.node.clone();
    let expires_at = Some(world.in_ms(0));
    let record = CommandRecord { id: Some(id.clone()), expires_at, ..NodeCommand::Freeze.into_command() };
    let key = world.layout.encode(&Key::NodeCommand(node, id.clone()));
    world.apply(&Txn::new().then(Op::put(key, record.encode())));
    world.settle();
    assert_eq!(
        (world.outcome(&id), world.has_noticed(0, |notice| *notice == WorkerEvent::Frozen)),
        (Some(Expired), false)
    );
}

/// The sender was killed, and no worker has the task: after a week and one round the command is gone, and a day later its result.
#[test]
fn command_of_killed_sender_is_swept() {
    let mut world = WorkerWorld::calm(3);
    let id = world.command("nowhere", TaskMessage::Pause);
    world.pass(COMMAND_EXPIRES_AFTER - seconds(1));
    assert_eq!((world.commands_left(), world.outcome(&id)), (1, None));
    world.pass(seconds(1));
    world.sweep_round();
    assert_eq!((world.commands_left(), world.outcome(&id)), (0, Some(Expired)));
    world.pass(RESULT_EXPIRES_AFTER);
    world.sweep_round();
    assert_eq!(world.results_left(), 0);
    let deletes = |step: &RetentionStep| matches!(step, RetentionStep::ExpireCommand { .. });
    let mut workers: Vec<usize> = (0..3).map(|n| world.retained(n, deletes)).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 0, 1], "one worker has the duty");
}

#[test]
fn command_to_dead_node_is_swept() {
    let mut world = WorkerWorld::calm(1);
    let key = Key::NodeCommand(NodeId::parse("dead").unwrap(), world.next_id());
    let record = CommandRecord { expires_at: Some(world.in_ms(1)), ..NodeCommand::Freeze.into_command() };
    world.put_raw(&key, std::str::from_utf8(&record.encode()).unwrap());
    world.sweep_round();
    assert_eq!(world.get(&key), None);
    assert_eq!(world.results_left(), 1, "its id is in its key");
}

#[test]
fn no_command_is_swept_while_no_worker_lives() {
    let mut world = WorkerWorld::calm(0);
    world.expiring("nowhere", TaskMessage::Pause, world.in_ms(1));
    world.pass(seconds(600));
    assert_eq!(world.commands_left(), 1);
    world.add_node(0);
    world.sweep_round();
    assert_eq!(world.commands_left(), 0);
}

/// Another program's command has no `expires_at`.
#[test]
fn command_and_result_without_expiry_stay() {
    let mut world = WorkerWorld::calm(1);
    world.put_raw(&Key::TaskCommand(task("a")), r#"{"command":"pause"}"#);
    world.put_raw(&Key::TaskCommand(task("b")), "no record");
    world.put_result("old", None);
    world.put_raw(&Key::CommandResult(CommandId::parse("bad").unwrap()), "no record");
    world.pass(RESULT_EXPIRES_AFTER * 2);
    assert_eq!((world.commands_left(), world.results_left()), (2, 2));
}

/// The worker has read the first command; the second one is sent before its delete arrives.
#[test]
fn command_sent_since_is_not_deleted() {
    let mut world = WorkerWorld::calm(0);
    let first = world.expiring("nowhere", TaskMessage::Pause, world.in_ms(1));
    let key = world.layout.encode(&Key::TaskCommand(task("nowhere")));
    let modified = world.store.revision();
    let second = world.command("nowhere", TaskMessage::Run);
    let result = ResultRecord::new(NodeId::parse("n").unwrap(), Expired, world.wall()).encode();
    let step = RetentionStep::ExpireCommand {
        command: ExpiredKey { key: key.clone(), modified },
        result: Some((second.clone(), result.clone())),
    };
    let ask = RetentionRequest { epoch: RequestId(1), step };
    let txn = request::retention(&world.layout, &ask);
    let reply = world.apply(&txn);
    assert_eq!(request::read_retained(&world.layout, &ask, Ok(reply)), RetentionReply::Kept);
    assert_eq!((world.commands_left(), world.outcome(&second)), (1, None));
    assert!(world.outcome(&first).is_some(), "it was replaced");
    // The same for a result that was put again.
    world.put_result("r", Some(world.in_ms(1)));
    let modified = world.store.revision();
    world.put_result("r", Some(world.in_ms(9_000_000)));
    let key = world.layout.encode(&Key::CommandResult(CommandId::parse("r").unwrap()));
    let ask = RetentionRequest {
        epoch: RequestId(2),
        step: RetentionStep::DeleteResult(ExpiredKey { key, modified }),
    };
    let txn = request::retention(&world.layout, &ask);
    let reply = world.apply(&txn);
    assert_eq!(request::read_retained(&world.layout, &ask, Ok(reply)), RetentionReply::Kept);
}

/// Results of the last day are not even read, however many there are; those of other programs are.
#[test]
fn results_of_last_day_are_not_read() {
    let mut world = WorkerWorld::calm(1);
    let mut ids = crate::id::CommandIds::default();
    for n in 0..1_000_u64 {
        let id = ids.next(world.wall(), n.to_be_bytes());
        world.put_result(id.as_str(), Some(world.in_ms(1)));
    }
    world.put_result("freeze-1", Some(world.in_ms(1)));
    let before = world.reads_of_results(0);
    world.sweep_round();
    assert_eq!((world.results_left(), world.reads_of_results(0) - before), (1_000, 2));
    world.pass(RESULT_EXPIRES_AFTER);
    world.sweep_round();
    assert_eq!(world.results_left(), 0);
}

#[test]
fn rounds_are_bounded() {
    let mut world = WorkerWorld::calm(1);
    for n in 0..150 {
        world.expiring(&format!("t{n:03}"), TaskMessage::Pause, world.in_ms(1));
    }
    for n in 0..300 {
        world.put_result(&format!("0r{n:03}"), Some(world.in_ms(1)));
    }
    let mut most = (0, 0);
    let counts = |world: &WorkerWorld| {
        let commands = |step: &RetentionStep| matches!(step, RetentionStep::ExpireCommand { .. });
        let results = |step: &RetentionStep| matches!(step, RetentionStep::DeleteResult(_));
        (world.retained(0, commands), world.retained(0, results))
    };
    let mut before = counts(&world);
    for _ in 0..1_300 {
        world.pass(ms(50));
        let after = counts(&world);
        most = (most.0.max(after.0 - before.0), most.1.max(after.1 - before.1));
        before = after;
    }
    assert_eq!((world.commands_left(), before), (0, (150, 300)), "each is requested once");
    assert_eq!(most, (64, 128));
}

#[test]
fn lost_replies_leave_no_expired_command() {
    let mut world = WorkerWorld::calm(2);
    let mut ids = Vec::new();
    for n in 0..100 {
        ids.push(world.expiring(&format!("t{n:03}"), TaskMessage::Pause, world.in_ms(1)));
    }
    (world.is_stormy, world.faults_one_in) = (true, 3);
    world.pass(seconds(200));
    (world.is_stormy, world.faults_one_in) = (false, 0);
    world.pass(seconds(70));
    assert_eq!(world.commands_left(), 0);
    assert!(ids.iter().all(|id| world.outcome(id) == Some(Expired)));
}

/// The wall clock is set back by two days in the middle of a pass.
#[test]
fn clock_set_back_ends_no_sweep() {
    let mut world = WorkerWorld::calm(1);
    for n in 0..300 {
        world.put_result(&format!("0r{n:03}"), Some(world.in_ms(1)));
    }
    let one_page =
        |world: &WorkerWorld| world.retained(0, |step| matches!(step, RetentionStep::DeleteResult(_))) > 0;
    while !one_page(&world) {
        world.pass(ms(10));
    }
    world.processes[0].wall_skew = -2 * 24 * 60 * 60 * 1_000;
    world.pass(seconds(5));
    world.processes[0].wall_skew = 0;
    world.sweep_round();
    world.sweep_round();
    assert_eq!(world.results_left(), 0);
}

#[test]
fn worker_without_store_does_not_hurry() {
    let mut world = WorkerWorld::calm(1);
    world.expiring("nowhere", TaskMessage::Pause, world.in_ms(1));
    world.fate = WireFault::NotDone;
    world.deliver(0, WorkerInput::Time);
    world.pass(seconds(150));
    assert!(world.reads_of_results(0) <= 3, "{}", world.reads_of_results(0));
    world.fate = WireFault::Works;
    world.sweep_round();
    assert_eq!(world.commands_left(), 0);
}
