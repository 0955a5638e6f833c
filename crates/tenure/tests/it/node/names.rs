//! One task's end leaves others alone, and what has ended does not come back.

use tenure::NewTask;
use tenure::task::SubmitError;
use tenure_core::task::TaskMessage;

use super::*;
use crate::client::tenure_on;

fn client(shop: &Shop) -> Tenure {
    tenure_on(&shop.store, &shop.namespace)
}

/// A client deletes `t1`, then a handler completes a new `t1`. Other tasks with ids that begin with `t1` keep running.
#[tokio::test]
async fn ended_task_leaves_similar_ids_alone() {
    on_every_engine(async |store| {
        let shop = Shop::without_lapse(store);
        let client = client(&shop);
        let worker = shop.join("a").await;
        for id in ["t1", "t10", "t11", "t1/props"] {
            shop.submit(id).await;
        }
        until("all run", async || shop.ledger.running().len() == 4).await;
        client.task(task("t1")).delete().await.unwrap();
        until("one has stopped", async || shop.ledger.running().len() == 3).await;
        // A new life of the same name, which its handler ends.
        shop.submit_with("t1", r#""done""#).await;
        until("it is completed", async || shop.state("t1").await.state == TaskStatus::Completed).await;
        until("it is gone", async || shop.owner("t1").await.is_none()).await;
        for id in ["t10", "t11", "t1/props"] {
            let runs = shop.ledger.runs_of(id);
            assert!(runs.len() == 1 && runs[0].ended.is_none(), "{id}: {runs:?}");
            assert_eq!(shop.owner(id).await, Some(("a".to_owned(), runs[0].token)), "{id}");
        }
        worker.end().await;
        shop.ledger.check();
    })
    .await;
}

#[tokio::test]
async fn finished_id_runs_again_after_rerun() {
    on_every_engine(async |store| {
        let shop = Shop::without_lapse(store);
        let client = client(&shop);
        let worker = shop.join("a").await;
        // One that failed, and one that is done.
        for (id, ends) in [("failed", TaskState::Failed), ("done", TaskState::Completed)] {
            let does = if ends == TaskState::Failed { r#""fault""# } else { r#""done""# };
            let new = || NewTask::new("").id(id).props_json(does);
            client.submit(new()).await.unwrap();
            if ends == TaskState::Failed {
                // The task sleeps after its first fault. An error in state `Fault` would end it, and the policy does after eight errors; error commands take less time.
                until("it sleeps", async || shop.state(id).await.state.kind() == TaskState::Sleeping).await;
                fail(&shop, &client, id).await;
            }
            until("it has ended", async || shop.state(id).await.state.kind() == ends).await;
            let runs = shop.ledger.runs_of(id).len();
            let refused = client.submit(new()).await;
            assert!(matches!(refused, Err(SubmitError::Finished { state }) if state == ends), "{refused:?}");
            // What is submitted afterwards runs, so the node has seen this one too.
            shop.submit_with(&format!("after-{id}"), r#""done""#).await;
            until("the next is done", async || {
                shop.state(&format!("after-{id}")).await.state == TaskStatus::Completed
            })
            .await;
            assert_eq!(shop.ledger.runs_of(id).len(), runs, "{id} was not run");
            assert_eq!(shop.state(id).await.state.kind(), ends);
            client.submit(new().rerun()).await.unwrap();
            until("it runs", async || shop.ledger.runs_of(id).len() > runs).await;
        }
        worker.end().await;
        shop.ledger.check();
    })
    .await;
}

/// Errors until there are too many.
async fn fail(shop: &Shop, client: &Tenure, id: &str) {
    for _ in 0..10 {
        if shop.state(id).await.state == TaskStatus::Failed {
            return;
        }
        let error = TaskMessage::Error { message: "and again".to_owned() };
        let sent = client.task(task(id)).command(error).no_reply().await.unwrap();
        sent.reply().timeout(PATIENCE).await.unwrap();
    }
}

/// Two tasks on three nodes do not move, and a node without tasks counts for the shares.
#[tokio::test]
async fn balanced_tasks_stay_and_idle_nodes_count() {
    on_every_engine(async |store| {
        let shop = Shop::without_lapse(store);
        let soon = |options: WorkerBuilder| options.rebalance_every(Duration::from_millis(200));
        let mut workers = Vec::new();
        for id in ["a", "b", "c"] {
            workers.push(shop.join_as(id, soon).await);
        }
        until_acquainted(&workers).await;
        shop.submit("t1").await;
        shop.submit("t2").await;
        until("both run", async || shop.ledger.running().len() == 2).await;
        // By then the balancer of each node has decided several times what to release.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(shop.ledger.runs().len(), 2, "{:?}", shop.ledger.runs());
        let mut shares: Vec<usize> = shop.shares().await.into_values().collect();
        shares.sort_unstable();
        assert_eq!(shares, [1, 1]);
        // Four more: the one without any is counted, so each gets two, or the one beyond.
        for n in 3..=6 {
            shop.submit(&format!("t{n}")).await;
        }
        until("all run", async || shop.ledger.running().len() == 6).await;
        until("each node has two", async || {
            let shares = shop.shares().await;
            shares.len() == 3 && shares.values().all(|&share| share == 2)
        })
        .await;
        // A node that shuts down is not counted: its tasks go to the others, and no share is reserved for it.
        workers.remove(0).end().await;
        until("the others have three each", async || {
            let shares = shop.shares().await;
            shares.len() == 2 && shares.values().all(|&share| share == 3)
        })
        .await;
        for worker in workers {
            worker.end().await;
        }
        shop.ledger.check();
    })
    .await;
}

/// It is still there and still has a task, because its handler does not stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn node_in_shutdown_is_not_counted() {
    on_every_engine(async |store| {
        let shop = Shop::without_lapse(store);
        let Worker { node, session } = shop.join("a").await;
        shop.submit_with("stubborn", r#""block""#).await;
        until("it runs", async || shop.ledger.running().len() == 1).await;
        let others = [shop.join("b").await, shop.join("c").await];
        let ending = tokio::spawn(async move { node.shutdown().timeout(PATIENCE).await });
        until("it is not counted", async || {
            others.iter().all(|worker| worker.node.status().borrow().peers == 1)
        })
        .await;
        for n in 0..4 {
            shop.submit(&format!("t{n}")).await;
        }
        let expected = [("a", 1), ("b", 2), ("c", 2)].map(|(node, share)| (node.to_owned(), share));
        until("the others have two each", async || shop.shares().await == expected.clone().into()).await;
        // An owner is stored before its handler begins.
        until("all of them run", async || shop.ledger.running().len() == 5).await;
        assert_eq!(shop.ledger.runs().len(), 5, "{:?}", shop.ledger.runs());
        shop.ledger.open_gate();
        ending.await.unwrap().unwrap();
        session.close().await.unwrap();
        for worker in others {
            worker.end().await;
        }
        shop.ledger.check();
    })
    .await;
}
