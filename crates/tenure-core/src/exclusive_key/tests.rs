//! Exclusive keys under single faults, and in random worlds.

mod world;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::error::Cause;
use crate::txn::Op;
use world::{ExclusiveKeyWorld, KEY, StoreFault, Strangers, record};

const NOW: Moment = Moment::ORIGIN;
const ONE_SECOND: Duration = Duration::from_secs(1);

fn key() -> ExclusiveKey<crate::record::MemberRecord> {
    let patience = TakeTimeouts { store: Duration::from_secs(10), owner: Duration::ZERO };
    ExclusiveKey::new(record("own"), patience, NOW)
}

/// A stored key with this nonce.
fn pair(nonce: &str, created: i64, lease: i64) -> KeyValue {
    KeyValue {
        key: KEY.into(),
        value: Bytes::from(format!(r#"{{"nonce":"{nonce}"}}"#)),
        created: Revision(created),
        modified: Revision(created),
        version: 1,
        lease: LeaseId::new(lease),
    }
}

fn live(lease: i64) -> SessionView {
    SessionView { held: LeaseId::new(lease), ..SessionView::default() }
}

/// A key that was read as free at revision 5, with its create in flight.
fn registering() -> (ExclusiveKey<crate::record::MemberRecord>, RequestId) {
    let mut key = key();
    key.handle_item(FeedItem::Synced(Revision(5)), NOW);
    let Some(ExclusiveKeyOutput::Create { epoch, .. }) = key.poll_output() else {
        panic!("a free key is created")
    };
    (key, epoch)
}

/// A key that was taken under token 6 and lease 1.
fn kept() -> ExclusiveKey<crate::record::MemberRecord> {
    let (mut key, epoch) = registering();
    key.handle_registered(epoch, RegisterReply::Stored(Revision(6)), NOW);
    key.handle_read(Ok((Some(pair("own", 6, 1)), Revision(6))), NOW);
    key.handle_session(live(1), NOW);
    while key.poll_output().is_some() || key.poll_event().is_some() {}
    key
}

fn statuses<R: IdentifiedRecord>(key: &mut ExclusiveKey<R>) -> Vec<RegistrationStatus> {
    let notices = std::iter::from_fn(|| key.poll_event());
    let status = |notice| if let ExclusiveKeyEvent::Status(status) = notice { Some(status) } else { None };
    notices.filter_map(status).collect()
}

#[test]
fn free_key_is_taken_and_left() {
    let mut world = ExclusiveKeyWorld::new(1, 0);
    world.take(0, Duration::ZERO);
    world.settle();
    let stored = world.stored().unwrap();
    assert_eq!(world.token(0), Some(Token(stored.created)));
    world.leave(0);
    world.settle();
    assert_eq!(world.stored(), None);
    assert!(matches!(world.processes[0].notices.last(), Some(ExclusiveKeyEvent::Left)));
}

/// The session's put is applied and every reply to it lost: the stored nonce shows that the key is
/// this owner's.
#[test]
fn lost_create_reply_is_settled_by_the_nonce() {
    let mut world = ExclusiveKeyWorld::new(1, 0);
    world.take(0, Duration::ZERO);
    while world.stored().is_none() {
        let holds_lease = world.processes[0].session.leases().next().is_some();
        world.fate = if holds_lease { StoreFault::LosesReply } else { StoreFault::Works };
        assert!(world.show(0) || world.deliver(0, 0) || world.send(0, 0));
    }
    let created = world.stored().unwrap().created;
    world.fate = StoreFault::Works;
    world.settle();
    assert_eq!(world.token(0), Some(Token(created)));
}

#[test]
fn nonce_proves_ownership_before_the_reply() {
    let (mut key, epoch) = registering();
    key.handle_item(FeedItem::Put(pair("own", 6, 1)), NOW);
    key.handle_item(FeedItem::Synced(Revision(6)), NOW);
    assert!(key.poll_event().is_none(), "the session does not hold the lease yet");
    key.handle_session(live(1), NOW);
    assert!(matches!(key.poll_event(), Some(ExclusiveKeyEvent::Taken(Token(Revision(6))))));
    key.handle_registered(epoch, RegisterReply::Stored(Revision(7)), NOW);
    assert_eq!(statuses(&mut key), [RegistrationStatus::Member(Token(Revision(6)))]);
    assert_eq!(key.poll_output(), None, "it needs no further read");
}

#[test]
fn key_of_another_process_is_not_taken() {
    for waits in [false, true] {
        let mut world = ExclusiveKeyWorld::new(2, 0);
        world.take(0, Duration::ZERO);
        world.settle();
        world.take(1, if waits { Duration::from_secs(60) } else { Duration::ZERO });
        world.settle();
        let stored = world.stored().unwrap();
        let refused = world.processes[1].notices.iter().any(
            |notice| matches!(notice, ExclusiveKeyEvent::NotTaken(ExclusiveKeyError::Held(pair)) if *pair == stored),
        );
        assert_eq!((refused, world.token(1)), (!waits, None));
        world.leave(0);
        world.settle();
        assert_eq!(world.token(1).is_some(), waits, "a waiter takes the key as soon as it is free");
    }
}

/// Both read the key as free; the other is faster. What the feed shows before the read may be older
/// than that.
#[test]
fn faster_process_is_found_by_a_read() {
    let (mut key, epoch) = registering();
    key.handle_registered(epoch, RegisterReply::Taken, NOW);
    key.handle_item(FeedItem::Synced(Revision(6)), NOW);
    assert_eq!(std::iter::from_fn(|| key.poll_output()).collect::<Vec<_>>(), [ExclusiveKeyOutput::Read]);
    key.handle_read(Ok((Some(pair("other", 7, 9)), Revision(8))), NOW);
    assert!(matches!(key.poll_event(), Some(ExclusiveKeyEvent::NotTaken(ExclusiveKeyError::Held(_)))));
    assert_eq!(key.poll_output(), None, "the session does not register it any more");
}

#[test]
fn deleted_key_returns_with_larger_token() {
    let mut world = ExclusiveKeyWorld::new(1, 0);
    world.take(0, Duration::ZERO);
    world.settle();
    let first = world.token(0).unwrap();
    world.apply(Op::delete(KEY));
    world.settle();
    assert!(world.token(0).unwrap() > first);
    let statuses = statuses_of(&world, 0);
    assert!(
        matches!(statuses[..], [RegistrationStatus::Member(_), RegistrationStatus::Lost, ..]),
        "{statuses:?}"
    );
}

#[test]
fn lost_lease_recovers_with_larger_token() {
    let mut world = ExclusiveKeyWorld::new(1, 0);
    world.take(0, Duration::ZERO);
    world.settle();
    let first = world.token(0).unwrap();
    world.revoke(0);
    world.pass(Duration::from_secs(20));
    assert!(world.token(0).unwrap() > first);
    let statuses = statuses_of(&world, 0);
    assert!(
        matches!(statuses[..], [RegistrationStatus::Member(_), RegistrationStatus::Lost, ..]),
        "{statuses:?}"
    );
}

#[test]
fn lapsed_lease_ends_status_before_expiry() {
    let mut world = ExclusiveKeyWorld::new(1, 0);
    world.take(0, Duration::ZERO);
    world.settle();
    world.fate = StoreFault::NotDone;
    let mut waited = Duration::ZERO;
    while world.token(0).is_some() {
        world.pass(Duration::from_millis(100));
        waited += Duration::from_millis(100);
        assert!(waited < Duration::from_secs(20), "it never lapses");
    }
    assert!(world.stored().is_some(), "the store still has the key");
    assert!(matches!(world.status(0), RegistrationStatus::Lost));
}

/// A process that was killed and started again waits for its own former key, and never takes it for
/// its own.
#[test]
fn rejoin_waits_for_the_former_key() {
    let mut world = ExclusiveKeyWorld::new(2, 0);
    world.take(0, Duration::ZERO);
    world.settle();
    let former = world.token(0).unwrap();
    // The former process is gone: its session renews nothing any more.
    world.stop(0);
    world.take(1, Duration::from_secs(60));
    world.pass(ONE_SECOND);
    assert_eq!(world.token(1), None);
    world.pass(Duration::from_secs(20));
    assert!(world.token(1).unwrap() > former);
}

#[test]
fn second_owner_in_session_is_refused() {
    for is_read in [false, true] {
        let mut second = key();
        let has_key = SessionView { has_key: true, ..SessionView::default() };
        if is_read {
            second.handle_session(has_key, NOW);
            second.handle_item(FeedItem::Put(pair("first", 3, 1)), NOW);
        }
        second.handle_item(FeedItem::Synced(Revision(5)), NOW);
        if let Some(ExclusiveKeyOutput::Create { epoch, .. }) = second.poll_output() {
            second.handle_registered(epoch, RegisterReply::AlreadyRegistered, NOW);
        }
        let end = second.poll_event();
        assert!(
            matches!(end, Some(ExclusiveKeyEvent::NotTaken(ExclusiveKeyError::AlreadyRegistered))),
            "{end:?}"
        );
        second.release();
        assert_eq!(second.poll_output(), None);
    }
}

#[test]
fn replies_to_older_registrations_change_nothing() {
    let mut key = kept();
    let first = key.update(|record| "1".clone_into(&mut record.version), ONE_SECOND, NOW).unwrap();
    let second = key.update(|record| "2".clone_into(&mut record.version), ONE_SECOND, NOW).unwrap();
    key.handle_registered(first, RegisterReply::Taken, NOW);
    key.handle_registered(RequestId(0), RegisterReply::Closed, NOW);
    assert!(key.poll_event().is_none());
    key.handle_registered(second, RegisterReply::Stored(Revision(8)), NOW);
    assert!(matches!(key.poll_event(), Some(ExclusiveKeyEvent::Updated(epoch, Ok(()))) if epoch == second));
    key.handle_registered(second, RegisterReply::Taken, NOW);
    assert!(key.poll_event().is_none(), "a reply is read once");
    assert_eq!(key.status(live(1)), RegistrationStatus::Member(Token(Revision(6))));
}

#[test]
fn refused_update_is_undone_and_identity_kept() {
    let mut key = kept();
    let epoch = key.update(|record| "forged".clone_into(&mut record.nonce), ONE_SECOND, NOW).unwrap();
    key.handle_registered(epoch, RegisterReply::Stored(Revision(8)), NOW);
    assert_eq!(key.record().nonce, "own");
    let before = key.record().clone();
    let epoch = key.update(|record| "x".clone_into(&mut record.version), ONE_SECOND, NOW).unwrap();
    key.handle_registered(epoch, RegisterReply::Invalid(crate::error::InvalidRequest::EmptyKey), NOW);
    let refused = std::iter::from_fn(|| key.poll_event()).last();
    assert!(
        matches!(refused, Some(ExclusiveKeyEvent::Updated(_, Err(UpdateError::Refused(_))))),
        "{refused:?}"
    );
    assert_eq!((key.record(), key.is_over()), (&before, false));
}

#[test]
fn unanswered_update_is_reported_once_and_still_expected() {
    let mut key = kept();
    let epoch = key.update(|record| "2".clone_into(&mut record.version), ONE_SECOND, NOW).unwrap();
    key.handle_time(NOW + ONE_SECOND);
    assert!(matches!(key.poll_event(), Some(ExclusiveKeyEvent::Updated(_, Err(UpdateError::NotYet { .. })))));
    assert_eq!(key.next_wake(), None);
    key.handle_registered(epoch, RegisterReply::Stored(Revision(9)), NOW + ONE_SECOND);
    assert!(key.poll_event().is_none());
    assert_eq!(key.record().version, "2");
}

/// The session finds another process's key before the feed shows it.
#[test]
fn update_of_replaced_key_withdraws_nothing() {
    let mut key = kept();
    let epoch = key.update(|record| "2".clone_into(&mut record.version), ONE_SECOND, NOW).unwrap();
    key.poll_output();
    key.handle_registered(epoch, RegisterReply::Taken, NOW);
    assert_eq!(key.status(live(1)), RegistrationStatus::Lost);
    assert_eq!(key.poll_output(), Some(ExclusiveKeyOutput::Read));
    let other = pair("other", 9, 9);
    key.handle_read(Ok((Some(other.clone()), Revision(9))), NOW);
    assert_eq!(key.status(live(1)), RegistrationStatus::Displaced(ReplacedBy::new(other)));
    let notices: Vec<ExclusiveKeyEvent> = std::iter::from_fn(|| key.poll_event()).collect();
    assert!(
        notices
            .iter()
            .any(|notice| matches!(notice, ExclusiveKeyEvent::Updated(_, Err(UpdateError::Displaced))))
    );
    key.release();
    assert_eq!(key.poll_output(), None);
}

#[test]
fn key_read_under_another_lease_is_not_owned() {
    let mut key = kept();
    for (lease, is_member) in [(1, true), (2, false)] {
        let is = key.status(live(lease)) == RegistrationStatus::Member(Token(Revision(6)));
        assert_eq!(is, is_member);
    }
    key.handle_item(FeedItem::Put(pair("own", 6, 0)), NOW);
    key.handle_item(FeedItem::Synced(Revision(8)), NOW);
    assert_eq!(key.status(live(1)), RegistrationStatus::Lost, "another client took it from its lease");
    assert_eq!(key.status(SessionView { is_closed: true, ..live(1) }), RegistrationStatus::Left);
}

#[test]
fn older_read_does_not_hide_a_newer_one() {
    let mut key = kept();
    key.handle_item(FeedItem::Delete { key: KEY.into(), revision: Revision(9) }, NOW);
    key.handle_item(FeedItem::Synced(Revision(9)), NOW);
    key.handle_read(Ok((Some(pair("own", 6, 1)), Revision(8))), NOW);
    assert_eq!(key.status(live(1)), RegistrationStatus::Lost);
}

#[test]
fn unfollowed_key_is_withdrawn() {
    let mut key = kept();
    key.handle_feed_end(StoreError::Denied("reads".into()), NOW);
    assert_eq!(key.poll_output(), Some(ExclusiveKeyOutput::Withdraw));
    assert_eq!(statuses(&mut key), [RegistrationStatus::Left]);
}

#[test]
fn leave_that_is_not_confirmed_is_reported() {
    let mut key = kept();
    key.leave(NOW + ONE_SECOND, NOW);
    assert_eq!(key.poll_output(), Some(ExclusiveKeyOutput::Withdraw));
    key.handle_time(NOW + ONE_SECOND);
    assert!(matches!(
        std::iter::from_fn(|| key.poll_event()).last(),
        Some(ExclusiveKeyEvent::LeaveUnconfirmed)
    ));
}

#[test]
fn only_permanent_errors_end_a_read() {
    use crate::exchange::{Exchange, ExchangeStep};
    let mut read = ReadKey::new(KEY.into());
    let lost = StoreError::Unavailable(Cause::new("no connection"));
    assert!(matches!(read.handle(Err(lost)), ExchangeStep::Retry(_)));
    assert!(matches!(read.handle(Err(StoreError::Closed)), ExchangeStep::Done(Err(_))));
}

/// Lost and late requests, lapsed leases, feeds that break: no two processes own the key at one
/// moment.
#[test]
fn random_faults_keep_one_owner() {
    let mut taken = 0;
    for seed in 0..400 {
        let mut world = ExclusiveKeyWorld::new(2, seed);
        for _ in 0..400 {
            world.happen(Strangers::None);
            assert!(world.owners_now() <= 1, "two owners in seed {seed}");
            taken += world.owners_now();
        }
        world.come_to_an_end();
    }
    assert!(taken > 10_000, "the worlds are idle: {taken}");
}

/// Other clients revoke leases, delete the key and overwrite it: a token still has one owner, and a
/// leave leaves no key.
#[test]
fn random_interference_shares_no_token() {
    for seed in 0..400 {
        let mut world = ExclusiveKeyWorld::new(2, seed);
        for _ in 0..400 {
            world.happen(Strangers::Interfere);
        }
        world.come_to_an_end();
    }
}

fn statuses_of(world: &ExclusiveKeyWorld, n: usize) -> Vec<RegistrationStatus> {
    let status = |notice: &ExclusiveKeyEvent| {
        if let ExclusiveKeyEvent::Status(status) = notice { Some(status.clone()) } else { None }
    };
    world.processes[n].notices.iter().filter_map(status).collect()
}
