//! Ten thousand tasks and eight nodes that begin at one word: how soon every task runs, and how many claims that took.

use std::time::{Duration, Instant};

use super::context::{TaskContext, node_ids};
use super::reference::ReferenceNodes;
use super::workers::BenchWorkers;
use super::{TaskStore, TasksSize, figure, handled};
use crate::failure::BenchFailure;
use crate::report::{BenchReport, Found, Goal, GoalResult, ResultRow};
use crate::sample::{Sample, median};
use crate::workload::wrong;

/// Long enough that nothing ends while a busy machine submits and lists.
const TTL: Duration = Duration::from_secs(15);

/// By how many nodes the contract wants so many times the herd's rate; with others it is a figure beside that.
const GOAL: (usize, f64) = (8, 10.0);

/// The turns of one side.
#[derive(Default)]
struct ClaimTurns {
    samples: Vec<Sample>,
    tries: usize,
    requests: u64,
    leases: Option<usize>,
}

impl ClaimTurns {
    fn rate(&self, round: usize) -> f64 {
        self.samples.get(round).map_or(f64::NAN, Sample::ops_s)
    }

    fn tries_per_task(&self) -> f64 {
        figure(self.tries) / figure(self.samples.iter().map(|sample| sample.count).sum())
    }

    fn row(&self, workload: &str, engine: &'static str, place: &TaskStore) -> ResultRow {
        ResultRow {
            requests: place.counter.as_ref().map(|_| self.requests),
            tries: Some(self.tries_per_task()),
            leases: self.leases,
            ..ResultRow::new(workload.to_owned(), engine, &Sample::joined(&self.samples))
        }
    }
}

pub(super) async fn run(
    place: &TaskStore,
    size: &TasksSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    for &nodes in &size.nodes {
        let workload = format!("claim_{}_by_{nodes}_nodes", size.tasks);
        let (mut tenure, mut herd) = (ClaimTurns::default(), ClaimTurns::default());
        for round in 0..size.rounds {
            // Each side begins in every other round.
            let is_tenure_first = round.is_multiple_of(2);
            if is_tenure_first {
                claim(place, size.tasks, nodes, round, &mut tenure).await?;
            }
            stampede(place, size.tasks, nodes, round, &mut herd).await?;
            if !is_tenure_first {
                claim(place, size.tasks, nodes, round, &mut tenure).await?;
            }
        }
        report.row(&tenure.row(&workload, place.engine, place))?;
        let result = |reference, of, found, goal| {
            GoalResult::new((workload.clone(), place.engine, reference), of, found, goal)
        };
        let tries = Found::Figure(tenure.tries_per_task());
        report.goal(&result("contract", "tries", tries, Goal::AtMost(1.1)))?;
        if place.server().is_some() {
            report.row(&herd.row(&workload, "herd", place))?;
            let rates = (0..size.rounds).map(|round| tenure.rate(round) / herd.rate(round));
            let ratio = Found::Ratio(median(rates));
            if let (nodes_wanted, least) = GOAL
                && nodes == nodes_wanted
            {
                report.goal(&result("herd", "ops_s", ratio, Goal::AtLeast(least)))?;
            }
        }
    }
    Ok(())
}

/// Our nodes claim everything, and begin to run it.
async fn claim(
    place: &TaskStore,
    tasks: usize,
    nodes: usize,
    round: usize,
    turns: &mut ClaimTurns,
) -> Result<(), BenchFailure> {
    let context = TaskContext::open(place, &format!("tenure-{nodes}-{round}")).await?;
    let ids = node_ids(nodes)?;
    context.submit(tasks).await?;
    context.freeze(&ids).await?;
    let workers = BenchWorkers::join(place, &context, &ids, TTL).await?;
    workers.have_seen(tasks).await?;
    let (requests, before) = (handled(place.counter.as_ref()).await, workers.stats());
    let begin = Instant::now();
    context.unfreeze(&ids).await?;
    workers.have_begun(tasks).await?;
    let took = begin.elapsed();
    turns.requests += handled(place.counter.as_ref()).await - requests;
    turns.tries += usize::try_from(workers.stats().claims_sent - before.claims_sent).unwrap_or(usize::MAX);
    turns.leases = Some(workers.leases());
    turns.samples.push(Sample::new(vec![took], took, tasks));
    let owned = context.owners().await?.len();
    if owned != tasks {
        return Err(wrong(format!("{owned} of {tasks} tasks have an owner, though all have begun")));
    }
    workers.end().await?;
    context.clear().await
}

/// The herd claims everything, if there is a server that it can reach.
async fn stampede(
    place: &TaskStore,
    tasks: usize,
    nodes: usize,
    round: usize,
    turns: &mut ClaimTurns,
) -> Result<(), BenchFailure> {
    let Some(url) = place.server() else { return Ok(()) };
    let context = TaskContext::open(place, &format!("herd-{nodes}-{round}")).await?;
    context.submit(tasks).await?;
    let herd = ReferenceNodes::gather(&url, &context, nodes, tasks).await?;
    let requests = handled(place.counter.as_ref()).await;
    let stampede = herd.run().await?;
    turns.requests += handled(place.counter.as_ref()).await - requests;
    turns.tries += stampede.tries;
    turns.samples.push(Sample::new(vec![stampede.took], stampede.took, tasks));
    let owned = context.owners().await?.len();
    if owned != tasks {
        return Err(wrong(format!("the herd reports {tasks} tasks, and has {owned}")));
    }
    herd.end().await?;
    context.clear().await
}
