//! What others test of their balancers and handlers: refusals without a wait, props of a user's own type, and throughput beside failures.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Deserialize;
use tenure::session::Session;
use tenure::store::{Op, Store, Txn};
use tenure::worker::balance::{Balancer, ClaimDecision, Claimable, ClusterLoad, Release};
use tenure::{Task, TaskError};
use tenure_core::layout::Key;
use tenure_core::record::{Record, TaskRecord};
use tenure_core::task::{TaskState, TaskStatus};

use super::{PATIENCE, Shop, task, until, until_acquainted};

/// Refuses the first offers without a wait, then takes everything.
struct Fickle {
    refusals: usize,
    calls: Arc<AtomicUsize>,
}

impl Balancer for Fickle {
    fn claim(&mut self, _: &Claimable<'_>, _: &ClusterLoad<'_>) -> ClaimDecision {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.refusals == 0 {
            return ClaimDecision::Claim;
        }
        self.refusals -= 1;
        ClaimDecision::wait_secs(0, "not yet")
    }

    fn release(&mut self, _: &ClusterLoad<'_>) -> Vec<Release> {
        Vec::new()
    }

    fn name(&self) -> &'static str {
        "fickle"
    }
}

/// Metafora had a deadlock here: a refusal of a millisecond filled a channel that its own reader wrote to.
#[tokio::test]
async fn refusals_without_a_wait_neither_block_nor_spin() {
    let shop = Shop::new(Store::memory());
    let calls = Arc::new(AtomicUsize::new(0));
    let fickle = Fickle { refusals: 200, calls: calls.clone() };
    let worker = shop.join_as("a", |options| options.balancer(fickle)).await;
    for n in 0..20 {
        shop.submit_with(&format!("t{n}"), r#""done""#).await;
    }
    let begun = Instant::now();
    until("all are completed", async || shop.store.list(shop.layout.tasks()).await.unwrap().pairs.is_empty())
        .await;
    let asked = calls.load(Ordering::Relaxed);
    // 200 refusals and 20 claims; a task that is refused is not offered again within 50 ms.
    let rounds = begun.elapsed().as_millis() as usize / 50 + 2;
    assert!((220..=220 + 20 * rounds).contains(&asked), "{asked} in {rounds} rounds");
    worker.end().await;
}

#[derive(Deserialize, PartialEq, Debug)]
struct Mail {
    to: String,
    #[serde(default)]
    copies: u32,
}

/// A handler receives props as a struct. Props of a wrong type are a fault of their task.
#[tokio::test]
async fn invalid_props_type_faults_task() {
    let shop = Shop::new(Store::memory());
    let read: Arc<Mutex<Vec<Mail>>> = Arc::default();
    let session = Session::open(shop.store.clone()).unwrap();
    let handler = {
        let read = read.clone();
        move |task: Task<Mail>| {
            let read = read.clone();
            async move {
                read.lock().unwrap().push(task.props);
                Ok::<_, TaskError>(())
            }
        }
    };
    let node = shop.tenure(&session).worker("a").handle_any(handler).start().await.unwrap();
    shop.submit_with("good", r#"{"to":"a@example.org","copies":2}"#).await;
    shop.submit_with("wrong", r#"{"to":7}"#).await;
    until("good is completed", async || shop.state("good").await.state == TaskStatus::Completed).await;
    until("wrong sleeps", async || shop.state("wrong").await.state.kind() == TaskState::Sleeping).await;
    assert_eq!(*read.lock().unwrap(), [Mail { to: "a@example.org".to_owned(), copies: 2 }]);
    let error = shop.state("wrong").await.errors[0].message.clone();
    assert!(
        error.starts_with("invalid props at to: invalid type: integer `7`, expected a string"),
        "{error}"
    );
    node.shutdown().timeout(PATIENCE).await.unwrap();
    session.close().await.unwrap();
}

/// Nodes of another kind are no reason to hold back: each group shares its own tasks.
#[tokio::test]
async fn disjoint_groups_each_share_their_own_tasks() {
    let shop = Shop::new(Store::memory());
    let mut workers = Vec::new();
    for (id, kind) in [("m1", "mail"), ("m2", "mail"), ("v1", "video"), ("v2", "video"), ("v3", "video")] {
        workers.push(shop.join_for(kind, id, |builder| builder).await);
    }
    until_acquainted(&workers).await;
    for (kind, tasks) in [("mail", 40), ("video", 30)] {
        let record = TaskRecord { kind: Some(kind.to_owned()), ..TaskRecord::default() }.encode();
        let put = |n| Op::put(shop.key(&Key::Task(task(&format!("{kind}{n}")))), record.clone());
        shop.store.txn(Txn { then: (0..tasks).map(put).collect(), ..Txn::default() }).await.unwrap();
    }
    let even = [("m1", 20), ("m2", 20), ("v1", 10), ("v2", 10), ("v3", 10)];
    until("all have their share", async || {
        let shares = shop.shares().await;
        even.iter()
            .all(|(node, tasks)| shares.get(*node).is_some_and(|has: &usize| has.abs_diff(*tasks) <= 1))
    })
    .await;
    until("all run", async || shop.ledger.running().len() == 70).await;
    for worker in workers {
        worker.end().await;
    }
    shop.ledger.check();
}

/// Completes tasks of 100 ms on three nodes with eight slots each; every fiftieth task fails if `has_failures`. Returns tasks per second.
async fn throughput(tasks: usize, has_failures: bool) -> f64 {
    let shop = Shop::new(Store::memory());
    let mut workers = Vec::new();
    for id in ["a", "b", "c"] {
        workers.push(shop.join_as(id, |options| options.capacity(8)).await);
    }
    until_acquainted(&workers).await;
    let begun = Instant::now();
    for n in 0..tasks {
        let fails = has_failures && n % 50 == 0;
        shop.submit_with(&format!("t{n}"), if fails { r#""fault""# } else { r#""nap""# }).await;
    }
    let good = if has_failures { tasks - tasks.div_ceil(50) } else { tasks };
    until("all good ones are completed", async || {
        shop.store.list(shop.layout.ended()).await.unwrap().pairs.len() == good
    })
    .await;
    let rate = good as f64 / begun.elapsed().as_secs_f64();
    for worker in workers {
        worker.end().await;
    }
    rate
}

/// Failed tasks sleep for ten minutes. They used up the slots, and 87 tasks a second became 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_tasks_do_not_slow_others_soak() {
    let is_soak = std::env::var_os("TENURE_SOAK").is_some();
    // A short run is for what sleeping tasks would do to the slots, not for figures.
    let (tasks, rounds, least) = if is_soak { (1_200, 7, 0.9) } else { (600, 1, 0.5) };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // They take turns at being first.
        for has_failures in [round % 2 == 0, round % 2 != 0] {
            let rate = throughput(tasks, has_failures).await;
            if has_failures { with.push(rate) } else { without.push(rate) }
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let (with, without) = (median(&mut with), median(&mut without));
    println!("{without:.0}/s without failures, {with:.0}/s with 2 %: {:.2}", with / without);
    assert!(with >= without * least, "{with:.0}/s beside {without:.0}/s");
}
