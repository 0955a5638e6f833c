//! Workers inside the test process, on the store that the command uses: they acknowledge the commands that it sends.

use std::time::Duration;

use tenure::session::Session;
use tenure::store::Store;
use tenure::task::Retry;
use tenure::{Outcome, Task, TaskError, Tenure, WorkerBuilder};
use tenure_core::id::{Namespace, TaskId};
use tenure_etcd::{Config, Secret};
use tenure_fixture::{Etcd, granted_user};
use tokio::sync::mpsc;

use crate::sandbox::{RUN_DEADLINE, Sandbox};

/// A sandbox, and its store opened by the test as well.
pub(crate) struct TestCluster {
    pub(crate) sandbox: Sandbox,
    pub(crate) store: Store,
    pub(crate) namespace: Namespace,
}

impl TestCluster {
    /// On a store file.
    pub(crate) async fn new() -> TestCluster {
        let sandbox = Sandbox::new();
        let url = format!("file://{}", sandbox.path("cluster.db"));
        let store = Store::open(&url.parse().unwrap()).await.unwrap();
        TestCluster::on(sandbox, &url, store)
    }

    /// On real etcd.
    pub(crate) async fn on_etcd(etcd: &Etcd) -> TestCluster {
        let mut config = Config::new(etcd.client_urls());
        if let Some((name, password)) = granted_user().and_then(|user| user.split_once(':')) {
            config = config.with_user(name, Secret::new(password));
        }
        let store = Store::new(tenure::store::etcd::EtcdEngine::connect(config).await.unwrap());
        TestCluster::on(Sandbox::new(), &format!("etcd://{}", etcd.endpoints()), store)
    }

    fn on(sandbox: Sandbox, url: &str, store: Store) -> TestCluster {
        let sandbox =
            sandbox.with("PATH", "/usr/bin:/bin").with("TENURE_STORE", url).with("TENURE_NODE", "ops");
        TestCluster { sandbox, store, namespace: Namespace::parse("tenure").unwrap() }
    }

    pub(crate) fn tenure(&self) -> Tenure {
        Tenure::on_session(&Session::open(self.store.clone()).unwrap(), &self.namespace).unwrap()
    }

    /// Starts a worker; the props of a task decide what its handler does.
    pub(crate) async fn join(&self, id: &str) -> TestWorker {
        self.join_as(id, |options| options).await
    }

    pub(crate) async fn join_as(
        &self,
        id: &str,
        change: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    ) -> TestWorker {
        self.start(id, None, change).await
    }

    /// Starts a worker that claims only tasks of this kind.
    pub(crate) async fn join_for(&self, kind: &str, id: &str) -> TestWorker {
        self.start(id, Some(kind), |builder| builder).await
    }

    async fn start(
        &self,
        id: &str,
        kind: Option<&str>,
        change: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    ) -> TestWorker {
        let session = Session::options().ttl(Duration::from_secs(10)).open(self.store.clone()).unwrap();
        let (sender, started) = mpsc::unbounded_channel();
        let handler = move |task: Task<serde_json::Value>| {
            let sender = sender.clone();
            async move {
                // The test may have dropped its receiver.
                let _ = sender.send(task.id().as_str().to_owned());
                run(task).await
            }
        };
        let policy = Retry::never();
        let builder = Tenure::on_session(&session, &self.namespace).unwrap().worker(id);
        let builder = match kind {
            Some(kind) => builder.handle(kind, handler),
            None => builder.handle_any(handler),
        };
        let builder = builder.grace(Duration::from_secs(2)).errors(policy).address("10.0.0.7:80");
        TestWorker { node: change(builder).start().await.unwrap(), session, started }
    }
}

/// Checks a claim on a store file, then on real etcd.
pub(crate) async fn on_file_and_etcd(claim: impl AsyncFn(TestCluster)) {
    claim(TestCluster::new().await).await;
    let etcd = Etcd::start();
    claim(TestCluster::on_etcd(&etcd).await).await;
}

/// A worker with its session.
pub(crate) struct TestWorker {
    pub(crate) node: tenure::Worker,
    session: Session,
    started: mpsc::UnboundedReceiver<String>,
}

impl TestWorker {
    /// Waits until `count` tasks have started; returns their ids, sorted.
    pub(crate) async fn started(&mut self, count: usize) -> Vec<String> {
        let mut tasks = Vec::new();
        while tasks.len() < count {
            let next = tokio::time::timeout(RUN_DEADLINE, self.started.recv()).await;
            tasks.push(next.expect("no task starts").expect("the worker runs"));
        }
        tasks.sort();
        tasks
    }

    pub(crate) async fn end(self) {
        self.node.shutdown().timeout(RUN_DEADLINE).await.unwrap();
        self.session.close().await.unwrap();
    }

    /// Closes the session of a worker that has left without a request from the test.
    pub(crate) async fn close(self) {
        self.node.finished().await;
        self.session.close().await.unwrap();
    }
}

async fn run(ctx: Task<serde_json::Value>) -> Result<Outcome, TaskError> {
    match ctx.props.as_str().unwrap_or_default() {
        "done" => Ok(Outcome::Complete),
        "fault" => Err("it does not work".into()),
        "ignore" => std::future::pending().await,
        "count" => loop {
            tokio::select! {
                biased;
                _ = ctx.stopped() => return Ok(Outcome::Release),
                () = ctx.checkpoint_requested() => ctx.save_checkpoint_bytes(vec![7]).await?,
            }
        },
        _ => {
            ctx.stopped().await;
            Ok(Outcome::Release)
        }
    }
}

pub(crate) fn task(id: &str) -> TaskId {
    TaskId::parse(id).unwrap()
}
