//! What workloads run in other processes: two processes on one file are the point of the file engine.
//!
//! A helper process prints on stdout what it does, one JSON object on a line, and ends when its stdin ends, so that none outlives its parent.

mod node;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tenure::clock::{BootClock, Clock};
use tenure::session::Session;
use tenure::store::{Change, PreviousValues, Selection, Store, StoreUrl, WatchItem, WatchStart};
use tenure_core::id::{Namespace, NodeId};

use crate::failure::BenchFailure;
use crate::lock::{Contender, Contending};
use crate::options::duration;
use crate::report::print;

pub(crate) use node::Footprint;

/// Hidden commands, each run in a process of its own; not for people.
#[derive(Subcommand, Debug)]
pub(crate) enum InternalCommand {
    /// Watch a prefix, and print each event with the time it was seen.
    Watch {
        /// The store file.
        file: PathBuf,
        /// The prefix.
        prefix: String,
    },
    /// Write as fast as possible, and print what it took.
    Write {
        /// The store file.
        file: PathBuf,
        /// The key to write.
        key: String,
        /// For how long.
        #[arg(value_parser = duration)]
        span: Duration,
    },
    /// Watch, do nothing, and print the CPU time that cost.
    Idle {
        /// The store file.
        file: PathBuf,
        /// For how long.
        #[arg(value_parser = duration)]
        span: Duration,
    },
    /// Register keys through a session, do nothing, and print the CPU time that cost.
    Keep {
        /// The store's address.
        url: StoreUrl,
        /// Where the keys are; ends in `/`.
        prefix: String,
        /// How many keys.
        keys: usize,
        /// The lease's length.
        #[arg(value_parser = duration)]
        ttl: Duration,
        /// For how long.
        #[arg(value_parser = duration)]
        span: Duration,
    },
    /// Take one lock again and again, in competition with other processes, and print when it was held.
    Contend {
        /// The store's address.
        url: StoreUrl,
        /// Where the keys are; ends in `/`.
        prefix: String,
        /// Through a session, or with hand-written calls.
        side: Contending,
        /// For how long.
        #[arg(value_parser = duration)]
        span: Duration,
    },
    /// Join as a node with tasks that wait until they are stopped, and print its state at each line
    /// on stdin.
    Node {
        /// The store's address.
        url: StoreUrl,
        /// Where the tasks are.
        #[arg(value_parser = Namespace::parse)]
        namespace: Namespace,
        /// The node's name.
        #[arg(value_parser = NodeId::parse)]
        id: NodeId,
        /// The length of its leases.
        #[arg(value_parser = duration)]
        ttl: Duration,
    },
}

/// Printed when a helper process is ready to start its work.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ready {
    ready: bool,
}

/// A change that was seen.
#[derive(Serialize, Deserialize)]
pub(crate) struct SeenChange {
    pub(crate) is_put: bool,
    pub(crate) key: String,
    pub(crate) revision: i64,
    /// On the boot clock, which all processes of a machine share.
    pub(crate) seen_ns: u64,
}

/// What writing was like.
#[derive(Serialize, Deserialize)]
pub(crate) struct WriteSummary {
    pub(crate) count: u64,
    pub(crate) errors: u64,
    pub(crate) max_ms: f64,
}

/// What doing nothing costs.
#[derive(Serialize, Deserialize)]
pub(crate) struct IdleCost {
    pub(crate) cpu_percent: f64,
}

/// What keeping keys registered costs.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeepCost {
    pub(crate) leases: usize,
    pub(crate) cpu_percent: f64,
}

/// Runs a hidden command until it is over or stdin ends.
pub(crate) async fn run(command: &InternalCommand) -> Result<(), BenchFailure> {
    let (go, mut go_ahead) = tokio::sync::mpsc::channel(GO_AHEADS_MAX);
    let stdin_ended = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|len| len > 0) {
            // Every line lets the workload go on. This thread must see the end of stdin, so it
            // never waits for a workload that does not receive.
            let _ = go.try_send(());
        }
    });
    let running = async {
        match command {
            InternalCommand::Watch { file, prefix } => watch(file, prefix).await,
            InternalCommand::Write { file, key, span } => {
                let store = open(file).await?;
                print(&Ready { ready: true })?;
                go_on(&mut go_ahead).await?;
                write(&store, key, *span).await
            }
            InternalCommand::Idle { file, span } => idle(file, *span).await,
            InternalCommand::Keep { url, prefix, keys, ttl, span } => {
                let store = Store::open(url).await?;
                let session = Session::options().ttl(*ttl).open(store);
                let session = session.map_err(|error| BenchFailure::new(error.to_string()))?;
                let leases = register(&session, prefix, *keys).await?;
                // The first renewal opens the stream for all that follow, and is over by then.
                tokio::time::sleep(*ttl / 2).await;
                print(&Ready { ready: true })?;
                go_on(&mut go_ahead).await?;
                print(&KeepCost { leases, cpu_percent: cpu_percent_for(*span).await })?;
                // The parent counts requests before the session is closed.
                go_on(&mut go_ahead).await?;
                session.close().await.map_err(|left| BenchFailure::new(left.to_string()))
            }
            InternalCommand::Contend { url, prefix, side, span } => {
                let contender = Contender::open(url, prefix, *side).await?;
                print(&Ready { ready: true })?;
                go_on(&mut go_ahead).await?;
                print(&contender.run(*span).await?)?;
                // Every process stays until the parent has read from all of them.
                go_on(&mut go_ahead).await?;
                contender.close().await
            }
            InternalCommand::Node { url, namespace, id, ttl } => {
                node::run((url, namespace, id), *ttl, &mut go_ahead).await
            }
        }
    };
    tokio::select! {
        biased;
        _ = stdin_ended => Ok(()),
        done = running => done,
    }
}

/// How many lines of stdin may wait before the workload reads them; no workload gets more than two.
const GO_AHEADS_MAX: usize = 2;

/// Waits for the next line of stdin.
async fn go_on(go_ahead: &mut tokio::sync::mpsc::Receiver<()>) -> Result<(), BenchFailure> {
    go_ahead.recv().await.ok_or_else(|| BenchFailure::new("stdin ended before the start"))
}

/// Now, in nanoseconds since boot.
pub(crate) fn now_ns() -> u64 {
    u64::try_from(BootClock.now().since_origin().as_nanos()).unwrap_or(u64::MAX)
}

async fn open(file: &Path) -> Result<Store, BenchFailure> {
    Ok(Store::open(&StoreUrl::File(file.to_owned())).await?)
}

async fn watch(file: &Path, prefix: &str) -> Result<(), BenchFailure> {
    let store = open(file).await?;
    let select = Selection::prefix(prefix.to_owned());
    let mut stream = store.watch(select, WatchStart::Now, PreviousValues::Omitted).await?;
    print(&Ready { ready: true })?;
    while let Some(item) = stream.next().await {
        let WatchItem::Batch { changes, .. } = item? else { continue };
        let seen_ns = now_ns();
        for change in changes {
            print(&SeenChange {
                is_put: matches!(change, Change::Put { .. }),
                key: String::from_utf8_lossy(change.key()).into_owned(),
                revision: change.revision().0,
                seen_ns,
            })?;
        }
    }
    Ok(())
}

/// 128 bytes, as the figures in the store's contract were measured with.
pub(crate) const VALUE: [u8; 128] = [b'v'; 128];

async fn write(store: &Store, key: &str, span: Duration) -> Result<(), BenchFailure> {
    let begin = std::time::Instant::now();
    let mut written = WriteSummary { count: 0, errors: 0, max_ms: 0.0 };
    while begin.elapsed() < span {
        let before = std::time::Instant::now();
        match store.put(key.to_owned(), &VALUE[..]).await {
            Ok(_) => written.count += 1,
            Err(_) => written.errors += 1,
        }
        written.max_ms = written.max_ms.max(before.elapsed().as_secs_f64() * 1e3);
    }
    print(&written)
}

async fn idle(file: &Path, span: Duration) -> Result<(), BenchFailure> {
    /// What opening the store set going has come to rest by then.
    const SETTLED_AFTER: Duration = Duration::from_millis(500);
    let store = open(file).await?;
    let stream = store.watch(Selection::everything(), WatchStart::Now, PreviousValues::Omitted).await?;
    tokio::time::sleep(SETTLED_AFTER).await;
    let cpu_percent = cpu_percent_for(span).await;
    drop(stream);
    print(&IdleCost { cpu_percent })
}

/// Registers keys and returns the number of leases they use.
async fn register(session: &Session, prefix: &str, keys: usize) -> Result<usize, BenchFailure> {
    let registering =
        (0..keys).map(|n| session.register_raw(format!("{prefix}{n}"), &VALUE[..]).into_future());
    let registered = try_join_all(registering)
        .await
        .map_err(|error| BenchFailure::new(format!("a key was not registered: {error}")))?;
    session.synced().await;
    Ok(registered.iter().map(|registration| registration.lease).collect::<BTreeSet<_>>().len())
}

/// The share of one core that this process uses from now on.
async fn cpu_percent_for(span: Duration) -> f64 {
    let (begin, before) = (std::time::Instant::now(), cpu_time());
    tokio::time::sleep(span).await;
    let (elapsed, used) = (begin.elapsed(), cpu_time().saturating_sub(before));
    used.as_secs_f64() / elapsed.as_secs_f64() * 100.0
}

/// The CPU time of this process, all threads together.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
