//! `tenure bench store`: memory, file and etcd side by side, with the goals of the store's contract.

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure::clock::{BootClock, Clock};
use tenure::store::{Selection, Store, StoreUrl};
use tenure_etcd::raw::Raw;

use super::etcd::Sides;
use super::process;
use super::report::{Found, Goal, Report, Row, Verdict};
use super::sample::{Effort, Sample};
use super::workload::{Bench, wrong};
use crate::cli::Global;
use crate::connect::{self, Decision};
use crate::failure::Failure;
use crate::output::Output;

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

/// An engine to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Engine {
    Memory,
    File,
    Etcd,
}

pub(super) async fn run(args: &StoreArgs, global: &Global, output: &Output) -> Result<(), Failure> {
    let mut report = Report::new(output);
    let has = |engine| args.engines.is_empty() || args.engines.contains(&engine);
    let effort =
        |n: usize| Effort { n: args.n.unwrap_or(n).max(1), span_max: Duration::from_secs(args.seconds_max) };
    if cfg!(debug_assertions) {
        report.note("this is a debug build; figures of a release build are several times better");
    }
    if has(Engine::Memory) {
        memory(effort(200_000), &mut report).await?;
    }
    if has(Engine::File) {
        file(effort(20_000), &mut report).await?;
    }
    if has(Engine::Etcd) {
        let decision = connect::decide(global);
        match decision {
            Ok(decision) if is_etcd(&decision) => {
                etcd(&decision, effort(10_000), output, &mut report).await?
            }
            decision if args.engines.contains(&Engine::Etcd) => {
                let why = decision.and_then(|decision| decision.store).err();
                let why = why.map(|failure| format!(": {}", failure.message)).unwrap_or_default();
                return Err(Failure::usage(format!("no etcd is configured{why}"))
                    .hint("set TENURE_ENDPOINTS=host:2379"));
            }
            _ => report.note(
                "etcd was left out, because none is configured; to include it set TENURE_ENDPOINTS=host:2379",
            ),
        }
    }
    if report.missed > 0 {
        report.note(&format!("{} goals were not met", report.missed));
    }
    Ok(())
}

fn is_etcd(decision: &Decision) -> bool {
    matches!(&decision.store, Ok(store) if matches!(store.value, StoreUrl::Etcd { .. }))
}

async fn memory(effort: Effort, report: &mut Report<'_>) -> Result<(), Failure> {
    let store = Store::memory();
    let seen = each(Bench { store: &store, prefix: "/bench/" }, "memory", effort, report).await?;
    let goals = [
        ("put", "ops_s", seen.put.ops_s(), Goal::AtLeast(120_000.0)),
        ("get", "ops_s", seen.get.ops_s(), Goal::AtLeast(500_000.0)),
        ("watch", "p50", seen.watch.p50_ms().unwrap_or(f64::NAN), Goal::AtMost(0.08)),
    ];
    for (workload, of, figure, goal) in goals {
        report.verdict(&Verdict::new((workload, "memory", "contract"), of, Found::Figure(figure), goal))?;
    }
    store.close().await;
    Ok(())
}

async fn file(effort: Effort, report: &mut Report<'_>) -> Result<(), Failure> {
    let folder = tempfile::Builder::new()
        .prefix("tenure-bench-")
        .tempdir()
        .map_err(|error| wrong(format!("no temporary folder can be made: {error}")))?;
    let path = folder.path().join("store.db");
    let store = connect::open_file(&path).await?;
    let done = file_at(&store, &path, effort, report).await;
    store.close().await;
    done
}

async fn file_at(store: &Store, path: &Path, effort: Effort, report: &mut Report<'_>) -> Result<(), Failure> {
    let seen = each(Bench { store, prefix: "/bench/" }, "file", effort, report).await?;
    let goals = [
        ("put", "p50", seen.put.p50_ms().unwrap_or(f64::NAN), Goal::AtMost(0.12)),
        ("put", "ops_s", seen.put.ops_s(), Goal::AtLeast(5_000.0)),
        ("expiry_late", "p99", seen.expiry.p99_ms().unwrap_or(f64::NAN), Goal::AtMost(100.0)),
    ];
    for (workload, of, figure, goal) in goals {
        report.verdict(&Verdict::new((workload, "file", "contract"), of, Found::Figure(figure), goal))?;
    }
    process::run(store, path, effort.part(10), report).await
}

async fn etcd(
    decision: &Decision,
    effort: Effort,
    output: &Output,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let url = &decision.store.as_ref().map_err(Clone::clone)?.value;
    let store = connect::open(decision, output).await?;
    let prefix = format!("/tenure-bench/{:x}/", BootClock.now().since_origin().as_nanos());
    let ours = Bench { store: &store, prefix: &prefix };
    let done = etcd_at(ours, url, decision, effort, report).await;
    // Whatever happened, the cluster is left as it was found.
    store.delete(Selection::prefix(prefix.clone())).await?;
    store.close().await;
    done
}

async fn etcd_at(
    ours: Bench<'_>,
    url: &StoreUrl,
    decision: &Decision,
    effort: Effort,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    match url {
        StoreUrl::Etcd { endpoints, security: tenure::store::Security::Plain } if decision.user.is_none() => {
            let raw = Raw::connect(&format!("http://{}", endpoints[0]))
                .await
                .map_err(|error| wrong(format!("the raw reference cannot connect: {error}")))?;
            Sides { ours, raw: &raw, url }.run(effort, report).await?;
        }
        _ => report.note("the raw reference was left out: it speaks neither TLS nor passwords"),
    }
    let effort = effort.part(5);
    report.row(&Row::new("cas", "etcd", &ours.cas(effort).await?))?;
    leases(ours, "etcd", effort, report).await.map(drop)
}

/// What the goals look at.
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
    effort: Effort,
    report: &mut Report<'_>,
) -> Result<Figures, Failure> {
    let put = bench.put(effort).await?;
    report.row(&Row::new("put", engine, &put))?;
    report.row(&Row::new("put_64", engine, &bench.put_in_flight(effort, 64).await?))?;
    report.row(&Row::new("put_256", engine, &bench.put_in_flight(effort, 256).await?))?;
    let get = bench.get(effort).await?;
    report.row(&Row::new("get", engine, &get))?;
    report.row(&Row::new("cas", engine, &bench.cas(effort.part(4)).await?))?;
    report.row(&Row::new("put_10000_in_txns", engine, &bench.bulk(effort.n.min(10_000)).await?))?;
    let batches = bench.claims_in_batches(effort.part(2), 100).await?;
    report.row(&Row::new("claims_batch_100", engine, &batches))?;
    report.row(&Row::new("claims_one_by_one", engine, &bench.claims_one_by_one(effort.part(2)).await?))?;
    let watch = bench.watch(effort.part(10)).await?;
    report.row(&Row::new("watch", engine, &watch))?;
    let expiry = leases(bench, engine, effort.part(10), report).await?;
    Ok(Figures { put, get, watch, expiry })
}

async fn leases(
    bench: Bench<'_>,
    engine: &'static str,
    effort: Effort,
    report: &mut Report<'_>,
) -> Result<Sample, Failure> {
    report.row(&Row::new("lease_grant", engine, &bench.grant(effort).await?))?;
    report.row(&Row::new("lease_renew", engine, &bench.renew(effort).await?))?;
    let expiry = bench.expiry(effort.n.min(100)).await?;
    report.row(&Row { min: expiry.min_ms(), ..Row::new("expiry_late", engine, &expiry) })?;
    Ok(expiry)
}
