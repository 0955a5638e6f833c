//! Observers: leaders, gaps, and their bounds.

use std::time::Duration;

use tenure::store::{LeaseId, Store};
use tenure::testing::World;
use tenure_core::id::{ElectionName, Namespace};
use tenure_core::layout::{Key, Layout, QueueKey};
use tenure_core::record::{CandidateRecord, Record};

use super::{next, next_value, on_every_engine, process};

on_every_engine! {
    observer_sees_each_leader_and_gap;
    observer_needs_no_lease;
}

mod claims {
    use std::time::Duration;

    use futures_util::StreamExt;
    use tenure::election::{Observe, TermEnd};
    use tenure::store::Store;

    use super::super::{enter, next, next_value, process, soon};

    pub(super) async fn observer_sees_each_leader_and_gap(store: Store) {
        let ((_a, first), (_b, second), (_c, onlooker)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "c"));
        let mut observe = onlooker.observe();
        let nobody = next(&mut observe).await;
        assert_eq!((nobody.leader, nobody.gap), (None, None));
        let term = first.campaign().value("1").await.unwrap();
        let one = next(&mut observe).await;
        assert_eq!(one.leader.as_ref().unwrap().token, term.token());
        assert!(one.gap.is_some_and(|gap| gap.max.is_none()) && one.revision > nobody.revision);
        term.announce("1b").await.unwrap();
        assert_eq!(next_value(&mut observe).await.as_deref(), Some("1b"));
        let waiting = enter(&store, &second, "2", 2).await;
        read_lease(&mut observe).await;
        term.resign().await.unwrap();
        let two = next(&mut observe).await;
        let second_term = soon(waiting).await.unwrap().unwrap();
        assert_eq!(two.leader.unwrap().token, second_term.token());
        let gap = two.gap.unwrap();
        assert_eq!((gap.end, gap.min), (TermEnd::Resigned, Duration::ZERO), "one followed the other");
        read_lease(&mut observe).await;
        second_term.resign().await.unwrap();
        assert_eq!(next_value(&mut observe).await, None);
        let third = first.campaign().value("3").await.unwrap();
        let three = next(&mut observe).await;
        assert_eq!(three.leader.unwrap().token, third.token());
        assert!(three.gap.is_some_and(|gap| gap.end == TermEnd::Resigned));
    }

    /// An observer that is polled reads the lease of the leader: by it a resignation differs from an expiry.
    async fn read_lease(observe: &mut Observe) {
        let quiet = tokio::time::timeout(Duration::from_millis(500), observe.next()).await;
        assert!(quiet.is_err(), "{quiet:?}");
    }

    pub(super) async fn observer_needs_no_lease(store: Store) {
        let (session, election) = process(&store, "a");
        let mut observe = election.observe();
        assert_eq!(next(&mut observe).await.leader, None);
        assert_eq!((session.lease_id(), store.leases().await.unwrap().len()), (None, 0));
    }
}

/// A list comes in the order of keys. A younger candidate with the smaller key was taken for one that never waited, and was shown as
/// leader although it was dead.
#[tokio::test]
async fn candidate_listed_before_an_older_one_has_waited() {
    let store = Store::memory();
    let (_session, election) = process(&store, "onlooker");
    let layout = Layout::new(&Namespace::parse("t").unwrap());
    let mut leases = Vec::new();
    for (id, candidate) in [(9, "older"), (1, "younger")] {
        let lease = store.grant(Duration::from_secs(60), LeaseId::new(id)).await.unwrap().id;
        let place = QueueKey { lease, nonce: 7 };
        let key = layout.encode(&Key::Candidate(ElectionName::parse("x").unwrap(), place));
        let record = CandidateRecord { candidate: candidate.to_owned(), ..CandidateRecord::default() };
        store.put_leased(key, record.encode(), lease).await.unwrap();
        leases.push(lease);
    }
    let mut observe = election.observe();
    assert_eq!(next(&mut observe).await.leader.unwrap().record.candidate, "older");
    store.revoke(leases[0]).await.unwrap();
    assert_eq!(next(&mut observe).await.leader, None, "no mark and no renewal shows that the younger leads");
}

/// In virtual time, because the length of the gap is what is claimed.
#[tokio::test]
async fn observer_bounds_gap_across_outage_and_compaction() {
    let world = World::new();
    let ((_a, first), (_b, onlooker)) =
        (process(&world.process("a").store(), "a"), process(&world.process("onlooker").store(), "onlooker"));
    let term = first.campaign().value("1").await.unwrap();
    let mut observe = onlooker.observe();
    assert_eq!(next_value(&mut observe).await.as_deref(), Some("1"));
    term.resign().await.unwrap();
    let none = next(&mut observe).await;
    assert_eq!(none.leader, None);
    world.process("onlooker").partition();
    world.advance(Duration::from_secs(7)).await;
    let second = first.campaign().value("2").await.unwrap();
    let token = second.token();
    second.resign().await.unwrap();
    let third = first.campaign().value("3").await.unwrap();
    world.compact(third.token().0).unwrap();
    world.process("onlooker").heal();
    let seen = next(&mut observe).await;
    assert!(third.token() > token);
    assert_eq!(seen.leader.unwrap().token, third.token(), "a term during the outage is not reported");
    assert!(seen.revision > none.revision);
    assert!(seen.gap.is_some_and(|gap| !gap.blind.is_zero()), "{:?}", seen.gap);
}
