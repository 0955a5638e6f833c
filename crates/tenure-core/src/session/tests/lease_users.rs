//! Lease users: which lease they get, how long they keep it, and what ends it.

use std::time::Duration;

use super::*;

fn lease_info(world: &SessionWorld, user: LeaseUserId) -> LeaseInfo {
    world.session.lease_info(user).expect("the user has a lease")
}

#[test]
fn held_lease_serves_user_without_request() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.requests.clear();
    let user = world.request_lease();
    assert_eq!(Some(lease_info(&world, user).lease), world.session.leases().next());
    assert!(world.requests.is_empty(), "{:?}", world.requests);
}

#[test]
fn last_user_ends_the_shared_lease() {
    let mut world = SessionWorld::new();
    let (one, two) = (world.request_lease(), world.request_lease());
    assert_eq!(lease_info(&world, one).lease, lease_info(&world, two).lease);
    assert_eq!(
        world.count(|notice| matches!(notice, SessionEvent::LeaseReady(_))),
        1,
        "only the waiting user is notified"
    );
    world.release_lease(one);
    assert_eq!(world.store.leases(world.now).len(), 1);
    world.release_lease(two);
    assert_eq!(world.store.leases(world.now).len(), 0);
    world.release_lease(two);
}

#[test]
fn used_lease_outlives_its_last_key() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.request_lease();
    world.unregister("/a");
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 1));
    world.pass(60_000);
    assert!(world.store.lease(lease_info(&world, user).lease, world.now).is_some(), "it is renewed");
}

#[test]
fn lease_user_ends_with_its_lease() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.request_lease();
    let lease = lease_info(&world, user).lease;
    world.store.revoke(lease, world.now).unwrap();
    world.pass(6_000);
    assert_eq!(world.session.lease_info(user), None);
    let ended =
        |notice: &SessionEvent| matches!(notice, SessionEvent::Lost { users, .. } if users == &[user]);
    assert_eq!(world.count(ended), 1);
    assert_eq!(world.stored(), ["/a"], "the keys move on");
    let next = world.request_lease();
    assert_ne!(lease_info(&world, next).lease, lease);
    assert_eq!(lease_info(&world, next).incarnation, 2);
}

#[test]
fn waiting_user_gets_lease_after_outage() {
    let mut world = SessionWorld::new();
    world.network = Network::Down;
    let user = world.request_lease();
    world.pass(30_000);
    assert_eq!(world.session.lease_info(user), None);
    world.network = Network::Works;
    world.session.handle_store_reachable(world.now);
    world.settle();
    assert_eq!(Some(lease_info(&world, user).lease), world.session.leases().next());
}

#[test]
fn cancelled_user_leaves_no_lease() {
    let mut world = SessionWorld::new();
    let user = world.session.request_lease(None, world.now).unwrap();
    world.session.release_lease(user, world.now);
    world.settle();
    assert_eq!(world.store.leases(world.now).len(), 0);
}

#[test]
fn users_count_towards_a_full_lease() {
    let mut world = SessionWorld::with(SessionConfig { keys_per_lease: 2, ..SessionConfig::DEFAULT });
    world.register("/a");
    let users = [world.request_lease(), world.request_lease(), world.request_lease()];
    let leases: std::collections::BTreeSet<_> =
        users.iter().map(|&user| lease_info(&world, user).lease).collect();
    assert_eq!((leases.len(), world.session.leases().count(), world.session.incarnation()), (2, 2, 1));
}

#[test]
fn user_with_other_ttl_gets_another_lease() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.session.request_lease(Some(Duration::from_secs(40)), world.now).unwrap();
    world.settle();
    assert_eq!(lease_info(&world, user).ttl, Duration::from_secs(40));
    assert_eq!(world.store.leases(world.now).len(), 2);
    assert!(world.session.request_lease(Some(Duration::from_millis(100)), world.now).is_err());
}

#[test]
fn closing_session_waits_for_lease_users() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.request_lease();
    world.session.close(world.now);
    world.settle();
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::ReleaseRequested { .. })), 1);
    assert_eq!(
        (world.stored().len(), world.store.leases(world.now).len()),
        (0, 1),
        "the keys are deleted, the lease is kept"
    );
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Closed)), 0);
    world.release_lease(user);
    assert_eq!(world.store.leases(world.now).len(), 0);
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Closed)), 1);
}

#[test]
fn lease_not_found_by_user_ends_lease() {
    let mut world = SessionWorld::new();
    let user = world.request_lease();
    let lease = lease_info(&world, user).lease;
    world.store.revoke(lease, world.now).unwrap();
    world.session.handle_lease_not_found(lease, world.now);
    world.settle();
    assert_eq!(world.session.lease_info(user), None);
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Lost { .. })), 1);
}
