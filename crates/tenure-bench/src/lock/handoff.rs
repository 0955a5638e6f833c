//! One contended lock: how fast it is handed over, with all waiters in one process.
//!
//! Each turn has a lock of its own: what etcd remembers of a lock's past makes it slower until history is compacted.

use std::sync::Arc;

use tenure::lock::Locks;
use tenure_core::id::Namespace;
use tokio::task::JoinSet;

use super::baton::Baton;
use super::reference::{ReferenceQueue, TurnCheck};
use super::{LockSize, report_sides};
use crate::failure::BenchFailure;
use crate::report::BenchReport;
use crate::sample::Sample;
use crate::store_under_test::{StoreUnderTest, close_session, open_session};
use crate::turns::{Contest, Side};
use crate::workload::wrong;

/// How many wait, and the least ratio of Tenure's rate to the reference's.
pub(super) const CROWDS: [(&str, usize, f64); 3] =
    [("handoff_16", 16, 1.8), ("handoff_64", 64, 1.8), ("handoff_256", 256, 1.8)];

pub(super) async fn run(
    place: &StoreUnderTest,
    size: &LockSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    for (workload, waiters, least) in CROWDS.into_iter().filter(|(workload, ..)| size.has(workload)) {
        for care in TurnCheck::compared_with(place) {
            let name = |side, round| format!("{side}-{waiters}-{}-{round}", care.name());
            let contest = Contest::hold(place, size.rounds, async |side, round| match side {
                Side::Tenure => measure_tenure(place, &name("tenure", round), waiters, size.locks).await,
                Side::Reference => reference(place, (&name("raw", round), *care), waiters, size.locks).await,
            })
            .await?;
            report_sides((workload, care.name()), place, &contest, care.goal(least), report)?;
        }
    }
    Ok(())
}

async fn measure_tenure(
    place: &StoreUnderTest,
    name: &str,
    waiters: usize,
    locks_len: usize,
) -> Result<Sample, BenchFailure> {
    let namespace = Namespace::parse(place.namespace()).map_err(|error| wrong(error.to_string()))?;
    let session = open_session(&place.store)?;
    let locks = Locks::new(&session, &namespace);
    let sample = contend(waiters, locks_len, || Waiter::Tenure(locks.clone(), name.to_owned())).await?;
    drop(locks);
    close_session(&session).await?;
    Ok(sample)
}

async fn reference(
    place: &StoreUnderTest,
    (name, care): (&str, TurnCheck),
    waiters: usize,
    locks_len: usize,
) -> Result<Sample, BenchFailure> {
    // A connection for each turn, so that the watches which were dropped in one are not in the way of the next.
    let raw = place.connect_raw().await?;
    let lease = ReferenceQueue::lease(&raw).await?;
    let queue = ReferenceQueue::new(&raw, &place.prefix, name, lease).with(care);
    let sample = contend(waiters, locks_len, || Waiter::Reference(queue.another())).await?;
    ReferenceQueue::end(&raw, lease).await?;
    Ok(sample)
}

/// One waiter of the lock.
enum Waiter {
    Tenure(Locks, String),
    Reference(ReferenceQueue),
}

impl Waiter {
    /// Acquires and releases it immediately, and enters the queue again.
    async fn take(&self, baton: &Baton) -> Result<(), BenchFailure> {
        match self {
            Waiter::Tenure(locks, name) => {
                let guard = locks.lock(name).await;
                let guard = guard.map_err(|error| wrong(format!("not locked: {error}")))?;
                baton.taken()?;
                baton.released();
                guard.release().await.map_err(|error| wrong(format!("not released: {error}")))
            }
            Waiter::Reference(queue) => {
                let stand = queue.enter().await?;
                queue.wait(&stand).await?;
                baton.taken()?;
                baton.released();
                queue.leave(stand).await
            }
        }
    }
}

/// Lets this many tasks acquire one lock until it was handed over often enough; the remaining
/// waiters are cancelled.
async fn contend(
    waiters: usize,
    locks_len: usize,
    waiter: impl Fn() -> Waiter,
) -> Result<Sample, BenchFailure> {
    let baton = Arc::new(Baton::new(waiters, locks_len));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let (waiter, baton) = (waiter(), baton.clone());
        tasks.spawn(async move {
            loop {
                if let Err(failure) = waiter.take(&baton).await {
                    return failure;
                }
            }
        });
    }
    let done = tokio::select! {
        biased;
        sample = baton.over() => Ok(sample),
        Some(ended) = tasks.join_next() => {
            Err(ended.unwrap_or_else(|error| wrong(format!("a task panicked: {error}"))))
        }
    };
    tasks.shutdown().await;
    done
}
