//! `tenure-bench lock`: acquire, release and hand-off, beside a hand-written program.
//!
//! Tenure and the reference take turns in one run, as in `tenure-bench store`. The reference sends
//! as few requests as bare calls allow: one transaction to enter the queue, a watch of its own for
//! each waiter, a read after entering, a read when its predecessor is gone, and one delete.

mod baton;
mod handoff;
mod processes;
mod reference;
mod uncontended;

use clap::Args;
use tenure::store::StoreUrl;

use super::options::{Engine, named, positive};
use super::report::{BenchReport, Found, Goal, GoalResult};
use super::store_under_test::{StoreUnderTest, on_each};
use super::turns::Contest;
use crate::failure::BenchFailure;

pub(crate) use processes::{Contender, Contending};
pub(super) use reference::{QueuePosition, ReferenceQueue};

#[derive(Args, Debug)]
pub(crate) struct LockArgs {
    /// How many locks one turn takes.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = positive)]
    n: usize,
    /// How many turns each side has; the figures are medians.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = positive)]
    rounds: usize,
    /// Which engines.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    engines: Vec<Engine>,
    /// Which workloads, as lock_64 or handoff_16; all if none is named.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = workload)]
    workloads: Vec<&'static str>,
}

/// Everything that can be measured here.
fn workloads() -> impl Iterator<Item = &'static str> + Clone {
    let uncontended = uncontended::WIDTHS.iter().map(|(workload, ..)| *workload);
    let crowds = handoff::CROWDS.iter().map(|(workload, ..)| *workload);
    uncontended.chain(crowds).chain([processes::WORKLOAD])
}

fn workload(text: &str) -> Result<&'static str, String> {
    named(text, workloads())
}

/// How much is done.
struct LockSize {
    locks: usize,
    rounds: usize,
    /// All if it is empty.
    workloads: Vec<&'static str>,
}

impl LockSize {
    fn has(&self, workload: &str) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&workload)
    }
}

pub(super) async fn run(args: &LockArgs, etcd: Option<&StoreUrl>) -> Result<(), BenchFailure> {
    let size = LockSize { locks: args.n, rounds: args.rounds, workloads: args.workloads.clone() };
    let mut report = BenchReport::default();
    on_each(&args.engines, etcd, &mut report, async |place, report| {
        uncontended::run(place, &size, report).await?;
        handoff::run(place, &size, report).await?;
        processes::run(place, &size, report).await
    })
    .await
}

/// Reports the figures of both sides, and whether the goal is met; a workload without a goal is a
/// figure beside the others.
fn report_sides(
    (workload, reference): (&'static str, &'static str),
    place: &StoreUnderTest,
    contest: &Contest,
    least: Option<f64>,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    for row in contest.rows(workload, place, reference) {
        report.row(&row)?;
    }
    match least.filter(|_| place.raw.is_some()) {
        Some(least) => {
            let names = (workload, place.engine, reference);
            let ratio = Found::Ratio(contest.rate());
            report.goal(&GoalResult::new(names, "ops_s", ratio, Goal::AtLeast(least)))
        }
        None => Ok(()),
    }
}
