//! `tenure bench session`: registering, recovering, joining and idling, beside programs written by hand.
//!
//! Ours and the reference take turns in one run, as in `bench store`. The reference is what a competent programmer writes with bare calls:
//! leases of at most 1,000 keys, transactions of 128 operations, 4 of them in flight, and a watch of one's own keys.

mod idle;
mod join;
mod recover;
mod reference;
mod register;

use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure::clock::{BootClock, Clock};
use tenure::store::{Security, Selection, Store, StoreUrl};
use tenure_etcd::raw::Raw;

use super::metrics::Counter;
use super::report::{Report, Row};
use super::sample::{Sample, median};
use super::workload::wrong;
use crate::cli::Global;
use crate::connect::{self, Decision};
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct SessionArgs {
    /// How many keys are registered at most.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = positive)]
    n: usize,
    /// How many turns each side has; the figures are medians.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = positive)]
    rounds: usize,
    /// How long the idle session is watched.
    #[arg(long, value_name = "DURATION", default_value = "12s", value_parser = duration::parse)]
    idle: Duration,
    /// Which engines.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    engines: Vec<Engine>,
}

/// An engine to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Engine {
    Memory,
    File,
    Etcd,
}

/// Where a workload runs.
struct Place<'a> {
    store: &'a Store,
    engine: &'static str,
    /// What counts requests, if there is a server.
    counter: Option<Counter>,
    /// Bare calls to the same server, if there is one.
    raw: Option<Raw>,
    /// Everything is below it; ends in `/`.
    prefix: String,
}

/// How much is done.
#[derive(Clone, Copy)]
struct Size {
    keys_max: usize,
    rounds: usize,
    idle: Duration,
}

pub(super) async fn run(args: &SessionArgs, global: &Global, output: &Output) -> Result<(), Failure> {
    let mut report = Report::new(output);
    let has = |engine| args.engines.is_empty() || args.engines.contains(&engine);
    let size = Size { keys_max: args.n, rounds: args.rounds, idle: args.idle };
    if cfg!(debug_assertions) {
        report.note("this is a debug build; figures of a release build are several times better");
    }
    if has(Engine::Memory) {
        let store = Store::memory();
        embedded(&store, "memory", size, &mut report).await?;
    }
    if has(Engine::File) {
        let folder = tempfile::Builder::new()
            .prefix("tenure-bench-")
            .tempdir()
            .map_err(|error| wrong(format!("no temporary folder can be made: {error}")))?;
        let store = connect::open_file(&folder.path().join("store.db")).await?;
        embedded(&store, "file", size, &mut report).await?;
    }
    if has(Engine::Etcd) {
        let decision = connect::decide(global);
        match decision {
            Ok(decision) if plain_etcd(&decision).is_some() => {
                etcd(&decision, size, output, &mut report).await?;
            }
            Ok(_) | Err(_) if !args.engines.contains(&Engine::Etcd) => report.note(
                "etcd was left out, because none is configured that bare calls can reach; to include it set TENURE_ENDPOINTS=host:2379",
            ),
            decision => {
                let why = decision.and_then(|decision| decision.store).err();
                let why = why.map(|failure| format!(": {}", failure.message)).unwrap_or_default();
                return Err(Failure::usage(format!("no etcd without TLS and passwords is configured{why}"))
                    .hint("set TENURE_ENDPOINTS=host:2379"));
            }
        }
    }
    if report.missed > 0 {
        report.note(&format!("{} goals were not met", report.missed));
    }
    Ok(())
}

/// Without a server there is nothing to compare with, only figures.
async fn embedded(
    store: &Store,
    engine: &'static str,
    size: Size,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let place = Place { store, engine, counter: None, raw: None, prefix: "/bench/".to_owned() };
    register::run(&place, size, report).await?;
    recover::run(&place, size, report).await?;
    store.close().await;
    Ok(())
}

async fn etcd(
    decision: &Decision,
    size: Size,
    output: &Output,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let Some((url, endpoint)) = plain_etcd(decision) else { return Ok(()) };
    let store = connect::open(decision, output).await?;
    let raw = Raw::connect(&format!("http://{endpoint}"))
        .await
        .map_err(|error| wrong(format!("the raw reference cannot connect: {error}")))?;
    let prefix = format!("/tenure-bench/{:x}/", BootClock.now().since_origin().as_nanos());
    let place = Place { store: &store, engine: "etcd", counter: Counter::of(url), raw: Some(raw), prefix };
    let done = async {
        register::run(&place, size, report).await?;
        recover::run(&place, size, report).await?;
        join::run(&place, size, report).await?;
        idle::run(&place, url, size, report).await
    };
    let done = done.await;
    // Whatever happened, the cluster is left as it was found; a reference that failed leaves leases that end by themselves.
    store.delete(Selection::prefix(place.prefix.clone())).await?;
    store.close().await;
    done
}

/// The address of an etcd that bare calls can reach, and its first member.
fn plain_etcd(decision: &Decision) -> Option<(&StoreUrl, &str)> {
    match decision.store.as_ref().ok().map(|store| &store.value) {
        Some(url @ StoreUrl::Etcd { endpoints, security: Security::Plain }) if decision.user.is_none() => {
            Some((url, endpoints.first()?))
        }
        _ => None,
    }
}

/// The turns of one side.
#[derive(Default)]
struct Turns {
    samples: Vec<Sample>,
    requests: u64,
    leases: usize,
}

impl Turns {
    fn row(&self, workload: &'static str, engine: &'static str, counter: Option<&Counter>) -> Row {
        Row {
            requests: counter.map(|_| self.requests),
            leases: Some(self.leases),
            ..Row::new(workload, engine, &Sample::joined(&self.samples))
        }
    }

    /// The median of the times that a round took.
    fn median_s(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.total.as_secs_f64()))
    }

    /// The median over the rounds of ours by theirs: the two of a round had the same neighbours.
    fn ratio_to(&self, other: &Turns) -> f64 {
        let pairs = self.samples.iter().zip(&other.samples);
        median(pairs.map(|(ours, theirs)| ours.total.as_secs_f64() / theirs.total.as_secs_f64().max(1e-9)))
    }
}

/// Which side's turn it is: each begins in every other round.
fn order(round: usize) -> [Side; 2] {
    if round.is_multiple_of(2) { [Side::Ours, Side::Reference] } else { [Side::Reference, Side::Ours] }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Reference,
}

/// All requests that the server has answered so far; 0 where there is none.
async fn handled(counter: Option<&Counter>) -> u64 {
    match counter {
        Some(counter) => counter.handled().await.unwrap_or(0),
        None => 0,
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a number".to_owned()),
    }
}
