//! Sessions in the testing world: what each fault does to them, and when.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::LossReason;
use tenure::clock::Clock;
use tenure::session::{Session, SessionState};
use tenure::store::{Change, Selection, WatchItem};
use tenure::testing::{ClockSkew, World};
use tenure_core::backoff::{Backoff, Growth, Jitter};

use super::{deletes, ms, s, seen, watch_all};

const TTL: Duration = Duration::from_secs(10);
/// What a session with that TTL keeps back.
const MARGIN: Duration = Duration::from_millis(500);

/// A session of the process `name`, with retries without jitter.
fn session(world: &World, name: &str) -> Session {
    let retry = Backoff {
        growth: Growth::Constant,
        initial: s(1),
        cap: s(1),
        jitter: Jitter::None,
        healthy_after: s(10),
    };
    Session::options()
        .ttl(TTL)
        .retry(retry)
        .clock(world.process(name).clock())
        .open(world.process(name).store())
        .unwrap()
}

fn state(session: &Session) -> SessionState {
    session.state().borrow().clone()
}

/// When, in the world's time, the session reports it.
async fn when(world: &World, session: &Session, is_wanted: impl Fn(&SessionState) -> bool) -> Duration {
    let mut state = session.state();
    tokio::time::timeout(s(60), state.wait_for(|state| is_wanted(state))).await.unwrap().unwrap();
    world.elapsed()
}

fn is_lost(state: &SessionState) -> bool {
    matches!(state, SessionState::Lost { .. })
}

#[tokio::test]
async fn partitioned_session_is_lost_before_lease_ends() {
    let world = World::new();
    let session = session(&world, "a");
    session.register_raw("/r/a", "v").await.unwrap();
    // Renewed at a third of the TTL, exactly.
    world.advance(ms(3_334)).await;
    let renewed_at = world.elapsed();
    assert!(session.remaining() >= TTL - MARGIN - ms(1));
    let mut watch = watch_all(&world.process("onlooker").store()).await;
    world.process("a").partition();
    let suspect = when(&world, &session, |state| matches!(state, SessionState::Suspect { .. })).await;
    // The next renewal comes a third of the TTL later, and times out after three seconds at the latest.
    let asked_at = renewed_at + ms(3_334);
    assert!(asked_at < suspect && suspect <= asked_at + s(3), "{suspect:?}");
    let lost = when(&world, &session, is_lost).await;
    assert_eq!(
        lost,
        renewed_at + TTL - MARGIN,
        "counted from the sending of the last renewal that was answered"
    );
    assert_eq!(deletes(&world, &mut watch).await, 0, "reported before another process can see it");
    world.advance(MARGIN + ms(1)).await;
    assert_eq!(deletes(&world, &mut watch).await, 1);
    let SessionState::Lost { why } = state(&session) else { panic!("{:?}", state(&session)) };
    assert_eq!(why, Some(LossReason::Lapsed));
}

#[tokio::test]
async fn healed_session_returns_with_new_incarnation() {
    let world = World::new();
    let session = session(&world, "a");
    session.register_raw("/r/a", "v").await.unwrap();
    session.register_raw("/r/b", "v").await.unwrap();
    world.process("a").partition();
    world.advance(s(30)).await;
    session.unregister("/r/b");
    world.process("a").heal();
    world.advance(s(1)).await;
    assert!(matches!(state(&session), SessionState::Live { incarnation: 2 }), "{:?}", state(&session));
    let keys = world.process("onlooker").store().list(Selection::everything()).await.unwrap().pairs;
    assert_eq!(keys.iter().map(|pair| &pair.key[..]).collect::<Vec<_>>(), [b"/r/a"]);
}

#[tokio::test]
async fn short_partition_is_invisible_to_others() {
    let world = World::new();
    let session = session(&world, "a");
    session.register_raw("/r/a", "v").await.unwrap();
    let mut watch = watch_all(&world.process("onlooker").store()).await;
    for _ in 0..10 {
        world.process("a").partition();
        world.advance(s(5)).await;
        world.process("a").heal();
        world.advance(s(5)).await;
    }
    assert!(matches!(state(&session), SessionState::Live { incarnation: 1 }), "{:?}", state(&session));
    assert_eq!(seen(&world, &mut watch).await, []);
}

#[tokio::test]
async fn lost_renewal_responses_end_session_only() {
    let world = World::new();
    let session = session(&world, "a");
    let lease = session.register_raw("/r/a", "v").await.unwrap().lease;
    world.process("a").drop_responses();
    when(&world, &session, is_lost).await;
    // The renewals have arrived, so the store keeps it; the session cannot know that.
    assert!(world.process("onlooker").store().lease(lease).await.unwrap().is_some());
}

#[tokio::test]
async fn slow_clock_within_margin_is_lost_in_time() {
    for (ppm, lost_after, is_in_time) in [(-40_000, ms(9_896), true), (-100_000, ms(10_556), false)] {
        let world = World::new();
        let session = session(&world, "a");
        world.process("a").set_clock_skew(ClockSkew::Drift { ppm });
        session.register_raw("/r/a", "v").await.unwrap();
        let mut watch = watch_all(&world.process("onlooker").store()).await;
        world.process("a").partition();
        let lost = when(&world, &session, is_lost).await;
        assert_eq!(lost, lost_after, "exactly 9.5 s later, on its own clock");
        assert_eq!(deletes(&world, &mut watch).await == 0, is_in_time, "{ppm} ppm");
    }
}

#[tokio::test]
async fn clock_jump_past_ttl_loses_session() {
    let world = World::new();
    let session = session(&world, "a");
    session.register_raw("/r/a", "v").await.unwrap();
    let before = world.process("a").clock().now();
    world.process("a").set_clock_skew(ClockSkew::Ahead(s(20)));
    assert_eq!(world.process("a").clock().now(), before + s(20));
    let mut state = session.state();
    world.run_until_idle().await;
    assert_eq!(world.elapsed(), Duration::ZERO);
    assert!(
        matches!(*state.borrow_and_update(), SessionState::Live { incarnation: 2 }),
        "lost and granted anew"
    );
}

#[tokio::test]
async fn constant_offset_changes_nothing() {
    let world = World::new();
    let session = session(&world, "a");
    world.process("a").set_clock_skew(ClockSkew::Ahead(s(1_000_000)));
    session.register_raw("/r/a", "v").await.unwrap();
    world.advance(s(100)).await;
    assert!(matches!(state(&session), SessionState::Live { incarnation: 1 }));
}

#[tokio::test]
async fn paused_session_is_lost_before_it_acts() {
    let world = World::new();
    let session = session(&world, "a");
    session.register_raw("/r/a", "v").await.unwrap();
    let mut states = session.state();
    states.mark_unchanged();
    world.process("a").pause();
    world.advance(s(60)).await;
    assert!(!states.has_changed().unwrap(), "a paused process sees no change");
    assert_eq!(world.process("onlooker").store().get_key("/r/a").await.unwrap(), None);
    let mut watch = watch_all(&world.process("onlooker").store()).await;
    let told = tokio::spawn(async move { states.wait_for(is_lost).await.is_ok() });
    world.run_until_idle().await;
    world.process("a").refuse_connections();
    world.process("a").resume();
    world.run_until_idle().await;
    assert!(told.is_finished(), "lost at once");
    world.process("a").heal();
    world.advance(s(2)).await;
    let WatchItem::Batch { changes, .. } = watch.next().await.unwrap().unwrap() else { panic!("a put") };
    let [Change::Put { pair, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(pair.lease, session.lease_id(), "and the first write is under the new lease");
}

#[tokio::test]
async fn expired_lease_is_seen_and_replaced() {
    let world = World::new();
    let session = session(&world, "a");
    let lease = session.register_raw("/r/a", "v").await.unwrap().lease;
    let mut watch = watch_all(&world.process("onlooker").store()).await;
    world.run_until_idle().await;
    assert!(world.expire_lease(lease));
    assert!(!world.expire_lease(lease), "it is gone");
    assert_eq!(deletes(&world, &mut watch).await, 1);
    world.advance(s(4)).await;
    assert!(matches!(state(&session), SessionState::Live { incarnation: 2 }), "{:?}", state(&session));
    assert_ne!(session.lease_id(), Some(lease));
    assert!(world.process("onlooker").store().get_key("/r/a").await.unwrap().is_some());
}
