//! `tenure-bench store`: memory, file and etcd side by side, with the goals of the store's contract.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use tenure::store::file::FileEngine;
use tenure::store::{Durability, Selection, Store, StoreUrl};

use super::etcd::Sides;
use super::options::Engine;
use super::process;
use super::report::{self, BenchReport, Found, Goal, GoalResult, ResultRow};
use super::sample::{Sample, WorkAmount};
use super::store_under_test::{connect_raw, is_wanted, root, temporary_folder, wanted_etcd};
use super::workload::Bench;
use crate::failure::BenchFailure;

#[derive(Args, Debug)]
pub(crate) struct StoreArgs {
    /// How often each thing is done; without it, as often as the engine makes sense of.
    #[arg(long, value_name = "N")]
    n: Option<usize>,
    /// Which engines.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    engines: Vec<Engine>,
    /// How many seconds one measurement may take.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds_max: u64,
}

pub(super) async fn run(args: &StoreArgs, etcd: Option<&StoreUrl>) -> Result<(), BenchFailure> {
    let mut report = BenchReport::default();
    let effort = |n: usize| WorkAmount {
        n: args.n.unwrap_or(n).max(1),
        span_max: Duration::from_secs(args.seconds_max),
    };
    report::note_debug_build();
    if is_wanted(&args.engines, Engine::Memory) {
        memory(effort(200_000), &mut report).await?;
    }
    if is_wanted(&args.engines, Engine::File) {
        file(effort(20_000), &mut report).await?;
    }
    if let Some(url) = wanted_etcd(&args.engines, etcd)? {
        on_etcd(url, effort(15_000), &mut report).await?;
    }
    report.close();
    Ok(())
}

async fn memory(effort: WorkAmount, report: &mut BenchReport) -> Result<(), BenchFailure> {
    let store = Store::memory();
    let seen = each(Bench { store: &store, prefix: "/bench/" }, "memory", effort, report).await?;
    let goals = [
        ("put", "ops_s", seen.put.ops_s(), Goal::AtLeast(120_000.0)),
        ("get", "ops_s", seen.get.ops_s(), Goal::AtLeast(500_000.0)),
        ("watch", "p50", seen.watch.p50_ms().unwrap_or(f64::NAN), Goal::AtMost(0.08)),
    ];
    for (workload, of, figure, goal) in goals {
        report.goal(&GoalResult::new((workload, "memory", "contract"), of, Found::Figure(figure), goal))?;
    }
    store.close().await;
    Ok(())
}

async fn file(effort: WorkAmount, report: &mut BenchReport) -> Result<(), BenchFailure> {
    let folder = temporary_folder()?;
    let path = folder.path().join("store.db");
    let store = Store::new(FileEngine::open(&path).await?);
    let done = file_at(&store, &path, effort, report).await;
    store.close().await;
    done?;
    file_to_disk(&folder.path().join("to_disk.db"), effort.part(4), report).await
}

/// The same file engine when every commit waits for the disk: alone, and with 64 that share a commit.
async fn file_to_disk(path: &Path, effort: WorkAmount, report: &mut BenchReport) -> Result<(), BenchFailure> {
    let options = FileEngine::options().durability(Durability::PowerLoss);
    let store = Store::new(options.open(path).await?);
    let bench = Bench { store: &store, prefix: "/bench/" };
    let alone = bench.put(effort).await?;
    report.row(&ResultRow::new("put", "file_to_disk", &alone))?;
    let shared = bench.put_in_flight(effort, 64).await?;
    report.row(&ResultRow::new("put_64", "file_to_disk", &shared))?;
    for (workload, sample, least) in [("put", &alone, 1_000.0), ("put_64", &shared, 20_000.0)] {
        let names = (workload, "file_to_disk", "contract");
        report.goal(&GoalResult::new(names, "ops_s", Found::Figure(sample.ops_s()), Goal::AtLeast(least)))?;
    }
    store.close().await;
    Ok(())
}

async fn file_at(
    store: &Store,
    path: &Path,
    effort: WorkAmount,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let seen = each(Bench { store, prefix: "/bench/" }, "file", effort, report).await?;
    let goals = [
        ("put", "p50", seen.put.p50_ms().unwrap_or(f64::NAN), Goal::AtMost(0.12)),
        ("put", "ops_s", seen.put.ops_s(), Goal::AtLeast(5_000.0)),
        ("expiry_late", "p99", seen.expiry.p99_ms().unwrap_or(f64::NAN), Goal::AtMost(100.0)),
    ];
    for (workload, of, figure, goal) in goals {
        report.goal(&GoalResult::new((workload, "file", "contract"), of, Found::Figure(figure), goal))?;
    }
    process::run(store, path, effort.part(10), report).await
}

async fn on_etcd(url: &StoreUrl, effort: WorkAmount, report: &mut BenchReport) -> Result<(), BenchFailure> {
    let store = Store::open(url).await?;
    let prefix = format!("/{}/", root());
    let done = etcd_at(Bench { store: &store, prefix: &prefix }, url, effort, report).await;
    // Whatever happened, the cluster is left as it was found.
    store.delete(Selection::prefix(prefix.clone())).await?;
    store.close().await;
    done
}

async fn etcd_at(
    tenure: Bench<'_>,
    url: &StoreUrl,
    effort: WorkAmount,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let raw = connect_raw(url).await?;
    Sides { tenure, raw: &raw, url }.run(effort, report).await?;
    let effort = effort.part(5);
    report.row(&ResultRow::new("cas", "etcd", &tenure.cas(effort).await?))?;
    leases(tenure, "etcd", effort, report).await.map(drop)
}

/// The figures that goals compare.
struct Figures {
    put: Sample,
    get: Sample,
    watch: Sample,
    expiry: Sample,
}

/// Everything that one process does with an engine.
async fn each(
    bench: Bench<'_>,
    engine: &'static str,
    effort: WorkAmount,
    report: &mut BenchReport,
) -> Result<Figures, BenchFailure> {
    let put = bench.put(effort).await?;
    report.row(&ResultRow::new("put", engine, &put))?;
    report.row(&ResultRow::new("put_64", engine, &bench.put_in_flight(effort, 64).await?))?;
    report.row(&ResultRow::new("put_256", engine, &bench.put_in_flight(effort, 256).await?))?;
    let get = bench.get(effort).await?;
    report.row(&ResultRow::new("get", engine, &get))?;
    report.row(&ResultRow::new("cas", engine, &bench.cas(effort.part(4)).await?))?;
    report.row(&ResultRow::new("put_10000_in_txns", engine, &bench.bulk(effort.n.min(10_000)).await?))?;
    let batches = bench.claims_in_batches(effort.part(2), 100).await?;
    report.row(&ResultRow::new("claims_batch_100", engine, &batches))?;
    report.row(&ResultRow::new(
        "claims_one_by_one",
        engine,
        &bench.claims_one_by_one(effort.part(2)).await?,
    ))?;
    let watch = bench.watch(effort.part(10)).await?;
    report.row(&ResultRow::new("watch", engine, &watch))?;
    let expiry = leases(bench, engine, effort.part(10), report).await?;
    Ok(Figures { put, get, watch, expiry })
}

async fn leases(
    bench: Bench<'_>,
    engine: &'static str,
    effort: WorkAmount,
    report: &mut BenchReport,
) -> Result<Sample, BenchFailure> {
    report.row(&ResultRow::new("lease_grant", engine, &bench.grant(effort).await?))?;
    report.row(&ResultRow::new("lease_renew", engine, &bench.renew(effort).await?))?;
    let expiry = bench.expiry(effort.n.min(100)).await?;
    report.row(&ResultRow { min: expiry.min_ms(), ..ResultRow::new("expiry_late", engine, &expiry) })?;
    Ok(expiry)
}
