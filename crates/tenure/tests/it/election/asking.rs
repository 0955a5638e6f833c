//! Asking a leader to go.

use super::on_every_engine;

on_every_engine! {
    a_leader_hears_what_others_ask_of_it;
    one_that_leads_in_a_closure_obeys_and_stands_again;
    a_wish_that_cannot_be_obeyed_is_taken_away;
    whoever_asked_learns_who_leads_instead;
    what_is_asked_of_one_who_waits_is_heard_when_it_leads;
    what_is_asked_of_one_who_has_gone_is_an_error;
}

mod claims {
    use tenure::election::{LeadError, StepDownError, StepDownOutcome};
    use tenure::store::Store;
    use tokio::sync::mpsc;

    use super::super::{next_value, process, soon, stand, wait_for_keys};

    pub(super) async fn a_leader_hears_what_others_ask_of_it(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let term = first.campaign().value("1").await.unwrap();
        let _waiting = stand(&store, &second, "2", 2).await;
        let leader = operator.leader().await.unwrap().unwrap();
        operator.request_resign().of(&leader).no_reply().await.unwrap();
        // Telling another value keeps what was asked, seen or not; declining takes it away.
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

    pub(super) async fn one_that_leads_in_a_closure_obeys_and_stands_again(store: Store) {
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
        assert!(!kept.is_valid(), "whoever keeps a term of the past is not fooled");
        assert_eq!(soon(begins.recv()).await.unwrap().0, "2");
        // It stands in line again, and can be handed leadership back.
        wait_for_keys(&store, 2).await;
        let heir = operator.snapshot().await.unwrap().candidates.remove(0);
        let leader = operator.leader().await.unwrap().unwrap();
        operator.request_transfer("").of(&leader).to(&heir).no_reply().await.unwrap();
        let seen = soon(futures_util::StreamExt::next(&mut observe)).await.unwrap().unwrap();
        assert_eq!(seen.leader.expect("no moment without a leader").token, heir.token);
        assert_eq!(soon(begins.recv()).await.unwrap().0, "1");
    }

    pub(super) async fn a_wish_that_cannot_be_obeyed_is_taken_away(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let work = |_| std::future::pending::<()>();
        let leading = {
            let first = first.clone();
            tokio::spawn(async move { first.campaign().value("1").one_term().lead(work).await })
        };
        wait_for_keys(&store, 1).await;
        let waiting = stand(&store, &second, "2", 2).await;
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

    pub(super) async fn whoever_asked_learns_who_leads_instead(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = stand(&store, &second, "2", 2).await;
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

    /// A candidate is the first in the store before it knows; whoever asks then must not be overheard.
    pub(super) async fn what_is_asked_of_one_who_waits_is_heard_when_it_leads(store: Store) {
        let ((_a, first), (_b, second), (_c, operator)) =
            (process(&store, "a"), process(&store, "b"), process(&store, "ops"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = stand(&store, &second, "2", 2).await;
        // Long enough for its own place to be watched.
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        let candidate = operator.snapshot().await.unwrap().candidates.remove(0);
        operator.request_resign().of(&candidate.into()).no_reply().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        term.resign().await.unwrap();
        let term = soon(waiting).await.unwrap().unwrap();
        assert_eq!(soon(term.step_down_requested()).await.by, "ops");
    }

    pub(super) async fn what_is_asked_of_one_who_has_gone_is_an_error(store: Store) {
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
