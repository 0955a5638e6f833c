//! Commands to tasks and to nodes: sent, replaced, handled, expired. The sender always receives an outcome or an error.

use std::time::Duration;

use tenure::store::{Condition, Op, Store, Txn};
use tenure::task::CommandError;
use tenure_core::command::{AfterDrain, BalanceMode, NodeCommand};
use tenure_core::id::CommandId;
use tenure_core::layout::Key;
use tenure_core::record::{CommandOutcome, CommandRecord, Record, ResultRecord, Timestamp};
use tenure_core::task::{TaskMessage, TaskState};

use super::{Actor, client, id, layout, named, new, node, soon};
use crate::membership::on_every_engine;

/// How long after it was sent a command expires.
const WEEK_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

impl Actor {
    /// Handles the command that waits for a task, as its owner does: in the step that deletes it, if it is still the same.
    async fn obey(&self, task: &str) -> CommandRecord {
        let key = layout().encode(&Key::TaskCommand(id(task)));
        let pair = self.store.get_key(key.clone()).await.unwrap().expect("a command waits");
        let record = CommandRecord::decode(&pair.value).unwrap();
        let result = ResultRecord::new(self.name.clone(), CommandOutcome::Done, Timestamp(9))
            .step(TaskState::Runnable, TaskState::Paused);
        let result_key = layout().encode(&Key::CommandResult(record.id.clone().unwrap()));
        let txn = Txn::new()
            .when(Condition::modified_at(key.clone(), pair.modified))
            .then(Op::delete(key))
            .then(Op::put_leased(result_key, result.encode(), self.lease));
        assert!(self.store.txn(txn).await.unwrap().succeeded);
        record
    }

    /// The commands that wait for this node, in the order in which it would handle them.
    async fn orders(&self) -> Vec<(CommandId, NodeCommand)> {
        let page = self.store.list(layout().node_commands(&self.name)).await.unwrap();
        let read = |pair: tenure::store::KeyValue| match layout().parse(&pair.key) {
            Some(Key::NodeCommand(_, id)) => {
                let record = CommandRecord::decode(&pair.value).unwrap();
                assert_eq!(record.by, tenure::identity::current().name());
                (id, NodeCommand::parse(&record).unwrap())
            }
            other => panic!("{other:?}"),
        };
        page.pairs.into_iter().map(read).collect()
    }

    async fn reply(&self, order: &CommandId) {
        let key = layout().encode(&Key::NodeCommand(self.name.clone(), order.clone()));
        let result = ResultRecord::new(self.name.clone(), CommandOutcome::Refused, Timestamp(9)).why("busy");
        let result_key = layout().encode(&Key::CommandResult(order.clone()));
        let txn =
            Txn::new().then(Op::delete(key)).then(Op::put_leased(result_key, result.encode(), self.lease));
        self.store.txn(txn).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_reply_names_node_and_duration() {
    on_every_engine(|store| async move {
        let client = named(&store, "alice").await;
        let actor = Actor::join(&store, "web-1").await;
        client.submit(new("t1")).await.unwrap();
        let leases = store.leases().await.unwrap().len();
        let sent = client.task(id("t1")).command(TaskMessage::Pause).no_reply().await.unwrap();
        assert_eq!(store.leases().await.unwrap().len(), leases, "a command has no lease");
        assert_eq!(sent.replaced, None);
        let waiting = {
            let sent = sent.clone();
            tokio::spawn(async move { sent.reply().timeout(Duration::from_secs(20)).await })
        };
        let record = actor.obey("t1").await;
        assert_eq!((record.by.as_str(), record.command.as_str()), ("alice", "pause"));
        let handled = soon(waiting).await.unwrap().unwrap();
        assert_eq!((&handled.by, handled.outcome), (&node("web-1"), CommandOutcome::Done));
        assert_eq!((handled.from, handled.to), (Some(TaskState::Runnable), Some(TaskState::Paused)));
        let text = handled.to_string();
        assert!(text.starts_with("handled by web-1 in ") && text.ends_with(" ms"), "{text}");
        // A second read returns the same reply.
        assert_eq!(
            soon(sent.reply().timeout(Duration::from_secs(20)).into_future()).await.unwrap().by,
            node("web-1")
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_command_is_reported_to_both_senders() {
    on_every_engine(|store| async move {
        let (alice, bob) = (named(&store, "alice").await, named(&store, "bob").await);
        let actor = Actor::join(&store, "web-1").await;
        alice.submit(new("t1")).await.unwrap();
        let pause = alice.task(id("t1")).command(TaskMessage::Pause).no_reply().await.unwrap();
        let kill = bob.task(id("t1")).command(TaskMessage::Kill { reason: None }).no_reply().await.unwrap();
        let replaced = kill.replaced.clone().unwrap();
        assert_eq!(replaced.id.as_ref(), Some(pause.id()));
        assert_eq!((replaced.command.as_deref(), replaced.by.as_str()), (Some("pause"), "alice"));
        let reply = soon(pause.reply().timeout(Duration::from_secs(20)).into_future()).await.unwrap();
        assert_eq!((reply.outcome, reply.by.as_str()), (CommandOutcome::Replaced, "bob"));
        assert!(reply.to_string().starts_with("replaced by bob in "));
        assert_eq!(actor.obey("t1").await.command, "kill", "the last one sent wins");
        assert_eq!(
            soon(kill.reply().timeout(Duration::from_secs(20)).into_future()).await.unwrap().outcome,
            CommandOutcome::Done
        );
    })
    .await;
}

/// In whatever order the commands arrive, the node handles one, and every other sender receives `Replaced`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_commands_report_all_but_one_replaced() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let actor = Actor::join(&store, "web-1").await;
        client.submit(new("t1")).await.unwrap();
        let sent = futures_util::future::join_all((0..10).map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                // A sender that loses too many conflicts receives a retryable error and sends again.
                loop {
                    match client.task(id("t1")).command(TaskMessage::Pause).no_reply().await {
                        Ok(sent) => return sent,
                        Err(CommandError::Store(error)) if error.is_retryable() => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        }));
        let sent: Vec<_> = soon(sent).await.into_iter().map(Result::unwrap).collect();
        actor.obey("t1").await;
        let mut outcomes = Vec::new();
        for one in sent {
            outcomes.push(
                soon(one.reply().timeout(Duration::from_secs(20)).into_future()).await.unwrap().outcome,
            );
        }
        outcomes.sort_unstable();
        assert_eq!(outcomes[0], CommandOutcome::Done);
        assert!(outcomes[1..].iter().all(|outcome| *outcome == CommandOutcome::Replaced), "{outcomes:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_without_target_is_refused_and_stores_nothing() {
    on_every_engine(|store| async move {
        let client = client(&store);
        assert!(matches!(
            client.task(id("t1")).command(TaskMessage::Pause).no_reply().await,
            Err(CommandError::NotFound)
        ));
        assert!(matches!(
            client.node(node("web-1")).command(NodeCommand::Freeze).no_reply().await,
            Err(CommandError::NotFound)
        ));
        super::is_bare(&store).await;
        assert_eq!(store.leases().await.unwrap().len(), 0);
        let actor = Actor::join(&store, "n").await;
        client.submit(new("t1")).await.unwrap();
        actor.apply("t1", TaskMessage::Complete).await;
        let ended = |sent| matches!(sent, Err(CommandError::Finished { state: TaskState::Completed }));
        assert!(ended(client.task(id("t1")).command(TaskMessage::Pause).no_reply().await));
    })
    .await;
}

#[tokio::test]
async fn sleep_command_with_past_time_is_refused() {
    let client = client(&Store::memory());
    client.submit(new("t1")).await.unwrap();
    let past = client.task(id("t1")).command(TaskMessage::Sleep { until: Timestamp(5) }).no_reply().await;
    assert!(matches!(past, Err(CommandError::InvalidTime { until: Timestamp(5) })));
    let later = TaskMessage::Sleep { until: Timestamp(u64::MAX) };
    assert!(client.task(id("t1")).command(later).no_reply().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unhandled_command_reports_timeout_deletion_or_expiry() {
    on_every_engine(|store| async move {
        let client = client(&store);
        client.submit(new("t1")).await.unwrap();
        let sent = client.task(id("t1")).command(TaskMessage::Pause).no_reply().await.unwrap();
        let late = sent.reply().timeout(Duration::from_millis(50)).await;
        assert!(matches!(late, Err(CommandError::Timeout { .. })));
        // The command has no lease; its record contains the time at which it expires.
        let key = layout().encode(&Key::TaskCommand(id("t1")));
        let pair = store.get_key(key.clone()).await.unwrap().unwrap();
        let record = CommandRecord::decode(&pair.value).unwrap();
        assert_eq!((pair.lease, record.expires_at), (None, Some(Timestamp(record.sent_at.0 + WEEK_MS))));
        // An operator deletes it.
        store.delete(tenure::store::Selection::key(key)).await.unwrap();
        assert!(matches!(
            soon(sent.reply().timeout(Duration::from_secs(20)).into_future()).await,
            Err(CommandError::Deleted)
        ));
        // The task is gone.
        let sent = client.task(id("t1")).command(TaskMessage::Pause).no_reply().await.unwrap();
        client.task(id("t1")).delete().await.unwrap();
        let reply = soon(sent.reply().timeout(Duration::from_secs(20)).into_future()).await.unwrap();
        assert_eq!(
            (reply.outcome, reply.reason.as_deref()),
            (CommandOutcome::Expired, Some("the task was deleted"))
        );
    })
    .await;
}

/// An unhandled kill applies to the task of that time, not to a task that is submitted under the same id a day later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_does_not_reach_next_incarnation() {
    on_every_engine(|store| async move {
        let client = client(&store);
        client.submit(new("t1")).await.unwrap();
        let sent =
            client.task(id("t1")).command(TaskMessage::Kill { reason: None }).no_reply().await.unwrap();
        // As a foreign program deletes tasks.
        let key = layout().encode(&Key::Task(id("t1")));
        store.delete(tenure::store::Selection::key(key)).await.unwrap();
        client.submit(new("t1")).await.unwrap();
        let command = store.get_key(layout().encode(&Key::TaskCommand(id("t1")))).await.unwrap();
        assert_eq!(command, None);
        assert!(matches!(
            soon(sent.reply().timeout(Duration::from_secs(20)).into_future()).await,
            Err(CommandError::Deleted)
        ));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_commands_wait_in_send_order() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let actor = Actor::join(&store, "web-1").await;
        Actor::join(&store, "web-10").await;
        let commands = || {
            let one = [
                NodeCommand::Freeze,
                NodeCommand::StopTask(id("t1")),
                NodeCommand::Balance(BalanceMode::DryRun),
                NodeCommand::Unfreeze,
                NodeCommand::Drain(AfterDrain::TakeTasks),
            ];
            one.into_iter().cycle().take(50)
        };
        let mut sent = Vec::new();
        for command in commands() {
            sent.push(client.node(node("web-1")).command(command).no_reply().await.unwrap());
        }
        client.node(node("web-10")).command(NodeCommand::Freeze).no_reply().await.unwrap();
        let orders = actor.orders().await;
        assert_eq!(
            orders.iter().map(|(_, order)| order.clone()).collect::<Vec<_>>(),
            commands().collect::<Vec<_>>()
        );
        let first = sent.remove(0);
        assert_eq!(first.id(), &orders[0].0);
        let waiting = tokio::spawn(async move { first.reply().timeout(Duration::from_secs(20)).await });
        actor.reply(&orders[0].0).await;
        let handled = soon(waiting).await.unwrap().unwrap();
        assert_eq!((handled.outcome, handled.reason.as_deref()), (CommandOutcome::Refused, Some("busy")));
        let late = sent[0].reply().timeout(Duration::from_millis(20)).await;
        assert!(matches!(late, Err(CommandError::Timeout { .. })));
    })
    .await;
}

#[tokio::test]
async fn node_command_beyond_128_waiting_is_refused() {
    let store = Store::memory();
    let client = client(&store);
    Actor::join(&store, "web-1").await;
    for _ in 0..128 {
        client.node(node("web-1")).command(NodeCommand::Freeze).no_reply().await.unwrap();
    }
    let full = client.node(node("web-1")).command(NodeCommand::Freeze).no_reply().await;
    assert!(matches!(full, Err(CommandError::Full { waiting: 128 })));
}
