//! Sessions on the in-memory store model, in virtual time: known cases, then random ones.

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
fn last_key_ends_the_shared_lease() {
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
fn lease_is_renewed_every_third_ttl() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.requests.clear();
    world.pass(60_000);
    assert_eq!(world.requests, ["renew"; 12]);
}

#[test]
fn short_outage_changes_nothing_in_store() {
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
fn long_outage_loses_lease_and_starts_incarnation() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.network = Network::Down;
    world.pass(14_250);
    assert_eq!(
        world.session.status(world.now),
        SessionStatus::Lost { why: Some(LossReason::Lapsed) },
        "validity ends before the lease"
    );
    assert_eq!(world.stored(), ["/a"]);
    world.pass(60_000);
    assert!(world.stored().is_empty());
    world.network = Network::Works;
    world.session.handle_store_reachable(world.now);
    world.settle();
    assert_eq!((world.stored(), world.session.incarnation()), (vec!["/a".into()], 2));
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Lost { .. })), 1);
}

#[test]
fn locally_lapsed_lease_is_replaced_without_delete() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.network = Network::LosesReplies;
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
fn revoked_lease_is_replaced() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    let lease = world.session.leases().next().unwrap();
    world.store.revoke(lease, world.now).unwrap();
    world.settle();
    assert_eq!(world.stored(), ["/a", "/b"]);
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Lost { .. })), 1);
}

#[test]
fn deleted_key_is_put_again() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.store.apply(&Txn::new().then(Op::delete("/a")), world.now).unwrap();
    world.settle();
    assert_eq!(world.stored(), ["/a"]);
    assert_eq!(world.session.incarnation(), 1);
}

#[test]
fn taken_key_is_put_after_its_delete() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.store.apply(&Txn::new().then(Op::put("/a", "foreign")), world.now).unwrap();
    world.settle();
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Taken { .. })), 1);
    world.pass(60_000);
    assert_eq!(&world.store.get(&Get::key("/a"), world.now).unwrap().pairs[0].value[..], b"foreign");
    world.store.apply(&Txn::new().then(Op::delete("/a")), world.now).unwrap();
    world.settle();
    assert_eq!(&world.store.get(&Get::key("/a"), world.now).unwrap().pairs[0].value[..], b"v");
}

#[test]
fn key_taken_during_outage_is_not_overwritten() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.network = Network::Down;
    world.pass(60_000);
    world.store.apply(&Txn::new().then(Op::put("/a", "foreign")), world.now).unwrap();
    world.network = Network::Works;
    world.session.handle_store_reachable(world.now);
    world.pass(20_000);
    assert_eq!(&world.store.get(&Get::key("/a"), world.now).unwrap().pairs[0].value[..], b"foreign");
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Taken { .. })), 1);
}

#[test]
fn unregister_keeps_a_foreign_key() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    world.store.apply(&Txn::new().then(Op::put("/a", "foreign")), world.now).unwrap();
    world.settle();
    world.unregister("/a");
    assert_eq!(world.stored(), ["/a", "/b"]);
}

#[test]
fn create_is_refused_for_foreign_keys_only() {
    let mut world = SessionWorld::new();
    world.store.apply(&Txn::new().then(Op::put("/a", "foreign")), world.now).unwrap();
    world.session.register("/a".into(), "v".into(), None, PutMode::Create, world.now).unwrap();
    world.settle();
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Refused { why: None, .. })), 1);
    assert_eq!(world.store.leases(world.now).len(), 0, "the lease of a refused key is not kept");
    for _ in 0..2 {
        world.session.register("/b".into(), "v".into(), None, PutMode::Create, world.now).unwrap();
        world.settle();
    }
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Registered { .. })), 2);
}

#[test]
fn key_unregistered_during_outage_is_deleted_afterwards() {
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
fn full_lease_and_other_ttl_need_another_lease() {
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
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Closed)), 1);
}

#[test]
fn unneeded_grant_is_revoked() {
    let mut world = SessionWorld::new();
    world.session.register("/a".into(), "v".into(), None, PutMode::Overwrite, world.now).unwrap();
    world.session.unregister(&"/a".into(), world.now);
    world.settle();
    assert_eq!((world.stored().len(), world.store.leases(world.now).len()), (0, 0));
}

#[test]
fn backoff_restarts_in_the_second_outage() {
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

/// A step of a random case.
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
        prop::sample::select(vec![Network::Works, Network::Down, Network::LosesReplies])
            .prop_map(Happens::Network),
        (1..25_000u64).prop_map(Happens::Passes),
    ]
}

proptest! {
    #[test]
    fn store_converges_to_the_registered_keys(
        story in prop::collection::vec(happens(), 1..40),
        keys_per_lease in 1..4usize,
    ) {
        let mut world = SessionWorld::with(SessionConfig { keys_per_lease, ..SessionConfig::DEFAULT });
        // A revocation by an operator cannot be foreseen, only observed.
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
                prop_assert!(world.store.lease(lease, world.now).is_some(), "the session held an ended lease");
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
