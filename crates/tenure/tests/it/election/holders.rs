//! The leader, as the error of another candidate names it.

use super::on_every_engine;

on_every_engine! {
    failed_try_names_the_leader;
    expired_wait_names_the_leader;
    unreadable_record_names_no_leader;
}

mod claims {
    use std::time::Duration;

    use tenure::election::CampaignError;
    use tenure::identity::{self, Identity};
    use tenure::store::{Op, Store, Txn};

    use super::super::{enter, process, soon, wait_for_keys};

    const WAIT: Duration = Duration::from_secs(1);

    /// A candidate of this process; its program is not stored.
    fn candidate(name: &str) -> Identity {
        Identity { node: name.to_owned(), program: String::new(), ..identity::current() }
    }

    pub(super) async fn failed_try_names_the_leader(store: Store) {
        let ((_a, first), (_b, second), (_c, third)) =
            (process(&store, "web-1"), process(&store, "web-2"), process(&store, "web-3"));
        let term = soon(first.campaign().value("1").into_future()).await.unwrap();
        let waiting = enter(&store, &second, "2", 2).await;
        let error = soon(third.campaign().value("3").try_now().into_future()).await.map(drop).unwrap_err();
        let Identity { host, pid, .. } = identity::current();
        assert_eq!(error.to_string(), format!("election 'x' is led by web-1, pid {pid} on {host}"));
        let CampaignError::Held { by, .. } = error else { panic!("{error:?} is no refusal") };
        assert_eq!(by, Some(candidate("web-1")));
        term.resign().await.unwrap();
        soon(waiting).await.unwrap().unwrap().resign().await.unwrap();
        wait_for_keys(&store, 0).await;
    }

    pub(super) async fn expired_wait_names_the_leader(store: Store) {
        let ((_a, first), (_b, second), (_c, third)) =
            (process(&store, "web-1"), process(&store, "web-2"), process(&store, "web-3"));
        let term = soon(first.campaign().value("1").into_future()).await.unwrap();
        let waiting = enter(&store, &second, "2", 2).await;
        let error =
            soon(third.campaign().value("3").timeout(WAIT).into_future()).await.map(drop).unwrap_err();
        let Identity { host, pid, .. } = identity::current();
        let led = format!("timed out after 1s waiting for election 'x' (led by web-1, pid {pid} on {host})");
        assert_eq!(error.to_string(), led);
        let CampaignError::Timeout { by, .. } = error else { panic!("{error:?} is no expired wait") };
        assert_eq!(by, Some(candidate("web-1")));
        term.resign().await.unwrap();
        soon(waiting).await.unwrap().unwrap().resign().await.unwrap();
    }

    pub(super) async fn unreadable_record_names_no_leader(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store, "web-1"), process(&store, "web-2"));
        let term = soon(first.campaign().value("1").into_future()).await.unwrap();
        let garbage = Op::put_leased(term.fence().key, "garbage", term.lease());
        store.txn(Txn::new().then(garbage)).await.unwrap();
        let refused = soon(second.campaign().value("2").try_now().into_future()).await.map(drop);
        assert!(matches!(refused, Err(CampaignError::Held { by: None, .. })), "{refused:?}");
        term.resign().await.unwrap();
    }
}
