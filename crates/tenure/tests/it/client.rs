//! Task submission, reads, deletion and forgetting, on every engine. The tests write what a node would write.

mod commands;
mod faults;
mod many;
mod retry;

use std::time::Duration;

use tenure::session::Session;
use tenure::store::{Condition, LeaseId, Op, Selection, Store, Txn};
use tenure::task::{SubmitError, TaskQuery, TaskRequestError, WaitTaskError};
use tenure::testing::World;
use tenure::{NewTask, Tenure};
use tenure_core::id::{Namespace, NodeId, TaskId};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{MemberRecord, OwnerRecord, Record, TaskRecord, Timestamp};
use tenure_core::task::{StateRecord, TaskMessage, TaskState, TaskStatus};

use crate::membership::on_every_engine;

fn namespace() -> Namespace {
    Namespace::parse("shop").unwrap()
}

fn layout() -> Layout {
    Layout::new(&namespace())
}

/// Tasks and nodes of a namespace, for a process that holds nothing in it.
pub(crate) fn tenure_on(store: &Store, namespace: &Namespace) -> Tenure {
    Tenure::on_session(&Session::open(store.clone()).unwrap(), namespace).unwrap()
}

fn client(store: &Store) -> Tenure {
    tenure_on(store, &namespace())
}

/// The process `client` of a world, on its clock.
fn on_world(world: &World) -> Tenure {
    let process = world.process("client");
    let session = Session::options().clock(process.clock()).open(process.store()).unwrap();
    Tenure::on_session(&session, namespace()).unwrap()
}

/// A process with a name.
async fn named(store: &Store, name: &str) -> Tenure {
    let builder = Tenure::builder().store(store.clone()).namespace(namespace()).identity(name);
    builder.connect().await.unwrap()
}

/// The stored state; none if nothing is stored.
async fn state_of(store: &Store, task: &str) -> Option<StateRecord> {
    let pair = store.get_key(layout().encode(&Key::TaskState(id(task)))).await.unwrap()?;
    Some(StateRecord::decode(&pair.value).unwrap())
}

async fn props_of(tenure: &Tenure, task: &TaskId) -> Option<bytes::Bytes> {
    tenure.task(task).details().await.unwrap()?.props
}

fn id(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

fn node(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

fn new(text: &str) -> NewTask {
    of_kind(text, "")
}

fn of_kind(text: &str, kind: &str) -> NewTask {
    NewTask::new(kind).id(text)
}

/// Waits for something that must come soon.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it must come soon")
}

/// A node as far as these tests need one: it joins, claims, and writes what a node would.
struct Actor {
    store: Store,
    name: NodeId,
    lease: LeaseId,
}

impl Actor {
    async fn join(store: &Store, name: &str) -> Actor {
        let lease = store.grant(Duration::from_secs(600), None).await.unwrap().id;
        let key = layout().encode(&Key::Node(node(name)));
        store.put_leased(key, MemberRecord::decode(b"{}").unwrap().encode(), lease).await.unwrap();
        Actor { store: store.clone(), name: node(name), lease }
    }

    async fn claim(&self, task: &str) {
        let owner = layout().encode(&Key::TaskOwner(id(task)));
        let record = OwnerRecord {
            node: self.name.clone(),
            incarnation: 1,
            nonce: "n".to_owned(),
            unknown: serde_json::Map::new(),
        };
        let claim = Txn::new()
            .when(Condition::absent(owner.clone()))
            .when(Condition::exists(layout().encode(&Key::Task(id(task)))))
            .then(Op::put_leased(owner, record.encode(), self.lease));
        assert!(self.store.txn(claim).await.unwrap().succeeded);
    }

    /// Applies a message to a task and stores the new state, as the owner does. A finished task is deleted with its props and claim.
    async fn apply(&self, task: &str, message: TaskMessage) -> StateRecord {
        let key = layout().encode(&Key::TaskState(id(task)));
        let stored = self.store.get_key(key.clone()).await.unwrap();
        let mut state =
            stored.map_or_else(StateRecord::default, |pair| StateRecord::decode(&pair.value).unwrap());
        let _ = state.apply(message, Timestamp(7), &self.name).unwrap();
        let mut txn = Txn::new().then(Op::put(key, state.encode()));
        if state.state.is_terminal() {
            for part in [Key::Task(id(task)), Key::TaskProps(id(task)), Key::TaskOwner(id(task))] {
                txn = txn.then(Op::delete(layout().encode(&part)));
            }
        }
        self.store.txn(txn).await.unwrap();
        state
    }
}

async fn stored(store: &Store, key: Key) -> Option<TaskRecord> {
    let pair = store.get_key(layout().encode(&key)).await.unwrap()?;
    Some(TaskRecord::decode(&pair.value).unwrap())
}

async fn keys_of(store: &Store, task: &str) -> usize {
    let mut count = store.list(layout().task_parts(&id(task))).await.unwrap().pairs.len();
    for key in [Key::Task(id(task)), Key::TaskState(id(task)), Key::TaskCommand(id(task))] {
        count += usize::from(store.get_key(layout().encode(&key)).await.unwrap().is_some());
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submitted_task_is_read_back_unchanged() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let task = of_kind("a/b", "mail").label("weight", "3").props_json("{\"to\": \"x\"}");
        let handle = client.submit(task).await.unwrap();
        assert_eq!(handle.id().unwrap(), &id("a/b"));
        let seen = handle.summary().await.unwrap().unwrap();
        assert_eq!((seen.kind(), seen.owner(), seen.attempt()), (Some("mail"), None, Some(1)));
        assert_eq!(seen.state(), Some(TaskState::Runnable));
        assert_eq!(seen.record().unwrap().labels["weight"], "3");
        assert_eq!(props_of(&client, &id("a/b")).await.unwrap(), "{\"to\": \"x\"}", "to the letter");
        assert_eq!(client.task(id("a")).summary().await.unwrap(), None);
        assert_eq!(state_of(&store, "a/b").await, None);
    })
    .await;
}

/// A kind with a NUL was stored, and no program could be started with it in its environment.
#[tokio::test]
async fn control_character_in_kind_or_label_is_refused() {
    let store = Store::memory();
    let client = client(&store);
    for (task, message) in [
        (of_kind("a", "a\0b"), "the kind must not contain control characters, found '\\0' at byte 1"),
        (new("a").label("zo\nne", "eu"), r#"the name of the label "zo\nne" must not contain"#),
        (new("a").label("zone", "\u{1b}[2J"), r#"the value of the label "zone" must not contain"#),
    ] {
        let results = client.submit_all([of_kind("good", "tüv ✓"), task]).await;
        assert!(results[0].is_ok());
        let refused = results[1].as_ref().unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}");
        client.task(id("good")).delete().await.unwrap();
    }
    assert_eq!(client.task(id("a")).summary().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_task_id_is_refused_and_unchanged() {
    on_every_engine(|store| async move {
        let client = client(&store);
        client.submit(of_kind("t1", "first")).await.unwrap();
        assert!(matches!(client.submit(of_kind("t1", "second")).await, Err(SubmitError::Exists { .. })));
        assert_eq!(stored(&store, Key::Task(id("t1"))).await.unwrap().kind.as_deref(), Some("first"));
        // Also if both come at once, and also inside one list.
        let (one, other) = tokio::join!(client.submit(new("t2")), client.submit(new("t2")));
        assert_eq!(usize::from(one.is_ok()) + usize::from(other.is_ok()), 1);
        let many = client.submit_all(vec![new("t3"), new("t1"), new("t3"), new("t4")]).await;
        assert!(matches!(
            many[..],
            [Ok(_), Err(SubmitError::Exists { .. }), Err(SubmitError::Exists { .. }), Ok(_)]
        ));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_deletion_keeps_ids_with_same_prefix() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let actor = Actor::join(&store, "n").await;
        for name in ["t1", "t10", "t11", "t1/x"] {
            client.submit(new(name).props_json("1")).await.unwrap();
            actor.claim(name).await;
            actor.apply(name, TaskMessage::Pause).await;
            client.task(id(name)).command(TaskMessage::Run).no_reply().await.unwrap();
        }
        let deleted = client.task(id("t1")).delete().await.unwrap();
        assert_eq!(deleted.owner, Some(node("n")), "its owner stops it");
        assert_eq!(keys_of(&store, "t1").await, 1, "its state stays");
        for name in ["t10", "t11", "t1/x"] {
            assert_eq!(keys_of(&store, name).await, 5, "{name}");
        }
        assert!(matches!(client.task(id("t1")).delete().await, Err(TaskRequestError::NotFound)));
        assert!(matches!(client.task(id("t")).delete().await, Err(TaskRequestError::NotFound)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_id_is_refused_unless_rerun() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let actor = Actor::join(&store, "n").await;
        client.submit(new("t1").props_json("1")).await.unwrap();
        actor.claim("t1").await;
        actor.apply("t1", TaskMessage::Error { message: "broken".to_owned() }).await;
        assert!(matches!(
            client.task(id("t1")).forget().await,
            Err(TaskRequestError::NotFinished { state: TaskState::Fault })
        ));
        actor.apply("t1", TaskMessage::Error { message: "enough".to_owned() }).await;

        let again = client.submit(new("t1")).await;
        assert!(matches!(again, Err(SubmitError::Finished { state: TaskState::Failed })), "{again:?}");
        assert_eq!(stored(&store, Key::Task(id("t1"))).await, None, "nothing was stored");

        let rerun = client.submit(of_kind("t1", "second").rerun()).await.unwrap();
        assert!(!stored(&store, Key::Task(id("t1"))).await.unwrap().ended);
        assert_eq!(state_of(&store, "t1").await, None, "with its history");
        let again = client.submit(new("t1").rerun()).await;
        assert!(matches!(again, Err(SubmitError::Exists { state: TaskState::Runnable })), "{again:?}");

        actor.claim("t1").await;
        actor.apply("t1", TaskMessage::Complete).await;
        rerun.forget().await.unwrap();
        assert!(matches!(rerun.forget().await, Err(TaskRequestError::NotFound)));
        client.submit(new("t1")).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_task_keeps_state_when_resubmitted() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let actor = Actor::join(&store, "n").await;
        client.submit(new("t1").props_json("1")).await.unwrap();
        let until = Timestamp(u64::MAX);
        actor.apply("t1", TaskMessage::Sleep { until }).await;
        client.task(id("t1")).delete().await.unwrap();
        let task = client.submit(new("t1")).await.unwrap();
        let seen = task.summary().await.unwrap().unwrap();
        assert_eq!(seen.state_record.unwrap().state, TaskStatus::Sleeping { until });
        assert!(!seen.card.unwrap().record.unwrap().ended);
        assert_eq!(props_of(&client, &id("t1")).await, None, "props are those of this submission");
    })
    .await;
}

#[tokio::test]
async fn unreadable_state_blocks_id_until_forgotten() {
    let store = Store::memory();
    let client = client(&store);
    store.put(layout().encode(&Key::TaskState(id("t1"))), "{\"state\":\"asleep\"}").await.unwrap();
    assert!(matches!(client.submit(new("t1")).await, Err(SubmitError::UnreadableState(_))));
    assert!(client.task(id("t1")).summary().await.unwrap().unwrap().state_record.is_err());
    client.task(id("t1")).forget().await.unwrap();
    client.submit(new("t1")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_query_filters_by_state_owner_kind() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let (a, b) = (Actor::join(&store, "a").await, Actor::join(&store, "b").await);
        for (name, kind) in [("t1", "mail"), ("t2", "mail"), ("t3", "report"), ("t4", "report")] {
            client.submit(of_kind(name, kind)).await.unwrap();
        }
        a.claim("t1").await;
        a.claim("t3").await;
        b.claim("t2").await;
        b.claim("t4").await;
        a.apply("t3", TaskMessage::Pause).await;
        b.apply("t4", TaskMessage::Complete).await;
        // A query ignores foreign keys under the same prefixes.
        store.put("/shop/tasks/foreign/key/of/another", "x").await.unwrap();
        store.put("/shop/state/a/b", "x").await.unwrap();
        let list = async |query: TaskQuery| {
            query.list().await.unwrap().iter().map(|task| task.id.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(list(client.tasks()).await, "t1 t2 t3");
        assert_eq!(list(client.tasks().finished()).await, "t1 t2 t3 t4");
        assert_eq!(list(client.tasks().state(TaskState::Completed)).await, "t4");
        assert_eq!(list(client.tasks().state(TaskState::Paused)).await, "t3");
        let either = client.tasks().state(TaskState::Paused).state(TaskState::Runnable);
        assert_eq!(list(either).await, "t1 t2 t3");
        assert_eq!(list(client.tasks().owner(node("a"))).await, "t1 t3");
        assert_eq!(list(client.tasks().kind("mail")).await, "t1 t2");
        assert_eq!(list(client.tasks().kind("mail").finished()).await, "t1 t2");
        assert_eq!(list(client.tasks().owner(node("a")).kind("report")).await, "t3");
        assert_eq!(list(client.tasks().kind("nothing")).await, "");
        assert_eq!(client.members().list().await.unwrap().members().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn namespaces_on_one_store_are_isolated() {
    let store = Store::memory();
    let here = client(&store);
    let there = here.namespace("shop/eu").unwrap();
    here.submit(new("t1")).await.unwrap();
    there.submit(new("t1")).await.unwrap();
    there.submit(new("t2")).await.unwrap();
    assert_eq!(here.tasks().finished().list().await.unwrap().tasks.len(), 1);
    here.task(id("t1")).delete().await.unwrap();
    assert_eq!(there.tasks().list().await.unwrap().tasks.len(), 2);
}

#[tokio::test]
async fn props_are_json_of_at_most_256_kib() {
    for text in ["", "{", "{} {}", "nope", "{\"a\":}"] {
        assert!(matches!(new("t").props_json(text).check(), Err(SubmitError::InvalidProps(_))), "{text}");
    }
    let long = format!("\"{}\"", "x".repeat(256 * 1024 - 2));
    assert!(new("t").props_json(&long).check().is_ok());
    let refused = new("t").props_json(&format!(" {long}")).check().unwrap_err();
    assert_eq!(refused.to_string(), "props of 262145 bytes, at most 262144 are stored");
    assert!(new("t").props(&serde_json::json!({"to": ["a", "b"]})).check().is_ok());
    assert!(!format!("{:?}", new("t").props_json("\"secret\"")).contains("secret"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_wait_returns_final_state() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let actor = Actor::join(&store, "n").await;
        for (name, last) in [
            ("t1", TaskMessage::Complete),
            ("t2", TaskMessage::Kill { reason: Some("enough".to_owned()) }),
            ("t3", TaskMessage::Error { message: "broken".to_owned() }),
        ] {
            client.submit(new(name)).await.unwrap();
            let (task, waiting) = (id(name), client.clone());
            let waiting =
                tokio::spawn(
                    async move { waiting.task(&task).wait().timeout(Duration::from_secs(20)).await },
                );
            actor.claim(name).await;
            if name == "t3" {
                actor.apply(name, last.clone()).await;
            }
            let state = actor.apply(name, last).await;
            assert_eq!(soon(waiting).await.unwrap().unwrap().record, state);
            // A wait for a finished task returns immediately.
            assert_eq!(
                soon(client.task(id(name)).wait().timeout(Duration::from_secs(20)).into_future())
                    .await
                    .unwrap()
                    .record,
                state
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_wait_reports_not_found_or_timeout() {
    on_every_engine(|store| async move {
        let client = client(&store);
        let never = client.task(id("t1")).wait().timeout(Duration::from_secs(20)).await;
        assert!(matches!(never, Err(WaitTaskError::NotFound)));
        client.submit(new("t1")).await.unwrap();
        let late = client.task(id("t1")).wait().timeout(Duration::from_millis(50)).await;
        assert!(matches!(late, Err(WaitTaskError::Timeout { .. })));
    })
    .await;
}

#[tokio::test]
async fn task_wait_reports_deletion() {
    let world = World::new();
    let client = on_world(&world);
    client.submit(new("t1")).await.unwrap();
    let waiting = client.clone();
    let waiting =
        tokio::spawn(async move { waiting.task(id("t1")).wait().timeout(Duration::from_secs(20)).await });
    world.advance(Duration::from_secs(1)).await;
    client.task(id("t1")).delete().await.unwrap();
    world.run_until_idle().await;
    assert!(matches!(waiting.await.unwrap(), Err(WaitTaskError::Deleted)));
}

async fn is_bare(store: &Store) {
    assert_eq!(store.list(Selection::everything()).await.unwrap().pairs.len(), 0);
}
