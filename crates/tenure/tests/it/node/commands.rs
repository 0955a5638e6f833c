//! Commands to tasks and to nodes: obeyed, answered, never lost, and harmless when they make no sense.

use futures_util::future::join_all;
use tenure::NewTask;
use tenure::clock::wall_time;
use tenure::store::LeaseId;
use tenure::testing::World;
use tenure::worker::{WorkerEnd, WorkerEvent};
use tenure_core::command::{AfterDrain, NodeCommand};
use tenure_core::record::{CommandOutcome, CommandRecord, ResultRecord, Timestamp};
use tenure_core::task::TaskMessage;

use super::*;
use crate::client::tenure_on;
use futures_util::FutureExt;

fn client(shop: &Shop) -> Tenure {
    tenure_on(&shop.store, &shop.namespace)
}

fn kill() -> TaskMessage {
    TaskMessage::Kill { reason: None }
}

/// Each pair is sent at another moment of its task's life: before a worker owns it, while its handler starts, and while it runs. Both senders receive a reply.
#[tokio::test]
async fn kill_sent_after_pause_wins() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let worker = shop.join("a").await;
        let client = client(&shop);
        let ids: Vec<String> = (0..200).map(|n| format!("t{n}")).collect();
        let tasks = ids.iter().map(|id| NewTask::new("").id(id));
        for submitted in client.submit_all(tasks).await {
            submitted.unwrap();
        }
        let pairs = ids.iter().enumerate().map(|(n, id)| {
            let (client, id) = (client.clone(), task(id));
            async move {
                tokio::time::sleep(Duration::from_millis(n as u64 % 40)).await;
                let pause = client.task(&id).command(TaskMessage::Pause).no_reply().await.unwrap();
                let killing = client.task(&id).command(kill()).no_reply().await.unwrap();
                let paused = pause.reply().timeout(PATIENCE).await.unwrap().outcome;
                assert!(matches!(paused, CommandOutcome::Done | CommandOutcome::Replaced), "{paused:?}");
                assert_eq!(killing.reply().timeout(PATIENCE).await.unwrap().to, Some(TaskState::Killed));
                paused
            }
        });
        let pauses = join_all(pairs).await;
        let replaced = pauses.iter().filter(|outcome| **outcome == CommandOutcome::Replaced).count();
        eprintln!("200 killed; {replaced} pauses were replaced before a worker read them");
        for id in &ids {
            until("it is killed", async || shop.state(id).await.state == TaskStatus::Killed).await;
        }
        until("nothing runs", async || shop.ledger.running().is_empty()).await;
        assert_eq!(shop.store.list(shop.layout.tasks()).await.unwrap().pairs.len(), 0);
        assert_eq!(shop.store.list(shop.layout.task_commands()).await.unwrap().pairs.len(), 0);
        worker.end().await;
        shop.ledger.check();
    })
    .await;
}

/// A client pauses, resumes and kills a task. The replies contain the worker and the new state.
#[tokio::test]
async fn task_commands_reply_with_worker_and_state() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let worker = shop.join("a").await;
        let client = client(&shop);
        client.submit(NewTask::new("").id("t")).await.unwrap();
        until("it runs", async || shop.ledger.running().len() == 1).await;
        let say = async |message| {
            client
                .task(task("t"))
                .command(message)
                .no_reply()
                .await
                .unwrap()
                .reply()
                .timeout(PATIENCE)
                .await
                .unwrap()
        };
        let paused = say(TaskMessage::Pause).await;
        assert_eq!((paused.by.as_str(), paused.to), ("a", Some(TaskState::Paused)));
        assert_eq!((shop.ledger.running().len(), shop.state("t").await.state), (0, TaskStatus::Paused));
        assert!(shop.owner("t").await.is_some(), "a paused task has an owner");
        let refused = say(TaskMessage::Complete).await;
        assert_eq!(refused.outcome, CommandOutcome::Refused);
        say(TaskMessage::Run).await;
        until("it runs again", async || shop.ledger.running().len() == 1).await;
        assert_eq!(say(kill()).await.to, Some(TaskState::Killed));
        assert_eq!(shop.owner("t").await, None);
        worker.end().await;
    })
    .await;
}

/// The next owner wakes the task at the wall-clock time that the command has set.
#[tokio::test]
async fn sleeping_task_wakes_on_time_after_move() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let a = shop.join("a").await;
        let client = client(&shop);
        client.submit(NewTask::new("").id("t")).await.unwrap();
        until("it runs", async || shop.ledger.running().len() == 1).await;
        let until_when = Timestamp(wall_time().0 + 3_000);
        let sleep = client
            .task(task("t"))
            .command(TaskMessage::Sleep { until: until_when })
            .no_reply()
            .await
            .unwrap();
        assert_eq!(sleep.reply().timeout(PATIENCE).await.unwrap().to, Some(TaskState::Sleeping));
        a.end().await;
        let b = shop.join("b").await;
        until("b has it", async || shop.owner("t").await.is_some_and(|(node, _)| node == "b")).await;
        assert_eq!(shop.ledger.running().len(), 0, "it sleeps");
        until("it wakes", async || shop.ledger.running().len() == 1).await;
        assert!(wall_time() >= until_when, "not before its time");
        b.end().await;
    })
    .await;
}

#[tokio::test]
async fn frozen_node_claims_nothing_after_restart() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let client = client(&shop);
        let id = NodeId::parse("a").unwrap();
        let a = shop.join("a").await;
        let order = async |command| {
            client
                .node(&id)
                .command(command)
                .no_reply()
                .await
                .unwrap()
                .reply()
                .timeout(PATIENCE)
                .await
                .unwrap()
                .outcome
        };
        assert_eq!(order(NodeCommand::Freeze).await, CommandOutcome::Done);
        a.end().await;
        shop.submit("t").await;
        let a = shop.join("a").await;
        // A frozen node still handles its commands, so it has read the task by then.
        assert!(matches!(order(NodeCommand::ReleaseTask(task("t"))).await, CommandOutcome::Refused));
        assert_eq!((shop.owner("t").await, shop.ledger.runs().len()), (None, 0));
        assert_eq!(order(NodeCommand::Unfreeze).await, CommandOutcome::Done);
        until("it runs", async || shop.ledger.running().len() == 1).await;
        a.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_drained_node_gives_everything_away_and_leaves() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let client = client(&shop);
        for n in 0..10 {
            shop.submit(&format!("t{n}")).await;
        }
        let a = shop.join("a").await;
        until("all run", async || shop.ledger.running().len() == 10).await;
        let b = shop.join("b").await;
        let drain = client
            .node(a.node.id())
            .command(NodeCommand::Drain(AfterDrain::TakeTasks))
            .no_reply()
            .await
            .unwrap();
        assert_eq!(drain.reply().timeout(PATIENCE).await.unwrap().outcome, CommandOutcome::Done);
        assert!(matches!(a.node.finished().await, WorkerEnd::Left { running } if running.is_empty()));
        a.session.close().await.unwrap();
        until("b has all", async || shop.shares().await.get("b") == Some(&10)).await;
        b.end().await;
        shop.ledger.check();
    })
    .await;
}

#[tokio::test]
async fn malformed_records_are_reported_and_end_nothing() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        shop.store.put(shop.key(&Key::TaskState(task("state"))), "{\"state\":17").await.unwrap();
        let a = shop.join("a").await;
        let mut notices = a.node.events();
        shop.submit("state").await;
        shop.submit_with("props", "{{{").await;
        shop.submit("command").await;
        until("one runs", async || shop.ledger.running().len() == 1).await;
        shop.store.put(shop.key(&Key::TaskCommand(task("command"))), "not json").await.unwrap();
        let command = shop.key(&Key::TaskCommand(task("command")));
        until("the command is gone", async || shop.store.get_key(command.clone()).await.unwrap().is_none())
            .await;
        let order = b"/shop/nodes/a/commands/01890000-0000-7000-8000-000000000000".as_slice();
        shop.store.put(order, "[]").await.unwrap();
        until("the order is gone", async || shop.store.get_key(order).await.unwrap().is_none()).await;
        assert_eq!(shop.ledger.running().len(), 1, "nothing was stopped");
        for id in ["state", "props", "command"] {
            let found = shop.store.get_key(shop.key(&Key::Task(task(id)))).await.unwrap();
            assert!(found.is_some(), "{id} is there");
        }
        let mut told = Vec::new();
        while let Some(Some(notice)) = notices.next().now_or_never() {
            match notice {
                WorkerEvent::SetAside { task, .. } => told.push(format!("aside {task}")),
                WorkerEvent::CommandHandled { outcome, .. } => told.push(format!("command {outcome:?}")),
                WorkerEvent::NodeCommandHandled { outcome, .. } => told.push(format!("order {outcome:?}")),
                _ => {}
            }
        }
        told.sort();
        assert_eq!(told, ["aside props", "aside state", "command Malformed", "order Malformed"]);
        a.end().await;
    })
    .await;
}

/// A sender may be killed as soon as it has sent. What it left behind used to be an empty lease for a week.
#[tokio::test]
async fn abandoned_command_leaves_only_its_result() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let worker = shop.join("a").await;
        let client = client(&shop);
        for id in ["paused", "killed", "refused"] {
            client.submit(NewTask::new("").id(id)).await.unwrap();
        }
        until("all run", async || shop.ledger.running().len() == 3).await;
        let before = shop.store.leases().await.unwrap().len();
        let checkpoint = TaskMessage::Checkpoint { blob: None };
        for (id, message) in [("paused", TaskMessage::Pause), ("killed", kill()), ("refused", checkpoint)] {
            drop(client.task(task(id)).command(message).no_reply().await.unwrap());
        }
        let commands = shop.layout.task_commands();
        until("all are handled", async || shop.store.list(commands.clone()).await.unwrap().pairs.is_empty())
            .await;
        assert_eq!(shop.store.leases().await.unwrap().len(), before);
        let results = shop.store.list(shop.layout.results()).await.unwrap().pairs;
        assert_eq!(results.len(), 3);
        for pair in results {
            let record = ResultRecord::decode(&pair.value).unwrap();
            let expires_at = Some(Timestamp(record.at.0 + 24 * 60 * 60 * 1_000));
            assert_eq!((pair.lease, record.expires_at), (None, expires_at));
        }
        worker.end().await;
    })
    .await;
}

/// The sender was killed before any worker had the task. A week later the key is gone with the next round of a worker.
#[tokio::test]
async fn expired_command_is_swept_by_worker() {
    let world = World::new();
    let shop = Shop::new(world.process("worker").store());
    let session = Session::options().clock(world.process("worker").clock()).open(shop.store.clone()).unwrap();
    let client = shop.tenure(&session);
    client.submit(NewTask::new("other").id("t")).await.unwrap();
    let sent = client.task(task("t")).command(TaskMessage::Pause).no_reply().await.unwrap();
    let key = shop.key(&Key::TaskCommand(task("t")));
    let pair = shop.store.get_key(key.clone()).await.unwrap().unwrap();
    let mut record = CommandRecord::decode(&pair.value).unwrap();
    // As if it had been sent a week ago.
    record.expires_at = Some(Timestamp(record.sent_at.0 - 1));
    shop.store.put(key.clone(), record.encode()).await.unwrap();
    world.advance(Duration::from_secs(600)).await;
    assert!(shop.store.get_key(key.clone()).await.unwrap().is_some(), "no worker lives");
    let complete = |_: Task| async { Ok::<_, TaskError>(()) };
    let node = shop.tenure(&session).worker("a").handle("mail", complete).start().await.unwrap();
    world.advance(Duration::from_secs(61)).await;
    assert_eq!(shop.store.get_key(key).await.unwrap(), None);
    let handled = sent.reply().timeout(Duration::from_secs(5)).await.unwrap();
    assert_eq!((handled.outcome, handled.by.as_str()), (CommandOutcome::Expired, "a"));
    node.shutdown().timeout(PATIENCE).await.unwrap();
    session.close().await.unwrap();
}

/// Operators and other programs also put commands, under leases unknown to the worker.
#[tokio::test]
async fn command_under_foreign_lease_keeps_other_keys() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let worker = shop.join("a").await;
        shop.submit("t").await;
        until("it runs", async || shop.ledger.running().len() == 1).await;
        let lease = shop.store.grant(Duration::from_secs(3_600), None).await.unwrap().id;
        let (command, theirs) = (shop.key(&Key::TaskCommand(task("t"))), "other".as_bytes());
        let other = LeaseId::new(lease.get() + 1).unwrap();
        // As version 0.1 marked commands that had a lease of their own.
        let pause = format!(r#"{{"command":"pause","own_lease":"{other}"}}"#);
        let txn = Txn::new().then(Op::put_leased(theirs, "1", lease)).then(Op::put_leased(
            command.clone(),
            pause,
            lease,
        ));
        shop.store.txn(txn).await.unwrap();
        until("it is paused", async || shop.state("t").await.state == TaskStatus::Paused).await;
        worker.end().await;
        assert!(shop.store.get_key(command).await.unwrap().is_none(), "it was handled");
        assert!(shop.store.get_key(theirs).await.unwrap().is_some(), "what else was there stays");
    })
    .await;
}
