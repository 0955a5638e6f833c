//! Local leadership, by the clock alone.

use super::*;
use tenure::LossReason;

const TTL: Duration = Duration::from_secs(10);

async fn process(world: &World, name: &str) -> Tenure {
    let builder = Tenure::builder().store(world.process(name).store()).clock(world.process(name).clock());
    builder.identity(name).ttl(TTL).connect().await.unwrap()
}

#[tokio::test]
async fn partitioned_leader_stops_before_successor() {
    let world = World::new();
    let (one, two) = (process(&world, "one").await, process(&world, "two").await);
    let (a, b) = (one.election("scheduler"), two.election("scheduler"));
    let leads = tokio::spawn(a.campaign().lead(|_| std::future::pending::<()>()));
    while !a.is_leader() {
        world.advance(Duration::from_millis(1)).await;
    }
    let waits = tokio::spawn(b.campaign().lead(|_| std::future::pending::<()>()));
    world.run_until_idle().await;

    world.process("one").partition();
    let mut both_rest = 0;
    for _ in 0..300 {
        world.advance(Duration::from_millis(100)).await;
        assert!(!(a.is_leader() && b.is_leader()), "two leaders");
        both_rest += usize::from(!a.is_leader() && !b.is_leader());
    }
    assert!(b.is_leader() && !a.is_leader());
    assert!(both_rest > 0, "the first stops before the second starts");
    leads.abort();
    waits.abort();
}

/// A stalled process runs no task that could notice anything: only the clock has moved.
#[tokio::test]
async fn is_leader_turns_false_by_the_clock_alone() {
    let world = World::new();
    let clock = tenure::clock::VirtualClock::new();
    let builder = Tenure::builder().store(world.process("one").store()).clock(clock.clone());
    let tenure = builder.ttl(TTL).connect().await.unwrap();
    let election = tenure.election("scheduler");
    let term = election.campaign().await.unwrap();
    assert!(election.is_leader());
    // No await from here on.
    clock.advance(Duration::from_secs(5));
    assert!(election.is_leader());
    clock.advance(Duration::from_secs(6));
    assert!(!election.is_leader() && election.hold().is_none());
    assert_eq!(term.loss(), Some(LossReason::Lapsed));
}

#[tokio::test]
async fn a_kept_hold_keeps_no_term_alive() {
    let world = World::new();
    let (one, two) = (process(&world, "one").await, process(&world, "two").await);
    let election = one.election("scheduler");
    let term = election.campaign().await.unwrap();
    let hold = election.hold().unwrap();
    drop(term);
    let term = two.election("scheduler").campaign().timeout(Duration::from_secs(1)).await.unwrap();
    assert!(!hold.is_valid() && !election.is_leader());
    term.resign().await.unwrap();
}
