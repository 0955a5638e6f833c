//! Enters with a lost reply: they are applied before their key is left, or never.

use super::*;

/// Found by fault injection: a member of etcd was paused for 13 s with the enter in it, and its key
/// blocked the lock until the session ended.
#[test]
fn late_enter_of_left_key_is_never_applied() {
    let mut world = late_enter();
    assert_eq!(world.queue_keys(), 0);
    assert!(world.queues[0].is_empty(), "the queue has no waiter");
    // The lease is still valid.
    let again = world.enter(0, LockMode::Exclusive);
    world.settle();
    assert!(world.holds(0, again));
    world.leave(0, again);
    world.settle();
    assert_eq!(world.queue_keys(), 0);
}

/// The negative control: without the guard the key stays.
#[test]
fn late_enter_without_guard_leaves_a_key() {
    let _broken = crate::sabotage::Sabotage::of(SabotageRule::SettledEnter);
    assert_eq!(late_enter().queue_keys(), 1);
}

/// An enter is taken for lost, its key is left, and the enter arrives a minute later.
fn late_enter() -> QueueWorld {
    let mut world = QueueWorld::new(1);
    world.fault = QueueFault::Late;
    let id = world.enter(0, LockMode::Exclusive);
    world.settle();
    world.fault = QueueFault::Works;
    world.leave(0, id);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.queue_keys(), 0);
    world.apply_late();
    world.settle();
    world
}

/// The guard of a lease changes for one key and refuses the enters of the others that were sent
/// before; they enter again.
#[test]
fn changed_guard_delays_other_enters_and_loses_none() {
    let mut world = QueueWorld::new(1);
    world.fault = QueueFault::Late;
    let first = world.enter(0, LockMode::Exclusive);
    world.settle();
    world.fault = QueueFault::Works;
    let second = world.enter(0, LockMode::Exclusive);
    world.leave(0, first);
    world.settle();
    assert!(world.holds(0, second));
    world.apply_late();
    world.leave(0, second);
    world.settle();
    assert_eq!((world.queue_keys(), world.queues[0].is_empty()), (0, true));
}

/// A queue that begins later in the same process knows the changed guard: its first enter is not
/// refused as stale.
#[test]
fn next_queue_enters_with_the_known_guard() {
    let former = late_enter();
    let former = &former.queues[0];
    let (lease, guard) = former.guards().first_key_value().expect("the guard has changed");
    let mut next = WaitQueue::default();
    next.begin(former.nonce_floor(), former.counter(), former.guards());
    next.enter(*lease, LockMode::Exclusive);
    let Some(QueueOutput::Enter { guard: required, .. }) = next.poll_output() else { panic!("no enter") };
    assert_eq!((required, required.0.is_some()), (*guard, true));
}
