//! A client: one real process that works with the public parts of the library, and records
//! everything.
//!
//! Signals control it: SIGUSR1 means that faults are over and it finishes its work, SIGTERM that it
//! must exit. All faults hit it without warning.

mod election;
mod etcdctl;
mod holder;
mod lock;
mod plain;
mod registry;
mod tasks;

pub use etcdctl::inside;
pub use registry::root as registered;

use std::sync::Arc;
use std::time::Duration;

use tenure::session::Session;
use tenure::store::Store;
use tenure::store::etcd::{Config, EtcdEngine, Secret};
use tenure::store::{StoreError, StoreUrl};
use tenure_core::id::Namespace;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::holder::HolderContext;
use crate::history::{HistoryEvent, HistoryWriter};
use crate::options::{ClientOptions, LockUnderTest};

/// Where everything of the run lies.
pub const NAMESPACE: &str = "nemesis";

/// The user that clients and rig sign in as, where etcd requires one.
pub const USER: (&str, &str) = ("root", "nemesis");

/// For tasks and sockets to go after everything was closed. Ends of connections are seen by their tasks a little later.
const GOING: Duration = Duration::from_secs(10);

/// Runs a client until it must exit.
///
/// # Errors
///
/// What cannot even begin.
pub fn run(options: &ClientOptions) -> Result<(), String> {
    // Signals to one incarnation reach everything that it started.
    rustix::process::setpgid(None, None).map_err(|error| format!("no group of its own: {error}"))?;
    #[cfg(tenure_sabotage)]
    let broken = match options.against {
        LockUnderTest::Broken(rule) => Some(tenure_core::sabotage::Sabotage::of(rule)),
        LockUnderTest::Tenure | LockUnderTest::Plain | LockUnderTest::Etcdctl => None,
    };
    // One thread: a rule is broken on a thread, and two cores have enough to do.
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let lived = runtime.block_on(live(options));
    #[cfg(tenure_sabotage)]
    drop(broken);
    lived
}

async fn live(options: &ClientOptions) -> Result<(), String> {
    let history = Arc::new(HistoryWriter::open(&options.history).map_err(|error| error.to_string())?);
    let signals = ClientSignals::new().map_err(|error| error.to_string())?;
    let fds_before = open_fds();
    let trouble = match options.against {
        LockUnderTest::Etcdctl => etcdctl::live(options, &history, signals).await,
        LockUnderTest::Tenure | LockUnderTest::Broken(_) | LockUnderTest::Plain => {
            work(options, &history, signals).await
        }
    };
    let gone = async {
        while open_fds() > fds_before || Handle::current().metrics().num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // What is left is recorded and counted, and not awaited any longer.
    let _ = tokio::time::timeout(GOING, gone).await;
    history.record(HistoryEvent::Left {
        tasks: Handle::current().metrics().num_alive_tasks(),
        fds_before,
        fds_after: open_fds(),
        trouble,
    });
    Ok(())
}

/// Works until it must exit; returns what could not be closed.
async fn work(
    options: &ClientOptions,
    history: &Arc<HistoryWriter>,
    mut signals: ClientSignals,
) -> Option<String> {
    let store = connect(options, &mut signals).await?;
    let session = match Session::options().ttl(options.against.ttl()).open(store.clone()) {
        Ok(session) => session,
        Err(error) => return Some(error.to_string()),
    };
    let context = HolderContext::new(options, history.clone(), store.clone(), session.clone());
    let node = match options.against {
        LockUnderTest::Plain => {
            plain::begin(&context);
            None
        }
        LockUnderTest::Tenure | LockUnderTest::Broken(_) | LockUnderTest::Etcdctl => {
            lock::begin(&context);
            election::begin(&context);
            registry::begin(&context);
            Some(tasks::begin(&context))
        }
    };
    signals.calm_or_go().await;
    context.calm.cancel();
    context.actors.close();
    context.actors.wait().await;
    session.synced().await;
    history.record(HistoryEvent::Settled);
    signals.go().await;
    context.over.cancel();
    let mut troubles = Vec::new();
    if let Some(node) = node {
        troubles.extend(node.await.err().map(|error| format!("the node: {error}")));
    }
    troubles.extend(session.close().await.err().map(|left| left.to_string()));
    drop((context, session));
    store.close().await;
    (!troubles.is_empty()).then(|| troubles.join("; "))
}

/// Retries until the store can be reached; `None` if the client must exit before.
async fn connect(options: &ClientOptions, signals: &mut ClientSignals) -> Option<Store> {
    loop {
        let opened = tokio::select! {
            biased;
            () = signals.go() => return None,
            opened = open(&options.store, options.auth) => opened,
        };
        match opened {
            Ok(store) => return Some(store),
            // It may be away; what cannot be at all is seen by the rig, because nothing is ever done.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Opens a store, signed in where that is needed.
///
/// # Errors
///
/// The error of the store.
pub async fn open(url: &StoreUrl, auth: bool) -> Result<Store, StoreError> {
    match url {
        StoreUrl::Etcd { endpoints, .. } if auth => {
            let config = Config::new(endpoints.iter().cloned()).with_user(USER.0, Secret::new(USER.1));
            Ok(Store::new(EtcdEngine::connect(config).await?))
        }
        StoreUrl::Etcd { .. } | StoreUrl::File(_) | StoreUrl::Memory => Store::open(url).await,
    }
}

/// The signals of the rig.
struct ClientSignals {
    calm: Signal,
    go: Signal,
    is_gone: bool,
}

impl ClientSignals {
    fn new() -> std::io::Result<ClientSignals> {
        let (calm, go) = (signal(SignalKind::user_defined1())?, signal(SignalKind::terminate())?);
        Ok(ClientSignals { calm, go, is_gone: false })
    }

    async fn calm_or_go(&mut self) {
        if self.is_gone {
            return;
        }
        self.is_gone = tokio::select! {
            biased;
            _ = self.go.recv() => true,
            _ = self.calm.recv() => false,
        };
    }

    async fn go(&mut self) {
        if !self.is_gone {
            self.go.recv().await;
            self.is_gone = true;
        }
    }
}

fn namespace() -> Namespace {
    Namespace::parse(NAMESPACE).expect("a good name")
}

/// How many files are open; the one that counts them is always among them.
fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
