//! Tasks on nodes, on every engine: claimed, run, shared, moved, stopped and released.

mod commands;
mod faults;
mod fleet;
mod late;
mod moving;
mod names;
mod sharing;
mod stopping;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tenure::session::Session;
use tenure::store::{Op, Selection, Store, Txn};
use tenure::task::{Handler, RawProps};
use tenure::{Outcome, Task, TaskError, Tenure, WorkerBuilder};
use tenure_core::id::{Namespace, NodeId, TaskId};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{OwnerRecord, Record, TaskRecord};
use tenure_core::revision::Token;
use tenure_core::task::{StateRecord, TaskState, TaskStatus};
use tokio::sync::watch;

pub(crate) use crate::membership::{PATIENCE, is_empty, namespace, on_every_engine};

pub(crate) fn task(id: &str) -> TaskId {
    TaskId::parse(id).unwrap()
}

/// A store with tasks in it, seen from outside.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) store: Store,
    pub(crate) namespace: Namespace,
    pub(crate) layout: Layout,
    pub(crate) ledger: Ledger,
    /// Of the sessions of its workers.
    pub(crate) ttl: Duration,
}

impl Shop {
    pub(crate) fn new(store: Store) -> Shop {
        let namespace = namespace();
        let layout = Layout::new(&namespace);
        Shop { store, namespace, layout, ledger: Ledger::default(), ttl: Duration::from_secs(3) }
    }

    /// The same for tests that count runs: no lease lapses, however long a busy machine keeps the test from running.
    pub(crate) fn without_lapse(store: Store) -> Shop {
        Shop { ttl: 3 * PATIENCE, ..Shop::new(store) }
    }

    pub(crate) async fn submit(&self, id: &str) {
        self.submit_with(id, "null").await;
    }

    pub(crate) async fn submit_with(&self, id: &str, props: &str) {
        let record = TaskRecord::decode(b"{}").unwrap().encode();
        let txn = Txn::new()
            .then(Op::put(self.key(&Key::Task(task(id))), record))
            .then(Op::put(self.key(&Key::TaskProps(task(id))), props.to_owned()));
        self.store.txn(txn).await.unwrap();
    }

    pub(crate) fn key(&self, key: &Key) -> bytes::Bytes {
        self.layout.encode(key)
    }

    pub(crate) async fn state(&self, id: &str) -> StateRecord {
        let pair = self.store.get_key(self.key(&Key::TaskState(task(id)))).await.unwrap();
        pair.map_or_else(StateRecord::default, |pair| StateRecord::decode(&pair.value).unwrap())
    }

    pub(crate) async fn owner(&self, id: &str) -> Option<(String, Token)> {
        let pair = self.store.get_key(self.key(&Key::TaskOwner(task(id)))).await.unwrap()?;
        let record = OwnerRecord::decode(&pair.value).unwrap();
        Some((record.node.as_str().to_owned(), Token(pair.created)))
    }

    /// How many tasks each node owns.
    pub(crate) async fn shares(&self) -> BTreeMap<String, usize> {
        let page = self.store.list(self.layout.tasks()).await.unwrap();
        let mut shares = BTreeMap::new();
        for pair in page.pairs {
            if let Some(Key::TaskOwner(_)) = self.layout.parse(&pair.key) {
                let owner = OwnerRecord::decode(&pair.value).unwrap();
                *shares.entry(owner.node.as_str().to_owned()).or_default() += 1;
            }
        }
        shares
    }

    pub(crate) async fn join(&self, id: &str) -> Worker {
        self.join_as(id, |options| options).await
    }

    pub(crate) async fn join_as(
        &self,
        id: &str,
        change: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    ) -> Worker {
        let session = Session::options().ttl(self.ttl).open(self.store.clone()).unwrap();
        let builder = self.tenure(&session).worker(id).handle_any(self.handler(id));
        let node = change(builder.grace(Duration::from_secs(1))).start().await.unwrap();
        Worker { node, session }
    }

    /// Joins a worker that handles only tasks of one kind.
    pub(crate) async fn join_for(
        &self,
        kind: &str,
        id: &str,
        change: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    ) -> Worker {
        let session = Session::options().ttl(self.ttl).open(self.store.clone()).unwrap();
        let builder = self.tenure(&session).worker(id).handle(kind, self.handler(id));
        let node = change(builder.grace(Duration::from_secs(1))).start().await.unwrap();
        Worker { node, session }
    }

    pub(crate) fn tenure(&self, session: &Session) -> Tenure {
        Tenure::on_session(session, &self.namespace).unwrap()
    }

    fn handler(&self, id: &str) -> Runs {
        Runs { ledger: self.ledger.clone(), worker: id.to_owned() }
    }
}

/// A node with its session.
pub(crate) struct Worker {
    pub(crate) node: tenure::Worker,
    pub(crate) session: Session,
}

impl Worker {
    pub(crate) async fn end(self) {
        self.node.shutdown().timeout(PATIENCE).await.unwrap();
        self.session.close().await.unwrap();
    }
}

/// Runs tasks as their props require, and records each run.
struct Runs {
    ledger: Ledger,
    worker: String,
}

impl Handler<RawProps> for Runs {
    async fn run(&self, task: Task<RawProps>) -> Result<Outcome, TaskError> {
        self.ledger.run(&self.worker, task).await
    }
}

/// Every run of every task, with its node, its token, its start and its end. The handler does what the task's props specify.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    runs: Arc<Mutex<Vec<Run>>>,
    /// Resumes the handlers that block.
    gate: Arc<(Mutex<bool>, Condvar)>,
    /// Resumes the handlers that wait for the signal.
    word: Arc<watch::Sender<bool>>,
    /// What became of progress that was to be kept.
    kept: Arc<Mutex<Vec<Result<(), String>>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) task: String,
    pub(crate) node: String,
    pub(crate) token: Token,
    pub(crate) attempt: u64,
    pub(crate) checkpoint: Option<Vec<u8>>,
    pub(crate) begun: Instant,
    pub(crate) ended: Option<Instant>,
}

impl Ledger {
    pub(crate) fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    /// Sends the signal.
    pub(crate) fn send_signal(&self) {
        self.word.send_replace(true);
    }

    /// What became of progress that was to be kept, so far.
    pub(crate) fn kept(&self) -> Vec<Result<(), String>> {
        self.kept.lock().unwrap().clone()
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap().clone()
    }

    pub(crate) fn runs_of(&self, id: &str) -> Vec<Run> {
        self.runs().into_iter().filter(|run| run.task == id).collect()
    }

    /// What has begun and not ended.
    pub(crate) fn running(&self) -> Vec<Run> {
        self.runs().into_iter().filter(|run| run.ended.is_none()).collect()
    }

    /// No task ever ran twice at once, and tokens only grow.
    pub(crate) fn check(&self) {
        let mut last: BTreeMap<String, Run> = BTreeMap::new();
        for run in self.runs() {
            if let Some(before) = last.get(&run.task) {
                assert!(before.ended.is_some_and(|ended| ended <= run.begun), "at once: {before:?} {run:?}");
                assert!(before.token <= run.token, "{before:?} {run:?}");
            }
            last.insert(run.task.clone(), run);
        }
    }

    async fn run(&self, node: &str, ctx: Task<RawProps>) -> Result<Outcome, TaskError> {
        let index = {
            let mut runs = self.runs.lock().unwrap();
            runs.push(Run {
                task: ctx.id().as_str().to_owned(),
                node: node.to_owned(),
                token: ctx.token(),
                attempt: ctx.attempt(),
                checkpoint: ctx.checkpoint_bytes().map(|bytes| bytes.to_vec()),
                begun: Instant::now(),
                ended: None,
            });
            runs.len() - 1
        };
        // Also when it is dropped, or panics.
        let _ended = Ended(self, index);
        let does: Option<String> = serde_json::from_slice(&ctx.props.0).ok();
        let outcome = match does.unwrap_or_default().as_str() {
            "done" => Outcome::Complete,
            "nap" => tokio::select! {
                biased;
                _ = ctx.stopped() => Outcome::Release,
                () = tokio::time::sleep(Duration::from_millis(100)) => Outcome::Complete,
            },
            "fault" => return Err("it does not work".into()),
            "panic" => panic!("it breaks"),
            "ignore" => std::future::pending().await,
            "block" => {
                let (is_open, opened) = &*self.gate;
                let closed = is_open.lock().unwrap();
                drop(opened.wait_timeout_while(closed, PATIENCE, |is_open| !*is_open).unwrap());
                Outcome::Release
            }
            "complete_on_signal" => {
                let mut word = self.word.subscribe();
                tokio::select! {
                    biased;
                    _ = word.wait_for(|said| *said) => Outcome::Complete,
                    _ = ctx.stopped() => Outcome::Release,
                }
            }
            "save_on_signal" => {
                let mut word = self.word.subscribe();
                tokio::select! {
                    biased;
                    _ = word.wait_for(|said| *said) => {}
                    _ = ctx.stopped() => return Ok(Outcome::Release),
                }
                let kept = ctx.save_checkpoint_bytes(vec![7]).await.map_err(|error| error.to_string());
                self.kept.lock().unwrap().push(kept);
                ctx.stopped().await;
                Outcome::Release
            }
            "count" => {
                ctx.stopped().await;
                let counted = ctx.checkpoint_bytes().map_or(0, |bytes| bytes[0]) + 1;
                ctx.save_checkpoint_bytes(vec![counted]).await?;
                Outcome::Release
            }
            _ => {
                ctx.stopped().await;
                Outcome::Release
            }
        };
        Ok(outcome)
    }
}

struct Ended<'a>(&'a Ledger, usize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.runs.lock().unwrap()[self.1].ended = Some(Instant::now());
    }
}

/// Waits until it is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until all workers know all peers: a worker claims every task until it knows its peers, and releases some of them afterwards.
pub(crate) async fn until_acquainted(workers: &[Worker]) {
    until("all workers know all peers", async || {
        workers.iter().all(|worker| worker.node.status().borrow().peers == workers.len() - 1)
    })
    .await;
}

/// The state of a completed task stays in the store; its other keys are deleted.
#[tokio::test]
async fn task_is_claimed_run_and_completed() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        shop.submit_with("t1", r#""done""#).await;
        let worker = shop.join("a").await;
        shop.submit_with("t10", r#""done""#).await;
        shop.submit("t11").await;
        until("t1 and t10 are completed", async || {
            shop.state("t1").await.state == TaskStatus::Completed
                && shop.state("t10").await.state == TaskStatus::Completed
        })
        .await;
        until("t11 runs", async || shop.ledger.running().len() == 1).await;
        assert!(shop.owner("t11").await.is_some(), "the end of t1 leaves t11 alone");
        let left = shop.store.list(shop.layout.tasks()).await.unwrap();
        assert_eq!(left.pairs.len(), 4, "the task, its props, its owner and its attempt: {left:?}");
        let run = &shop.ledger.runs_of("t11")[0];
        assert_eq!(Some(("a".to_owned(), run.token)), shop.owner("t11").await);
        assert_eq!(run.attempt, 1);
        worker.end().await;
        assert_eq!(shop.owner("t11").await, None, "released when the node ended");
        shop.ledger.check();
        shop.store.delete(Selection::everything()).await.unwrap();
        is_empty(&shop.store).await;
    })
    .await;
}

/// An error and a panic of a handler are both a fault of its task. Other tasks keep running.
#[tokio::test]
async fn failing_handler_faults_only_its_task() {
    on_every_engine(async |store| {
        let shop = Shop::new(store);
        let worker = shop.join("a").await;
        shop.submit_with("fails", r#""fault""#).await;
        shop.submit_with("breaks", r#""panic""#).await;
        shop.submit("lives").await;
        for (id, said) in [("fails", "it does not work"), ("breaks", "the handler panicked: it breaks")] {
            until("it sleeps", async || shop.state(id).await.state.kind() == TaskState::Sleeping).await;
            let state = shop.state(id).await;
            assert_eq!(state.errors[0].message, said);
            assert!(shop.owner(id).await.is_some(), "a sleeping task has an owner");
            assert_eq!(shop.ledger.runs_of(id).len(), 1);
        }
        until("lives runs", async || shop.ledger.running().len() == 1).await;
        worker.end().await;
        shop.ledger.check();
    })
    .await;
}

#[tokio::test]
async fn namespaces_on_one_store_are_isolated() {
    on_every_engine(async |store| {
        let shop = Shop::new(store.clone());
        let mut other = Shop::new(store);
        other.namespace = Namespace::parse("other").unwrap();
        other.layout = Layout::new(&other.namespace);
        let worker = shop.join("a").await;
        other.submit("t2").await;
        shop.submit("t1").await;
        until("t1 runs", async || shop.ledger.running().len() == 1).await;
        let other_worker = other.join("a").await;
        until("t2 runs", async || other.ledger.running().len() == 1).await;
        worker.end().await;
        assert_eq!(other.ledger.running().len(), 1);
        other_worker.end().await;
        assert_eq!((shop.ledger.runs().len(), other.ledger.runs().len()), (1, 1));
    })
    .await;
}
