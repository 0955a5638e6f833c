//! Handlers that have to stop: because the task was deleted, because the node ends, and those that do not.

use tenure::worker::ShutdownError;

use super::*;

#[tokio::test]
async fn a_task_deleted_while_it_runs_stops() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        shop.submit("t1").await;
        shop.submit_with("t2", r#""ignore""#).await;
        let a = shop.join("a").await;
        until("both run", async || shop.ledger.running().len() == 2).await;
        for id in ["t1", "t2"] {
            let parts = Txn::new()
                .then(Op::delete(shop.key(&Key::Task(task(id)))))
                .then(Op::Delete(shop.layout.task_parts(&task(id))));
            shop.store.txn(parts).await.unwrap();
        }
        until("both have stopped", async || shop.ledger.running().is_empty()).await;
        assert_eq!(shop.store.list(shop.layout.tasks()).await.unwrap().pairs.len(), 0);
        assert_eq!(shop.store.list(shop.layout.states()).await.unwrap().pairs.len(), 0);
        a.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn unstoppable_handler_is_named_and_keeps_claim() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        shop.submit_with("stubborn", r#""block""#).await;
        shop.submit("meek").await;
        let a = shop.join("a").await;
        until("both run", async || shop.ledger.running().len() == 2).await;
        let begun = Instant::now();
        let error = a.node.shutdown().timeout(Duration::from_secs(2)).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        let ShutdownError::StillRunning { tasks: running } = &error else { panic!("{error}") };
        assert_eq!(running, &[task("stubborn")]);
        assert_eq!(
            error.to_string(),
            "one handler did not stop in time, so its task was not released: stubborn"
        );
        assert_eq!(shop.owner("meek").await, None);
        assert!(shop.owner("stubborn").await.is_some());
        let _ = a.session.close().await;
        assert!(shop.owner("stubborn").await.is_some(), "closing the session does not release it either");
        shop.ledger.open_gate();
    })
    .await;
}

#[tokio::test]
async fn dropped_worker_handle_releases_tasks() {
    let shop = Shop::new(Store::memory());
    shop.submit("t").await;
    let Worker { node, session } = shop.join("a").await;
    until("it runs", async || shop.ledger.running().len() == 1).await;
    drop(node);
    until("it is released", async || shop.owner("t").await.is_none()).await;
    assert_eq!(shop.ledger.running().len(), 0);
    session.close().await.unwrap();
    assert_eq!(shop.store.leases().await.unwrap().len(), 0);
}
