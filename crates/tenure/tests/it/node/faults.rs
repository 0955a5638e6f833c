//! The store pauses in the middle of a save: no task is completed twice, deleted or duplicated, no worker ends, and events report the losses.
//!
//! A panic in a handler, and commands, props and states that cannot be read, are in `node.rs` and `commands.rs`: those can happen on every engine.

use rusqlite::Connection;
use tempfile::TempDir;
use tenure::LossReason;
use tenure::store::file::FileEngine;
use tenure::worker::WorkerEvent;
use tenure_fixture::Etcd;

use super::*;
use crate::membership::connect;
use futures_util::FutureExt;

/// How many tasks are saved at the same time: more than one request carries.
const TASKS: usize = 80;

/// A store that can be paused: its server is stopped, or another connection keeps the lock of the file.
enum StoreUnderFault {
    Etcd(Box<Etcd>),
    File { folder: TempDir, other: Connection },
}

impl StoreUnderFault {
    fn etcd() -> StoreUnderFault {
        StoreUnderFault::Etcd(Box::new(Etcd::start()))
    }

    fn file() -> StoreUnderFault {
        let folder = tempfile::tempdir().unwrap();
        let other = Connection::open_in_memory().unwrap();
        StoreUnderFault::File { folder, other }
    }

    async fn open(&mut self) -> Store {
        match self {
            StoreUnderFault::Etcd(etcd) => connect(etcd).await,
            StoreUnderFault::File { folder, other } => {
                let path = folder.path().join("store.db");
                let store = Store::new(FileEngine::open(&path).await.unwrap());
                *other = Connection::open(&path).unwrap();
                other.busy_timeout(PATIENCE).unwrap();
                store
            }
        }
    }

    fn pause(&self) {
        match self {
            StoreUnderFault::Etcd(etcd) => etcd.member(0).pause(),
            StoreUnderFault::File { other, .. } => other.execute_batch("BEGIN IMMEDIATE").unwrap(),
        }
    }

    fn resume(&self) {
        match self {
            StoreUnderFault::Etcd(etcd) => etcd.member(0).resume(),
            StoreUnderFault::File { other, .. } => other.execute_batch("ROLLBACK").unwrap(),
        }
    }
}

/// A store that can be stopped, with tasks of which half are about to be done and half about to keep their progress.
struct FaultRun {
    store: StoreUnderFault,
    shop: Shop,
    worker: Worker,
}

impl FaultRun {
    async fn on(mut store: StoreUnderFault) -> FaultRun {
        let shop = Shop::new(store.open().await);
        for n in 0..TASKS / 2 {
            shop.submit_with(&format!("d{n}"), r#""complete_on_signal""#).await;
            shop.submit_with(&format!("k{n}"), r#""save_on_signal""#).await;
        }
        let worker = shop.join("a").await;
        until("all run", async || shop.ledger.running().len() == TASKS).await;
        FaultRun { store, shop, worker }
    }

    /// Every task has ended as it should, once, or runs; whatever came between.
    async fn check(&self) {
        for n in 0..TASKS / 2 {
            let (done, keeps) = (format!("d{n}"), format!("k{n}"));
            let ended = async || self.shop.state(&done).await.state == TaskStatus::Completed;
            until("it is completed", ended).await;
            let found = self.shop.store.get_key(self.shop.key(&Key::Task(task(&done)))).await.unwrap();
            assert!(found.is_none(), "{done} has ended and is there");
            let runs = async || self.shop.ledger.running().iter().any(|run| run.task == keeps);
            until("it runs", runs).await;
            let found = self.shop.store.get_key(self.shop.key(&Key::Task(task(&keeps)))).await.unwrap();
            assert!(found.is_some(), "{keeps} was deleted");
        }
        self.shop.ledger.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_store_pause_only_delays_saves_on_etcd() {
    stops_for_a_second(StoreUnderFault::etcd()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_store_pause_only_delays_saves_on_file() {
    stops_for_a_second(StoreUnderFault::file()).await;
}

async fn stops_for_a_second(store: StoreUnderFault) {
    let run = FaultRun::on(store).await;
    let mut notices = run.worker.node.events();
    run.store.pause();
    run.shop.ledger.send_signal();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(run.shop.ledger.kept().len(), 0, "no checkpoint is saved while the store is paused");
    run.store.resume();
    run.check().await;
    until("all is kept", async || run.shop.ledger.kept().len() == TASKS / 2).await;
    assert!(run.shop.ledger.kept().iter().all(Result::is_ok), "{:?}", run.shop.ledger.kept());
    assert_eq!(run.shop.ledger.runs().len(), TASKS, "nothing ran twice");
    for n in 0..TASKS / 2 {
        let checkpoint = run.shop.state(&format!("k{n}")).await.checkpoint;
        assert_eq!(checkpoint.map(|blob| blob.bytes().to_vec()), Some(vec![7]));
    }
    let mut ended = 0;
    while let Some(Some(notice)) = notices.next().now_or_never() {
        match notice {
            WorkerEvent::Ended { .. } => ended += 1,
            WorkerEvent::Lost { .. } => panic!("{notice:?}"),
            _ => {}
        }
    }
    assert_eq!(ended, TASKS / 2);
    run.worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_store_pause_duplicates_no_task_on_etcd() {
    stops_past_the_leases(StoreUnderFault::etcd()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_store_pause_duplicates_no_task_on_file() {
    stops_past_the_leases(StoreUnderFault::file()).await;
}

/// The store may apply the pending requests when it resumes. The worker receives no reply to them, and by then its claims have lapsed.
/// No task is lost, and no task runs twice at once.
async fn stops_past_the_leases(store: StoreUnderFault) {
    let run = FaultRun::on(store).await;
    let mut notices = run.worker.node.events();
    run.store.pause();
    run.shop.ledger.send_signal();
    until("everything has stopped", async || {
        let running = run.shop.ledger.running();
        running.is_empty() && !run.worker.node.status().borrow().is_member
    })
    .await;
    let mut lost = 0;
    while let Some(Some(notice)) = notices.next().now_or_never() {
        lost += usize::from(matches!(notice, WorkerEvent::Lost { why: LossReason::Lapsed, .. }));
    }
    assert_eq!(lost, TASKS, "each loss is reported");
    run.store.resume();
    run.check().await;
    run.worker.end().await;
}
