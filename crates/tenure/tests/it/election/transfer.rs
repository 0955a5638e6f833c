//! Transfers of leadership.

use super::on_every_engine;

on_every_engine! {
    transfer_to_last_leaves_no_gap;
    transfer_to_absent_candidate_keeps_leadership;
    transfer_overtakes_three_hundred_candidates;
}

mod claims {
    use std::collections::BTreeSet;

    use tenure::election::{Election, TransferError};
    use tenure::session::Session;
    use tenure::store::Store;
    use tokio::task::JoinSet;

    use super::super::{enter, keys, next, process, soon, wait_for_keys};

    pub(super) async fn transfer_to_last_leaves_no_gap(store: Store) {
        let everybody: Vec<(Session, Election)> = (0..5).map(|n| process(&store, &n.to_string())).collect();
        let (_o, onlooker) = process(&store, "onlooker");
        let term = everybody[0].1.campaign().value("0").await.unwrap();
        let mut observe = onlooker.observe();
        assert_eq!(next(&mut observe).await.leader.unwrap().token, term.token());
        let mut waiting = Vec::new();
        for (n, (_, election)) in everybody.iter().enumerate().skip(1) {
            waiting.push(enter(&store, election, &n.to_string(), n + 1).await);
        }
        let heir = onlooker.snapshot().await.unwrap().candidates.pop().unwrap();
        assert_eq!(heir.record.value, "4");
        let token = term.token();
        term.transfer(&heir).await.unwrap();
        let seen = next(&mut observe).await.leader.expect("no moment without a leader");
        assert_eq!((seen.token, seen.record.value.as_str()), (heir.token, "4"));
        let heir = soon(waiting.pop().unwrap()).await.unwrap().unwrap();
        assert!(heir.token() == seen.token && heir.token() > token);
        // The overtaken candidates enter the queue again, and lead later with larger tokens.
        wait_for_keys(&store, 4).await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        let mut last = heir.token();
        let mut led = BTreeSet::new();
        heir.resign().await.unwrap();
        let mut waiting: JoinSet<_> =
            waiting.into_iter().map(|waiting| async { waiting.await.unwrap() }).collect();
        while let Some(term) = soon(waiting.join_next()).await {
            let term = term.unwrap().unwrap();
            let seen = next(&mut observe).await.leader.expect("a candidate waits, so one leads");
            assert!(term.token() > last && seen.token == term.token());
            last = term.token();
            led.insert(term.value());
            term.resign().await.unwrap();
        }
        assert_eq!(led.into_iter().collect::<String>(), "123");
        assert_eq!(next(&mut observe).await.leader, None);
        assert_eq!(keys(&store).await, 0);
    }

    pub(super) async fn transfer_to_absent_candidate_keeps_leadership(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "a"), process(&store, "b"));
        let term = first.campaign().value("1").await.unwrap();
        let waiting = enter(&store, &second, "2", 2).await;
        let heir = first.snapshot().await.unwrap().candidates.remove(0);
        waiting.abort();
        wait_for_keys(&store, 1).await;
        let token = term.token();
        let Err(TransferError::NotACandidate(term)) = term.transfer(&heir).await else { panic!() };
        assert!(term.is_valid() && term.token() == token);
        term.announce("1b").await.unwrap();
    }

    /// 300 candidates of one process are overtaken in several requests; only the chosen candidate leads.
    pub(super) async fn transfer_overtakes_three_hundred_candidates(store: Store) {
        let ((_a, first), (_b, crowd), (_c, last)) =
            (process(&store, "a"), process(&store, "crowd"), process(&store, "last"));
        let (_o, onlooker) = process(&store, "onlooker");
        let term = first.campaign().value("first").await.unwrap();
        let mut passed_over = JoinSet::new();
        for n in 0..300 {
            passed_over.spawn(crowd.campaign().value(n.to_string()).into_future());
        }
        wait_for_keys(&store, 301).await;
        let waiting = enter(&store, &last, "last", 302).await;
        let mut observe = onlooker.observe();
        assert_eq!(next(&mut observe).await.leader.unwrap().token, term.token());
        let heir = onlooker.snapshot().await.unwrap().candidates.pop().unwrap();
        term.transfer(&heir).await.unwrap();
        assert_eq!(next(&mut observe).await.leader.unwrap().token, heir.token, "no leader in between");
        let term = soon(waiting).await.unwrap().unwrap();
        assert_eq!(term.token(), heir.token);
        wait_for_keys(&store, 301).await;
        assert!(passed_over.try_join_next().is_none());
    }
}
