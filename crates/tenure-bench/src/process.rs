//! The file engine between processes: events, crowds of writers, and what waiting costs.

use std::path::Path;
use std::time::{Duration, Instant};

use tenure::store::Store;

use super::report::{BenchReport, Found, Goal, GoalResult, ResultRow};
use super::sample::{Sample, WorkAmount};
use crate::child::HelperProcess;
use crate::failure::BenchFailure;
use crate::internal::{IdleCost, SeenChange, VALUE, WriteSummary, now_ns};

/// The processes of the contract's figures.
const WRITERS: usize = 16;

/// How long writers write and idlers idle: long enough for a figure that repeats.
const SPAN: Duration = Duration::from_secs(5);

/// What a busy machine may add before a process counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(
    store: &Store,
    path: &Path,
    effort: WorkAmount,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    across(store, path, effort, report).await?;
    contend(path, effort, report).await?;
    idle(path, effort, report).await
}

/// From before a put here until its event is in another process.
async fn across(
    store: &Store,
    path: &Path,
    effort: WorkAmount,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let mut other = HelperProcess::start(&["watch", &path.to_string_lossy(), "/across/"])?;
    other.ready().await?;
    let begin = Instant::now();
    let mut took = Vec::new();
    while took.len() < effort.n && begin.elapsed() < effort.span_max {
        let before = now_ns();
        store.put("/across/key", &VALUE[..]).await?;
        let seen: SeenChange = other.receive(PATIENCE).await?;
        took.push(Duration::from_nanos(seen.seen_ns.saturating_sub(before)));
    }
    let count = took.len();
    let sample = Sample::new(took, begin.elapsed(), count);
    report.row(&ResultRow::new("watch_across_processes", "file", &sample))?;
    let names = ("watch_across_processes", "file", "contract");
    let (p50, p99) = (sample.p50_ms().unwrap_or(f64::NAN), sample.p99_ms().unwrap_or(f64::NAN));
    report.goal(&GoalResult::new(names, "p50", Found::Figure(p50), Goal::AtMost(0.6)))?;
    report.goal(&GoalResult::new(names, "p99", Found::Figure(p99), Goal::AtMost(5.0)))
}

/// Many processes that write as fast as they can: none may starve.
async fn contend(path: &Path, effort: WorkAmount, report: &mut BenchReport) -> Result<(), BenchFailure> {
    let span = SPAN.min(effort.span_max);
    let mut writers = Vec::new();
    for n in 0..WRITERS {
        let (path, key) = (path.to_string_lossy(), format!("/contend/{n}"));
        writers.push(HelperProcess::start(&["write", &path, &key, &format!("{}ms", span.as_millis())])?);
    }
    for writer in &mut writers {
        writer.ready().await?;
    }
    let begin = Instant::now();
    for writer in &mut writers {
        writer.go().await?;
    }
    let mut counts = Vec::new();
    let (mut errors, mut max) = (0, 0.0_f64);
    for writer in &mut writers {
        let written: WriteSummary = writer.receive(span + PATIENCE).await?;
        counts.push(written.count);
        errors += written.errors;
        max = max.max(written.max_ms);
    }
    let total: u64 = counts.iter().sum();
    let sample = Sample::new(Vec::new(), begin.elapsed(), usize::try_from(total).unwrap_or(usize::MAX));
    let row = ResultRow::new("put_16_processes", "file", &sample);
    report.row(&ResultRow { max: Some(max), errors: Some(errors), ..row })?;
    let names = ("put_16_processes", "file", "contract");
    let fewest = counts.iter().min().copied().unwrap_or(0);
    let most = counts.iter().max().copied().unwrap_or(0).max(1);
    let share = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    report.goal(&GoalResult::new(names, "ops_s", Found::Figure(sample.ops_s()), Goal::AtLeast(4_000.0)))?;
    report.goal(&GoalResult::new(names, "max_ms", Found::Figure(max), Goal::AtMost(250.0)))?;
    report.goal(&GoalResult::new(names, "errors", Found::Figure(share(errors)), Goal::AtMost(0.0)))?;
    report.goal(&GoalResult::new(
        names,
        "fewest_by_most",
        Found::Ratio(share(fewest) / share(most)),
        Goal::AtLeast(0.4),
    ))
}

/// A process that watches and sees nothing happen.
async fn idle(path: &Path, effort: WorkAmount, report: &mut BenchReport) -> Result<(), BenchFailure> {
    let span = SPAN.min(effort.span_max);
    let begin = Instant::now();
    let mut idler =
        HelperProcess::start(&["idle", &path.to_string_lossy(), &format!("{}ms", span.as_millis())])?;
    let idled: IdleCost = idler.receive(span + PATIENCE).await?;
    let row = ResultRow::new("idle_watcher", "file", &Sample::new(Vec::new(), begin.elapsed(), 1));
    report.row(&ResultRow { unit: "cpu_percent", p50: Some(idled.cpu_percent), ..row })?;
    let names = ("idle_watcher", "file", "contract");
    report.goal(&GoalResult::new(names, "cpu_percent", Found::Figure(idled.cpu_percent), Goal::AtMost(0.3)))
}
