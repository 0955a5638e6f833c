//! Campaigns that win, that lose their term, and that fail.

use super::on_every_engine;

on_every_engine! {
    next_candidate_follows_the_leader;
    waited_leader_is_marked_in_its_record;
    candidate_with_revoked_lease_never_leads;
    failed_campaign_leaves_no_key;
    leader_with_revoked_lease_loses_its_term;
    announced_value_keeps_token_and_key;
    highest_priority_leads_next_without_deposing;
    priority_counts_within_one_process;
    negative_priority_leads_last;
    resumed_term_precedes_waiting_candidates;
    foreign_keys_and_similar_names_never_lead;
    oversized_value_is_refused;
}

mod claims {
    use std::time::Duration;

    use tenure::LossReason;
    use tenure::election::{AnnounceError, CampaignError, Elections, Lost, ReleaseError};
    use tenure::store::{Op, Store, Txn};

    use super::super::{enter, keys, namespace, next_value, process, soon, wait_for_keys};

    pub(super) async fn next_candidate_follows_the_leader(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "a"), process(&store, "b"));
        let term = soon(first.campaign().value("1").into_future()).await.unwrap();
        assert!(term.is_valid() && term.remaining() > Duration::from_secs(3));
        let waiting = enter(&store, &second, "2", 2).await;
        assert!(!waiting.is_finished());
        let view = second.snapshot().await.unwrap();
        assert_eq!(view.leader.as_ref().unwrap().token, term.token());
        assert_eq!(view.candidates.len(), 1);
        assert_eq!(view.candidates[0].record.candidate, "b");
        let token = term.token();
        term.resign().await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(next.token() > token);
        assert_eq!(first.leader().await.unwrap().unwrap().record.value, "2");
        next.resign().await.unwrap();
        assert_eq!((keys(&store).await, first.leader().await.unwrap()), (0, None));
    }

    pub(super) async fn waited_leader_is_marked_in_its_record(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "a"), process(&store, "b"));
        let (_c, third) = process(&store, "c");
        let term = soon(first.campaign().value("1").into_future()).await.unwrap();
        let mut observe = third.observe();
        assert_eq!(next_value(&mut observe).await.as_deref(), Some("1"));
        let waiting = enter(&store, &second, "2", 2).await;
        let last = enter(&store, &third, "3", 3).await;
        term.resign().await.unwrap();
        let term = soon(waiting).await.unwrap().unwrap();
        soon(async {
            while !third.leader().await.unwrap().unwrap().record.leads {
                tokio::task::yield_now().await;
            }
        })
        .await;
        term.announce("new").await.unwrap();
        assert!(third.leader().await.unwrap().unwrap().record.leads);
        for value in ["2", "new"] {
            assert_eq!(next_value(&mut observe).await.as_deref(), Some(value));
        }
        term.resign().await.unwrap();
        let term = soon(last).await.unwrap().unwrap();
        assert_eq!(next_value(&mut observe).await.as_deref(), Some("3"));
        term.resign().await.unwrap();
        assert_eq!(keys(&store).await, 0);
    }

    /// etcd issue 19597: there, a candidate with an expired lease won the election when its predecessor resigned.
    pub(super) async fn candidate_with_revoked_lease_never_leads(store: Store) {
        let ((_a, first), (session, second)) = (process(&store, "a"), process(&store, "b"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = enter(&store, &second, "2", 2).await;
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("at once").unwrap();
        assert!(matches!(answer, Err(CampaignError::Lost(_))), "{:?}", answer.err());
        assert_eq!(keys(&store).await, 1);
        term.resign().await.unwrap();
        assert_eq!(second.leader().await.unwrap(), None);
    }

    /// etcd issue 21128: there, a cancelled campaign left its key in the queue.
    pub(super) async fn failed_campaign_leaves_no_key(store: Store) {
        let ((_a, first), (session, second)) = (process(&store, "a"), process(&store, "b"));
        let term = first.campaign().value("1").await.unwrap();
        let held = |answer: Result<_, CampaignError>| {
            assert!(matches!(answer, Err(CampaignError::Held { .. })), "{:?}", answer.err());
        };
        held(soon(second.campaign().value("2").try_now().into_future()).await.map(drop));
        let wait = Duration::from_millis(200);
        let answer = second.campaign().value("2").timeout(wait).await;
        let is_timeout = matches!(answer, Err(CampaignError::Timeout { after, .. }) if after == wait);
        assert!(is_timeout, "{:?}", answer.err());
        wait_for_keys(&store, 1).await;
        let dropped = enter(&store, &second, "2", 2).await;
        dropped.abort();
        wait_for_keys(&store, 1).await;
        let waiting = enter(&store, &second, "2", 2).await;
        session.close().await.unwrap();
        let answer = soon(waiting).await.unwrap();
        assert!(matches!(answer, Err(CampaignError::Closed)), "{:?}", answer.err());
        wait_for_keys(&store, 1).await;
        drop(term);
        wait_for_keys(&store, 0).await;
    }

    pub(super) async fn leader_with_revoked_lease_loses_its_term(store: Store) {
        let (session, election) = process(&store, "a");
        let term = election.campaign().value("1").await.unwrap();
        let work = term.run(std::future::pending::<()>());
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        assert!(soon(work).await.is_err());
        assert!(!term.is_valid() && term.remaining().is_zero());
        assert!(matches!(term.announce("2").await, Err(AnnounceError::Lost(_))));
        assert!(matches!(term.resign().await, Err(ReleaseError::Lost(_))));
        soon(election.campaign().value("3").into_future()).await.unwrap().resign().await.unwrap();
    }

    pub(super) async fn announced_value_keeps_token_and_key(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "a"), process(&store, "b"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = enter(&store, &second, "2", 2).await;
        term.announce("1b").await.unwrap();
        let leader = second.leader().await.unwrap().unwrap();
        assert_eq!((leader.token, leader.record.value.as_str()), (term.token(), "1b"));
        assert_eq!(term.value(), "1b");
        // Another client overwrites the record: the leader owns the key, and its next announcement replaces the value.
        store.txn(Txn::new().then(Op::put_leased(term.fence().key, "junk", term.lease()))).await.unwrap();
        term.announce("1c").await.unwrap();
        let leader = second.leader().await.unwrap().unwrap();
        assert_eq!((leader.record.candidate.as_str(), leader.record.value.as_str()), ("a", "1c"));
        assert!(term.is_valid() && !waiting.is_finished());
        // Another incarnation of the key belongs to another owner.
        store.txn(Txn::new().then(Op::delete(term.fence().key))).await.unwrap();
        assert!(matches!(
            soon(term.announce("1d")).await,
            Err(AnnounceError::Lost(Lost { reason: LossReason::Deleted, .. }))
        ));
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(next.token() > term.token());
    }

    pub(super) async fn highest_priority_leads_next_without_deposing(store: Store) {
        let ((_a, leader), (_b, low), (_c, high)) =
            (process(&store, "leader"), process(&store, "low"), process(&store, "high"));
        let (_d, high_too) = process(&store, "high too");
        let term = leader.campaign().value("leader").await.unwrap();
        let low = enter(&store, &low, "low", 2).await;
        let high = tokio::spawn(high.campaign().value("high").priority(5).into_future());
        wait_for_keys(&store, 3).await;
        let high_too = tokio::spawn(high_too.campaign().value("high too").priority(5).into_future());
        wait_for_keys(&store, 4).await;
        assert!(term.is_valid(), "a priority deposes no leader");
        term.resign().await.unwrap();
        let first = soon(high).await.unwrap().unwrap();
        assert!(!low.is_finished() && !high_too.is_finished(), "the oldest of the highest leads");
        wait_for_keys(&store, 3).await;
        let token = first.token();
        first.resign().await.unwrap();
        let second = soon(high_too).await.unwrap().unwrap();
        assert!(second.token() > token && !low.is_finished());
        second.resign().await.unwrap();
        let third = soon(low).await.unwrap().unwrap();
        assert!(third.token() > token);
        third.resign().await.unwrap();
        wait_for_keys(&store, 0).await;
    }

    /// The reply to the release of the leader shows the queue to the next candidate, which needs no read of its own.
    pub(super) async fn priority_counts_within_one_process(store: Store) {
        let (_a, election) = process(&store, "all of them");
        let term = election.campaign().value("leader").await.unwrap();
        let low = enter(&store, &election, "low", 2).await;
        let high = tokio::spawn(election.campaign().value("high").priority(1).into_future());
        wait_for_keys(&store, 3).await;
        let higher = tokio::spawn(election.campaign().value("higher").priority(2).into_future());
        wait_for_keys(&store, 4).await;
        term.resign().await.unwrap();
        let first = soon(higher).await.unwrap().unwrap();
        assert!(!low.is_finished() && !high.is_finished(), "the highest leads");
        first.resign().await.unwrap();
        let second = soon(high).await.unwrap().unwrap();
        assert!(!low.is_finished());
        second.resign().await.unwrap();
        soon(low).await.unwrap().unwrap().resign().await.unwrap();
        wait_for_keys(&store, 0).await;
    }

    /// Candidates without a priority are above it, and are not in the part of the queue that is read for priorities.
    pub(super) async fn negative_priority_leads_last(store: Store) {
        let ((_a, leader), (_b, below), (_c, other)) =
            (process(&store, "leader"), process(&store, "below"), process(&store, "other"));
        let term = leader.campaign().value("leader").await.unwrap();
        let below = tokio::spawn(below.campaign().value("below").priority(-1).into_future());
        wait_for_keys(&store, 2).await;
        let other = enter(&store, &other, "other", 3).await;
        term.resign().await.unwrap();
        let first = soon(other).await.unwrap().unwrap();
        assert!(!below.is_finished(), "a candidate without a priority leads before it");
        first.resign().await.unwrap();
        soon(below).await.unwrap().unwrap().resign().await.unwrap();
        wait_for_keys(&store, 0).await;
    }

    pub(super) async fn resumed_term_precedes_waiting_candidates(store: Store) {
        let ((_a, before), (_b, other), (_c, after)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "a"));
        let former = before.campaign().value("1").await.unwrap();
        let waiting = enter(&store, &other, "2", 2).await;
        let (former_term, token) = (former.resume_token(), former.token());
        // The former process was killed: its lease has not expired, and no other process has noticed.
        let term = soon(after.campaign().value("1 again").resume(&former_term).try_now().into_future())
            .await
            .unwrap();
        assert!(term.token() > token);
        assert!(!waiting.is_finished());
        // If it is alive after all, its term is lost.
        assert_eq!(soon(former.lost()).await.reason, LossReason::Deleted);
        wait_for_keys(&store, 2).await;
        term.resign().await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        // Once the key is deleted there is no term to resume.
        let again = after.campaign().value("1").resume(&former_term).try_now().await;
        assert!(matches!(again, Err(CampaignError::Held { .. })), "{:?}", again.err());
        assert!(next.is_valid());
    }

    pub(super) async fn foreign_keys_and_similar_names_never_lead(store: Store) {
        let (session, _) = process(&store, "a");
        let elections = Elections::new(&session, &namespace());
        store.txn(Txn::new().then(Op::put("/t/elections/a/stranger", "boo"))).await.unwrap();
        let a = elections.election("a");
        assert_eq!(a.leader().await.unwrap(), None);
        let term = soon(a.campaign().value("1").into_future()).await.unwrap();
        let below = soon(elections.election("a/b").campaign().value("2").into_future()).await.unwrap();
        assert_eq!(a.leader().await.unwrap().unwrap().token, term.token());
        let names: Vec<String> =
            elections.list().await.unwrap().elections.iter().map(|view| view.name.to_string()).collect();
        assert_eq!(names, ["a", "a/b"]);
        below.resign().await.unwrap();
        term.resign().await.unwrap();
        for bad in ["", "a\0b", &"x".repeat(300)] {
            assert!(elections.election(bad).leader().await.is_err());
        }
    }

    pub(super) async fn oversized_value_is_refused(store: Store) {
        let (_session, election) = process(&store, "a");
        let huge = "x".repeat(600 * 1024);
        let answer = election.campaign().value(huge.clone()).await;
        assert!(matches!(answer, Err(CampaignError::ValueTooLarge { .. })));
        let term = election.campaign().value("1").await.unwrap();
        assert!(matches!(term.announce(huge).await, Err(AnnounceError::ValueTooLarge { .. })));
        assert_eq!(election.leader().await.unwrap().unwrap().record.value, "1");
    }
}
