//! Tasks that move: to a node that joins, from one that ends or dies.

use tenure::worker::WorkerEvent;

use super::*;
use futures_util::FutureExt;

#[tokio::test]
async fn joining_node_takes_share_without_bouncing() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        for n in 0..6 {
            shop.submit(&format!("t{n}")).await;
        }
        let a = shop.join("a").await;
        until("all run", async || shop.ledger.running().len() == 6).await;
        let b = shop.join("b").await;
        until("they share", async || {
            let shares = shop.shares().await;
            let count = |node: &str| shares.get(node).copied().unwrap_or(0);
            count("a") + count("b") == 6 && count("b") >= 2 && shop.ledger.running().len() == 6
        })
        .await;
        let runs = shop.ledger.runs().len();
        assert!(runs <= 6 + 4, "{:?}", shop.ledger.runs());
        let moved = |run: &&Run| run.node == "b";
        let taken: Vec<String> =
            shop.ledger.runs().iter().filter(moved).map(|run| run.task.clone()).collect();
        for id in taken {
            assert_eq!(shop.ledger.runs_of(&id).len(), 2, "it went once from a to b: {id}");
        }
        a.end().await;
        until("b has all", async || shop.shares().await.get("b") == Some(&6)).await;
        b.end().await;
        shop.ledger.check();
    })
    .await;
}

/// The first node had released these tasks to the second shortly before, and for a minute no node ran them.
#[tokio::test]
async fn tasks_of_leaving_node_return_immediately() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        for n in 0..6 {
            shop.submit(&format!("t{n}")).await;
        }
        let a = shop.join("a").await;
        until("all run", async || shop.ledger.running().len() == 6).await;
        let b = shop.join("b").await;
        until("they share", async || shop.shares().await.get("b").is_some_and(|share| *share >= 2)).await;
        b.end().await;
        until("a has all again", async || shop.shares().await.get("a") == Some(&6)).await;
        a.end().await;
        shop.ledger.check();
    })
    .await;
}

#[tokio::test]
async fn checkpoints_arrive_at_the_next_owner() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        shop.submit_with("t", r#""count""#).await;
        for n in 0..3_u8 {
            let worker = shop.join(&format!("n{n}")).await;
            until("it runs", async || shop.ledger.running().len() == 1).await;
            worker.end().await;
        }
        let seen: Vec<_> = shop.ledger.runs_of("t").into_iter().map(|run| run.checkpoint).collect();
        assert_eq!(seen, [None, Some(vec![1]), Some(vec![2])]);
        shop.ledger.check();
    })
    .await;
}

/// The worker reports each claim under a manually revoked lease as lost.
#[tokio::test]
async fn revoked_lease_reruns_tasks_with_larger_tokens() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        for n in 0..5 {
            shop.submit(&format!("t{n}")).await;
        }
        let a = shop.join("a").await;
        let mut notices = a.node.events();
        until("all run", async || shop.ledger.running().len() == 5).await;
        let before = shop.ledger.runs();
        for lease in a.session.leases() {
            shop.store.revoke(lease).await.unwrap();
        }
        until("all run again", async || {
            let runs = shop.ledger.running();
            runs.len() == 5 && runs.iter().all(|run| before.iter().all(|old| old.token < run.token))
        })
        .await;
        let mut lost = 0;
        while let Some(Some(notice)) = notices.next().now_or_never() {
            lost += usize::from(matches!(notice, WorkerEvent::Lost { .. }));
        }
        assert_eq!(lost, 5);
        shop.ledger.check();
        a.end().await;
    })
    .await;
}

#[tokio::test]
async fn three_nodes_share_a_thousand_tasks_evenly() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let mut workers = Vec::new();
        for id in ["a", "b", "c"] {
            workers.push(shop.join(id).await);
        }
        until_acquainted(&workers).await;
        let puts = (0..1_000).map(|n| {
            let record = TaskRecord::decode(b"{}").unwrap().encode();
            Op::put(shop.key(&Key::Task(task(&format!("t{n}")))), record)
        });
        for outcome in shop.store.apply_all(puts).await.unwrap() {
            outcome.unwrap();
        }
        until("all run", async || shop.ledger.running().len() == 1_000).await;
        let shares = shop.shares().await;
        let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
        assert!(most - least <= 2, "{shares:?}");
        assert_eq!(shop.ledger.runs().len(), 1_000, "no task ran twice");
        for worker in workers {
            worker.end().await;
        }
        shop.ledger.check();
    })
    .await;
}
