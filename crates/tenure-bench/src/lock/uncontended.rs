//! Uncontended locks, acquired and released: one at a time, and many names at once. Each turn has
//! locks of its own.

use std::time::{Duration, Instant};

use tenure::lock::Locks;
use tenure_core::id::Namespace;
use tokio::task::JoinSet;

use super::reference::ReferenceQueue;
use super::{LockSize, report_sides};
use crate::failure::BenchFailure;
use crate::report::BenchReport;
use crate::sample::Sample;
use crate::store_under_test::{StoreUnderTest, close_session, open_session};
use crate::turns::{Contest, Side};
use crate::workload::wrong;

/// How many at once, and the least ratio of Tenure's rate to the reference's.
pub(super) const WIDTHS: [(&str, usize, Option<f64>); 3] =
    [("lock_1", 1, Some(0.95)), ("lock_16", 16, None), ("lock_64", 64, Some(2.5))];

/// Locks that one of many takes, at least: with fewer, the beginning and the end of a turn would weigh too much.
const LOCKS_OF_ONE_MIN: usize = 64;

pub(super) async fn run(
    place: &StoreUnderTest,
    size: &LockSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    for (workload, width, least) in WIDTHS.into_iter().filter(|(workload, ..)| size.has(workload)) {
        // A turn is as long as the one of single locks, or long enough for each task to acquire a
        // few.
        let each = (size.locks / width).max(LOCKS_OF_ONE_MIN.min(size.locks));
        let contest = Contest::hold(place, size.rounds, async |side, round| match side {
            Side::Tenure => measure_tenure(place, round, width, each).await,
            Side::Reference => reference(place, round, width, each).await,
        })
        .await?;
        report_sides((workload, "raw"), place, &contest, least, report)?;
    }
    Ok(())
}

async fn measure_tenure(
    place: &StoreUnderTest,
    round: usize,
    width: usize,
    each: usize,
) -> Result<Sample, BenchFailure> {
    let namespace = Namespace::parse(place.namespace()).map_err(|error| wrong(error.to_string()))?;
    let session = open_session(&place.store)?;
    let locks = Locks::new(&session, &namespace);
    // The first lock gets the lease; on both sides the clock runs only after that.
    Taker::Tenure(locks.clone(), "first".to_owned()).take().await?;
    let sample =
        at_once(width, each, |n| Taker::Tenure(locks.clone(), format!("tenure-{width}-{round}-{n}"))).await?;
    close_session(&session).await?;
    Ok(sample)
}

async fn reference(
    place: &StoreUnderTest,
    round: usize,
    width: usize,
    each: usize,
) -> Result<Sample, BenchFailure> {
    let raw = place.raw.as_ref().ok_or_else(|| wrong("there is no reference"))?;
    let lease = ReferenceQueue::lease(raw).await?;
    let name = |n| format!("raw-{width}-{round}-{n}");
    let taker = |n| Taker::Reference(ReferenceQueue::new(raw, &place.prefix, &name(n), lease));
    let sample = at_once(width, each, taker).await?;
    ReferenceQueue::end(raw, lease).await?;
    Ok(sample)
}

/// A task that acquires a lock of its own repeatedly.
enum Taker {
    Tenure(Locks, String),
    Reference(ReferenceQueue),
}

impl Taker {
    async fn take(&self) -> Result<(), BenchFailure> {
        match self {
            Taker::Tenure(locks, name) => {
                let guard = locks.lock(name).await.map_err(|error| wrong(format!("not locked: {error}")))?;
                guard.release().await.map_err(|error| wrong(format!("not released: {error}")))
            }
            Taker::Reference(queue) => {
                let place = queue.enter().await?;
                if place.before.is_some() {
                    return Err(wrong("an uncontended lock is held"));
                }
                queue.leave(place).await
            }
        }
    }
}

/// Lets so many take their locks at once, each in a task of its own.
async fn at_once(width: usize, each: usize, taker: impl Fn(usize) -> Taker) -> Result<Sample, BenchFailure> {
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for n in 0..width {
        let taker = taker(n);
        tasks.spawn(async move {
            let mut took: Vec<Duration> = Vec::with_capacity(each);
            for _ in 0..each {
                let before = Instant::now();
                taker.take().await?;
                took.push(before.elapsed());
            }
            Ok::<_, BenchFailure>(took)
        });
    }
    let mut took = Vec::with_capacity(width * each);
    while let Some(done) = tasks.join_next().await {
        took.extend(done.map_err(|error| wrong(format!("a task panicked: {error}")))??);
    }
    Ok(Sample::new(took, begin.elapsed(), width * each))
}
