//! Since when a leader leads: the time in the queue does not count.

use tenure::testing::World;

use super::*;

fn participant(world: &World, who: &str) -> (Session, Election) {
    let options = Session::options().ttl(Duration::from_secs(6)).clock(world.process(who).clock());
    let session = options.open(world.process(who).store()).unwrap();
    let election = Elections::new(&session, &namespace()).identity(who).election("x");
    (session, election)
}

#[tokio::test(start_paused = true)]
async fn term_after_a_wait_counts_from_its_beginning() {
    let world = World::seeded(1);
    let ((_a, first), (_b, second)) = (participant(&world, "a"), participant(&world, "b"));
    let term = first.campaign().value("1").await.unwrap();
    let waiting = tokio::spawn(second.campaign().value("2").into_future());
    world.advance(Duration::from_secs(8)).await;
    let view = first.snapshot().await.unwrap();
    let (leader, candidate) = (view.leader.unwrap().record, &view.candidates[0].record);
    assert_eq!(leader.acquired, Some(leader.queued));
    assert_eq!(candidate.acquired, None);
    term.resign().await.unwrap();
    let _term = waiting.await.unwrap().unwrap();
    world.advance(Duration::from_millis(1_200)).await;
    let leader = first.leader().await.unwrap().unwrap().record;
    assert_eq!(leader.acquired.unwrap().0 - leader.queued.0, 8_000);
    assert!(leader.leads);
}

/// The candidate behind a leader is of the same process, so no mark is urgent; the time is recorded all the same.
#[tokio::test(start_paused = true)]
async fn term_followed_by_local_candidate_is_recorded() {
    let world = World::seeded(1);
    let (_a, election) = participant(&world, "a");
    let term = election.campaign().value("1").await.unwrap();
    let second = tokio::spawn(election.campaign().value("2").into_future());
    world.advance(Duration::from_secs(1)).await;
    let _third = tokio::spawn(election.campaign().value("3").into_future());
    world.advance(Duration::from_secs(2)).await;
    term.resign().await.unwrap();
    let _term = second.await.unwrap().unwrap();
    world.advance(Duration::from_secs(1)).await;
    let leader = election.leader().await.unwrap().unwrap().record;
    assert_eq!(leader.acquired.unwrap().0 - leader.queued.0, 3_000);
}

/// An observer that saw a candidate enter an empty election knows when its term began before that is recorded.
#[tokio::test(start_paused = true)]
async fn observer_derives_the_beginning_of_an_unopposed_term() {
    let world = World::seeded(1);
    let ((_a, first), (_b, second)) = (participant(&world, "a"), participant(&world, "b"));
    let mut observe = second.observe();
    assert_eq!(next(&mut observe).await.leader, None);
    let _term = first.campaign().value("1").await.unwrap();
    let leader = next(&mut observe).await.leader.unwrap();
    assert_eq!(leader.record.acquired, Some(leader.record.queued));
}

#[tokio::test]
async fn candidate_names_its_process_by_default() {
    let session = Session::open(Store::memory()).unwrap();
    let election = Elections::new(&session, &namespace()).election("x");
    let _term = election.campaign().value("1").await.unwrap();
    let (record, own) = (election.leader().await.unwrap().unwrap().record, tenure::identity::current());
    assert_eq!(record.candidate, own.name());
    assert_eq!((record.host, record.pid, record.user), (own.host, own.pid, own.user));
}
