//! Two kinds of work on six nodes of different capacities, all of them restarted one after the other under their own ids.
//!
//! An observer polls the store. A task may have no owner only as long as no node that accepts it has room, or for a moment.
#![allow(clippy::print_stdout, reason = "the figures of a soak are read from its output")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tenure::NewTask;
use tenure::store::Store;
use tenure::store::file::FileEngine;
use tenure_core::id::TaskId;
use tenure_core::layout::Key;
use tenure_core::record::{MemberRecord, MemberState, OwnerRecord, Record, TaskRecord};
use tenure_core::task::TaskState;
use tenure_fixture::Etcd;

use super::{PATIENCE, Shop, Worker};
use crate::client::tenure_on;
use crate::membership::connect;

const KINDS: [&str; 2] = ["mail", "video"];

/// How long a task may have no owner although a node that accepts it has room.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// What one poll may count at most: an observer that gets no CPU has not seen a task without an owner.
const POLL_MAX: Duration = Duration::from_millis(100);

/// How long it may take until every node has its share.
const SHARES_WITHIN: Duration = Duration::from_secs(90);

/// A fleet: the tasks of each kind, and the capacities of the three nodes of each kind.
#[derive(Clone, Copy)]
struct Fleet {
    tasks: usize,
    capacities: [usize; 3],
    /// What each task does.
    does: &'static str,
}

/// With `TENURE_SOAK=1` all 600 tasks, otherwise a tenth of them.
fn is_soak() -> bool {
    std::env::var_os("TENURE_SOAK").is_some()
}

impl Fleet {
    /// Tasks that run until they are stopped. The first node has less room than its equal share, so the others have more.
    fn lasting() -> Fleet {
        let (tasks, capacities) = if is_soak() { (300, [60, 120, 240]) } else { (30, [6, 12, 24]) };
        Fleet { tasks, capacities, does: "null" }
    }

    /// Tasks that end after a moment, many more than there are slots.
    fn short() -> Fleet {
        Fleet { tasks: if is_soak() { 300 } else { 60 }, capacities: [4, 8, 16], does: r#""nap""# }
    }

    fn nodes(self) -> impl Iterator<Item = (&'static str, usize)> {
        KINDS.into_iter().flat_map(move |kind| self.capacities.into_iter().map(move |tasks| (kind, tasks)))
    }

    async fn submit(self, shop: &Shop) {
        let client = tenure_on(&shop.store, &shop.namespace);
        let new = |kind: &str, n: usize| {
            let id = TaskId::parse(&format!("{kind}-{n}")).unwrap();
            NewTask::new(kind).id(id).props_json(self.does)
        };
        let tasks = KINDS.into_iter().flat_map(|kind| (0..self.tasks).map(move |n| new(kind, n)));
        for submitted in client.submit_all(tasks).await {
            submitted.unwrap();
        }
    }

    /// What each node has when all is even: as many as its peers, or as it has room for.
    fn fair_share(self, capacity: usize) -> usize {
        let level = (0..=self.tasks)
            .find(|level| self.capacities.iter().map(|room| room.min(level)).sum::<usize>() >= self.tasks);
        level.unwrap().min(capacity)
    }
}

fn name(kind: &str, capacity: usize) -> String {
    format!("{kind}-{capacity}")
}

async fn join(shop: &Shop, kind: &'static str, capacity: usize) -> Worker {
    shop.join_for(kind, &name(kind, capacity), |builder| {
        builder.capacity(capacity).grace(Duration::from_secs(3))
    })
    .await
}

/// What the store shows: per kind, the tasks without an owner, and whether a node that accepts it has room.
struct Seen {
    unowned: BTreeSet<(String, String)>,
    with_room: BTreeSet<String>,
    shares: BTreeMap<String, usize>,
    left: usize,
}

async fn look(shop: &Shop) -> Seen {
    let page = shop.store.list(shop.layout.everything()).await.unwrap();
    let (mut kinds, mut owners) = (BTreeMap::new(), BTreeMap::new());
    let (mut shares, mut nodes): (BTreeMap<String, usize>, Vec<(String, MemberRecord)>) = Default::default();
    for pair in page.pairs {
        match shop.layout.parse(&pair.key) {
            Some(Key::Task(task)) => {
                let record = TaskRecord::decode(&pair.value).unwrap();
                kinds.insert(task.to_string(), record.kind.unwrap());
            }
            Some(Key::TaskOwner(task)) => {
                let owner = OwnerRecord::decode(&pair.value).unwrap().node.to_string();
                *shares.entry(owner.clone()).or_default() += 1;
                owners.insert(task.to_string(), owner);
            }
            Some(Key::Node(node)) => {
                nodes.push((node.to_string(), MemberRecord::decode(&pair.value).unwrap()));
            }
            _ => {}
        }
    }
    let has_room = |node: &str, record: &MemberRecord| {
        let capacity = record.capacity.unwrap_or(u64::MAX);
        record.state == MemberState::Ready && (shares.get(node).copied().unwrap_or(0) as u64) < capacity
    };
    let kinds_of = |record: &MemberRecord| record.accepts.clone().unwrap_or_default().kinds;
    let with_room = nodes.iter().filter(|(node, record)| has_room(node, record));
    let with_room = with_room.flat_map(|(_, record)| kinds_of(record)).collect();
    let left = kinds.len();
    let unowned = kinds.into_iter().filter(|(task, _)| !owners.contains_key(task)).collect();
    Seen { unowned, with_room, shares, left }
}

/// Polls until `stop` is set. Returns the longest time that a task had no owner although a node had room, and that task.
async fn observe(shop: Shop, stop: tokio::sync::watch::Receiver<bool>) -> (Duration, String) {
    let mut idle: BTreeMap<String, Duration> = BTreeMap::new();
    let (mut longest, mut last) = ((Duration::ZERO, String::new()), Instant::now());
    while !*stop.borrow() {
        let seen = look(&shop).await;
        let passed = last.elapsed().min(POLL_MAX);
        last = Instant::now();
        let waits = seen.unowned.iter().filter(|(_, kind)| seen.with_room.contains(kind));
        let waits: BTreeSet<&String> = waits.map(|(task, _)| task).collect();
        idle.retain(|task, _| waits.contains(task));
        for task in waits {
            let waited = idle.entry(task.clone()).or_default();
            *waited += passed;
            if *waited > longest.0 {
                longest = (*waited, task.clone());
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    longest
}

/// Restarts all nodes one after the other. Each takes tasks again before the next one goes.
async fn roll(shop: &Shop, fleet: Fleet, workers: &mut [Option<Worker>]) {
    for (n, (kind, capacity)) in fleet.nodes().enumerate() {
        workers[n].take().unwrap().end().await;
        workers[n] = Some(join(shop, kind, capacity).await);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let seen = look(shop).await;
            let has_some = seen.shares.get(&name(kind, capacity)).is_some_and(|tasks| *tasks > 0);
            if has_some || seen.unowned.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures of a soak are for its reader")]
async fn lasting_tasks(store: Store) {
    let (shop, fleet) = (Shop::new(store), Fleet::lasting());
    let mut workers = Vec::new();
    for (kind, capacity) in fleet.nodes() {
        workers.push(Some(join(&shop, kind, capacity).await));
    }
    fleet.submit(&shop).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let observer = tokio::spawn(observe(shop.clone(), stopped));
    roll(&shop, fleet, &mut workers).await;
    let expected = |seen: &Seen| {
        fleet.nodes().all(|(kind, capacity)| {
            let has = seen.shares.get(&name(kind, capacity)).copied().unwrap_or(0);
            has.abs_diff(fleet.fair_share(capacity)) <= 1
        })
    };
    let begun = Instant::now();
    loop {
        let seen = look(&shop).await;
        if expected(&seen) && seen.unowned.is_empty() {
            break;
        }
        assert!(begun.elapsed() < SHARES_WITHIN, "{:?}, {} unowned", seen.shares, seen.unowned.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let even_after = begun.elapsed();
    stop.send_replace(true);
    let (longest, task) = observer.await.unwrap();
    let seen = look(&shop).await;
    println!("longest idle with room {longest:?} ({task}), even after {even_after:?}, {:?}", seen.shares);
    assert!(longest <= IDLE_MAX, "{task} had no owner for {longest:?} although there was room");
    assert_eq!(seen.left, fleet.tasks * KINDS.len(), "none is lost");
    shop.ledger.check();
    for worker in workers.into_iter().flatten() {
        worker.end().await;
    }
}

#[expect(clippy::print_stdout, reason = "the figures of a soak are for its reader")]
async fn short_tasks(store: Store) {
    let (shop, fleet) = (Shop::new(store), Fleet::short());
    let mut workers = Vec::new();
    for (kind, capacity) in fleet.nodes() {
        workers.push(Some(join(&shop, kind, capacity).await));
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let observer = tokio::spawn(observe(shop.clone(), stopped));
    let begun = Instant::now();
    fleet.submit(&shop).await;
    roll(&shop, fleet, &mut workers).await;
    while look(&shop).await.left > 0 {
        assert!(begun.elapsed() < SHARES_WITHIN, "{} are left", look(&shop).await.left);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.send_replace(true);
    let (longest, task) = observer.await.unwrap();
    println!("longest idle with room {longest:?} ({task}), all ended after {:?}", begun.elapsed());
    assert!(longest <= IDLE_MAX, "{task} had no owner for {longest:?} although there was room");
    let states = shop.store.list(shop.layout.states()).await.unwrap().pairs;
    let state = |value: &[u8]| tenure_core::task::StateRecord::decode(value).unwrap().state.kind();
    assert_eq!(states.len(), fleet.tasks * KINDS.len());
    assert!(states.iter().all(|pair| state(&pair.value) == TaskState::Completed));
    shop.ledger.check();
    for worker in workers.into_iter().flatten() {
        worker.end().await;
    }
}

async fn on_a_file(claim: impl AsyncFnOnce(Store)) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(FileEngine::open(&folder.path().join("store.db")).await.unwrap());
    claim(store.clone()).await;
    store.close().await;
}

async fn on_etcd(claim: impl AsyncFnOnce(Store)) {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    claim(store.clone()).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_idles_no_task_on_file_soak() {
    on_a_file(lasting_tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_idles_no_task_on_etcd_soak() {
    on_etcd(lasting_tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_tasks_survive_rolling_restart_on_file_soak() {
    on_a_file(short_tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_tasks_survive_rolling_restart_on_etcd_soak() {
    on_etcd(short_tasks).await;
}
