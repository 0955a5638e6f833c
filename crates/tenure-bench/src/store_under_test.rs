//! Where a benchmark of two sides runs: an engine, and where there is a server, bare calls to the same one.

use std::time::Duration;

use tempfile::TempDir;
use tenure::clock::{BootClock, Clock};
use tenure::session::Session;
use tenure::store::{Selection, Store, StoreUrl, Transport};

use super::metrics::Counter;
use super::options::Engine;
use super::raw::{BoxError, Raw};
use super::report::{self, BenchReport};
use super::workload::wrong;
use crate::failure::BenchFailure;

/// Where a workload runs.
pub(super) struct StoreUnderTest {
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

impl StoreUnderTest {
    /// All requests that the server has answered so far; 0 where there is none.
    pub(super) async fn handled(&self) -> u64 {
        match &self.counter {
            Some(counter) => counter.handled().await.unwrap_or(0),
            None => 0,
        }
    }

    /// One more bare connection to the server.
    pub(super) async fn connect_raw(&self) -> Result<Raw, BenchFailure> {
        connect_raw(&self.url).await
    }

    /// The namespace that is the prefix.
    pub(super) fn namespace(&self) -> &str {
        self.prefix.trim_matches('/')
    }
}

/// Measures on every engine that is wanted, all of them if none is named; etcd only where one is configured.
pub(super) async fn on_each(
    engines: &[Engine],
    etcd: Option<&StoreUrl>,
    report: &mut BenchReport,
    measure: impl AsyncFn(&StoreUnderTest, &mut BenchReport) -> Result<(), BenchFailure>,
) -> Result<(), BenchFailure> {
    report::note_debug_build();
    if is_wanted(engines, Engine::Memory) {
        let place = embedded(Store::memory(), "memory", StoreUrl::Memory);
        measure(&place, report).await?;
        place.store.close().await;
    }
    if is_wanted(engines, Engine::File) {
        let folder = temporary_folder()?;
        let url = StoreUrl::File(folder.path().join("store.db"));
        let place = embedded(Store::open(&url).await?, "file", url);
        measure(&place, report).await?;
        place.store.close().await;
    }
    if let Some(url) = wanted_etcd(engines, etcd)? {
        let place = on_etcd(url).await?;
        let done = measure(&place, report).await;
        // Whatever happened, the cluster is left as it was found; a reference that failed leaves leases that end by themselves.
        place.store.delete(Selection::prefix(place.prefix.clone())).await?;
        place.store.close().await;
        done?;
    }
    report.close();
    Ok(())
}

/// Whether an engine is to be measured: all of them if none is named.
pub(super) fn is_wanted(engines: &[Engine], engine: Engine) -> bool {
    engines.is_empty() || engines.contains(&engine)
}

/// The etcd to measure. One that is not configured is left out, unless it was named.
pub(super) fn wanted_etcd<'a>(
    engines: &[Engine],
    etcd: Option<&'a StoreUrl>,
) -> Result<Option<&'a StoreUrl>, BenchFailure> {
    match etcd {
        _ if !is_wanted(engines, Engine::Etcd) => Ok(None),
        Some(url) => Ok(Some(url)),
        None if engines.contains(&Engine::Etcd) => {
            Err(BenchFailure::usage("no etcd is configured; set TENURE_ENDPOINTS=host:2379"))
        }
        None => {
            report::note(
                "etcd was left out, because none is configured; to include it set TENURE_ENDPOINTS=host:2379",
            );
            Ok(None)
        }
    }
}

/// Where store files are during a run.
pub(super) fn temporary_folder() -> Result<TempDir, BenchFailure> {
    let folder = tempfile::Builder::new().prefix("tenure-bench-").tempdir();
    folder.map_err(|error| wrong(format!("no temporary folder can be made: {error}")))
}

/// Without a server there is nothing to compare with, only figures.
fn embedded(store: Store, engine: &'static str, url: StoreUrl) -> StoreUnderTest {
    StoreUnderTest { store, engine, url, counter: None, raw: None, prefix: "/bench/".to_owned() }
}

async fn on_etcd(url: &StoreUrl) -> Result<StoreUnderTest, BenchFailure> {
    let store = Store::open(url).await?;
    let raw = connect_raw(url).await?;
    let counter = Counter::of(url);
    Ok(StoreUnderTest {
        store,
        engine: "etcd",
        url: url.clone(),
        counter,
        raw: Some(raw),
        prefix: format!("/{}/", root()),
    })
}

/// A namespace of this run alone.
pub(super) fn root() -> String {
    format!("tenure-bench/{:x}", BootClock.now().since_origin().as_nanos())
}

/// Bare calls to the first member of an etcd.
pub(super) async fn connect_raw(url: &StoreUrl) -> Result<Raw, BenchFailure> {
    match url {
        StoreUrl::Etcd { endpoints, security: Transport::Plain } if !endpoints.is_empty() => {
            Raw::connect(&format!("http://{}", endpoints[0])).await.map_err(failed)
        }
        StoreUrl::Etcd { .. } | StoreUrl::Memory | StoreUrl::File(_) => {
            Err(wrong("hand-written calls go to an etcd without TLS"))
        }
    }
}

/// A session that outlives every turn, so that no renewal comes between.
pub(super) fn open_session(store: &Store) -> Result<Session, BenchFailure> {
    Session::options()
        .ttl(TTL)
        .open(store.clone())
        .map_err(|error| wrong(format!("no session can be opened: {error}")))
}

/// The lease of both sides.
pub(super) const TTL: Duration = Duration::from_secs(60);

pub(super) async fn close_session(session: &Session) -> Result<(), BenchFailure> {
    session.close().await.map_err(|left| wrong(left.to_string()))
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
pub(super) fn failed(error: BoxError) -> BenchFailure {
    wrong(format!("the raw reference failed: {error}"))
}
