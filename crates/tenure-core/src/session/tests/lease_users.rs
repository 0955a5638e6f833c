//! Lending a lease: to whom, for how long, and what ends it.

use std::time::Duration;

use super::*;

fn lent(world: &World, loan: LeaseUserId) -> Lent {
    world.session.lent(loan).expect("it is lent")
}

#[test]
fn a_lease_that_is_held_is_lent_without_a_request() {
    let mut world = World::new();
    world.register("/a");
    world.requests.clear();
    let loan = world.lend();
    assert_eq!(Some(lent(&world, loan).lease), world.session.leases().next());
    assert!(world.requests.is_empty(), "{:?}", world.requests);
}

#[test]
fn the_first_borrower_gets_the_first_lease_and_the_last_one_takes_it_along() {
    let mut world = World::new();
    let (one, two) = (world.lend(), world.lend());
    assert_eq!(lent(&world, one).lease, lent(&world, two).lease);
    assert_eq!(world.told(|notice| matches!(notice, Notice::Lent(_))), 1, "only who waited is told");
    world.give_back(one);
    assert_eq!(world.store.leases(world.now).len(), 1);
    world.give_back(two);
    assert_eq!(world.store.leases(world.now).len(), 0);
    world.give_back(two);
}

#[test]
fn a_lent_lease_outlives_the_last_key_and_the_key_goes_by_itself() {
    let mut world = World::new();
    world.register("/a");
    let loan = world.lend();
    world.unregister("/a");
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 1));
    world.pass(60_000);
    assert!(world.store.lease(lent(&world, loan).lease, world.now).is_some(), "it is renewed");
}

#[test]
fn a_loan_ends_for_good_with_its_lease() {
    let mut world = World::new();
    world.register("/a");
    let loan = world.lend();
    let lease = lent(&world, loan).lease;
    world.store.revoke(lease, world.now).unwrap();
    world.pass(6_000);
    assert_eq!(world.session.lent(loan), None);
    let ended = |notice: &Notice| matches!(notice, Notice::Lost { loans, .. } if loans == &[loan]);
    assert_eq!(world.told(ended), 1);
    assert_eq!(world.stored(), ["/a"], "the keys move on");
    let next = world.lend();
    assert_ne!(lent(&world, next).lease, lease);
    assert_eq!(lent(&world, next).incarnation, 2);
}

#[test]
fn a_borrower_who_waited_through_an_outage_gets_the_next_lease() {
    let mut world = World::new();
    world.network = Network::Down;
    let loan = world.lend();
    world.pass(30_000);
    assert_eq!(world.session.lent(loan), None);
    world.network = Network::Works;
    world.session.handle_store_back(world.now);
    world.settle();
    assert_eq!(Some(lent(&world, loan).lease), world.session.leases().next());
}

#[test]
fn a_borrower_who_does_not_wait_any_more_leaves_nothing() {
    let mut world = World::new();
    let loan = world.session.lend(None, world.now).unwrap();
    world.session.give_back(loan, world.now);
    world.settle();
    assert_eq!(world.store.leases(world.now).len(), 0);
}

#[test]
fn loans_count_as_keys_where_leases_are_full() {
    let mut world = World::with(Plan { keys_per_lease: 2, ..Plan::DEFAULT });
    world.register("/a");
    let loans = [world.lend(), world.lend(), world.lend()];
    let leases: std::collections::BTreeSet<_> = loans.iter().map(|&loan| lent(&world, loan).lease).collect();
    assert_eq!((leases.len(), world.session.leases().count(), world.session.incarnation()), (2, 2, 1));
}

#[test]
fn a_loan_with_a_ttl_of_its_own_has_a_lease_of_its_own() {
    let mut world = World::new();
    world.register("/a");
    let loan = world.session.lend(Some(Duration::from_secs(40)), world.now).unwrap();
    world.settle();
    assert_eq!(lent(&world, loan).ttl, Duration::from_secs(40));
    assert_eq!(world.store.leases(world.now).len(), 2);
    assert!(world.session.lend(Some(Duration::from_millis(100)), world.now).is_err());
}

#[test]
fn a_closing_session_waits_for_its_loans_before_it_ends_their_lease() {
    let mut world = World::new();
    world.register("/a");
    let loan = world.lend();
    world.session.close(world.now);
    world.settle();
    assert_eq!(world.told(|notice| matches!(notice, Notice::Recalled { .. })), 1);
    assert_eq!(
        (world.stored().len(), world.store.leases(world.now).len()),
        (0, 1),
        "the keys go, the lease stays"
    );
    assert_eq!(world.told(|notice| matches!(notice, Notice::Closed)), 0);
    world.give_back(loan);
    assert_eq!(world.store.leases(world.now).len(), 0);
    assert_eq!(world.told(|notice| matches!(notice, Notice::Closed)), 1);
}

#[test]
fn what_the_store_told_a_borrower_ends_the_lease_at_once() {
    let mut world = World::new();
    let loan = world.lend();
    let lease = lent(&world, loan).lease;
    world.store.revoke(lease, world.now).unwrap();
    world.session.handle_lease_gone(lease, world.now);
    world.settle();
    assert_eq!(world.session.lent(loan), None);
    assert_eq!(world.told(|notice| matches!(notice, Notice::Lost { .. })), 1);
}
