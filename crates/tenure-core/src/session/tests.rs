//! Sessions against the store's own machine, in virtual time: first the stories, then stories that nobody thought of.

mod lease_users;
mod races;
mod requests;
mod world;

use proptest::prelude::*;

use super::*;
use crate::kv::Get;
use crate::loss::LossReason;
use crate::txn::{Op, Txn};
use world::{Network, SessionWorld};

#[test]
fn many_keys_share_one_lease_and_the_last_one_takes_it_along() {
    let mut world = SessionWorld::new();
    assert!(world.requests.is_empty(), "nothing is granted before the first key");
    for key in ["/a", "/b", "/c"] {
        world.register(key);
    }
    assert_eq!(
        (world.stored(), world.store.leases(world.now).len()),
        (vec!["/a".into(), "/b".into(), "/c".into()], 1)
    );
    world.unregister("/a");
    world.unregister("/b");
    assert_eq!((world.stored(), world.store.leases(world.now).len()), (vec!["/c".into()], 1));
    world.unregister("/c");
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 0));
    world.register("/a");
    assert_eq!((world.stored(), world.session.incarnation()), (vec!["/a".into()], 2));
}

#[test]
fn registering_again_overwrites_under_the_same_lease() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.session.register("/a".into(), "new".into(), None, PutMode::Overwrite, world.now).unwrap();
    world.settle();
    let pair = world.store.get(&Get::key("/a"), world.now).unwrap().pairs.remove(0);
    assert_eq!((&pair.value[..], pair.version, world.session.incarnation()), (&b"new"[..], 2, 1));
}

#[test]
fn a_lease_is_renewed_once_every_third_of_its_ttl() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.requests.clear();
    world.pass(60_000);
    assert_eq!(world.requests, ["renew"; 12]);
}

#[test]
fn an_outage_shorter_than_the_ttl_changes_nothing_in_the_store() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let revision = world.store.revision();
    world.network = Network::Down;
    world.pass(10_000);
    assert!(matches!(world.session.status(world.now), SessionStatus::Suspect { .. }));
    world.network = Network::Works;
    world.pass(3_000);
    assert_eq!((world.session.status(world.now), world.store.revision()), (SessionStatus::Live, revision));
}

#[test]
fn an_outage_longer_than_the_ttl_is_a_loss_and_then_a_new_incarnation() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.network = Network::Down;
    world.pass(14_250);
    assert_eq!(
        world.session.status(world.now),
        SessionStatus::Lost { why: Some(LossReason::Lapsed) },
        "belief ends before the store's"
    );
    assert_eq!(world.stored(), ["/a"]);
    world.pass(60_000);
    assert!(world.stored().is_empty());
    world.network = Network::Works;
    world.session.handle_store_reachable(world.now);
    world.settle();
    assert_eq!((world.stored(), world.session.incarnation()), (vec!["/a".into()], 2));
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Lost { .. })), 1);
}

#[test]
fn a_lease_that_lapsed_only_for_us_is_left_without_a_delete() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.network = Network::LosesAnswers;
    world.pass(20_000);
    assert_eq!(world.session.status(world.now), SessionStatus::Lost { why: Some(LossReason::Lapsed) });
    world.network = Network::Works;
    world.session.handle_store_reachable(world.now);
    world.settle();
    let pair = world.store.get(&Get::key("/a"), world.now).unwrap().pairs.remove(0);
    assert_eq!(pair.created, Revision(2), "the key never went away");
    world.pass(60_000);
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (1, 1));
}

#[test]
fn a_revoked_lease_is_replaced_at_once() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    let lease = world.session.leases().next().unwrap();
    world.store.revoke(lease, world.now).unwrap();
    world.settle();
    assert_eq!(world.stored(), ["/a", "/b"]);
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Lost { .. })), 1);
}

#[test]
fn a_key_deleted_behind_our_back_is_put_back() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.store.apply(&Txn::new().then(Op::delete("/a")), world.now).unwrap();
    world.settle();
    assert_eq!(world.stored(), ["/a"]);
    assert_eq!(world.session.incarnation(), 1);
}

#[test]
fn a_key_that_somebody_else_took_is_left_to_them_until_they_leave() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.store.apply(&Txn::new().then(Op::put("/a", "theirs")), world.now).unwrap();
    world.settle();
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Taken { .. })), 1);
    world.pass(60_000);
    assert_eq!(&world.store.get(&Get::key("/a"), world.now).unwrap().pairs[0].value[..], b"theirs");
    world.store.apply(&Txn::new().then(Op::delete("/a")), world.now).unwrap();
    world.settle();
    assert_eq!(&world.store.get(&Get::key("/a"), world.now).unwrap().pairs[0].value[..], b"v");
}

#[test]
fn a_stranger_who_came_during_the_outage_is_not_overwritten() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.network = Network::Down;
    world.pass(60_000);
    world.store.apply(&Txn::new().then(Op::put("/a", "theirs")), world.now).unwrap();
    world.network = Network::Works;
    world.session.handle_store_reachable(world.now);
    world.pass(20_000);
    assert_eq!(&world.store.get(&Get::key("/a"), world.now).unwrap().pairs[0].value[..], b"theirs");
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Taken { .. })), 1);
}

#[test]
fn unregistering_leaves_a_strangers_key_alone() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    world.store.apply(&Txn::new().then(Op::put("/a", "theirs")), world.now).unwrap();
    world.settle();
    world.unregister("/a");
    assert_eq!(world.stored(), ["/a", "/b"]);
}

#[test]
fn creating_what_exists_is_refused_and_creating_our_own_is_not() {
    let mut world = SessionWorld::new();
    world.store.apply(&Txn::new().then(Op::put("/a", "theirs")), world.now).unwrap();
    world.session.register("/a".into(), "v".into(), None, PutMode::Create, world.now).unwrap();
    world.settle();
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Refused { why: None, .. })), 1);
    assert_eq!(world.store.leases(world.now).len(), 0, "the lease of a refused key is not kept");
    for _ in 0..2 {
        world.session.register("/b".into(), "v".into(), None, PutMode::Create, world.now).unwrap();
        world.settle();
    }
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Registered { .. })), 2);
}

#[test]
fn a_key_unregistered_during_an_outage_is_gone_after_it() {
    for outage_ms in [5_000, 40_000] {
        let mut world = SessionWorld::new();
        world.register("/a");
        world.register("/b");
        world.network = Network::Down;
        world.pass(1_000);
        world.unregister("/a");
        world.pass(outage_ms);
        world.network = Network::Works;
        world.session.handle_store_reachable(world.now);
        world.pass(20_000);
        assert_eq!(world.stored(), ["/b"], "{outage_ms}");
    }
}

#[test]
fn a_thousand_keys_to_a_lease_and_a_lease_for_each_ttl() {
    let mut world = SessionWorld::with(SessionConfig { keys_per_lease: 2, ..SessionConfig::DEFAULT });
    for key in ["/a", "/b", "/c"] {
        world.register(key);
    }
    world
        .session
        .register("/d".into(), "v".into(), Some(Duration::from_secs(30)), PutMode::Overwrite, world.now)
        .unwrap();
    world.settle();
    assert_eq!(world.session.leases().count(), 3);
    world.session.close(world.now);
    world.settle();
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 0));
    assert_eq!(world.told(|notice| matches!(notice, SessionEvent::Closed)), 1);
}

#[test]
fn a_grant_that_nobody_waits_for_is_given_back() {
    let mut world = SessionWorld::new();
    world.session.register("/a".into(), "v".into(), None, PutMode::Overwrite, world.now).unwrap();
    world.session.unregister(&"/a".into(), world.now);
    world.settle();
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 0));
}

#[test]
fn the_second_outage_begins_with_the_first_step() {
    let mut world = SessionWorld::new();
    world.register("/a");
    let outage = |world: &mut SessionWorld| {
        world.network = Network::Down;
        world.pass(60_000);
        world.network = Network::Works;
        world.pass(20_000);
        let notices = std::mem::take(&mut world.notices);
        let regrants = notices.iter().skip_while(|notice| !matches!(notice, SessionEvent::Lost { .. }));
        regrants
            .filter_map(|notice| match notice {
                SessionEvent::Failing { next, .. } => Some(next.as_secs()),
                _ => None,
            })
            .take(4)
            .collect::<Vec<_>>()
    };
    assert_eq!(outage(&mut world), [1, 2, 4, 8]);
    assert_eq!(outage(&mut world), [1, 2, 4, 8]);
}

/// What may befall a session.
#[derive(Clone, Debug)]
enum Happens {
    Register(usize, Option<Duration>),
    Unregister(usize),
    DeletedByHand(usize),
    Lend,
    GiveBack(usize),
    Revoked,
    Network(Network),
    Passes(u64),
}

const KEYS: [&str; 5] = ["/a", "/b", "/c", "/d", "/e"];

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0..KEYS.len(), prop::option::weighted(0.2, Just(Duration::from_secs(60))))
            .prop_map(|(key, ttl)| Happens::Register(key, ttl)),
        (0..KEYS.len()).prop_map(Happens::Unregister),
        (0..KEYS.len()).prop_map(Happens::DeletedByHand),
        Just(Happens::Lend),
        (0..4usize).prop_map(Happens::GiveBack),
        Just(Happens::Revoked),
        prop::sample::select(vec![Network::Works, Network::Down, Network::LosesAnswers])
            .prop_map(Happens::Network),
        (1..25_000u64).prop_map(Happens::Passes),
    ]
}

proptest! {
    #[test]
    fn whatever_happened_once_the_store_is_back_it_holds_exactly_what_is_wanted(
        story in prop::collection::vec(happens(), 1..40),
        keys_per_lease in 1..4usize,
    ) {
        let mut world = SessionWorld::with(SessionConfig { keys_per_lease, ..SessionConfig::DEFAULT });
        // A revocation by hand cannot be foreseen, only seen.
        let mut revoked = Vec::new();
        let mut users: Vec<LeaseUserId> = Vec::new();
        for event in story {
            match event {
                Happens::Register(n, ttl) => {
                    world.session.register(KEYS[n].into(), "v".into(), ttl, PutMode::Overwrite, world.now).unwrap();
                    world.settle();
                }
                Happens::Unregister(n) => world.unregister(KEYS[n]),
                Happens::DeletedByHand(n) => {
                    world.store.apply(&Txn::new().then(Op::delete(KEYS[n])), world.now).unwrap();
                    world.settle();
                }
                Happens::Lend => users.push(world.request_lease()),
                Happens::GiveBack(n) if n < users.len() => world.release_lease(users.remove(n)),
                Happens::GiveBack(_) => {}
                Happens::Revoked => {
                    if let Some(lease) = world.store.leases(world.now).pop() {
                        world.store.revoke(lease, world.now).unwrap();
                        revoked.push(lease);
                        world.settle();
                    }
                }
                Happens::Network(network) => world.network = network,
                Happens::Passes(ms) => world.pass(ms),
            }
            for lease_info in users.iter().filter_map(|&user| world.session.lease_info(user)) {
                prop_assert!(!world.ended.contains(&lease_info.lease), "a lease_info lease was revoked");
                let is_valid = world.now < lease_info.valid_until && !revoked.contains(&lease_info.lease);
                let is_alive = world.store.lease(lease_info.lease, world.now).is_some();
                prop_assert!(!is_valid || is_alive, "a user outlived its lease");
            }
            for lease in world.session.leases().filter(|lease| !revoked.contains(lease)).collect::<Vec<_>>() {
                prop_assert!(world.store.lease(lease, world.now).is_some(), "belief outlived the lease");
            }
        }
        world.network = Network::Works;
        world.session.handle_store_reachable(world.now);
        world.pass(130_000);
        let wanted: Vec<Bytes> = world.session.keys().cloned().collect();
        prop_assert_eq!(world.stored(), wanted);
        prop_assert!(world.session.is_settled());
        prop_assert_eq!(world.store.leases(world.now).len(), world.session.leases().count());
        world.session.close(world.now);
        for user in users {
            world.release_lease(user);
        }
        world.pass(1);
        prop_assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 0));
    }
}
