//! Ten times as many tasks: what they take and what they cost must be about ten times as much, and a node that has them and nothing to do must do
//! nothing.
//!
//! One node is a process of its own, which reports its memory and CPU time. Memory counts from what
//! the process has before there is any task.

use std::time::{Duration, Instant};

use super::context::{TaskContext, node_ids};
use super::kill::{read, read_until, start};
use super::owner_watch::OwnerWatch;
use super::workers::BenchWorkers;
use super::{TaskStore, TasksSize, figure};
use crate::failure::BenchFailure;
use crate::report::{BenchReport, Found, Goal, GoalResult, ResultRow};
use crate::sample::{Sample, median};
use crate::workload::wrong;

/// The usual TTL: what a node does while nothing happens is to renew its leases.
const TTL: Duration = Duration::from_secs(15);

/// How much more there is.
const TIMES: usize = 10;

/// How much more it may cost.
const ALLOWED: f64 = 12.0;

/// What claiming set going has come to rest by then.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Large rounds take long, and one more of them changes little.
const ROUNDS_MAX: usize = 3;

/// What one size took and cost.
struct Cost {
    submitted: Duration,
    claimed: Duration,
    released: Duration,
    /// How many tasks the measured node had.
    tasks: usize,
    /// How much memory it had more than before there was any task.
    mib: f64,
    cpu_percent: Option<f64>,
}

pub(super) async fn run(
    place: &TaskStore,
    size: &TasksSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let nodes = size.nodes.first().copied().unwrap_or(2);
    let (few, many) = (size.tasks, size.tasks * TIMES);
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for round in 0..size.rounds.min(ROUNDS_MAX) {
        small.push(hold(place, few, nodes, round, None).await?);
        large.push(hold(place, many, nodes, round, Some(size.idle)).await?);
    }
    for (tasks, costs) in [(few, &small), (many, &large)] {
        let row = |what: &str, took: fn(&Cost) -> Duration| {
            let took: Vec<Duration> = costs.iter().map(took).collect();
            let (total, count) = (took.iter().sum(), took.len() * tasks);
            report.row(&ResultRow::new(
                format!("{what}_{tasks}"),
                place.engine,
                &Sample::new(took, total, count),
            ))
        };
        row("submit", |cost| cost.submitted)?;
        row("claim_and_see", |cost| cost.claimed)?;
        row("release", |cost| cost.released)?;
        let mib = median(costs.iter().map(|cost| cost.mib));
        let row = ResultRow::new(
            format!("memory_{tasks}"),
            place.engine,
            &Sample::new(vec![], Duration::ZERO, tasks),
        );
        report.row(&ResultRow { unit: "mib", p50: Some(mib), ops_s: 0.0, ..row })?;
    }
    let mut goal = |of, found, goal| {
        let names = (format!("grow_{few}_to_{many}"), place.engine, "contract");
        report.goal(&GoalResult::new(names, of, found, goal))
    };
    let ratio = |figure: fn(&Cost) -> f64| {
        Found::Ratio(median(large.iter().map(figure)) / median(small.iter().map(figure)))
    };
    goal("submit_s", ratio(|cost| cost.submitted.as_secs_f64()), Goal::AtMost(ALLOWED))?;
    goal("claim_s", ratio(|cost| cost.claimed.as_secs_f64()), Goal::AtMost(ALLOWED))?;
    goal("memory_mib", ratio(|cost| cost.mib), Goal::AtMost(ALLOWED))?;
    let worst = large.iter().filter_map(|cost| cost.cpu_percent).fold(f64::NAN, f64::max);
    let owned = large.iter().map(|cost| cost.tasks).min().unwrap_or(0);
    let workload = format!("idle_node_with_{owned}_of_{many}");
    let row = ResultRow::new(workload.clone(), place.engine, &Sample::new(vec![], size.idle, owned));
    report.row(&ResultRow { unit: "cpu_percent", p50: Some(worst), ops_s: 0.0, ..row })?;
    let names = (workload, place.engine, "contract");
    report.goal(&GoalResult::new(names, "cpu_percent", Found::Figure(worst), Goal::AtMost(1.0)))
}

/// Tasks are claimed by all nodes, held for a while and released.
async fn hold(
    place: &TaskStore,
    tasks: usize,
    nodes: usize,
    round: usize,
    idle: Option<Duration>,
) -> Result<Cost, BenchFailure> {
    let context = TaskContext::open(place, &format!("grow-{tasks}-{round}")).await?;
    let ids = node_ids(nodes)?;
    let (measured, others) = ids.split_first().ok_or_else(|| wrong("there are no nodes"))?;
    context.freeze(&ids).await?;
    let mut part = start(place, &context, measured.as_str(), TTL)?;
    part.ready().await?;
    let empty = read(&mut part).await?;
    let workers = BenchWorkers::join(place, &context, others, TTL).await?;
    let submitted = context.submit(tasks).await?;
    workers.have_seen(tasks).await?;
    read_until(&mut part, |seen| seen.changes >= tasks as u64).await?;
    let mut onlooker = OwnerWatch::open(&context).await?;
    let begin = Instant::now();
    context.unfreeze(&ids).await?;
    let claimed = onlooker.see_owned(tasks).await?.duration_since(begin);
    drop(onlooker);
    tokio::time::sleep(SETTLED_AFTER).await;
    let full = read(&mut part).await?;
    let kib = full.rss_kib.zip(empty.rss_kib).map(|(full, empty)| full.saturating_sub(empty));
    let mib = kib.map_or(f64::NAN, |kib| figure(usize::try_from(kib).unwrap_or(usize::MAX)) / 1024.0);
    let cpu_percent = match idle {
        Some(idle) => {
            tokio::time::sleep(idle).await;
            Some(read(&mut part).await?.cpu_percent_since(&full))
        }
        None => None,
    };
    let begin = Instant::now();
    // The end of its stdin is the end of the process; its tasks go with its leases, or with the namespace.
    part.kill().await?;
    workers.end().await?;
    let released = begin.elapsed();
    context.clear().await?;
    Ok(Cost { submitted, claimed, released, tasks: full.tasks, mib, cpu_percent })
}
