//! Requests to a leader to resign or to transfer.

use super::on_every_engine;

on_every_engine! {
    leader_receives_step_down_requests;
    lead_accepts_request_and_campaigns_again;
    request_for_absent_candidate_is_deleted;
    sender_of_request_learns_next_leader;
    request_to_waiting_candidate_is_received_later;
    request_to_former_leader_fails;
}

mod claims {
    use tenure::election::{LeadError, StepDownError, StepDownOutcome};
    use tenure::store::Store;
    use tokio::sync::mpsc;

    use super::super::{enter, next_value, process, soon, wait_for_keys};

    pub(super) async fn leader_receives_step_down_requests(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let term = first.campaign().value("1").await.unwrap();
        let _waiting = enter(&store, &second, "2", 2).await;
        let leader = operator.leader().await.unwrap().unwrap();
        operator.request_resign().of(&leader).no_reply().await.unwrap();
        // An announcement keeps the stored request, received or not; declining deletes it.
        term.announce("1a").await.unwrap();
        let request = soon(term.step_down_requested()).await;
        assert_eq!((request.by.as_str(), &request.transfer_to), ("ops", &None));
        term.announce("1b").await.unwrap();
        let record = operator.leader().await.unwrap().unwrap().record;
        assert!(record.asked.is_some() && record.value == "1b");
        term.decline(request).await.unwrap();
        assert_eq!(operator.leader().await.unwrap().unwrap().record.asked, None);
        let heir = operator.snapshot().await.unwrap().candidates.remove(0);
        operator.request_transfer("").of(&leader).to(&heir).no_reply().await.unwrap();
        let request = soon(term.step_down_requested()).await;
        assert_eq!((request.by.as_str(), request.transfer_to.unwrap().place), ("ops", heir.place));
        term.transfer(&heir).await.unwrap();
        assert_eq!(operator.leader().await.unwrap().unwrap().token, heir.token);
    }

    pub(super) async fn lead_accepts_request_and_campaigns_again(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let mut observe = operator.observe();
        assert_eq!(next_value(&mut observe).await, None);
        let (began, mut begins) = mpsc::unbounded_channel();
        let lead = |election: tenure::election::Election, value: &'static str| {
            let began = began.clone();
            tokio::spawn(async move {
                let work = |term: tenure::election::Term| {
                    let began = began.clone();
                    async move {
                        began.send((value, term)).unwrap();
                        std::future::pending::<()>().await;
                    }
                };
                election.campaign().value(value).lead(work).await
            })
        };
        let _first = lead(first, "1");
        let (who, kept) = soon(begins.recv()).await.unwrap();
        assert_eq!(who, "1");
        let _second = lead(second, "2");
        wait_for_keys(&store, 2).await;
        assert_eq!(next_value(&mut observe).await.as_deref(), Some("1"));
        operator.request_resign().no_reply().await.unwrap();
        assert_eq!(next_value(&mut observe).await.as_deref(), Some("2"));
        assert!(!kept.is_valid(), "a kept term of the past is invalid");
        assert_eq!(soon(begins.recv()).await.unwrap().0, "2");
        // It campaigns again, and leadership can be transferred back.
        wait_for_keys(&store, 2).await;
        let heir = operator.snapshot().await.unwrap().candidates.remove(0);
        let leader = operator.leader().await.unwrap().unwrap();
        operator.request_transfer("").of(&leader).to(&heir).no_reply().await.unwrap();
        let seen = soon(futures_util::StreamExt::next(&mut observe)).await.unwrap().unwrap();
        assert_eq!(seen.leader.expect("no moment without a leader").token, heir.token);
        assert_eq!(soon(begins.recv()).await.unwrap().0, "1");
    }

    pub(super) async fn request_for_absent_candidate_is_deleted(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let work = |_| std::future::pending::<()>();
        let leading = {
            let first = first.clone();
            tokio::spawn(async move { first.campaign().value("1").one_term().lead(work).await })
        };
        wait_for_keys(&store, 1).await;
        let waiting = enter(&store, &second, "2", 2).await;
        let heir = operator.snapshot().await.unwrap().candidates.remove(0);
        waiting.abort();
        wait_for_keys(&store, 1).await;
        let leader = operator.leader().await.unwrap().unwrap();
        let request = operator.request_transfer("").of(&leader).to(&heir);
        assert_eq!(soon(request.into_future()).await.unwrap(), StepDownOutcome::Declined);
        assert_eq!(operator.leader().await.unwrap().unwrap().token, leader.token);
        operator.request_resign().of(&leader).no_reply().await.unwrap();
        assert!(matches!(soon(leading).await.unwrap(), Err(LeadError::SteppedDown { by }) if by == "ops"));
    }

    pub(super) async fn sender_of_request_learns_next_leader(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = enter(&store, &second, "2", 2).await;
        let heir = operator.snapshot().await.unwrap().candidates.remove(0);
        let asking = tokio::spawn(operator.request_transfer("b").into_future());
        let request = soon(term.step_down_requested()).await;
        assert_eq!(request.by, "ops");
        assert_eq!(request.transfer_to.as_ref().map(|candidate| candidate.place), Some(heir.place));
        assert!(term.is_valid(), "the work has yet to be stopped");
        term.accept(&request).await.unwrap();
        let StepDownOutcome::SteppedDown { next: Some(now) } = soon(asking).await.unwrap().unwrap() else {
            panic!("no moment without a leader")
        };
        assert_eq!(now.token, heir.token);
        let term = soon(waiting).await.unwrap().unwrap();
        let asking = tokio::spawn(operator.request_resign().of(&now).into_future());
        let request = soon(term.step_down_requested()).await;
        term.accept(&request).await.unwrap();
        let outcome = soon(asking).await.unwrap().unwrap();
        assert_eq!(outcome, StepDownOutcome::SteppedDown { next: None });
    }

    /// A candidate is the oldest in the store before it notices that: a request sent then must not be missed.
    pub(super) async fn request_to_waiting_candidate_is_received_later(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = enter(&store, &second, "2", 2).await;
        // Long enough for its own key to be watched.
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        let candidate = operator.snapshot().await.unwrap().candidates.remove(0);
        operator.request_resign().of(&candidate.into()).no_reply().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        term.resign().await.unwrap();
        let term = soon(waiting).await.unwrap().unwrap();
        assert_eq!(soon(term.step_down_requested()).await.by, "ops");
    }

    pub(super) async fn request_to_former_leader_fails(store: Store) {
        let ((_a, first), (_b, operator)) = (process(&store, "a"), process(&store, "ops"));
        let term = first.campaign().value("1").await.unwrap();
        let leader = operator.leader().await.unwrap().unwrap();
        term.resign().await.unwrap();
        let _next = first.campaign().value("2").await.unwrap();
        let request = operator.request_resign().of(&leader);
        assert!(matches!(request.await, Err(StepDownError::NoLeader)));
        assert_eq!(operator.leader().await.unwrap().unwrap().record.asked, None);
    }
}
