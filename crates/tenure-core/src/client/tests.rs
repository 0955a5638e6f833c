//! What clients make of conflicts and lost replies, on the store model: every protocol with a reply lost at each of its requests.

use bytes::Bytes;

use super::*;
use crate::audit::AuditEntry;
use crate::command::NodeCommand;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::id::{CommandId, CommandIds, Namespace, TaskId};
use crate::keyspace::Keyspace;
use crate::kv::{Get, KeyValue};
use crate::layout::{Key, Layout};
use crate::limits::Limits;
use crate::record::{AuditRecord, CommandOutcome, Record, ResultRecord, TaskRecord};
use crate::task::{StateRecord, TaskMessage, TaskState, TaskStatus};
use crate::time::Moment;
use crate::txn::{Op, Txn, TxnReply};

const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// A store, and what becomes of requests to it.
pub(super) struct ClientWorld {
    store: Keyspace,
    layout: Layout,
    ids: CommandIds,
}

/// What becomes of the request with this number, the first being 0.
#[derive(Clone, Copy, Debug)]
enum RequestFault {
    Works,
    LosesReply(usize),
    NeverArrives(usize),
}

impl ClientWorld {
    pub(super) fn new() -> ClientWorld {
        let layout = Layout::new(&Namespace::parse("t").unwrap());
        ClientWorld { store: Keyspace::new(Limits::EMBEDDED), layout, ids: CommandIds::default() }
    }

    pub(super) fn apply(&mut self, txn: &Txn) -> Result<TxnReply, StoreError> {
        self.store.apply(txn, Moment::ORIGIN)
    }

    pub(super) fn get(&mut self, key: &Bytes) -> Option<KeyValue> {
        self.store.get(&Get::key(key.clone()), Moment::ORIGIN).unwrap().pairs.into_iter().next()
    }

    fn at(&mut self, key: &Key) -> Option<KeyValue> {
        let key = self.layout.encode(key);
        self.get(&key)
    }

    fn put(&mut self, key: &Key, value: impl Into<Bytes>) {
        let key = self.layout.encode(key);
        self.apply(&Txn::new().then(Op::put(key, value))).unwrap();
    }

    fn send(&mut self, request: StoreRequest) -> Result<StoreReply, StoreError> {
        match request {
            StoreRequest::Get(get) => self.store.get(&get, Moment::ORIGIN).map(StoreReply::Page),
            StoreRequest::Txn(txn) => self.apply(&txn).map(StoreReply::Txn),
        }
    }

    /// Runs an exchange; `between` happens after each request, with its number.
    fn run<E: Exchange>(
        &mut self,
        mut exchange: E,
        fate: RequestFault,
        mut between: impl FnMut(&mut ClientWorld, usize),
    ) -> E::Output {
        for n in 0..100 {
            let lost = || Err(StoreError::Ambiguous(Cause::new("cut off")));
            let reply = match fate {
                RequestFault::NeverArrives(at) if at == n => lost(),
                RequestFault::LosesReply(at) if at == n => {
                    self.send(exchange.request()).unwrap();
                    lost()
                }
                _ => self.send(exchange.request()),
            };
            between(self, n);
            if let ExchangeStep::Done(output) = exchange.handle(reply) {
                return output;
            }
        }
        panic!("an exchange that does not end");
    }

    fn submit(&mut self, name: &str) {
        let mut submit = SubmitTasks::default();
        let task = TaskSpec { props: Some("1".into()), ..TaskSpec::new(task(name)) };
        submit.push(&self.layout.clone(), task, "n".to_owned(), NOW);
        while !submit.is_done() {
            let replies: Vec<_> = submit.txns().iter().map(|txn| self.apply(txn)).collect();
            submit.handle(replies);
        }
        assert!(matches!(submit.into_results()[..], [Ok(())]));
    }

    /// The task ends, as a worker ends it.
    fn end(&mut self, name: &str) {
        let kept = self.at(&Key::Task(task(name))).map(|pair| TaskRecord::decode(&pair.value).unwrap());
        let mut record =
            StateRecord { state: TaskStatus::Failed, updated_at: NOW, task: kept, ..StateRecord::default() };
        record.errors.clear();
        let keys = TaskKeys::of(&self.layout, &task(name));
        let entry = self.layout.encode(&Key::EndedTask(NOW, task(name)));
        let txn = Txn::new()
            .then(Op::delete(keys.task))
            .then(Op::Delete(keys.parts))
            .then(Op::put(keys.state, record.encode()))
            .then(Op::put(entry, "1"));
        self.apply(&txn).unwrap();
    }

    fn audit(&self) -> AuditEntry {
        AuditEntry::new(&self.layout, AuditRecord::default(), NOW, [7; 8])
    }

    fn next_id(&mut self) -> CommandId {
        self.ids.next(NOW, [1; 8])
    }

    fn pause(&mut self, name: &str) -> (CommandId, TaskExchange<SendCommand>) {
        let id = self.next_id();
        let origin = (id.clone(), origin());
        (id, SendCommand::exchange(&self.layout, &task(name), TaskMessage::Pause, origin, None).unwrap())
    }

    fn delete(&self, name: &str) -> TaskExchange<DeleteTask> {
        DeleteTask::exchange(&self.layout, &task(name), origin(), self.audit())
    }

    fn forget(&self, name: &str) -> TaskExchange<ForgetTask> {
        ForgetTask::exchange(&self.layout, &task(name), self.audit())
    }

    fn retry(&self, name: &str) -> TaskExchange<RetryTask> {
        RetryTask::exchange(&self.layout, &task(name), origin(), "r".to_owned())
    }

    fn outcome(&mut self, id: &CommandId) -> Option<CommandOutcome> {
        let pair = self.at(&Key::CommandResult(id.clone()))?;
        Some(ResultRecord::decode(&pair.value).unwrap().outcome)
    }

    fn version(&mut self, key: &Key) -> i64 {
        self.at(key).map_or(0, |pair| pair.version)
    }
}

fn task(name: &str) -> TaskId {
    TaskId::parse(name).unwrap()
}

fn origin() -> Origin {
    Origin { name: NodeId::parse("alice").unwrap(), at: NOW }
}

fn nothing(_: &mut ClientWorld, _: usize) {}

#[test]
fn lost_command_is_sent_once_and_names_replaced() {
    for fate in [RequestFault::Works, RequestFault::LosesReply(1), RequestFault::NeverArrives(1)] {
        let mut shop = ClientWorld::new();
        shop.submit("t");
        let (first, send) = shop.pause("t");
        assert_eq!(shop.run(send, RequestFault::Works, nothing).unwrap(), None);
        let (second, send) = shop.pause("t");
        let replaced = shop.run(send, fate, nothing).unwrap().unwrap();
        assert_eq!((replaced.id, replaced.by.as_str()), (Some(first.clone()), "alice"), "{fate:?}");
        assert_eq!(shop.version(&Key::TaskCommand(task("t"))), 2);
        assert_eq!((shop.outcome(&first), shop.outcome(&second)), (Some(CommandOutcome::Replaced), None));
    }
}

/// A worker handles the command before the client has read what became of it.
#[test]
fn lost_command_that_was_handled_is_sent() {
    let mut shop = ClientWorld::new();
    shop.submit("t");
    let (id, send) = shop.pause("t");
    let sent = shop.run(send, RequestFault::LosesReply(1), |shop, n| {
        if n == 1 {
            let result = ResultRecord::new(NodeId::parse("w").unwrap(), CommandOutcome::Done, NOW);
            shop.put(&Key::CommandResult(id.clone()), result.encode());
            let command = shop.layout.encode(&Key::TaskCommand(task("t")));
            shop.apply(&Txn::new().then(Op::delete(command))).unwrap();
        }
    });
    assert_eq!(sent.unwrap(), None);
    assert_eq!(shop.version(&Key::TaskCommand(task("t"))), 0, "it is not sent again");
}

/// The task ended after the lost request: it is not known whether a worker read the command.
#[test]
fn lost_command_to_ended_task_is_unknown() {
    let mut shop = ClientWorld::new();
    shop.submit("t");
    let (_, send) = shop.pause("t");
    let sent = shop.run(send, RequestFault::NeverArrives(1), |shop, n| {
        if n == 1 {
            shop.end("t");
        }
    });
    assert!(matches!(sent, Err(SendCommandError::Unknown(_))), "{sent:?}");
    let (_, send) = shop.pause("t");
    let refused = shop.run(send, RequestFault::Works, nothing);
    assert!(matches!(refused, Err(SendCommandError::Ended(TaskState::Failed))), "{refused:?}");
}

#[test]
fn third_lost_command_is_unknown() {
    let mut shop = ClientWorld::new();
    shop.submit("t");
    let (_, mut send) = shop.pause("t");
    let lost = || Err(StoreError::Ambiguous(Cause::new("cut off")));
    for n in 0..3 {
        loop {
            let request = send.request();
            let is_write = matches!(&request, StoreRequest::Txn(txn) if !txn.when.is_empty());
            let reply = if is_write { lost() } else { shop.send(request) };
            match send.handle(reply) {
                ExchangeStep::Send => {}
                ExchangeStep::Retry(_) => break,
                ExchangeStep::Done(sent) => {
                    assert!(n == 2 && matches!(sent, Err(SendCommandError::Unknown(_))), "{n} {sent:?}");
                    break;
                }
            }
        }
    }
}

/// Another client sends a command after each request of this one was prepared.
#[test]
fn command_against_many_clients_is_contended() {
    let mut shop = ClientWorld::new();
    shop.submit("t");
    let (_, send) = shop.pause("t");
    let sent = shop.run(send, RequestFault::Works, |shop, _| {
        shop.put(&Key::TaskCommand(task("t")), r#"{"command":"run"}"#);
    });
    assert!(matches!(&sent, Err(SendCommandError::Store(error)) if error.is_retryable()), "{sent:?}");
}

#[test]
fn lost_delete_deletes_one_incarnation() {
    for fate in [RequestFault::Works, RequestFault::LosesReply(1), RequestFault::NeverArrives(1)] {
        let mut shop = ClientWorld::new();
        shop.submit("t");
        let (id, send) = shop.pause("t");
        shop.run(send, RequestFault::Works, nothing).unwrap();
        let delete = shop.delete("t");
        assert_eq!(shop.run(delete, fate, nothing).unwrap(), Deleted { owner: None }, "{fate:?}");
        assert_eq!(
            (shop.version(&Key::Task(task("t"))), shop.outcome(&id)),
            (0, Some(CommandOutcome::Expired))
        );
    }
    let mut shop = ClientWorld::new();
    shop.submit("t");
    let delete = shop.delete("t");
    let deleted = shop.run(delete, RequestFault::LosesReply(1), |shop, n| {
        if n == 1 {
            shop.submit("t");
        }
    });
    assert_eq!(
        (deleted.unwrap().owner, shop.version(&Key::Task(task("t")))),
        (None, 1),
        "the next one stays"
    );
    let delete = shop.delete("u");
    let missing = shop.run(delete, RequestFault::Works, nothing);
    assert!(matches!(missing, Err(DeleteError::NotFound)));
}

#[test]
fn lost_forget_forgets_one_end() {
    for fate in [RequestFault::Works, RequestFault::LosesReply(1), RequestFault::NeverArrives(1)] {
        let mut shop = ClientWorld::new();
        shop.submit("t");
        shop.end("t");
        let forget = shop.forget("t");
        shop.run(forget, fate, nothing).unwrap();
        assert_eq!(shop.at(&Key::TaskState(task("t"))), None, "{fate:?}");
        assert_eq!(shop.at(&Key::EndedTask(NOW, task("t"))), None);
        let forget = shop.forget("t");
        let again = shop.run(forget, RequestFault::Works, nothing);
        assert!(matches!(again, Err(ForgetError::NotFound)));
    }
    let mut shop = ClientWorld::new();
    shop.submit("t");
    shop.put(&Key::TaskState(task("t")), r#"{"state":"paused"}"#);
    let forget = shop.forget("t");
    let live = shop.run(forget, RequestFault::Works, nothing);
    assert!(matches!(live, Err(ForgetError::Live(TaskState::Paused))));
}

#[test]
fn lost_retry_puts_task_once_with_props() {
    // The entry with the props is read between.
    for fate in [RequestFault::Works, RequestFault::LosesReply(2), RequestFault::NeverArrives(2)] {
        let mut shop = ClientWorld::new();
        shop.submit("t");
        shop.end("t");
        let retry = shop.retry("t");
        assert_eq!(shop.run(retry, fate, nothing).unwrap(), TaskState::Failed, "{fate:?}");
        assert_eq!(shop.version(&Key::Task(task("t"))), 1, "{fate:?}");
        assert_eq!(shop.at(&Key::TaskProps(task("t"))).unwrap().value, "1");
        assert_eq!(shop.at(&Key::EndedTask(NOW, task("t"))), None);
        let retry = shop.retry("t");
        let live = shop.run(retry, RequestFault::Works, nothing);
        assert!(matches!(live, Err(RetryError::Live(TaskState::Runnable))), "{live:?}");
    }
}

#[test]
fn lost_node_command_is_sent_once() {
    for fate in [RequestFault::Works, RequestFault::LosesReply(1), RequestFault::NeverArrives(1)] {
        let mut shop = ClientWorld::new();
        let node = NodeId::parse("w").unwrap();
        shop.put(&Key::Node(node.clone()), "{}");
        let id = shop.next_id();
        let send = SendNodeCommand::new(&shop.layout, &node, NodeCommand::Freeze, (id.clone(), &origin()));
        shop.run(send, fate, nothing).unwrap();
        assert_eq!(shop.version(&Key::NodeCommand(node.clone(), id)), 1, "{fate:?}");
    }
}

/// The node goes after the lost request: its commands may have been read before.
#[test]
fn lost_command_to_node_that_left_is_unknown() {
    let mut shop = ClientWorld::new();
    let node = NodeId::parse("w").unwrap();
    shop.put(&Key::Node(node.clone()), "{}");
    let key = shop.layout.encode(&Key::Node(node.clone()));
    let id = shop.next_id();
    let send = SendNodeCommand::new(&shop.layout, &node, NodeCommand::Freeze, (id, &origin()));
    let sent = shop.run(send, RequestFault::NeverArrives(1), |shop, n| {
        if n == 1 {
            shop.apply(&Txn::new().then(Op::delete(key.clone()))).unwrap();
        }
    });
    assert!(matches!(sent, Err(SendNodeCommandError::Unknown(_))), "{sent:?}");
}

#[test]
fn reply_to_command_is_waiting_result_or_gone() {
    let mut shop = ClientWorld::new();
    shop.submit("t");
    let (id, send) = shop.pause("t");
    shop.run(send, RequestFault::Works, nothing).unwrap();
    let key = shop.layout.encode(&Key::TaskCommand(task("t")));
    let read = ReadCommandReply::new(&shop.layout, id.clone(), key.clone());
    assert_eq!(
        shop.run(read.clone(), RequestFault::LosesReply(0), nothing).unwrap(),
        CommandReadback::Waiting
    );
    shop.apply(&Txn::new().then(Op::delete(key))).unwrap();
    assert_eq!(shop.run(read.clone(), RequestFault::Works, nothing).unwrap(), CommandReadback::Gone);
    let result = ResultRecord::new(NodeId::parse("w").unwrap(), CommandOutcome::Done, NOW);
    shop.put(&Key::CommandResult(id), result.encode());
    assert_eq!(shop.run(read, RequestFault::Works, nothing).unwrap(), CommandReadback::Result(result));
}
