//! A node dies with its share of the tasks and without a word: how soon all of them have other owners.
//!
//! It is a process of its own and is killed with SIGKILL. The clock runs from then on, so the figure holds what was left of its lease.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::context::{TaskContext, node_ids};
use super::owner_watch::OwnerWatch;
use super::workers::{BenchWorkers, PATIENCE};
use super::{Reach, TaskStore, TasksSize, figure};
use crate::child::HelperProcess;
use crate::failure::BenchFailure;
use crate::internal::Footprint;
use crate::report::{BenchReport, Found, Goal, GoalResult, ResultRow, note};
use crate::sample::Sample;
use crate::workload::wrong;

/// A usual TTL where a death should be noticed soon.
const TTL: Duration = Duration::from_secs(5);

/// What may be added to the TTL.
const ALLOWED: Duration = Duration::from_millis(1_500);

/// Each of them takes a TTL and what comes before and after it.
const ROUNDS_MAX: usize = 3;

/// Short enough that a process which reports that it is done is noticed soon.
const READ_EVERY: Duration = Duration::from_millis(20);

/// How long things took from the kill on.
struct Takeover {
    /// Until the last task had lost its owner.
    until_lost: Duration,
    /// Until the last task had another.
    until_moved: Duration,
    tasks: usize,
}

pub(super) async fn run(
    place: &TaskStore,
    size: &TasksSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let nodes = size.nodes.first().copied().unwrap_or(2);
    let workload = format!("takeover_from_1_of_{nodes}_nodes_with_{}", size.tasks);
    let mut rounds = Vec::new();
    for round in 0..size.rounds.min(ROUNDS_MAX) {
        rounds.push(kill(place, size.tasks, nodes, round).await?);
    }
    let took: Vec<Duration> = rounds.iter().map(|round| round.until_moved).collect();
    let worst = took.iter().max().copied().unwrap_or_default();
    let lost = rounds.iter().map(|round| round.until_lost).max().unwrap_or_default();
    let after = rounds.iter().map(|round| round.until_moved.saturating_sub(round.until_lost)).max();
    let tasks = rounds.iter().map(|round| round.tasks).sum();
    let total = took.iter().sum();
    let row = ResultRow::new(workload.clone(), place.engine, &Sample::new(took, total, tasks));
    report.row(&ResultRow { max: Some(worst.as_secs_f64() * 1e3), ..row })?;
    let names = (workload, place.engine, "contract");
    let more = worst.as_secs_f64() - TTL.as_secs_f64();
    let allowed = Goal::AtMost(ALLOWED.as_secs_f64());
    report.goal(&GoalResult::new(names, "worst_s_beyond_ttl", Found::Figure(more), allowed))?;
    note(&format!(
        "{}: of a TTL of {TTL:?}, the leases were over after at most {lost:.1?}, and at most {:.0?} later everything had another owner",
        place.engine,
        after.unwrap_or_default()
    ));
    Ok(())
}

async fn kill(place: &TaskStore, tasks: usize, nodes: usize, round: usize) -> Result<Takeover, BenchFailure> {
    let context = TaskContext::open(place, &format!("kill-{round}")).await?;
    let ids = node_ids(nodes)?;
    let (doomed, others) = ids.split_first().ok_or_else(|| wrong("there are no nodes"))?;
    context.submit(tasks).await?;
    context.freeze(&ids).await?;
    let mut part = start(place, &context, doomed.as_str(), TTL)?;
    part.ready().await?;
    let workers = BenchWorkers::join(place, &context, others, TTL).await?;
    workers.have_seen(tasks).await?;
    read_until(&mut part, |seen| seen.changes >= tasks as u64).await?;
    let mut onlooker = OwnerWatch::open(&context).await?;
    context.unfreeze(&ids).await?;
    onlooker.see_owned(tasks).await?;
    let owners = context.owners().await?;
    let its: BTreeSet<_> =
        owners.into_iter().filter(|(_, node)| node == doomed).map(|(task, _)| task).collect();
    let (count, share) = (its.len(), figure(tasks) / figure(nodes));
    if figure(count) < share * 0.8 {
        return Err(wrong(format!(
            "the node to be killed has {count} of {tasks} tasks, about {share} were expected"
        )));
    }
    let begin = Instant::now();
    part.kill().await?;
    let moved = onlooker.see_moved(its).await?;
    let lost = onlooker.lost_at.unwrap_or(begin);
    let takeover = Takeover {
        until_lost: lost.duration_since(begin),
        until_moved: moved.duration_since(begin),
        tasks: count,
    };
    let owners = context.owners().await?;
    if owners.len() != tasks || owners.iter().any(|(_, node)| node == doomed) {
        return Err(wrong("a task is not owned, or by the dead"));
    }
    workers.end().await?;
    context.clear().await?;
    Ok(takeover)
}

/// A node in a process of its own.
pub(super) fn start(
    place: &TaskStore,
    context: &TaskContext,
    id: &str,
    ttl: Duration,
) -> Result<HelperProcess, BenchFailure> {
    let Reach::At(url) = &place.reach else {
        return Err(wrong("no other process reaches a store in memory"));
    };
    let ttl = format!("{}ms", ttl.as_millis());
    HelperProcess::start(&["node", &url.to_string(), &context.namespace.to_string(), id, &ttl])
}

/// Reads the state of a node in another process until it meets a condition.
pub(super) async fn read_until(
    part: &mut HelperProcess,
    is_so: impl Fn(&Footprint) -> bool,
) -> Result<Footprint, BenchFailure> {
    let begin = Instant::now();
    loop {
        let seen = read(part).await?;
        if is_so(&seen) {
            return Ok(seen);
        }
        if begin.elapsed() > PATIENCE {
            return Err(wrong(format!(
                "the node in another process is not there after {PATIENCE:?}: {seen:?}"
            )));
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

/// Reads the state of a node in another process.
pub(super) async fn read(part: &mut HelperProcess) -> Result<Footprint, BenchFailure> {
    part.go().await?;
    part.receive(PATIENCE).await
}
