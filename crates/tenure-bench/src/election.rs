//! `tenure-bench election`: how soon the next candidate leads after a leader has resigned.
//!
//! The candidates are spread over the sessions and connections of three processes, and neighbours
//! in the queue never share one: each change of leader goes through the store. Tenure and a program
//! with bare calls take turns. The time of the store itself in the same turn, one transaction and
//! one delivery to a watch, is measured before each change.

mod candidate;
mod probe;
mod turn;

use clap::Args;
use tenure::store::StoreUrl;

use super::options::{Engine, named, positive};
use super::report::{BenchReport, Found, Goal, GoalResult, ResultRow};
use super::sample::{Sample, median};
use super::store_under_test::{StoreUnderTest, on_each};
use super::turns::{Side, order};
use crate::failure::BenchFailure;
use turn::ElectionTurn;

/// How many candidates.
const CROWDS: [(&str, usize); 3] = [("resign_3", 3), ("resign_100", 100), ("resign_1000", 1_000)];

/// How much longer than the store itself a change may take.
const TIMES_MOST: f64 = 2.0;

#[derive(Args, Debug)]
pub(crate) struct ElectionArgs {
    /// How many leaders resign in one turn.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
    n: usize,
    /// How many candidates there are at most.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = positive)]
    candidates_max: usize,
    /// How many turns each side has; the figures are medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    rounds: usize,
    /// Which engines.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    engines: Vec<Engine>,
    /// Which workloads, as resign_3; all if none is named.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = workload)]
    workloads: Vec<&'static str>,
}

fn workload(text: &str) -> Result<&'static str, String> {
    named(text, CROWDS.iter().map(|(workload, _)| *workload))
}

/// How much is done.
#[derive(Clone, Copy)]
struct ElectionSize {
    changes: usize,
    candidates: usize,
}

pub(super) async fn run(args: &ElectionArgs, etcd: Option<&StoreUrl>) -> Result<(), BenchFailure> {
    let mut report = BenchReport::default();
    on_each(&args.engines, etcd, &mut report, async |place, report| {
        let has = |workload: &&'static str| args.workloads.is_empty() || args.workloads.contains(workload);
        for (workload, candidates) in CROWDS.into_iter().filter(|(workload, _)| has(workload)) {
            // At least one candidate must follow the leader.
            let candidates = candidates.min(args.candidates_max).max(2);
            measure(place, workload, ElectionSize { changes: args.n, candidates }, args.rounds, report)
                .await?;
        }
        Ok(())
    })
    .await
}

async fn measure(
    place: &StoreUnderTest,
    workload: &'static str,
    size: ElectionSize,
    rounds: usize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let (mut tenure, mut baseline) = (Vec::new(), Vec::new());
    let mut requests = [0, 0];
    for round in 0..rounds {
        for side in order(round) {
            let before = place.handled().await;
            match side {
                Side::Tenure => tenure.push(ElectionTurn::take(place, side, size).await?),
                Side::Reference if place.raw.is_none() => continue,
                Side::Reference => baseline.push(ElectionTurn::take(place, side, size).await?),
            }
            requests[usize::from(side == Side::Reference)] += place.handled().await.saturating_sub(before);
        }
    }
    let row = |engine, turns: &[ElectionTurn], requests: u64| {
        let changes: Vec<Sample> = turns.iter().map(|turn| turn.changes.clone()).collect();
        let requests = place.counter.as_ref().map(|_| requests);
        ResultRow { requests, ..ResultRow::new(workload, engine, &Sample::joined(&changes)) }
    };
    report.row(&row(place.engine, &tenure, requests[0]))?;
    if place.raw.is_none() {
        return Ok(());
    }
    report.row(&row("raw", &baseline, requests[1]))?;
    let p50 = |sample: &Sample| sample.p50_ms().unwrap_or(f64::NAN);
    let times = median(tenure.iter().map(|turn| p50(&turn.changes) / p50(&turn.store)));
    let names = (workload, place.engine, "txn_and_watch");
    report.goal(&GoalResult::new(names, "p50", Found::Ratio(times), Goal::AtMost(TIMES_MOST)))
}
