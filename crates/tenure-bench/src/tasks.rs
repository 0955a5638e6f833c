//! `tenure-bench tasks`: claiming, taking over and holding many tasks, beside the usual first implementation, the herd.
//!
//! Tenure and the reference, a herd of nodes that all claim everything, take turns in one run, as
//! in `tenure-bench store`. All nodes but one live in this process, each with a session and a
//! connection of its own, so on a small machine they compete with the server for the same cores;
//! the reference does so too. The node that is killed, and the one that reports its memory and CPU
//! time, are processes of their own.

mod claim;
mod context;
mod grow;
mod kill;
mod owner_watch;
mod reference;
mod workers;

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure::store::{Store, StoreUrl};

use super::metrics::Counter;
use super::options::{Engine, duration, positive};
use super::report::{self, BenchReport};
use super::store_under_test::{is_wanted, root, temporary_folder, wanted_etcd};
use crate::failure::BenchFailure;

#[derive(Args, Debug)]
pub(crate) struct TasksArgs {
    /// How many tasks are claimed; ten times as many where growth is measured.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = positive)]
    n: usize,
    /// How many nodes claim them; with several numbers one after the other, and the first of them where nodes die and idle.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8,4", value_parser = at_least_two)]
    nodes: Vec<usize>,
    /// How many turns each side has; the figures are medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    rounds: usize,
    /// How long the idle node is watched.
    #[arg(long, value_name = "DURATION", default_value = "12s", value_parser = duration)]
    idle: Duration,
    /// Which engines.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    engines: Vec<Engine>,
    /// What is measured; all by default.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    only: Vec<Workload>,
}

/// Something to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Workload {
    /// All tasks claimed by all nodes at once.
    Claim,
    /// A node dies, and the others take its tasks over.
    Kill,
    /// Ten times as many tasks, and what a node that owns its share of them costs.
    Grow,
}

/// Where a workload runs.
struct TaskStore {
    /// How every node reaches the store by itself.
    reach: Reach,
    engine: &'static str,
    /// What counts requests, if there is a server.
    counter: Option<Counter>,
    /// Every namespace is below it.
    root: String,
}

/// How a node reaches the store.
enum Reach {
    /// There is one in this process, and no other process has it.
    Here(Store),
    /// By its address.
    At(StoreUrl),
}

impl TaskStore {
    /// Where hand-written calls reach the server, if there is one.
    fn server(&self) -> Option<String> {
        match &self.reach {
            Reach::At(StoreUrl::Etcd { endpoints, .. }) => Some(format!("http://{}", endpoints.first()?)),
            Reach::At(_) | Reach::Here(_) => None,
        }
    }

    /// A store of its own: another connection, or another opening of the file.
    async fn open(&self) -> Result<Store, BenchFailure> {
        match &self.reach {
            Reach::Here(store) => Ok(store.clone()),
            Reach::At(url) => Ok(Store::open(url).await?),
        }
    }
}

/// How much is done.
#[derive(Clone)]
struct TasksSize {
    tasks: usize,
    nodes: Vec<usize>,
    rounds: usize,
    idle: Duration,
    only: Vec<Workload>,
}

impl TasksSize {
    fn has(&self, workload: Workload) -> bool {
        self.only.is_empty() || self.only.contains(&workload)
    }
}

pub(super) async fn run(args: &TasksArgs, etcd: Option<&StoreUrl>) -> Result<(), BenchFailure> {
    let mut report = BenchReport::default();
    let (nodes, only) = (args.nodes.clone(), args.only.clone());
    let size = TasksSize { tasks: args.n, nodes, rounds: args.rounds, idle: args.idle, only };
    report::note_debug_build();
    if is_wanted(&args.engines, Engine::Memory) {
        let reach = Reach::Here(Store::memory());
        let place = TaskStore { reach, engine: "memory", counter: None, root: "bench".to_owned() };
        if size.has(Workload::Claim) {
            claim::run(&place, &size, &mut report).await?;
        }
    }
    if is_wanted(&args.engines, Engine::File) {
        let folder = temporary_folder()?;
        measure(&in_file(folder.path()), &size, &mut report).await?;
    }
    if let Some(url) = wanted_etcd(&args.engines, etcd)? {
        measure(&on_etcd(url), &size, &mut report).await?;
    }
    report.close();
    Ok(())
}

async fn measure(place: &TaskStore, size: &TasksSize, report: &mut BenchReport) -> Result<(), BenchFailure> {
    if size.has(Workload::Claim) {
        claim::run(place, size, report).await?;
    }
    if size.has(Workload::Kill) {
        kill::run(place, size, report).await?;
    }
    if size.has(Workload::Grow) {
        grow::run(place, size, report).await?;
    }
    Ok(())
}

fn in_file(folder: &Path) -> TaskStore {
    let reach = Reach::At(StoreUrl::File(folder.join("store.db")));
    TaskStore { reach, engine: "file", counter: None, root: "bench".to_owned() }
}

fn on_etcd(url: &StoreUrl) -> TaskStore {
    TaskStore { reach: Reach::At(url.clone()), engine: "etcd", counter: Counter::of(url), root: root() }
}

/// All requests that the server has answered so far; 0 where there is none.
async fn handled(counter: Option<&Counter>) -> u64 {
    match counter {
        Some(counter) => counter.handled().await.unwrap_or(0),
        None => 0,
    }
}

/// A count as a figure.
fn figure(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn at_least_two(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0 | 1) => Err("must be at least 2: one of them dies".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a number".to_owned()),
    }
}
