//! Lending a lease: to whom, for how long, and what ends it.

use std::time::Duration;

use super::*;

fn lease_info(world: &SessionWorld, user: LeaseUserId) -> LeaseInfo {
    world.session.lease_info(user).expect("it is lease_info")
}

#[test]
fn a_lease_that_is_held_is_lent_without_a_request() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.requests.clear();
    let user = world.request_lease();
    assert_eq!(Some(lease_info(&world, user).lease), world.session.leases().next());
    assert!(world.requests.is_empty(), "{:?}", world.requests);
}

#[test]
fn the_first_borrower_gets_the_first_lease_and_the_last_one_takes_it_along() {
    let mut world = SessionWorld::new();
    let (one, two) = (world.request_lease(), world.request_lease());
    assert_eq!(lease_info(&world, one).lease, lease_info(&world, two).lease);
    assert_eq!(
        world.told(|notice| matches!(notice, SessionEvent::LeaseReady(_))),
        1,
        "only who waited is told"
    );
    world.release_lease(one);
    assert_eq!(world.store.leases(world.now).len(), 1);
    world.release_lease(two);
    assert_eq!(world.store.leases(world.now).len(), 0);
    world.release_lease(two);
}

#[test]
fn a_lent_lease_outlives_the_last_key_and_the_key_goes_by_itself() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.request_lease();
    world.unregister("/a");
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 1));
    world.pass(60_000);
    assert!(world.store.lease(lease_info(&world, user).lease, world.now).is_some(), "it is renewed");
}

#[test]
fn a_loan_ends_for_good_with_its_lease() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.request_lease();
    let lease = lease_info(&world, user).lease;
    world.store.revoke(lease, world.now).unwrap();
    world.pass(6_000);
    assert_eq!(world.session.lease_info(user), None);
    let ended =
        |notice: &SessionEvent| matches!(notice, SessionEvent::Lost { users, .. } if users == &[user]);
    assert_eq!(world.told(ended), 1);
    assert_eq!(world.stored(), ["/a"], "the keys move on");
    let next = world.request_lease();
    assert_ne!(lease_info(&world, next).lease, lease);
    assert_eq!(lease_info(&world, next).incarnation, 2);
}

#[test]
fn a_borrower_who_waited_through_an_outage_gets_the_next_lease() {
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
fn a_borrower_who_does_not_wait_any_more_leaves_nothing() {
    let mut world = SessionWorld::new();
    let user = world.session.request_lease(None, world.now).unwrap();
    world.session.release_lease(user, world.now);
    world.settle();
    assert_eq!(world.store.leases(world.now).len(), 0);
}

#[test]
fn loans_count_as_keys_where_leases_are_full() {
    let mut world = SessionWorld::with(SessionConfig { keys_per_lease: 2, ..SessionConfig::DEFAULT });
    world.register("/a");
    let users = [world.request_lease(), world.request_lease(), world.request_lease()];
    let leases: std::collections::BTreeSet<_> =
        users.iter().map(|&user| lease_info(&world, user).lease).collect();
    assert_eq!((leases.len(), world.session.leases().count(), world.session.incarnation()), (2, 2, 1));
}

#[test]
fn a_loan_with_a_ttl_of_its_own_has_a_lease_of_its_own() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.session.request_lease(Some(Duration::from_secs(40)), world.now).unwrap();
    world.settle();
    assert_eq!(lease_info(&world, user).ttl, Duration::from_secs(40));
    assert_eq!(world.store.leases(world.now).len(), 2);
    assert!(world.session.request_lease(Some(Duration::from_millis(100)), world.now).is_err());
}

#[test]
fn a_closing_session_waits_for_its_loans_before_it_ends_their_lease() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let user = world.request_lease();
    world.session.close(world.now);
    world.settle();
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::ReleaseRequested { .. })), 1);
    assert_eq!(
        (world.stored().len(), world.store.leases(world.now).len()),
        (0, 1),
        "the keys go, the lease stays"
    );
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Closed)), 0);
    world.release_lease(user);
    assert_eq!(world.store.leases(world.now).len(), 0);
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Closed)), 1);
}

#[test]
fn what_the_store_told_a_borrower_ends_the_lease_at_once() {
    let mut world = SessionWorld::new();
    let user = world.request_lease();
    let lease = lease_info(&world, user).lease;
    world.store.revoke(lease, world.now).unwrap();
    world.session.handle_lease_not_found(lease, world.now);
    world.settle();
    assert_eq!(world.session.lease_info(user), None);
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Lost { .. })), 1);
}
