//! Replies, observations and losses in unexpected order: each of these once failed.

use std::time::Duration;

use super::*;
use crate::error::StoreError;
use crate::lease::{Grant, Renewal};
use crate::loss::LossReason;
use crate::revision::RequestId;

/// A session that holds lease 1 and has put `/a` at revision 2. The test plays the store.
struct Lone {
    session: Session,
    slot: LeaseSlotId,
}

fn at(ms: u64) -> Moment {
    Moment::from_ms(ms)
}

fn lease(id: i64) -> LeaseId {
    LeaseId::new(id).unwrap()
}

impl Lone {
    fn with_put_in_flight() -> (Lone, RequestId, RegistrationId) {
        let mut session = Session::new(SessionConfig::DEFAULT).unwrap();
        session.register("/a".into(), "v".into(), None, PutMode::Overwrite, at(0)).unwrap();
        let Some(SessionOutput::Grant { slot, epoch, ttl }) = session.poll_output() else {
            panic!("a grant first")
        };
        session.handle_granted(slot, epoch, &Ok(Grant { id: lease(1), ttl, asked_at: at(0) }), 1.0, at(1));
        let mut lone = Lone { session, slot };
        let (epoch, registration) = lone.put();
        (lone, epoch, registration)
    }

    fn put(&mut self) -> (RequestId, RegistrationId) {
        match self.session.poll_output() {
            Some(SessionOutput::Put { epoch, entries, .. }) => (epoch, entries[0].registration),
            other => panic!("{other:?} instead of a put"),
        }
    }

    fn reply_to_put(
        &mut self,
        (epoch, registration): (RequestId, RegistrationId),
        outcome: KeyOutcome,
        now: Moment,
    ) {
        let outcomes = vec![("/a".into(), registration, outcome)];
        self.session.handle_put(self.slot, epoch, outcomes, LeaseLookup::Yes, 1.0, now);
    }

    /// Confirms the next put, which may be of several keys.
    fn put_everything(&mut self, ms: u64) {
        let Some(SessionOutput::Put { slot, epoch, entries, .. }) = self.session.poll_output() else {
            panic!("a put")
        };
        let done = |entry: KeyPut| (entry.key, entry.registration, KeyOutcome::Done(Revision(4)));
        let outcomes = entries.into_iter().map(done).collect();
        self.session.handle_put(slot, epoch, outcomes, LeaseLookup::Yes, 1.0, at(ms));
    }

    /// The next request that is no revocation, which has to be a delete.
    fn delete(&mut self) -> RequestId {
        loop {
            match self.session.poll_output() {
                Some(SessionOutput::Delete { epoch, .. }) => break epoch,
                Some(SessionOutput::Revoke { .. }) => {}
                other => panic!("{other:?} instead of a delete"),
            }
        }
    }

    fn notices(&mut self) -> Vec<SessionEvent> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }
}

/// The observed delete came first. The older reply "taken" came second and hid it, so the key was
/// never put.
#[test]
fn foreign_key_deleted_before_reply_is_replaced() {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(2));
    lone.session.handle_key_deleted(&"/a".into(), Revision(3), at(3));
    let request = lone.put();
    lone.session.handle_key_deleted(&"/a".into(), Revision(5), at(4));
    lone.reply_to_put(request, KeyOutcome::Taken(Revision(4)), at(5));
    lone.put();
}

/// The other client's put was observed before the reply to the older own put, and was forgotten:
/// the session never reported `Taken`.
#[test]
fn foreign_put_observed_before_reply_is_reported() {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.session.handle_key_put(&"/a".into(), &"foreign".into(), None, Revision(3), at(2));
    lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(3));
    assert!(lone.notices().iter().any(|notice| matches!(notice, SessionEvent::Taken { .. })));
}

/// A put with a lost reply was applied after the next put. The key then kept the earlier value.
#[test]
fn late_own_put_is_corrected() {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.reply_to_put((epoch, registration), KeyOutcome::Failed, at(2));
    lone.session.register("/a".into(), "new".into(), None, PutMode::Overwrite, at(3)).unwrap();
    lone.session.handle_time(at(3_000));
    let request = lone.put();
    lone.reply_to_put(request, KeyOutcome::Done(Revision(2)), at(3_001));
    lone.session.handle_key_put(&"/a".into(), &"new".into(), Some(lease(1)), Revision(2), at(3_002));
    assert_eq!(lone.session.poll_output(), None, "its own put changes nothing");
    lone.session.handle_key_put(&"/a".into(), &"v".into(), Some(lease(1)), Revision(3), at(3_003));
    lone.put();
}

/// The process stopped for longer than the TTL. The waiting reply was reported as a registration
/// before the loss.
#[test]
fn put_reply_after_lapse_registers_nothing() {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.notices();
    lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(60_000));
    let notices = lone.notices();
    assert!(matches!(notices[0], SessionEvent::Lost { .. }), "{notices:?}");
    assert!(!notices.iter().any(|notice| matches!(notice, SessionEvent::Registered { .. })), "{notices:?}");
}

/// The key is registered again while its put is in flight. The reply is about the earlier
/// registration.
#[test]
fn put_reply_of_earlier_registration_is_ignored() {
    for (outcome, mode) in [
        (KeyOutcome::Done(Revision(2)), PutMode::Overwrite),
        (KeyOutcome::Taken(Revision(2)), PutMode::Create),
    ] {
        let (mut lone, epoch, earlier) = Lone::with_put_in_flight();
        let later = lone.session.register("/a".into(), "new".into(), None, mode, at(2)).unwrap();
        lone.notices();
        lone.reply_to_put((epoch, earlier), outcome, at(3));
        let notices = lone.notices();
        assert!(notices.is_empty(), "the later registration has no reply yet: {notices:?}");
        let (epoch, registration) = lone.put();
        assert_eq!((registration, lone.session.registration(&"/a".into())), (later, Some(later)));
        lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(3)), at(4));
        let notices = lone.notices();
        let is_registered = |notice: &SessionEvent| matches!(notice, SessionEvent::Registered { registration, .. } if *registration == later);
        assert!(notices.iter().any(is_registered), "{notices:?}");
    }
}

/// Renewed again, the holders would rely on the lease until their local deadline.
#[test]
fn renewal_reply_not_found_ends_the_lease() {
    for reply in [Ok(Renewal::Gone), Err(StoreError::LeaseNotFound)] {
        let (mut lone, epoch, registration) = Lone::with_put_in_flight();
        lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(2));
        lone.notices();
        lone.session.handle_time(at(5_000));
        let Some(SessionOutput::Renew { slot, epoch, .. }) = lone.session.poll_output() else {
            panic!("a renewal")
        };
        lone.session.handle_renewed(slot, epoch, &reply, 1.0, at(5_001));
        let notices = lone.notices();
        assert!(matches!(notices[0], SessionEvent::Lost { why: LossReason::Revoked, .. }), "{notices:?}");
        let next = lone.session.poll_output();
        assert!(matches!(next, Some(SessionOutput::Grant { .. })), "{next:?}");
    }
}

/// A session that has lost lease 1, holds lease 2 since 60 s and has put `/a` under it at revision
/// 3.
fn moved() -> Lone {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(2));
    lone.session.handle_time(at(60_000));
    let Some(SessionOutput::Grant { slot, epoch, ttl }) = lone.session.poll_output() else {
        panic!("a grant")
    };
    let grant = Grant { id: lease(2), ttl, asked_at: at(60_000) };
    lone.session.handle_granted(slot, epoch, &Ok(grant), 1.0, at(60_001));
    let request = lone.put();
    lone.reply_to_put(request, KeyOutcome::Done(Revision(3)), at(60_002));
    while lone.session.poll_output().is_some() {}
    lone.notices();
    lone
}

/// The revocation of the old lease would delete the key.
#[test]
fn key_under_former_lease_is_put_again() {
    let mut lone = moved();
    lone.session.handle_key_put(&"/a".into(), &"v".into(), Some(lease(2)), Revision(3), at(60_003));
    assert_eq!(lone.session.poll_output(), None, "as it was put");
    lone.session.handle_key_put(&"/a".into(), &"v".into(), Some(lease(1)), Revision(4), at(60_004));
    let next = lone.session.poll_output();
    assert!(matches!(next, Some(SessionOutput::Put { lease: under, .. }) if under == lease(2)), "{next:?}");
}

/// The reply to the renewal of a lost lease arrives while its successor is being renewed.
#[test]
fn late_renewal_reply_of_former_lease_is_ignored() {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(2));
    let renewal = |lone: &mut Lone| loop {
        match lone.session.poll_output() {
            Some(SessionOutput::Renew { slot, epoch, .. }) => break (slot, epoch),
            Some(SessionOutput::Grant { slot, epoch, ttl }) => {
                let grant = Grant { id: lease(2), ttl, asked_at: at(5_001) };
                lone.session.handle_granted(slot, epoch, &Ok(grant), 1.0, at(5_001));
            }
            Some(_) => {}
            None => lone.session.handle_time(at(12_000)),
        }
    };
    lone.session.handle_time(at(5_000));
    let (slot, former) = renewal(&mut lone);
    lone.session.handle_lease_not_found(lease(1), at(5_001));
    let (_, current) = renewal(&mut lone);
    lone.notices();
    lone.session.handle_renewed(slot, former, &Ok(Renewal::Gone), 1.0, at(12_001));
    assert!(lone.notices().is_empty(), "lease 2 is held");
    assert_eq!(lone.session.leases().collect::<Vec<_>>(), [lease(2)]);
    lone.session.handle_renewed(slot, current, &Ok(Renewal::Gone), 1.0, at(12_002));
    assert!(matches!(lone.notices()[0], SessionEvent::Lost { .. }));
}

/// The old slot deleted the key under any lease of the session, also under the new one.
#[test]
fn key_moving_to_other_ttl_stays_stored() {
    for others in [&["/b"][..], &[]] {
        let mut world = SessionWorld::new();
        world.register("/a");
        others.iter().for_each(|key| world.register(key));
        let long = Some(Duration::from_secs(60));
        world.session.register("/a".into(), "v".into(), long, PutMode::Overwrite, world.now).unwrap();
        world.settle();
        let pair = world.store.get(&Get::key("/a"), world.now).unwrap().pairs.remove(0);
        assert_eq!((pair.created, pair.version), (Revision(2), 2), "it was never deleted");
        assert_eq!(world.store.leases(world.now).len(), 1 + others.len());
        assert!(world.session.is_settled());
    }
}

#[test]
fn key_moved_and_unregistered_during_outage_is_deleted() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    world.network = Network::Down;
    let long = Some(Duration::from_secs(60));
    world.session.register("/a".into(), "v".into(), long, PutMode::Overwrite, world.now).unwrap();
    world.settle();
    world.unregister("/a");
    world.network = Network::Works;
    world.pass(10_000);
    assert_eq!((world.stored(), world.store.leases(world.now).len()), (vec!["/b".into()], 1));
}

/// A key that was unregistered while its lease was lost was reported as deleted at once, although
/// it was stored under another TTL.
#[test]
fn unregistered_is_reported_after_the_delete() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    world.network = Network::LosesReplies;
    world.pass(16_000);
    world.unregister("/a");
    let is_unregistered = |notice: &SessionEvent| matches!(notice, SessionEvent::Unregistered { .. });
    assert_eq!((world.count(is_unregistered), world.stored().len()), (0, 2));
    world.network = Network::Works;
    world.pass(20_000);
    assert_eq!((world.count(is_unregistered), world.stored()), (1, vec!["/b".into()]));
}

/// A failed revocation was forgotten, and its keys were reported as deleted.
#[test]
fn failed_revocation_is_retried_until_expiry() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.network = Network::Down;
    world.unregister("/a");
    world.pass(3_000);
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Unregistered { .. })), 0);
    assert!(!world.session.is_settled());
    assert_eq!(world.session.unreleased(world.now).leases, 1);
    world.network = Network::Works;
    world.pass(2_000);
    assert_eq!((world.store.leases(world.now).len(), world.session.is_settled()), (0, true));
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Unregistered { .. })), 1);
    world.register("/a");
    world.network = Network::Down;
    world.unregister("/a");
    world.pass(40_000);
    assert!(world.session.is_settled() && world.session.next_wake().is_none(), "retries end with the lease");
}

/// Failing puts beside working renewals were not reported, and the session looked healthy.
#[test]
fn failing_puts_are_reported_while_renewals_work() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.refuses_puts = true;
    world.register("/b");
    world.pass(20_000);
    let is_logged = |notice: &SessionEvent| {
        matches!(notice, SessionEvent::Failing { what: SessionOperation::Put, is_worth_logging: true, .. })
    };
    assert!(world.session.failing_since().is_some());
    assert!((4..=6).contains(&world.count(is_logged)), "{}", world.count(is_logged));
    assert_eq!(world.session.status(world.now), SessionStatus::Live);
    world.refuses_puts = false;
    world.pass(5_000);
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Recovered { .. })), 1);
    assert!(world.session.failing_since().is_none());
}

#[test]
fn simultaneous_lease_failures_are_logged_once() {
    let mut world = SessionWorld::with(SessionConfig { keys_per_lease: 1, ..SessionConfig::DEFAULT });
    for key in ["/a", "/b", "/c", "/d", "/e"] {
        world.register(key);
    }
    assert_eq!(world.session.incarnation(), 1, "growth starts no incarnation");
    world.network = Network::Down;
    world.pass(12_000);
    let firsts = |notice: &SessionEvent| {
        matches!(notice, SessionEvent::Failing { attempt: 1, is_worth_logging: true, .. })
    };
    assert_eq!(world.count(firsts), 1);
    world.network = Network::Works;
    world.pass(5_000);
    assert_eq!(world.count(|notice| matches!(notice, SessionEvent::Recovered { .. })), 1);
}

#[test]
fn failing_first_grant_is_loss_without_reason() {
    let mut world = SessionWorld::new();
    world.network = Network::Down;
    world.register("/a");
    world.pass(3_000);
    assert_eq!(world.session.status(world.now), SessionStatus::Lost { why: None });
}

/// A delete that is in flight when its key moves to another lease must not find it there.
#[test]
fn slot_deletes_only_under_its_leases() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    let long = Some(Duration::from_secs(60));
    world.session.register("/c".into(), "v".into(), long, PutMode::Overwrite, world.now).unwrap();
    world.settle();
    let leases: Vec<LeaseId> = world.session.leases().collect();
    world.session.unregister(&"/a".into(), world.now);
    let Some(SessionOutput::Delete { own_leases, .. }) = world.session.poll_output() else {
        panic!("a delete is requested")
    };
    assert_eq!((leases.len(), own_leases), (2, leases[..1].to_vec()));
}

/// The old lease may still be valid in the store: revoked before its keys have moved, it would
/// delete them.
#[test]
fn old_lease_is_revoked_after_keys_moved() {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(2));
    lone.session.handle_time(at(60_000));
    let Some(SessionOutput::Grant { slot, epoch, ttl }) = lone.session.poll_output() else {
        panic!("a grant")
    };
    let grant = Grant { id: lease(2), ttl, asked_at: at(60_000) };
    lone.session.handle_granted(slot, epoch, &Ok(grant), 1.0, at(60_001));
    let request = lone.put();
    lone.session.handle_time(at(60_100));
    assert_eq!(lone.session.poll_output(), None, "nothing else before the reply");
    lone.reply_to_put(request, KeyOutcome::Done(Revision(3)), at(60_200));
    let next = lone.session.poll_output();
    assert!(matches!(next, Some(SessionOutput::Revoke { lease: old, .. }) if old == lease(1)), "{next:?}");
}

/// The reply to a grant was lost. The lease existed for its whole TTL without an owner.
#[test]
fn ambiguous_grant_is_revoked() {
    let mut world = SessionWorld::new();
    world.network = Network::LosesReplies;
    world.register("/a");
    assert_eq!(world.store.leases(world.now).len(), 0, "its revocation is received too");
    world.network = Network::Works;
    world.unregister("/a");
    world.pass(3_000);
    assert!(world.session.is_settled());
}

/// A lapsed lease may still exist in the store, so the key of a failed delete may still be stored.
#[test]
fn lapsed_lease_confirms_no_pending_delete() {
    let mut world = SessionWorld::new();
    world.register("/a");
    world.register("/b");
    world.network = Network::Down;
    world.unregister("/a");
    world.pass(14_500);
    assert_eq!(world.session.status(world.now), SessionStatus::Lost { why: Some(LossReason::Lapsed) });
    let is_confirmed = |notice: &SessionEvent| matches!(notice, SessionEvent::Unregistered { .. });
    assert_eq!((world.count(is_confirmed), world.stored().len()), (0, 2));
    world.network = Network::Works;
    world.session.handle_store_reachable(world.now);
    world.pass(20_000);
    assert_eq!((world.count(is_confirmed), world.stored()), (1, vec!["/b".into()]));
}

/// The lease lapses while a delete is in flight. The key is registered under the next lease and
/// unregistered again before the reply to the first delete arrives. That reply is not about the
/// second registration.
#[test]
fn late_reply_of_earlier_delete_is_ignored() {
    let (mut lone, epoch, registration) = Lone::with_put_in_flight();
    lone.reply_to_put((epoch, registration), KeyOutcome::Done(Revision(2)), at(2));
    lone.session.register("/b".into(), "v".into(), None, PutMode::Overwrite, at(3)).unwrap();
    lone.put_everything(3);
    lone.session.unregister(&"/a".into(), at(4));
    let former = lone.delete();
    lone.session.handle_time(at(60_000));
    let Some(SessionOutput::Grant { slot, epoch, ttl }) = lone.session.poll_output() else {
        panic!("a grant")
    };
    let grant = Grant { id: lease(2), ttl, asked_at: at(60_000) };
    lone.session.register("/a".into(), "v".into(), None, PutMode::Overwrite, at(60_000)).unwrap();
    lone.session.handle_granted(slot, epoch, &Ok(grant), 1.0, at(60_001));
    lone.put_everything(60_002);
    lone.session.unregister(&"/a".into(), at(60_003));
    let current = lone.delete();
    lone.notices();
    let done = |revision| vec![("/a".into(), KeyOutcome::Done(Revision(revision)))];
    lone.session.handle_deleted(lone.slot, former, done(5), 1.0, at(60_004));
    assert!(lone.notices().is_empty(), "the key is in the store");
    lone.session.handle_deleted(lone.slot, current, done(9), 1.0, at(60_005));
    let notices = lone.notices();
    assert!(matches!(&notices[..], [SessionEvent::Unregistered { .. }, ..]), "{notices:?}");
}
