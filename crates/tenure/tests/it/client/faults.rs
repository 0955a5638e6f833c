//! Lost replies: an applied request is found applied, a lost request is applied once, and an undecidable one is reported as ambiguous.

use std::time::Duration;

use tenure::Tenure;
use tenure::store::Store;
use tenure::task::{CommandError, PendingCommand, SubmitError, TaskRequestError};
use tenure::testing::World;
use tenure_core::command::NodeCommand;
use tenure_core::layout::Key;
use tenure_core::record::CommandOutcome;
use tenure_core::task::TaskMessage;
use tokio::task::JoinHandle;

use super::{Actor, client, id, layout, new, node, of_kind, on_world};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How long a request waits for its reply. A connection that heals earlier has lost nothing.
const REPLY_TIMEOUT: Duration = s(5);

/// Runs `what` while its replies are lost, and heals the connection after the first request has timed out.
async fn with_lost_reply<T: Send + 'static>(
    world: &World,
    what: impl Future<Output = T> + Send + 'static,
) -> T {
    world.process("client").drop_responses();
    let doing = tokio::spawn(what);
    world.advance(REPLY_TIMEOUT + s(1)).await;
    assert!(!doing.is_finished());
    world.process("client").heal();
    world.advance(s(8)).await;
    assert!(doing.is_finished());
    doing.await.unwrap()
}

async fn version(store: &Store, key: Key) -> Option<i64> {
    store.get_key(layout().encode(&key)).await.unwrap().map(|pair| pair.version)
}

#[tokio::test]
async fn lost_submit_reply_submits_task_once() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    let submitting = client.clone();
    let submitted =
        with_lost_reply(&world, async move { submitting.submit_all(vec![new("t1"), new("t2")]).await });
    for result in submitted.await {
        result.unwrap();
    }
    assert_eq!(version(&store, Key::Task(id("t1"))).await, Some(1));
    assert_eq!(version(&store, Key::Task(id("t2"))).await, Some(1));
}

/// The requests arrive, a worker runs the task to its end, and then the connection heals.
#[tokio::test]
async fn possibly_run_submission_is_ambiguous_and_not_repeated() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    let actor = Actor::join(&store, "n").await;
    world.process("client").drop_responses();
    let submitting = tokio::spawn(async move { client.submit(new("t1")).await });
    world.advance(s(1)).await;
    actor.claim("t1").await;
    actor.apply("t1", TaskMessage::Complete).await;
    world.advance(REPLY_TIMEOUT).await;
    world.process("client").heal();
    world.advance(s(10)).await;
    assert!(matches!(submitting.await.unwrap(), Err(SubmitError::Ambiguous(_))));
    assert_eq!(version(&store, Key::Task(id("t1"))).await, None);
}

#[tokio::test]
async fn submission_without_reply_is_ambiguous() {
    let world = World::new();
    let client = on_world(&world);
    world.process("client").drop_responses();
    let submitting = tokio::spawn(async move { client.submit(new("t1")).await });
    world.advance(s(20)).await;
    assert!(matches!(submitting.await.unwrap(), Err(SubmitError::Ambiguous(_))));
}

#[tokio::test]
async fn refused_connection_is_definite_failure() {
    let world = World::new();
    let client = on_world(&world);
    world.process("client").refuse_connections();
    assert!(matches!(client.submit(new("t1")).await, Err(SubmitError::Store(_))));
    assert!(matches!(client.task(id("t1")).delete().await, Err(TaskRequestError::Store(_))));
    assert!(matches!(client.task(id("t1")).forget().await, Err(TaskRequestError::Store(_))));
    assert!(matches!(
        client.task(id("t1")).command(TaskMessage::Pause).no_reply().await,
        Err(CommandError::Store(_))
    ));
    let to_node = client.node(node("n")).command(NodeCommand::Freeze).no_reply().await;
    assert!(matches!(to_node, Err(CommandError::Store(_))));
}

/// Lets a call complete its reads, and loses only the reply to its write.
async fn with_last_reply_lost<T: Send + 'static>(
    world: &World,
    requests_before: u32,
    what: impl Future<Output = T> + Send + 'static,
) -> T {
    // Every request takes a second each way, so the elapsed time determines which one is in flight.
    world.process("client").set_latency(s(1));
    let doing = tokio::spawn(what);
    world.advance(s(2) * requests_before).await;
    world.process("client").drop_responses();
    world.advance(REPLY_TIMEOUT + Duration::from_millis(500)).await;
    assert!(!doing.is_finished());
    world.process("client").heal();
    world.advance(s(30)).await;
    assert!(doing.is_finished());
    doing.await.unwrap()
}

#[tokio::test]
async fn lost_delete_reply_is_success() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    client.submit(new("t1")).await.unwrap();
    let deleted = with_last_reply_lost(&world, 1, async move { client.task(id("t1")).delete().await }).await;
    assert_eq!(deleted.unwrap().owner, None);
    assert_eq!(version(&store, Key::Task(id("t1"))).await, None);
}

/// Between the lost reply and the re-read another client submits the id again. The delete must not remove that task.
#[tokio::test]
async fn lost_delete_reply_keeps_next_incarnation() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    ours.submit(new("t1")).await.unwrap();
    world.process("client").set_latency(s(1));
    let deleting = tokio::spawn(async move { ours.task(id("t1")).delete().await });
    world.advance(s(2)).await;
    world.process("client").drop_responses();
    world.advance(REPLY_TIMEOUT + Duration::from_millis(500)).await;
    client(&store).submit(of_kind("t1", "second")).await.unwrap();
    world.process("client").heal();
    world.advance(s(30)).await;
    deleting.await.unwrap().unwrap();
    assert_eq!(super::stored(&store, Key::Task(id("t1"))).await.unwrap().kind.as_deref(), Some("second"));
}

#[tokio::test]
async fn lost_forget_reply_is_success() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    let actor = Actor::join(&store, "n").await;
    client.submit(new("t1")).await.unwrap();
    actor.apply("t1", TaskMessage::Complete).await;
    with_last_reply_lost(&world, 1, async move { client.task(id("t1")).forget().await }).await.unwrap();
    assert_eq!(version(&store, Key::TaskState(id("t1"))).await, None);
    assert_eq!(version(&store, Key::Task(id("t1"))).await, None);
}

#[tokio::test]
async fn lost_command_reply_sends_once_and_reports_replaced() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    ours.submit(new("t1")).await.unwrap();
    let first = client(&store).task(id("t1")).pause().no_reply().await.unwrap();
    // The task is read before.
    let sent = with_last_reply_lost(&world, 1, async move {
        ours.task(id("t1")).command(TaskMessage::Kill { reason: None }).no_reply().await
    });
    let sent = sent.await.unwrap();
    assert_eq!(sent.replaced.clone().unwrap().id.as_ref(), Some(first.id()));
    assert_eq!(version(&store, Key::TaskCommand(id("t1"))).await, Some(2));
    assert_eq!(first.reply().timeout(s(5)).await.unwrap().outcome, CommandOutcome::Replaced);
}

/// The requests of a command over a way that takes a second each: a read, and the put.
async fn pause_slowly(world: &World, ours: &Tenure) -> JoinHandle<Result<PendingCommand, CommandError>> {
    world.process("client").set_latency(s(1));
    let ours = ours.clone();
    let sending =
        tokio::spawn(async move { ours.task(id("t1")).command(TaskMessage::Pause).no_reply().await });
    tokio::task::yield_now().await;
    sending
}

/// A command used to be put under a lease of its own, and each interruption could leave one of those for a week.
#[tokio::test]
async fn interrupted_command_leaves_no_lease() {
    for dropped_after in [1_500, 2_500, 3_500] {
        let world = World::new();
        let (ours, store) = (on_world(&world), world.process("onlooker").store());
        ours.submit(new("t1")).await.unwrap();
        let sending = pause_slowly(&world, &ours).await;
        world.advance(Duration::from_millis(dropped_after)).await;
        sending.abort();
        assert!(sending.await.is_err());
        world.advance(s(20)).await;
        assert_eq!(store.leases().await.unwrap(), [], "after {dropped_after} ms");
    }
}

/// The request that replaces a command may be applied or not: the result of the first one is there if and only if the second is.
#[tokio::test]
async fn ambiguous_command_notifies_replaced_sender_without_lease() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    ours.submit(new("t1")).await.unwrap();
    let first = client(&store).task(id("t1")).pause().no_reply().await.unwrap();
    let sending = pause_slowly(&world, &ours).await;
    world.advance(Duration::from_millis(2_500)).await;
    world.process("client").drop_responses();
    world.advance(s(60)).await;
    assert!(matches!(sending.await.unwrap(), Err(CommandError::Ambiguous(_))));
    assert_eq!(first.reply().timeout(s(5)).await.unwrap().outcome, CommandOutcome::Replaced);
    assert_eq!(store.leases().await.unwrap(), []);
}

#[tokio::test]
async fn lost_node_command_reply_sends_once() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    Actor::join(&store, "n").await;
    // The commands that wait and the incarnation of the node are read in one request before.
    let sent = with_last_reply_lost(&world, 1, async move {
        ours.node(node("n")).command(NodeCommand::Freeze).no_reply().await
    });
    let sent = sent.await.unwrap();
    let waiting = store.list(layout().node_commands(&node("n"))).await.unwrap().pairs;
    assert_eq!(waiting.len(), 1);
    assert!(waiting[0].key.ends_with(sent.id().as_str().as_bytes()));
}

#[tokio::test]
async fn task_wait_survives_outage() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    let actor = Actor::join(&store, "n").await;
    ours.submit(new("t1")).await.unwrap();
    let waiting = {
        let ours = ours.clone();
        tokio::spawn(async move { ours.task(id("t1")).wait().timeout(s(300)).await })
    };
    world.advance(s(1)).await;
    world.process("client").partition();
    world.advance(s(60)).await;
    actor.claim("t1").await;
    let state = actor.apply("t1", TaskMessage::Complete).await;
    world.advance(s(60)).await;
    assert!(!waiting.is_finished());
    world.process("client").heal();
    world.advance(s(20)).await;
    assert_eq!(waiting.await.unwrap().unwrap().record, state);
}
