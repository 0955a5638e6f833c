//! Tasks that have ended run again, once, as they were submitted.

use std::time::Duration;

use tenure::Tenure;
use tenure::store::{Op, Store, Txn};
use tenure::task::TaskRequestError;
use tenure::testing::World;
use tenure_core::layout::Key;
use tenure_core::record::{Record, TaskRecord, Timestamp};
use tenure_core::task::{StateRecord, TaskMessage, TaskState};

use super::{Actor, client, id, layout, node, of_kind, on_world, props_of, state_of, stored};
use crate::membership::on_every_engine;

/// Submits a task and ends it, as nodes do.
async fn ended(client: &Tenure, store: &Store, task: &str) -> StateRecord {
    let submitted = of_kind(task, "mail").label("zone", "eu").props_json("{\"to\": 1}");
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
        let details = client.task(id("a")).details().await.unwrap().unwrap();
        assert_eq!(details.submitted(), Some(&before));
        assert_eq!(details.props.unwrap(), "{\"to\": 1}");
        assert_eq!(client.task(id("a")).retry().await.unwrap(), TaskState::Killed);
        let after = stored(&store, Key::Task(id("a"))).await.unwrap();
        assert_eq!((&after.kind, &after.labels), (&before.kind, &before.labels));
        assert_eq!(after.submitted_at, before.submitted_at);
        assert_eq!(props_of(&client, &id("a")).await.unwrap(), "{\"to\": 1}", "to the letter");
        let state = state_of(&store, "a").await.unwrap();
        assert_eq!((state.state.kind(), state.reason, state.task), (TaskState::Runnable, None, None));
        let steps: Vec<TaskState> = state.history.iter().map(|step| step.to).collect();
        assert_eq!(steps, [TaskState::Killed, TaskState::Runnable]);
        assert!(!is_kept(&store, "a").await, "its entry would let retention delete the new state");
        let again = client.task(id("a")).retry().await;
        assert!(
            matches!(again, Err(TaskRequestError::NotFinished { state: TaskState::Runnable })),
            "{again:?}"
        );
        let none = client.task(id("b")).retry().await;
        assert!(matches!(none, Err(TaskRequestError::NotFound)), "{none:?}");
    })
    .await;
}

#[tokio::test]
async fn task_of_an_older_program_is_not_retried() {
    let world = World::new();
    let store = world.process("client").store();
    let (client, actor) = (client(&store), Actor::join(&store, "n").await);
    client.submit(of_kind("a", "mail")).await.unwrap();
    actor.apply("a", TaskMessage::Complete).await;
    let refused = client.task(id("a")).retry().await;
    assert!(matches!(refused, Err(TaskRequestError::NotKept)), "{refused:?}");
    // An older program submitted it again and marked it: retry lets it run.
    let marked = TaskRecord { kind: Some("new".to_owned()), ended: true, ..TaskRecord::default() };
    store.put(layout().encode(&Key::Task(id("a"))), marked.encode()).await.unwrap();
    assert_eq!(client.task(id("a")).retry().await.unwrap(), TaskState::Completed);
    let task = stored(&store, Key::Task(id("a"))).await.unwrap();
    assert_eq!((task.ended, task.kind.as_deref()), (false, Some("new")));
}

#[tokio::test]
async fn forgotten_task_leaves_no_entry() {
    let world = World::new();
    let store = world.process("client").store();
    let client = client(&store);
    ended(&client, &store, "a").await;
    client.task(id("a")).forget().await.unwrap();
    assert!(!is_kept(&store, "a").await);
    assert_eq!(client.task(id("a")).summary().await.unwrap(), None);
}

/// The request is applied, its reply lost, and a worker has failed the task already.
#[tokio::test]
async fn lost_reply_does_not_retry_twice() {
    const SECOND: Duration = Duration::from_secs(1);
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    ended(&ours, &store, "a").await;
    world.process("client").set_latency(SECOND);
    let retrying = tokio::spawn(async move { ours.task(id("a")).retry().await });
    // The reads of the task and of its props.
    world.advance(SECOND * 4).await;
    world.process("client").drop_responses();
    world.advance(SECOND * 2).await;
    let actor = Actor::join(&store, "n").await;
    actor.apply("a", TaskMessage::Kill { reason: None }).await;
    world.advance(SECOND * 4).await;
    world.process("client").heal();
    world.advance(SECOND * 30).await;
    assert_eq!(retrying.await.unwrap().unwrap(), TaskState::Killed);
    let state = state_of(&store, "a").await.unwrap();
    let steps: Vec<TaskState> = state.history.iter().map(|step| step.to).collect();
    assert_eq!(steps, [TaskState::Killed, TaskState::Runnable, TaskState::Killed]);
}
