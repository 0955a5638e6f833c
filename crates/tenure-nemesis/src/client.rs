//! A client: one real process that works with the public parts of the library, and tells everything.
//!
//! It is told what to do by signals: SIGUSR1 means that faults are over and it is to finish what it does, SIGTERM that it is to go. Everything else
//! that comes over it comes without warning.

mod election;
mod etcdctl;
mod lock;
mod plain;
mod registry;
mod stage;
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

use self::stage::Stage;
use crate::history::{Event, Writer};
use crate::options::{Against, ClientOptions};

/// Where everything of the run lies.
pub const NAMESPACE: &str = "nemesis";

/// The user that clients and rig sign in as, where etcd asks.
pub const USER: (&str, &str) = ("root", "nemesis");

/// For tasks and sockets to go after everything was closed. Ends of connections are seen by their tasks a little later.
const GOING: Duration = Duration::from_secs(10);

/// Runs a client until it is told to go.
///
/// # Errors
///
/// What cannot even begin.
pub fn run(options: &ClientOptions) -> Result<(), String> {
    // Signals to one life reach everything that it started.
    rustix::process::setpgid(None, None).map_err(|error| format!("no group of its own: {error}"))?;
    #[cfg(tenure_sabotage)]
    let broken = match options.against {
        Against::Broken(rule) => Some(tenure_core::sabotage::Sabotage::of(rule)),
        Against::Tenure | Against::Plain | Against::Etcdctl => None,
    };
    // One thread: a rule is broken on a thread, and two cores have enough to do.
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let lived = runtime.block_on(live(options));
    #[cfg(tenure_sabotage)]
    drop(broken);
    lived
}

async fn live(options: &ClientOptions) -> Result<(), String> {
    let history = Arc::new(Writer::open(&options.history).map_err(|error| error.to_string())?);
    let signals = Signals::new().map_err(|error| error.to_string())?;
    let fds_before = open_fds();
    let trouble = match options.against {
        Against::Etcdctl => etcdctl::live(options, &history, signals).await,
        Against::Tenure | Against::Broken(_) | Against::Plain => work(options, &history, signals).await,
    };
    let gone = async {
        while open_fds() > fds_before || Handle::current().metrics().num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // What is left is told and counted, not waited for any longer.
    let _ = tokio::time::timeout(GOING, gone).await;
    history.tell(Event::Left {
        tasks: Handle::current().metrics().num_alive_tasks(),
        fds_before,
        fds_after: open_fds(),
        trouble,
    });
    Ok(())
}

/// Works until it is told to go; what could not be put away.
async fn work(options: &ClientOptions, history: &Arc<Writer>, mut signals: Signals) -> Option<String> {
    let store = connect(options, &mut signals).await?;
    let session = match Session::options().ttl(options.against.ttl()).open(store.clone()) {
        Ok(session) => session,
        Err(error) => return Some(error.to_string()),
    };
    let stage = Stage::new(options, history.clone(), store.clone(), session.clone());
    let node = match options.against {
        Against::Plain => {
            plain::begin(&stage);
            None
        }
        Against::Tenure | Against::Broken(_) | Against::Etcdctl => {
            lock::begin(&stage);
            election::begin(&stage);
            registry::begin(&stage);
            Some(tasks::begin(&stage))
        }
    };
    signals.calm_or_go().await;
    stage.calm.cancel();
    stage.actors.close();
    stage.actors.wait().await;
    session.synced().await;
    history.tell(Event::Settled);
    signals.go().await;
    stage.over.cancel();
    let mut troubles = Vec::new();
    if let Some(node) = node {
        troubles.extend(node.await.err().map(|error| format!("the node: {error}")));
    }
    troubles.extend(session.close().await.err().map(|left| left.to_string()));
    drop((stage, session));
    store.close().await;
    (!troubles.is_empty()).then(|| troubles.join("; "))
}

/// Asks until the store is there; none if we are to go before.
async fn connect(options: &ClientOptions, signals: &mut Signals) -> Option<Store> {
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
/// What the store says.
pub async fn open(url: &StoreUrl, auth: bool) -> Result<Store, StoreError> {
    match url {
        StoreUrl::Etcd { endpoints, .. } if auth => {
            let config = Config::new(endpoints.iter().cloned()).with_user(USER.0, Secret::new(USER.1));
            Ok(Store::new(EtcdEngine::connect(config).await?))
        }
        StoreUrl::Etcd { .. } | StoreUrl::File(_) | StoreUrl::Memory => Store::open(url).await,
    }
}

/// What the rig tells us.
struct Signals {
    calm: Signal,
    go: Signal,
    is_gone: bool,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let (calm, go) = (signal(SignalKind::user_defined1())?, signal(SignalKind::terminate())?);
        Ok(Signals { calm, go, is_gone: false })
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
