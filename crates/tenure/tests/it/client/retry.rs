//! Tasks that have ended run again, once, as they were submitted.

use std::time::Duration;

use tenure::client::{Client, RetryError, Submitted};
use tenure::store::{Op, Store, Txn};
use tenure::testing::World;
use tenure_core::layout::Key;
use tenure_core::record::{Record, Timestamp};
use tenure_core::task::{StateRecord, TaskMessage, TaskState};

use super::{Actor, client, id, layout, new, node, stored};
use crate::membership::on_every_engine;

/// Submits a task and ends it, as nodes do.
async fn ended(client: &Client, store: &Store, task: &str) -> StateRecord {
    let submitted = new(task).kind("mail").label("zone", "eu").props_text("{\"to\": 1}").unwrap();
    client.submit(submitted).await.unwrap();
    let mut state = StateRecord::default();
    let _ = state
        .apply(TaskMessage::Kill { reason: Some("enough".to_owned()) }, Timestamp(9), &node("n"))
        .unwrap();
    state.keep_task(&stored(store, Key::Task(id(task))).await.unwrap());
    let encode = |key: &Key| layout().encode(key);
    let txn = Txn::new()
        .then(Op::put(encode(&Key::TaskState(id(task))), state.encode()))
        .then(Op::put(encode(&Key::EndedTask(Timestamp(9), id(task))), "{\"to\": 1}"))
        .then(Op::delete(encode(&Key::Task(id(task)))))
        .then(Op::delete(encode(&Key::TaskProps(id(task)))));
    store.txn(txn).await.unwrap();
    state
}

async fn is_kept(store: &Store, task: &str) -> bool {
    store.get_key(layout().encode(&Key::EndedTask(Timestamp(9), id(task)))).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_task_is_as_it_was_submitted() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let before = ended(&client, &store, "a").await.task.unwrap();
        let dossier = client.dossier(&id("a")).await.unwrap();
        assert_eq!(dossier.props.unwrap(), "{\"to\": 1}");
        assert_eq!(dossier.task.unwrap().submitted(), Some(&before));
        assert_eq!(client.retry(&id("a")).await.unwrap(), TaskState::Killed);
        let after = stored(&store, Key::Task(id("a"))).await.unwrap();
        assert_eq!((&after.kind, &after.labels), (&before.kind, &before.labels));
        assert_eq!(after.submitted_at, before.submitted_at);
        assert_eq!(client.props(&id("a")).await.unwrap().unwrap(), "{\"to\": 1}", "to the letter");
        let state = client.state(&id("a")).await.unwrap().unwrap();
        assert_eq!((state.state.kind(), state.reason, state.task), (TaskState::Runnable, None, None));
        let steps: Vec<TaskState> = state.history.iter().map(|step| step.to).collect();
        assert_eq!(steps, [TaskState::Killed, TaskState::Runnable]);
        assert!(!is_kept(&store, "a").await, "its entry would let retention delete the new state");
        let again = client.retry(&id("a")).await;
        assert!(matches!(again, Err(RetryError::Live(TaskState::Runnable))), "{again:?}");
        let none = client.retry(&id("b")).await;
        assert!(matches!(none, Err(RetryError::NotFound)), "{none:?}");
    })
    .await;
}

#[tokio::test]
async fn task_of_an_older_program_is_not_retried() {
    let world = World::new();
    let store = world.process("client").store();
    let (client, actor) = (client(&store), Actor::join(&store, "n").await);
    client.submit(new("a").kind("mail")).await.unwrap();
    actor.say("a", TaskMessage::Complete).await;
    let refused = client.retry(&id("a")).await;
    assert!(matches!(refused, Err(RetryError::NotKept)), "{refused:?}");
    // Submitted again it is there, and retry lets it run.
    assert_eq!(client.submit(new("a").kind("new")).await.unwrap(), Submitted::Ended(TaskState::Completed));
    assert_eq!(client.retry(&id("a")).await.unwrap(), TaskState::Completed);
    let task = stored(&store, Key::Task(id("a"))).await.unwrap();
    assert_eq!((task.ended, task.kind.as_deref()), (false, Some("new")));
}

#[tokio::test]
async fn forgotten_task_leaves_no_entry() {
    let world = World::new();
    let store = world.process("client").store();
    let client = client(&store);
    ended(&client, &store, "a").await;
    client.forget(&id("a")).await.unwrap();
    assert!(!is_kept(&store, "a").await);
    assert_eq!(client.get(&id("a")).await.unwrap(), None);
}

/// The request is applied, its reply lost, and a worker has failed the task already.
#[tokio::test]
async fn lost_reply_does_not_retry_twice() {
    const SECOND: Duration = Duration::from_secs(1);
    let world = World::new();
    let (ours, store) = (
        client(&world.process("client").store()).clock(world.process("client").clock()),
        world.process("onlooker").store(),
    );
    ended(&ours, &store, "a").await;
    world.process("client").set_latency(SECOND);
    let retrying = tokio::spawn(async move { ours.retry(&id("a")).await });
    // The reads of the task and of its props.
    world.advance(SECOND * 4).await;
    world.process("client").drop_responses();
    world.advance(SECOND * 2).await;
    let actor = Actor::join(&store, "n").await;
    actor.say("a", TaskMessage::Kill { reason: None }).await;
    world.advance(SECOND * 4).await;
    world.process("client").heal();
    world.advance(SECOND * 30).await;
    assert_eq!(retrying.await.unwrap().unwrap(), TaskState::Killed);
    let state = client(&store).state(&id("a")).await.unwrap().unwrap();
    let steps: Vec<TaskState> = state.history.iter().map(|step| step.to).collect();
    assert_eq!(steps, [TaskState::Killed, TaskState::Runnable, TaskState::Killed]);
}
