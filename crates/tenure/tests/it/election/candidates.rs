//! Becoming leader, staying it, and not becoming it.

use super::on_every_engine;

on_every_engine! {
    one_leads_and_the_next_follows;
    a_leader_that_waited_says_so_to_whoever_is_next_and_to_nobody_else;
    a_candidate_whose_lease_dies_while_it_waits_is_told_at_once_and_never_leads;
    a_failed_campaign_leaves_no_key;
    a_leader_whose_lease_is_revoked_is_told;
    a_new_value_keeps_the_token_and_the_place;
    the_highest_priority_leads_next_and_nobody_is_deposed;
    a_priority_counts_among_candidates_of_one_process;
    who_is_below_0_lets_everybody_else_lead_first;
    a_restarted_leader_takes_its_term_over_before_anybody_else;
    names_do_not_collide_and_strangers_lead_nobody;
    a_value_that_nobody_could_read_is_refused;
}

mod claims {
    use std::time::Duration;

    use tenure::LossReason;
    use tenure::election::{AnnounceError, CampaignError, Elections, Lost, ReleaseError};
    use tenure::store::{Op, Store, Txn};

    use super::super::{keys, namespace, next_value, process, soon, stand, wait_for_keys};

    pub(super) async fn one_leads_and_the_next_follows(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "a"), process(&store, "b"));
        let term = soon(first.campaign().value("1").into_future()).await.unwrap();
        assert!(term.is_valid() && term.remaining() > Duration::from_secs(3));
        let waiting = stand(&store, &second, "2", 2).await;
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

    pub(super) async fn a_leader_that_waited_says_so_to_whoever_is_next_and_to_nobody_else(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "a"), process(&store, "b"));
        let (_c, third) = process(&store, "c");
        let term = soon(first.campaign().value("1").into_future()).await.unwrap();
        let mut observe = third.observe();
        assert_eq!(next_value(&mut observe).await.as_deref(), Some("1"));
        let waiting = stand(&store, &second, "2", 2).await;
        let last = stand(&store, &third, "3", 3).await;
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

    /// etcd issue 19597: there, a candidate whose lease was gone was told that it leads when its predecessor left.
    pub(super) async fn a_candidate_whose_lease_dies_while_it_waits_is_told_at_once_and_never_leads(
        store: Store,
    ) {
        let ((_a, first), (session, second)) = (process(&store, "a"), process(&store, "b"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = stand(&store, &second, "2", 2).await;
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("at once").unwrap();
        assert!(matches!(answer, Err(CampaignError::Lost(_))), "{:?}", answer.err());
        assert_eq!(keys(&store).await, 1);
        term.resign().await.unwrap();
        assert_eq!(second.leader().await.unwrap(), None);
    }

    /// etcd issue 21128: there, a campaign that was given up left its key in the line.
    pub(super) async fn a_failed_campaign_leaves_no_key(store: Store) {
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
        let dropped = stand(&store, &second, "2", 2).await;
        dropped.abort();
        wait_for_keys(&store, 1).await;
        let waiting = stand(&store, &second, "2", 2).await;
        session.close().await.unwrap();
        let answer = soon(waiting).await.unwrap();
        assert!(matches!(answer, Err(CampaignError::Closed)), "{:?}", answer.err());
        wait_for_keys(&store, 1).await;
        drop(term);
        wait_for_keys(&store, 0).await;
    }

    pub(super) async fn a_leader_whose_lease_is_revoked_is_told(store: Store) {
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

    pub(super) async fn a_new_value_keeps_the_token_and_the_place(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "a"), process(&store, "b"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = stand(&store, &second, "2", 2).await;
        term.announce("1b").await.unwrap();
        let leader = second.leader().await.unwrap().unwrap();
        assert_eq!((leader.token, leader.record.value.as_str()), (term.token(), "1b"));
        assert_eq!(term.value(), "1b");
        // Somebody who writes over it takes nothing away: it is ours, and we say again what we say.
        store.txn(Txn::new().then(Op::put_leased(term.fence().key, "junk", term.lease()))).await.unwrap();
        term.announce("1c").await.unwrap();
        let leader = second.leader().await.unwrap().unwrap();
        assert_eq!((leader.record.candidate.as_str(), leader.record.value.as_str()), ("a", "1c"));
        assert!(term.is_valid() && !waiting.is_finished());
        // Another life of the key is not ours.
        store.txn(Txn::new().then(Op::delete(term.fence().key))).await.unwrap();
        assert!(matches!(
            soon(term.announce("1d")).await,
            Err(AnnounceError::Lost(Lost { reason: LossReason::Deleted, .. }))
        ));
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(next.token() > term.token());
    }

    pub(super) async fn the_highest_priority_leads_next_and_nobody_is_deposed(store: Store) {
        let ((_a, leader), (_b, low), (_c, high)) =
            (process(&store, "leader"), process(&store, "low"), process(&store, "high"));
        let (_d, high_too) = process(&store, "high too");
        let term = leader.campaign().value("leader").await.unwrap();
        let low = stand(&store, &low, "low", 2).await;
        let high = tokio::spawn(high.campaign().value("high").priority(5).into_future());
        wait_for_keys(&store, 3).await;
        let high_too = tokio::spawn(high_too.campaign().value("high too").priority(5).into_future());
        wait_for_keys(&store, 4).await;
        assert!(term.is_valid(), "nobody is deposed for a priority");
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

    /// Whoever is next there hears of it from the one that leaves, without a look of its own.
    pub(super) async fn a_priority_counts_among_candidates_of_one_process(store: Store) {
        let (_a, election) = process(&store, "all of them");
        let term = election.campaign().value("leader").await.unwrap();
        let low = stand(&store, &election, "low", 2).await;
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

    /// Those without a priority are above it, and are not where those with one are looked for.
    pub(super) async fn who_is_below_0_lets_everybody_else_lead_first(store: Store) {
        let ((_a, leader), (_b, below), (_c, other)) =
            (process(&store, "leader"), process(&store, "below"), process(&store, "other"));
        let term = leader.campaign().value("leader").await.unwrap();
        let below = tokio::spawn(below.campaign().value("below").priority(-1).into_future());
        wait_for_keys(&store, 2).await;
        let other = stand(&store, &other, "other", 3).await;
        term.resign().await.unwrap();
        let first = soon(other).await.unwrap().unwrap();
        assert!(!below.is_finished(), "somebody without a priority leads before it");
        first.resign().await.unwrap();
        soon(below).await.unwrap().unwrap().resign().await.unwrap();
        wait_for_keys(&store, 0).await;
    }

    pub(super) async fn a_restarted_leader_takes_its_term_over_before_anybody_else(store: Store) {
        let ((_a, before), (_b, other), (_c, after)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "a"));
        let former = before.campaign().value("1").await.unwrap();
        let waiting = stand(&store, &other, "2", 2).await;
        let (former_term, token) = (former.resume_token(), former.token());
        // The former process has been killed: its lease lives on, and nobody has heard of it.
        let term = soon(after.campaign().value("1 again").resume(&former_term).try_now().into_future())
            .await
            .unwrap();
        assert!(term.token() > token);
        assert!(!waiting.is_finished());
        // If it is alive after all, it is told.
        assert_eq!(soon(former.lost()).await.reason, LossReason::Deleted);
        wait_for_keys(&store, 2).await;
        term.resign().await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        // Once the place is gone there is nothing to resume.
        let again = after.campaign().value("1").resume(&former_term).try_now().await;
        assert!(matches!(again, Err(CampaignError::Held { .. })), "{:?}", again.err());
        assert!(next.is_valid());
    }

    pub(super) async fn names_do_not_collide_and_strangers_lead_nobody(store: Store) {
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

    pub(super) async fn a_value_that_nobody_could_read_is_refused(store: Store) {
        let (_session, election) = process(&store, "a");
        let huge = "x".repeat(600 * 1024);
        let answer = election.campaign().value(huge.clone()).await;
        assert!(matches!(answer, Err(CampaignError::ValueTooLarge { .. })));
        let term = election.campaign().value("1").await.unwrap();
        assert!(matches!(term.announce(huge).await, Err(AnnounceError::ValueTooLarge { .. })));
        assert_eq!(election.leader().await.unwrap().unwrap().record.value, "1");
    }
}
