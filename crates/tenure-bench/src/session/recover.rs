//! All leases revoked by an operator: how long until every key is back, as an observer sees it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use tenure::store::{Change, LeaseId, PreviousValues, Selection, Store, WatchItem, WatchStart, WatchStream};
use tokio::sync::oneshot;

use super::reference::Reference;
use super::register::{keys_below, leases, open, register};
use super::{SessionSize, SessionTurns};
use crate::failure::BenchFailure;
use crate::raw::Raw;
use crate::report::{BenchReport, Found, Goal, GoalResult};
use crate::sample::Sample;
use crate::store_under_test::{StoreUnderTest, close_session, failed};
use crate::turns::{Side, order};
use crate::workload::wrong;

const WORKLOAD: &str = "back_after_revoke_10000";
const KEYS: usize = 10_000;

/// Keys that are not back after this long never come.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(
    place: &StoreUnderTest,
    size: SessionSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let prefix = format!("{}{WORKLOAD}/", place.prefix);
    let keys = keys_below(&prefix, KEYS.min(size.keys_max));
    let (mut tenure, mut baseline) = (SessionTurns::default(), SessionTurns::default());
    for round in 0..size.rounds {
        for side in order(round) {
            match (side, &place.raw) {
                (Side::Tenure, _) => recover_tenure(place, &prefix, &keys, &mut tenure).await?,
                (Side::Reference, Some(raw)) => {
                    recover_raw(place, raw, &prefix, &keys, &mut baseline).await?;
                }
                (Side::Reference, None) => {}
            }
        }
    }
    let counter = place.counter.as_ref();
    report.row(&tenure.row(WORKLOAD, place.engine, counter))?;
    let seconds = Found::Figure(tenure.median_s());
    report.goal(&GoalResult::new(
        (WORKLOAD, place.engine, "contract"),
        "total_s",
        seconds,
        Goal::AtMost(1.0),
    ))?;
    if place.raw.is_some() {
        report.row(&baseline.row(WORKLOAD, "raw", counter))?;
        let ratio = Found::Ratio(tenure.ratio_to(&baseline));
        let names = (WORKLOAD, place.engine, "raw");
        report.goal(&GoalResult::new(names, "total_s", ratio, Goal::AtMost(1.5)))?;
    }
    Ok(())
}

async fn recover_tenure(
    place: &StoreUnderTest,
    prefix: &str,
    keys: &[Bytes],
    turns: &mut SessionTurns,
) -> Result<(), BenchFailure> {
    let session = open(place)?;
    let leases = leases(&register(&session, keys).await?);
    let mut onlooker = KeyWatch::open(&place.store, prefix, keys).await?;
    // No event reports when the session's own watch is created. A key that comes back after an
    // operator deleted it proves it.
    place.store.delete(Selection::key(keys[0].clone())).await?;
    onlooker.all_back().await?;
    let before = place.handled().await;
    let took = onlooker.revoke(leases.iter().copied()).await?;
    turns.requests += place.handled().await - before;
    turns.samples.push(Sample::new(vec![took], took, keys.len()));
    turns.leases = leases.len();
    close_session(&session).await
}

async fn recover_raw(
    place: &StoreUnderTest,
    raw: &Raw,
    prefix: &str,
    keys: &[Bytes],
    turns: &mut SessionTurns,
) -> Result<(), BenchFailure> {
    let reference = Reference::new(raw);
    reference.register(keys).await.map_err(failed)?;
    let (tell, stands) = oneshot::channel();
    let keep = reference.keep(prefix, move || {
        // The other end waits below.
        let _ = tell.send(());
    });
    let measure = async {
        stands.await.map_err(|_| wrong("the reference's watch was not created"))?;
        let mut onlooker = KeyWatch::open(&place.store, prefix, keys).await?;
        let leases = reference.take_leases();
        let before = place.handled().await;
        let took = onlooker.revoke(leases.iter().copied().filter_map(LeaseId::new)).await?;
        Ok::<_, BenchFailure>((took, leases.len(), place.handled().await - before))
    };
    let (took, leases, requests) = tokio::select! {
        biased;
        measured = measure => measured?,
        ended = keep => return Err(ended.map_or_else(failed, |()| wrong("the reference's watch ended"))),
    };
    turns.requests += requests;
    turns.samples.push(Sample::new(vec![took], took, keys.len()));
    turns.leases = leases;
    reference.close().await.map_err(failed)
}

/// An observer of the keys that has no part in the session.
struct KeyWatch<'a> {
    store: &'a Store,
    events: WatchStream,
    /// The keys that were seen deleted and not yet seen back.
    missing: BTreeSet<Bytes>,
    /// Not yet seen to be deleted.
    untouched: BTreeSet<Bytes>,
}

impl<'a> KeyWatch<'a> {
    async fn open(store: &'a Store, prefix: &str, keys: &[Bytes]) -> Result<KeyWatch<'a>, BenchFailure> {
        let select = Selection::prefix(prefix.to_owned());
        let events = store.watch(select, WatchStart::Now, PreviousValues::Omitted).await?;
        Ok(KeyWatch { store, events, missing: BTreeSet::new(), untouched: keys.iter().cloned().collect() })
    }

    /// Revokes the leases, and waits until every key was deleted and is back; returns how long that
    /// took from the last reply on.
    async fn revoke(&mut self, leases: impl Iterator<Item = LeaseId>) -> Result<Duration, BenchFailure> {
        self.untouched.append(&mut self.missing);
        let store = self.store;
        let revoking = async {
            try_join_all(leases.map(|lease| store.revoke(lease))).await?;
            Ok::<_, BenchFailure>(Instant::now())
        };
        let back = async {
            while !self.untouched.is_empty() {
                self.read().await?;
            }
            self.all_back().await?;
            Ok::<_, BenchFailure>(Instant::now())
        };
        let (answered, back) = tokio::try_join!(revoking, back)?;
        Ok(back.saturating_duration_since(answered))
    }

    /// Waits until something was deleted and all of it is back.
    async fn all_back(&mut self) -> Result<(), BenchFailure> {
        while self.missing.is_empty() && !self.untouched.is_empty() {
            self.read().await?;
        }
        while !self.missing.is_empty() {
            self.read().await?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), BenchFailure> {
        let item = tokio::time::timeout(PATIENCE, self.events.next()).await;
        let item = item.map_err(|_| wrong(format!("keys are not back after {PATIENCE:?}")))?;
        let WatchItem::Batch { changes, .. } = item.ok_or_else(|| wrong("the watch ended"))?? else {
            return Ok(());
        };
        for change in changes {
            match change {
                Change::Put { pair, .. } => {
                    self.missing.remove(&pair.key);
                }
                Change::Delete { key, .. } => {
                    self.untouched.remove(&key);
                    self.missing.insert(key);
                }
            }
        }
        Ok(())
    }
}
