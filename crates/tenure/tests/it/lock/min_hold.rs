//! The minimum time of a hold, in virtual time.

use std::time::Duration;

use tenure::testing::World;

const MIN: Duration = Duration::from_secs(3);

#[tokio::test]
async fn release_waits_for_min_hold() {
    let world = World::new();
    let (one, two) = (world.process("one").tenure(), world.process("two").tenure());
    let guard = one.lock("x").min_hold(MIN).await.unwrap();
    let acquired = world.elapsed();
    world.advance(Duration::from_secs(1)).await;
    let releasing = tokio::spawn(guard.release());
    let next = two.lock("x").await.unwrap();
    assert!(world.elapsed() - acquired >= MIN, "{:?}", world.elapsed() - acquired);
    releasing.await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// The dropped guard keeps its key and not its validity: this process has stopped to rely on the lock.
#[tokio::test]
async fn dropped_guard_keeps_its_key_for_min_hold() {
    let world = World::new();
    let (one, two) = (world.process("one").tenure(), world.process("two").tenure());
    let guard = one.lock("x").min_hold(MIN).await.unwrap();
    let (acquired, hold) = (world.elapsed(), guard.hold());
    drop(guard);
    assert!(!hold.is_valid());
    let next = two.lock("x").await.unwrap();
    assert!(world.elapsed() - acquired >= MIN, "{:?}", world.elapsed() - acquired);
    next.release().await.unwrap();
}

#[tokio::test]
async fn lost_lock_is_not_kept_for_min_hold() {
    let world = World::new();
    let one = world.process("one").tenure();
    let guard = one.lock("x").min_hold(Duration::from_secs(600)).await.unwrap();
    world.expire_lease(guard.lease());
    let began = world.elapsed();
    assert!(guard.release().await.is_err());
    assert!(world.elapsed() - began < Duration::from_secs(60));
}
