//! Where a benchmark of two sides runs: an engine, and where there is a server, bare calls to the same one.

use std::time::Duration;

use clap::ValueEnum;
use tenure::clock::{BootClock, Clock};
use tenure::session::Session;
use tenure::store::{Security, Selection, Store, StoreUrl};
use tenure_etcd::raw::{BoxError, Raw};

use super::metrics::Counter;
use super::report::Report;
use super::workload::wrong;
use crate::cli::Global;
use crate::connect::{self, Decision};
use crate::failure::Failure;
use crate::output::Output;

/// An engine to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Engine {
    Memory,
    File,
    Etcd,
}

/// Where a workload runs.
pub(super) struct Place {
    pub(super) store: Store,
    pub(super) engine: &'static str,
    /// Where another process finds the same store.
    pub(super) url: StoreUrl,
    /// What counts requests, if there is a server.
    pub(super) counter: Option<Counter>,
    /// Bare calls to the same server, if there is one.
    pub(super) raw: Option<Raw>,
    /// Everything is below it; ends in `/`.
    pub(super) prefix: String,
}

impl Place {
    /// All requests that the server has answered so far; 0 where there is none.
    pub(super) async fn handled(&self) -> u64 {
        match &self.counter {
            Some(counter) => counter.handled().await.unwrap_or(0),
            None => 0,
        }
    }

    /// One more bare connection to the server.
    pub(super) async fn connect_raw(&self) -> Result<Raw, Failure> {
        match &self.url {
            StoreUrl::Etcd { endpoints, security: Security::Plain } => connect_raw(endpoints).await,
            StoreUrl::Etcd { .. } | StoreUrl::Memory | StoreUrl::File(_) => {
                Err(wrong("there is nothing that bare calls could reach"))
            }
        }
    }

    /// The namespace that is the prefix.
    pub(super) fn namespace(&self) -> &str {
        self.prefix.trim_matches('/')
    }
}

/// Measures on every engine that is wanted, all of them if none is named; etcd only where bare calls can reach it too.
pub(super) async fn on_each(
    engines: &[Engine],
    (global, output): (&Global, &Output),
    report: &mut Report<'_>,
    measure: impl AsyncFn(&Place, &mut Report<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let has = |engine| engines.is_empty() || engines.contains(&engine);
    if cfg!(debug_assertions) {
        report.note("this is a debug build; figures of a release build are several times better");
    }
    if has(Engine::Memory) {
        let place = embedded(Store::memory(), "memory", StoreUrl::Memory);
        measure(&place, report).await?;
        place.store.close().await;
    }
    if has(Engine::File) {
        let folder = tempfile::Builder::new()
            .prefix("tenure-bench-")
            .tempdir()
            .map_err(|error| wrong(format!("no temporary folder can be made: {error}")))?;
        let path = folder.path().join("store.db");
        let place = embedded(connect::open_file(&path).await?, "file", StoreUrl::File(path));
        measure(&place, report).await?;
        place.store.close().await;
    }
    if has(Engine::Etcd) {
        match connect::decide(global) {
            Ok(decision) if plain_etcd(&decision).is_some() => {
                let place = etcd(&decision, output).await?;
                let done = measure(&place, report).await;
                // Whatever happened, the cluster is left as it was found; a reference that failed leaves leases that end by themselves.
                place.store.delete(Selection::prefix(place.prefix.clone())).await?;
                place.store.close().await;
                done?;
            }
            Ok(_) | Err(_) if !engines.contains(&Engine::Etcd) => report.note(
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
fn embedded(store: Store, engine: &'static str, url: StoreUrl) -> Place {
    Place { store, engine, url, counter: None, raw: None, prefix: "/bench/".to_owned() }
}

async fn etcd(decision: &Decision, output: &Output) -> Result<Place, Failure> {
    let (url, endpoints) = plain_etcd(decision).ok_or_else(|| wrong("no etcd that bare calls can reach"))?;
    let store = connect::open(decision, output).await?;
    let raw = connect_raw(endpoints).await?;
    let prefix = format!("/tenure-bench/{:x}/", BootClock.now().since_origin().as_nanos());
    let counter = Counter::of(url);
    Ok(Place { store, engine: "etcd", url: url.clone(), counter, raw: Some(raw), prefix })
}

/// The address of an etcd that bare calls can reach, and its members.
fn plain_etcd(decision: &Decision) -> Option<(&StoreUrl, &[String])> {
    match decision.store.as_ref().ok().map(|store| &store.value) {
        Some(url @ StoreUrl::Etcd { endpoints, security: Security::Plain }) if decision.user.is_none() => {
            Some((url, endpoints))
        }
        _ => None,
    }
}

/// Bare calls to the first of these members.
pub(super) async fn connect_raw(endpoints: &[String]) -> Result<Raw, Failure> {
    let endpoint = endpoints.first().ok_or_else(|| wrong("no member is named"))?;
    Raw::connect(&format!("http://{endpoint}")).await.map_err(failed)
}

/// A session that outlives every turn, so that no renewal comes between.
pub(super) fn open_session(store: &Store) -> Result<Session, Failure> {
    Session::options()
        .ttl(TTL)
        .open(store.clone())
        .map_err(|error| wrong(format!("no session can be opened: {error}")))
}

/// The lease of both sides.
pub(super) const TTL: Duration = Duration::from_secs(60);

pub(super) async fn close_session(session: &Session) -> Result<(), Failure> {
    session.close().await.map_err(|left| wrong(left.to_string()))
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
pub(super) fn failed(error: BoxError) -> Failure {
    wrong(format!("the raw reference failed: {error}"))
}

/// One of the workloads that there are.
pub(super) fn named(
    text: &str,
    workloads: impl Iterator<Item = &'static str> + Clone,
) -> Result<&'static str, String> {
    let known = workloads.clone().find(|workload| *workload == text);
    known.ok_or_else(|| format!("there are {}", workloads.collect::<Vec<_>>().join(", ")))
}

pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a number".to_owned()),
    }
}
