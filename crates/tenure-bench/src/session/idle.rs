//! What a process pays for keys that are registered and do not change: requests as the server counts them, and CPU time.
//!
//! etcd counts each renewal as a message of `LeaseKeepAlive`, because all of them share one stream;
//! calls of any kind that begin are counted separately. The messages that test a silent watch
//! stream are neither: they exist without a session too.

use std::time::{Duration, Instant};

use super::SessionSize;
use crate::child::HelperProcess;
use crate::failure::BenchFailure;
use crate::internal::KeepCost;
use crate::metrics::Counters;
use crate::report::{BenchReport, Found, Goal, GoalResult, ResultRow};
use crate::sample::Sample;
use crate::store_under_test::StoreUnderTest;
use crate::workload::wrong;

const WORKLOAD: &str = "idle_1000_keys";
const KEYS: usize = 1_000;

/// Short, so that a few renewals happen during the measurement.
const TTL: Duration = Duration::from_secs(6);

/// What a busy machine may add before a process counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(
    place: &StoreUnderTest,
    size: SessionSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let Some(counter) = &place.counter else { return Ok(()) };
    let silent = || wrong("the server does not report its metrics");
    let (keys, ttl, span) = (KEYS.min(size.keys_max), TTL.as_millis(), size.idle.as_millis());
    let prefix = format!("{}{WORKLOAD}/", place.prefix);
    let words = [
        "keep",
        &place.url.to_string(),
        &prefix,
        &keys.to_string(),
        &format!("{ttl}ms"),
        &format!("{span}ms"),
    ];
    let mut keeper = HelperProcess::start(&words)?;
    keeper.ready().await?;
    let before = counter.read().await.ok_or_else(silent)?;
    let begin = Instant::now();
    keeper.go().await?;
    let kept: KeepCost = keeper.receive(size.idle + PATIENCE).await?;
    let elapsed = begin.elapsed();
    let after = counter.read().await.ok_or_else(silent)?;
    keeper.go().await?;
    keeper.ended(PATIENCE).await?;
    let grown = |of: &dyn Fn(&Counters) -> Option<u64>| {
        of(&after).zip(of(&before)).map(|(after, before)| after.saturating_sub(before)).ok_or_else(silent)
    };
    let messages = "grpc_server_msg_received_total";
    let renewals = grown(&|counters| counters.sum(messages, "grpc_method=\"LeaseKeepAlive\""))?;
    let calls = grown(&|counters| counters.sum("grpc_server_started_total", ""))?;
    let row = ResultRow::new(WORKLOAD, place.engine, &Sample::new(Vec::new(), elapsed, keys));
    report.row(&ResultRow {
        unit: "cpu_percent",
        p50: Some(kept.cpu_percent),
        requests: Some(renewals + calls),
        leases: Some(kept.leases),
        ..row
    })?;
    let names = (WORKLOAD, place.engine, "contract");
    let figure = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    // One for each third of the TTL that has begun.
    let allowed = (elapsed.as_secs_f64() / (TTL.as_secs_f64() / 3.0)).ceil();
    let leases = f64::from(u32::try_from(kept.leases).unwrap_or(u32::MAX));
    let share = figure(renewals) / (allowed * leases);
    report.goal(&GoalResult::new(names, "renewals_by_allowed", Found::Ratio(share), Goal::AtMost(1.0)))?;
    report.goal(&GoalResult::new(
        names,
        "other_requests",
        Found::Figure(figure(calls)),
        Goal::AtMost(0.0),
    ))?;
    report.goal(&GoalResult::new(names, "cpu_percent", Found::Figure(kept.cpu_percent), Goal::AtMost(0.5)))
}
