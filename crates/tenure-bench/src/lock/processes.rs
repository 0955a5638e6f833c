//! One contended lock, with each waiter in a process of its own.
//!
//! No hand-off can bypass the store, so the next waiter has to confirm its turn with a read.
//!
//! The processes share a clock, so each records when it held and when it released, and the
//! hand-offs are computed from all records in order.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tenure::lock::Locks;
use tenure::session::Session;
use tenure::store::{Store, StoreUrl};
use tenure_core::id::Namespace;

use super::reference::{ReferenceQueue, TurnCheck};
use super::{LockSize, report_sides};
use crate::child::HelperProcess;
use crate::failure::BenchFailure;
use crate::internal::now_ns;
use crate::report::BenchReport;
use crate::sample::Sample;
use crate::store_under_test::{StoreUnderTest, close_session, connect_raw, open_session};
use crate::turns::{Contest, Side};
use crate::workload::wrong;

pub(super) const WORKLOAD: &str = "handoff_16_processes";
const PROCESSES: usize = 16;

/// The least ratio of Tenure's rate to the reference's.
const LEAST: f64 = 0.9;

/// How long a turn takes for each lock of a turn that is counted: as long as a slow machine needs, and the processes take what they can get.
const SPAN_OF_ONE: Duration = Duration::from_micros(1_500);

/// And at least this long: as many processes need a moment to wake up.
const SPAN_MIN: Duration = Duration::from_secs(1);

/// What a busy machine may add before a process counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which program contends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Contending {
    Tenure,
    Raw,
    #[value(name = "raw_unchecked")]
    RawUnchecked,
}

/// When one process held: from, and until it began to release, on the clock that all processes
/// share.
#[derive(Serialize, Deserialize)]
pub(crate) struct Contended {
    holds_ns: Vec<(u64, u64)>,
}

pub(super) async fn run(
    place: &StoreUnderTest,
    size: &LockSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    // No other process sees what is in memory.
    if place.url == StoreUrl::Memory || !size.has(WORKLOAD) {
        return Ok(());
    }
    let span = SPAN_MIN.max(SPAN_OF_ONE * u32::try_from(size.locks).unwrap_or(u32::MAX));
    for care in TurnCheck::compared_with(place) {
        let contest = Contest::hold(place, size.rounds, async |side, round| match side {
            Side::Tenure => contend(place, round, "tenure", span).await,
            Side::Reference => contend(place, round, care.name(), span).await,
        })
        .await?;
        report_sides((WORKLOAD, care.name()), place, &contest, care.goal(LEAST), report)?;
    }
    Ok(())
}

async fn contend(
    place: &StoreUnderTest,
    round: usize,
    side: &str,
    span: Duration,
) -> Result<Sample, BenchFailure> {
    let span_text = format!("{}ms", span.as_millis());
    let prefix = format!("{}{round}/", place.prefix);
    let words = ["contend", &place.url.to_string(), &prefix, side, &span_text];
    let mut parts = (0..PROCESSES)
        .map(|_| HelperProcess::start(&words))
        .collect::<Result<Vec<HelperProcess>, BenchFailure>>()?;
    for part in &mut parts {
        part.ready().await?;
    }
    for part in &mut parts {
        part.go().await?;
    }
    let mut holds = Vec::new();
    for part in &mut parts {
        holds.extend(part.receive::<Contended>(span + PATIENCE).await?.holds_ns);
    }
    // Only now may they leave the queue: the hand-off to a process that left early would not be
    // measured.
    for part in &mut parts {
        part.go().await?;
    }
    for part in &mut parts {
        part.ended(PATIENCE).await?;
    }
    handoffs(holds)
}

/// The hand-offs between the holds of all processes.
fn handoffs(mut holds_ns: Vec<(u64, u64)>) -> Result<Sample, BenchFailure> {
    holds_ns.sort_unstable();
    let mut took = Vec::with_capacity(holds_ns.len());
    for (earlier, later) in holds_ns.iter().zip(holds_ns.iter().skip(1)) {
        let Some(gap) = later.0.checked_sub(earlier.1) else {
            return Err(wrong("two processes held one lock at once"));
        };
        took.push(Duration::from_nanos(gap));
    }
    let (first, last) = (holds_ns.first().map_or(0, |hold| hold.0), holds_ns.last().map_or(0, |hold| hold.0));
    let count = took.len();
    Ok(Sample::new(took, Duration::from_nanos(last - first), count))
}

/// One of the processes.
pub(crate) struct Contender {
    way: ContenderQueue,
}

/// Its access to the queue.
enum ContenderQueue {
    Tenure(Session, Locks),
    Raw(ReferenceQueue),
}

impl Contender {
    /// Connects, and gets a lease.
    pub(crate) async fn open(
        url: &StoreUrl,
        prefix: &str,
        side: Contending,
    ) -> Result<Contender, BenchFailure> {
        match side {
            Contending::Tenure => {
                let namespace = Namespace::parse(prefix.trim_matches('/'));
                let namespace = namespace.map_err(|error| wrong(error.to_string()))?;
                let session = open_session(&Store::open(url).await?)?;
                let locks = Locks::new(&session, &namespace);
                let first = locks.lock(format!("first-{}", std::process::id())).await;
                first.map_err(not_locked)?.release().await.map_err(not_released)?;
                Ok(Contender { way: ContenderQueue::Tenure(session, locks) })
            }
            Contending::Raw | Contending::RawUnchecked => {
                let raw = connect_raw(url).await?;
                let lease = ReferenceQueue::lease(&raw).await?;
                let care = if side == Contending::Raw { TurnCheck::Checks } else { TurnCheck::Trusts };
                let queue = ReferenceQueue::new(&raw, prefix, "raw-wanted", lease).with(care);
                Ok(Contender { way: ContenderQueue::Raw(queue) })
            }
        }
    }

    /// Takes the lock again and again, for so long.
    pub(crate) async fn run(&self, span: Duration) -> Result<Contended, BenchFailure> {
        let until = tokio::time::Instant::now() + span;
        let mut holds_ns = Vec::new();
        while let Ok(hold) = tokio::time::timeout_at(until, self.take()).await {
            holds_ns.push(hold?);
        }
        Ok(Contended { holds_ns })
    }

    async fn take(&self) -> Result<(u64, u64), BenchFailure> {
        match &self.way {
            ContenderQueue::Tenure(_, locks) => {
                let guard = locks.lock("tenure-wanted").await.map_err(not_locked)?;
                let hold = (now_ns(), now_ns());
                guard.release().await.map_err(not_released)?;
                Ok(hold)
            }
            ContenderQueue::Raw(queue) => {
                let stand = queue.enter().await?;
                queue.wait(&stand).await?;
                let hold = (now_ns(), now_ns());
                queue.leave(stand).await?;
                Ok(hold)
            }
        }
    }

    /// Leaves nothing behind.
    pub(crate) async fn close(self) -> Result<(), BenchFailure> {
        match self.way {
            ContenderQueue::Tenure(session, _) => close_session(&session).await,
            ContenderQueue::Raw(queue) => queue.close().await,
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn not_locked(error: tenure::lock::LockError) -> BenchFailure {
    wrong(format!("not locked: {error}"))
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn not_released(error: tenure::lock::ReleaseError) -> BenchFailure {
    wrong(format!("not released: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_off_spans_release_to_next_hold() {
        let sample = handoffs(vec![(30, 31), (10, 12), (20, 21)]).unwrap();
        assert_eq!((sample.count, sample.total), (2, Duration::from_nanos(20)));
        assert_eq!(sample.p99_ms(), Some(9e-6));
    }

    #[test]
    fn overlapping_holds_end_the_benchmark() {
        assert!(handoffs(vec![(10, 25), (20, 30)]).is_err());
    }
}
