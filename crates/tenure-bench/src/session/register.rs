//! Registering many keys at once, from the first wish until all of them are in the store.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;
use tenure::session::{RegisteredKey, Session};
use tenure::store::LeaseId;

use super::reference::{KEYS_PER_LEASE, Reference};
use super::{SessionSize, SessionTurns};
use crate::failure::BenchFailure;
use crate::internal::VALUE;
use crate::raw::Raw;
use crate::report::{BenchReport, Found, Goal, GoalResult};
use crate::sample::Sample;
use crate::store_under_test::{StoreUnderTest, close_session, failed};
use crate::turns::{Side, order};
use crate::workload::wrong;

/// What the contract names.
const SIZES: [(&str, usize); 3] =
    [("register_100", 100), ("register_1000", 1_000), ("register_10000", 10_000)];

pub(super) async fn run(
    place: &StoreUnderTest,
    size: SessionSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    for (workload, keys) in SIZES {
        let keys = keys_below(&format!("{}{workload}/", place.prefix), keys.min(size.keys_max));
        let (mut tenure, mut baseline) = (SessionTurns::default(), SessionTurns::default());
        for round in 0..size.rounds {
            for side in order(round) {
                match (side, &place.raw) {
                    (Side::Tenure, _) => register_tenure(place, &keys, &mut tenure).await?,
                    (Side::Reference, Some(raw)) => register_raw(place, raw, &keys, &mut baseline).await?,
                    (Side::Reference, None) => {}
                }
            }
        }
        let counter = place.counter.as_ref();
        report.row(&tenure.row(workload, place.engine, counter))?;
        if place.raw.is_some() {
            report.row(&baseline.row(workload, "raw", counter))?;
            // The contract has a goal for the last one; the others are figures beside it.
            if workload == "register_10000" {
                let names = (workload, place.engine, "raw");
                let ratio = Found::Ratio(tenure.ratio_to(&baseline));
                report.goal(&GoalResult::new(names, "total_s", ratio, Goal::AtMost(1.3)))?;
            }
        }
    }
    Ok(())
}

async fn register_tenure(
    place: &StoreUnderTest,
    keys: &[Bytes],
    turns: &mut SessionTurns,
) -> Result<(), BenchFailure> {
    let session = open(place)?;
    let before = place.handled().await;
    let begin = Instant::now();
    let registered = register(&session, keys).await?;
    let total = begin.elapsed();
    turns.requests += place.handled().await - before;
    turns.samples.push(Sample::new(vec![total], total, keys.len()));
    turns.leases = leases(&registered).len();
    close_session(&session).await
}

async fn register_raw(
    place: &StoreUnderTest,
    raw: &Raw,
    keys: &[Bytes],
    turns: &mut SessionTurns,
) -> Result<(), BenchFailure> {
    let reference = Reference::new(raw);
    let before = place.handled().await;
    let begin = Instant::now();
    reference.register(keys).await.map_err(failed)?;
    let total = begin.elapsed();
    turns.requests += place.handled().await - before;
    turns.samples.push(Sample::new(vec![total], total, keys.len()));
    turns.leases = keys.len().div_ceil(KEYS_PER_LEASE);
    reference.close().await.map_err(failed)
}

pub(super) fn open(place: &StoreUnderTest) -> Result<Session, BenchFailure> {
    Session::options()
        .keys_per_lease(KEYS_PER_LEASE)
        .open(place.store.clone())
        .map_err(|error| wrong(format!("no session can be opened: {error}")))
}

/// All registrations at once, and then all replies.
pub(super) async fn register(session: &Session, keys: &[Bytes]) -> Result<Vec<RegisteredKey>, BenchFailure> {
    let wishes = keys.iter().map(|key| session.register_raw(key.clone(), &VALUE[..]).into_future());
    try_join_all(wishes).await.map_err(|error| wrong(format!("a key was not registered: {error}")))
}

pub(super) fn leases(registered: &[RegisteredKey]) -> BTreeSet<LeaseId> {
    registered.iter().map(|registration| registration.lease).collect()
}

pub(super) fn keys_below(prefix: &str, count: usize) -> Vec<Bytes> {
    (0..count).map(|n| format!("{prefix}{n:05}").into()).collect()
}
