//! `tenure-bench session`: registering, recovering, joining and idling, beside hand-written programs.
//!
//! Tenure and the reference take turns in one run, as in `tenure-bench store`. The reference is
//! what a competent programmer writes with bare calls: leases of at most 1,000 keys, transactions
//! of 128 operations, 4 of them in flight, and a watch of one's own keys.

mod idle;
mod join;
mod recover;
mod reference;
mod register;

use std::time::Duration;

use clap::Args;
use tenure::store::StoreUrl;

use super::metrics::Counter;
use super::options::{Engine, duration, positive};
use super::report::{BenchReport, ResultRow};
use super::sample::{Sample, median};
use super::store_under_test::on_each;
use crate::failure::BenchFailure;

#[derive(Args, Debug)]
pub(crate) struct SessionArgs {
    /// How many keys are registered at most.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = positive)]
    n: usize,
    /// How many turns each side has; the figures are medians.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = positive)]
    rounds: usize,
    /// How long the idle session is watched.
    #[arg(long, value_name = "DURATION", default_value = "12s", value_parser = duration)]
    idle: Duration,
    /// Which engines.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    engines: Vec<Engine>,
}

/// How much is done.
#[derive(Clone, Copy)]
struct SessionSize {
    keys_max: usize,
    rounds: usize,
    idle: Duration,
}

pub(super) async fn run(args: &SessionArgs, etcd: Option<&StoreUrl>) -> Result<(), BenchFailure> {
    let mut report = BenchReport::default();
    let size = SessionSize { keys_max: args.n, rounds: args.rounds, idle: args.idle };
    on_each(&args.engines, etcd, &mut report, async |place, report| {
        register::run(place, size, report).await?;
        recover::run(place, size, report).await?;
        if place.raw.is_some() {
            join::run(place, size, report).await?;
            idle::run(place, size, report).await?;
        }
        Ok(())
    })
    .await
}

/// The turns of one side.
#[derive(Default)]
struct SessionTurns {
    samples: Vec<Sample>,
    requests: u64,
    leases: usize,
}

impl SessionTurns {
    fn row(&self, workload: &'static str, engine: &'static str, counter: Option<&Counter>) -> ResultRow {
        ResultRow {
            requests: counter.map(|_| self.requests),
            leases: Some(self.leases),
            ..ResultRow::new(workload, engine, &Sample::joined(&self.samples))
        }
    }

    /// The median of the times that a round took.
    fn median_s(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.total.as_secs_f64()))
    }

    /// The median over the rounds of Tenure's figure divided by the reference's: both turns of a
    /// round ran beside the same other load.
    fn ratio_to(&self, other: &SessionTurns) -> f64 {
        let pairs = self.samples.iter().zip(&other.samples);
        median(
            pairs.map(|(tenure, baseline)| {
                tenure.total.as_secs_f64() / baseline.total.as_secs_f64().max(1e-9)
            }),
        )
    }
}
