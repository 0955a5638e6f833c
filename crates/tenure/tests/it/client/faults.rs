//! Lost answers: what was done is found done, what was not is done once, and what nobody can know is said to be unknown.

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

/// How long a request waits for its answer: a wire that heals earlier has lost nothing.
const GIVEN_UP_AFTER: Duration = s(5);

/// Does something while the answers to it are lost, and heals the wire when the first was given up.
async fn with_a_lost_answer<T: Send + 'static>(
    world: &World,
    what: impl Future<Output = T> + Send + 'static,
) -> T {
    world.process("client").drop_responses();
    let doing = tokio::spawn(what);
    world.advance(GIVEN_UP_AFTER + s(1)).await;
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
async fn a_submission_whose_answer_is_lost_is_submitted_once() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    let submitting = client.clone();
    let submitted =
        with_a_lost_answer(&world, async move { submitting.submit_all(vec![new("t1"), new("t2")]).await });
    for result in submitted.await {
        result.unwrap();
    }
    assert_eq!(version(&store, Key::Task(id("t1"))).await, Some(1));
    assert_eq!(version(&store, Key::Task(id("t2"))).await, Some(1));
}

/// The requests arrived, somebody ran the task to its end, and then the wire heals.
#[tokio::test]
async fn a_submission_that_may_have_run_already_is_unknown_and_not_repeated() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    let actor = Actor::join(&store, "n").await;
    world.process("client").drop_responses();
    let submitting = tokio::spawn(async move { client.submit(new("t1")).await });
    world.advance(s(1)).await;
    actor.claim("t1").await;
    actor.say("t1", TaskMessage::Complete).await;
    world.advance(GIVEN_UP_AFTER).await;
    world.process("client").heal();
    world.advance(s(10)).await;
    assert!(matches!(submitting.await.unwrap(), Err(SubmitError::Ambiguous(_))));
    assert_eq!(version(&store, Key::Task(id("t1"))).await, None);
}

#[tokio::test]
async fn a_submission_that_is_never_answered_is_unknown_in_the_end() {
    let world = World::new();
    let client = on_world(&world);
    world.process("client").drop_responses();
    let submitting = tokio::spawn(async move { client.submit(new("t1")).await });
    world.advance(s(20)).await;
    assert!(matches!(submitting.await.unwrap(), Err(SubmitError::Ambiguous(_))));
}

#[tokio::test]
async fn one_that_never_arrived_is_a_definite_failure() {
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

/// Lets a call read what it needs first, and loses the answer to its write alone.
async fn with_the_last_answer_lost<T: Send + 'static>(
    world: &World,
    requests_before: u32,
    what: impl Future<Output = T> + Send + 'static,
) -> T {
    // Every request takes a second each way, so it is known which one is under way.
    world.process("client").set_latency(s(1));
    let doing = tokio::spawn(what);
    world.advance(s(2) * requests_before).await;
    world.process("client").drop_responses();
    world.advance(GIVEN_UP_AFTER + Duration::from_millis(500)).await;
    assert!(!doing.is_finished());
    world.process("client").heal();
    world.advance(s(30)).await;
    assert!(doing.is_finished());
    doing.await.unwrap()
}

#[tokio::test]
async fn a_delete_whose_answer_is_lost_is_a_delete() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    client.submit(new("t1")).await.unwrap();
    let deleted =
        with_the_last_answer_lost(&world, 1, async move { client.task(id("t1")).delete().await }).await;
    assert_eq!(deleted.unwrap().owner, None);
    assert_eq!(version(&store, Key::Task(id("t1"))).await, None);
}

/// Between the lost answer and the look somebody submits the id again: that task is not ours to delete.
#[tokio::test]
async fn a_delete_whose_answer_is_lost_does_not_delete_the_next_life() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    ours.submit(new("t1")).await.unwrap();
    world.process("client").set_latency(s(1));
    let deleting = tokio::spawn(async move { ours.task(id("t1")).delete().await });
    world.advance(s(2)).await;
    world.process("client").drop_responses();
    world.advance(GIVEN_UP_AFTER + Duration::from_millis(500)).await;
    client(&store).submit(of_kind("t1", "second")).await.unwrap();
    world.process("client").heal();
    world.advance(s(30)).await;
    deleting.await.unwrap().unwrap();
    assert_eq!(super::stored(&store, Key::Task(id("t1"))).await.unwrap().kind.as_deref(), Some("second"));
}

#[tokio::test]
async fn forgetting_whose_answer_is_lost_is_forgetting() {
    let world = World::new();
    let (client, store) = (on_world(&world), world.process("onlooker").store());
    let actor = Actor::join(&store, "n").await;
    client.submit(new("t1")).await.unwrap();
    actor.say("t1", TaskMessage::Complete).await;
    with_the_last_answer_lost(&world, 1, async move { client.task(id("t1")).forget().await }).await.unwrap();
    assert_eq!(version(&store, Key::TaskState(id("t1"))).await, None);
    assert_eq!(version(&store, Key::Task(id("t1"))).await, None);
}

#[tokio::test]
async fn a_command_whose_answer_is_lost_is_sent_once_and_knows_what_it_replaced() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    ours.submit(new("t1")).await.unwrap();
    let first = client(&store).task(id("t1")).pause().no_reply().await.unwrap();
    // The task is read before.
    let sent = with_the_last_answer_lost(&world, 1, async move {
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
async fn unknown_command_leaves_no_lease_and_notifies_replaced_sender() {
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
async fn a_command_to_a_node_whose_answer_is_lost_is_sent_once() {
    let world = World::new();
    let (ours, store) = (on_world(&world), world.process("onlooker").store());
    Actor::join(&store, "n").await;
    // The commands that wait and the incarnation of the node are read in one request before.
    let sent = with_the_last_answer_lost(&world, 1, async move {
        ours.node(node("n")).command(NodeCommand::Freeze).no_reply().await
    });
    let sent = sent.await.unwrap();
    let waiting = store.list(layout().node_commands(&node("n"))).await.unwrap().pairs;
    assert_eq!(waiting.len(), 1);
    assert!(waiting[0].key.ends_with(sent.id().as_str().as_bytes()));
}

#[tokio::test]
async fn a_wait_survives_an_outage_and_is_told_afterwards() {
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
    let state = actor.say("t1", TaskMessage::Complete).await;
    world.advance(s(60)).await;
    assert!(!waiting.is_finished());
    world.process("client").heal();
    world.advance(s(20)).await;
    assert_eq!(waiting.await.unwrap().unwrap().record, state);
}
