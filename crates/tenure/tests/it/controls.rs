//! Negative controls: engines that are wrong in one way, and the case that must fail.
//!
//! A suite that cannot fail proves nothing. Each engine here breaks one rule that a real engine has broken or could break.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use tenure::conformance::{self, Report};
use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Comparison, Condition, Engine, Field, Get, Grant, LeaseChoice, LeaseId, Op, OpReply, Page,
    PreviousValues, Renewal, Selection, StoreError, Txn, TxnReply, WatchError, WatchItem, WatchStart,
    WatchStream,
};

use crate::tokio_clock::TokioClock;
use crate::twisted::{Twist, Twisted};

/// Runs all but the load cases, and requires that this one failed, among few.
async fn failing(twist: impl Twist, id: &str) -> Report {
    let cases = conformance::cases().into_iter().filter(|case| !case.id.starts_with('X')).collect();
    let report =
        conformance::run_cases(cases, || async { Twisted::store(TokioClock::memory(), twist) }).await;
    let failed: Vec<_> = report.failures().map(|case| case.id).collect();
    assert!(failed.contains(&id), "{id} did not notice; failed were {failed:?}");
    assert!(failed.len() <= 20, "too many to point at anything: {failed:?}");
    report
}

async fn must_fail(twist: impl Twist, id: &str) {
    drop(failing(twist, id).await);
}

/// Changes every item of a watch.
fn mapped(
    stream: WatchStream,
    mut map: impl FnMut(WatchItem) -> Vec<WatchItem> + Send + 'static,
) -> WatchStream {
    Box::pin(stream.flat_map(move |item| {
        stream::iter(match item {
            Ok(item) => map(item).into_iter().map(Ok).collect(),
            Err(end) => vec![Err(end)],
        })
    }))
}

struct Nothing;

impl Twist for Nothing {}

#[tokio::test(start_paused = true)]
async fn engine_without_a_twist_passes() {
    conformance::run(|| async { Twisted::store(TokioClock::memory(), Nothing) }).await.assert_passed();
}

struct WatchOffByOne;

impl Twist for WatchOffByOne {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let start = match start {
            WatchStart::Now => WatchStart::Now,
            WatchStart::Recent => WatchStart::Recent,
            WatchStart::After(revision) => WatchStart::After(revision.next()),
        };
        Engine::watch(memory, select, start, previous).await
    }
}

struct RecentIsTooLate;

impl Twist for RecentIsTooLate {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let now = Engine::get(memory, Get::new(Selection::key("/"))).await?.revision;
        let start = if start == WatchStart::Recent { WatchStart::After(now.next()) } else { start };
        Engine::watch(memory, select, start, previous).await
    }
}

#[tokio::test(start_paused = true)]
async fn late_recent_watch_is_found() {
    must_fail(RecentIsTooLate, "W23").await;
}

#[tokio::test(start_paused = true)]
async fn late_watch_is_found() {
    must_fail(WatchOffByOne, "W02").await;
}

struct BlindDuplicates;

impl Twist for BlindDuplicates {
    async fn txn(&self, memory: &MemoryEngine, mut txn: Txn) -> Result<TxnReply, StoreError> {
        let mut seen = BTreeSet::new();
        txn.then.retain(|op| match op {
            Op::Put { key, .. } => seen.insert(key.clone()),
            Op::Delete(_) | Op::Get(_) => true,
        });
        Engine::txn(memory, txn).await
    }
}

#[tokio::test(start_paused = true)]
async fn duplicate_put_in_transaction_is_found() {
    must_fail(BlindDuplicates, "T07").await;
}

struct EarlyEnd;

impl Twist for EarlyEnd {
    async fn grant(
        &self,
        memory: &MemoryEngine,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> Result<Grant, StoreError> {
        let grant = Engine::grant(memory, ttl, id).await?;
        Engine::revoke(memory, grant.id).await?;
        let shorter = grant.ttl - Duration::from_millis(1);
        Engine::grant(memory, shorter, Some(grant.id)).await?;
        Ok(grant)
    }
}

#[tokio::test(start_paused = true)]
async fn lease_ending_early_is_found() {
    must_fail(EarlyEnd, "L11").await;
}

struct PutRenews;

impl Twist for PutRenews {
    async fn txn(&self, memory: &MemoryEngine, txn: Txn) -> Result<TxnReply, StoreError> {
        for op in &txn.then {
            if let Op::Put { lease: LeaseChoice::Attach(lease), .. } = op {
                Engine::renew(memory, *lease).await?;
            }
        }
        Engine::txn(memory, txn).await
    }
}

#[tokio::test(start_paused = true)]
async fn put_that_renews_is_found() {
    must_fail(PutRenews, "L12").await;
}

struct PartlyApplied;

impl Twist for PartlyApplied {
    async fn txn(&self, memory: &MemoryEngine, txn: Txn) -> Result<TxnReply, StoreError> {
        let reply = Engine::txn(memory, txn.clone()).await;
        if let Err(StoreError::LeaseNotFound) = reply {
            let first = Txn { then: txn.then.into_iter().take(1).collect(), ..Txn::new() };
            let _ = Engine::txn(memory, first).await;
        }
        reply
    }
}

#[tokio::test(start_paused = true)]
async fn refused_transaction_that_wrote_something_is_found() {
    must_fail(PartlyApplied, "T09").await;
}

/// Counts puts of a key over all its lives.
#[derive(Default)]
struct VersionNotReset {
    puts: Mutex<BTreeMap<Bytes, i64>>,
}

impl Twist for VersionNotReset {
    async fn txn(&self, memory: &MemoryEngine, txn: Txn) -> Result<TxnReply, StoreError> {
        for op in &txn.then {
            if let Op::Put { key, .. } = op {
                *self.puts.lock().expect("counting does not panic").entry(key.clone()).or_default() += 1;
            }
        }
        Engine::txn(memory, txn).await
    }

    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        let at = get.at;
        let mut page = Engine::get(memory, get).await?;
        for pair in page.pairs.iter_mut().filter(|_| at.is_none()) {
            pair.version = self
                .puts
                .lock()
                .expect("counting does not panic")
                .get(&pair.key)
                .copied()
                .unwrap_or(pair.version);
        }
        Ok(page)
    }
}

#[tokio::test(start_paused = true)]
async fn version_that_outlives_its_key_is_found() {
    must_fail(VersionNotReset::default(), "K02").await;
}

struct OpenPrefix;

impl Twist for OpenPrefix {
    async fn get(&self, memory: &MemoryEngine, mut get: Get) -> Result<Page, StoreError> {
        if let (Selection::Prefix(prefix), Some(end)) = (&get.select, get.select.end())
            && !prefix.ends_with(b"/")
        {
            get.select = Selection::Range(prefix.clone(), end);
        }
        Engine::get(memory, get).await
    }
}

#[tokio::test(start_paused = true)]
async fn prefix_that_matches_another_name_is_found() {
    must_fail(OpenPrefix, "R20").await;
}

struct Reordered;

impl Twist for Reordered {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let stream = Engine::watch(memory, select, start, previous).await?;
        Ok(mapped(stream, |mut item| {
            if let WatchItem::Batch { changes, .. } = &mut item {
                changes.reverse();
            }
            vec![item]
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn batch_out_of_order_is_found() {
    must_fail(Reordered, "W04").await;
}

struct Split;

impl Twist for Split {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let stream = Engine::watch(memory, select, start, previous).await?;
        Ok(mapped(stream, |item| match item {
            WatchItem::Batch { revision, changes } => changes
                .into_iter()
                .map(|change| WatchItem::Batch { revision, changes: vec![change] })
                .collect(),
            WatchItem::Progress(revision) => vec![WatchItem::Progress(revision)],
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn revision_that_comes_in_pieces_is_found() {
    must_fail(Split, "L04").await;
}

struct EarlyProgress;

impl Twist for EarlyProgress {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let stream = Engine::watch(memory, select, start, previous).await?;
        let mut count = 0;
        Ok(mapped(stream, move |item| {
            count += 1;
            if count % 50 == 0 { vec![WatchItem::Progress(item.revision()), item] } else { vec![item] }
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn progress_before_what_it_covers_is_found() {
    must_fail(EarlyProgress, "W09").await;
}

/// Goes on after a compaction as if nothing had been missed.
struct SilentGap;

impl Twist for SilentGap {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let stream = Engine::watch(memory, select.clone(), start, previous).await?;
        let memory = memory.clone();
        Ok(Box::pin(stream.flat_map(move |item| match item {
            Err(WatchError::Compacted { at }) => {
                let (memory, select) = (memory.clone(), select.clone());
                let rest = async move {
                    Engine::watch(&memory, select, WatchStart::After(at), previous)
                        .await
                        .expect("the selection was taken before")
                };
                stream::once(rest).flatten().boxed()
            }
            other => stream::iter([other]).boxed(),
        })))
    }
}

#[tokio::test(start_paused = true)]
async fn silent_gap_is_found() {
    must_fail(SilentGap, "C04").await;
}

struct MissingDiffers;

impl Twist for MissingDiffers {
    async fn txn(&self, memory: &MemoryEngine, mut txn: Txn) -> Result<TxnReply, StoreError> {
        for condition in &mut txn.when {
            if condition.is == Comparison::NotEqual
                && matches!(condition.field, Field::Value(_))
                && Engine::get(memory, Get::key(condition.key.clone())).await?.pairs.is_empty()
            {
                *condition = Condition::absent(condition.key.clone());
            }
        }
        Engine::txn(memory, txn).await
    }
}

#[tokio::test(start_paused = true)]
async fn missing_value_that_differs_is_found() {
    must_fail(MissingDiffers, "T01").await;
}

struct RevisionForNothing;

impl Twist for RevisionForNothing {
    async fn txn(&self, memory: &MemoryEngine, txn: Txn) -> Result<TxnReply, StoreError> {
        let reply = Engine::txn(memory, txn).await?;
        if reply.results == [OpReply::Delete { count: 0 }] {
            Engine::txn(memory, Txn::new().then(Op::put("/elsewhere", ""))).await?;
        }
        Ok(reply)
    }
}

#[tokio::test(start_paused = true)]
async fn revision_in_which_nothing_happened_is_found() {
    must_fail(RevisionForNothing, "K03").await;
}

struct Forgetful;

impl Twist for Forgetful {
    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        Engine::get(memory, Get { at: None, ..get }).await
    }
}

#[tokio::test(start_paused = true)]
async fn read_that_ignores_its_revision_is_found() {
    must_fail(Forgetful, "R08").await;
}

struct StickyLease;

impl Twist for StickyLease {
    async fn txn(&self, memory: &MemoryEngine, mut txn: Txn) -> Result<TxnReply, StoreError> {
        for op in &mut txn.then {
            if let Op::Put { key, lease, .. } = op
                && *lease == LeaseChoice::Detach
                && !Engine::get(memory, Get::key(key.clone())).await?.pairs.is_empty()
            {
                *lease = LeaseChoice::Keep;
            }
        }
        Engine::txn(memory, txn).await
    }
}

#[tokio::test(start_paused = true)]
async fn put_that_does_not_detach_is_found() {
    must_fail(StickyLease, "L08").await;
}

struct AllOrNothingBatch;

impl Twist for AllOrNothingBatch {
    async fn batch(&self, memory: &MemoryEngine, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        let count = txns.len();
        let replies = Engine::batch(memory, txns).await;
        match replies.iter().find_map(|reply| reply.as_ref().err()) {
            Some(error) => vec![Err(error.clone()); count],
            None => replies,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn batch_that_fails_as_one_is_found() {
    must_fail(AllOrNothingBatch, "T20").await;
}

struct HangingRenewal;

impl Twist for HangingRenewal {
    async fn renew(&self, _memory: &MemoryEngine, _id: LeaseId) -> Result<Renewal, StoreError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_engine_fails_one_case() {
    let report = failing(HangingRenewal, "L10").await;
    let hung = report.results.iter().find(|case| case.id == "L10").unwrap();
    assert_eq!(hung.outcome.to_string(), "failed: did not end within 30s");
    assert!(report.results.iter().any(|case| case.id == "W01" && case.outcome.to_string() == "passed"));
}

struct PanickingList;

impl Twist for PanickingList {
    async fn leases(&self, _memory: &MemoryEngine) -> Result<Vec<LeaseId>, StoreError> {
        panic!("no list today")
    }
}

#[tokio::test(start_paused = true)]
async fn engine_that_panics_fails_its_case_only() {
    let report = failing(PanickingList, "L14").await;
    assert!(report.to_string().contains("panicked: no list today"), "{report}");
}

/// Loses one batch in a few hundred.
struct LostEvent;

impl Twist for LostEvent {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let stream = Engine::watch(memory, select, start, previous).await?;
        Ok(mapped(stream, |item| if item.revision().0 % 250 == 0 { Vec::new() } else { vec![item] }))
    }
}

#[tokio::test(start_paused = true)]
async fn lost_event_is_found_by_the_logs() {
    let cases = conformance::cases().into_iter().filter(|case| case.id == "X01").collect();
    let report =
        conformance::run_cases(cases, || async { Twisted::store(TokioClock::memory(), LostEvent) }).await;
    assert!(!report.has_passed());
}

#[tokio::test(start_paused = true)]
async fn unresponsive_store_ends_suite_early() {
    struct Silent;
    impl Twist for Silent {
        async fn get(&self, _memory: &MemoryEngine, _get: Get) -> Result<Page, StoreError> {
            std::future::pending().await
        }
    }
    let report = conformance::run(|| async { Twisted::store(TokioClock::memory(), Silent) }).await;
    let last = report.results.last().unwrap();
    assert_eq!(last.outcome.to_string(), "not run: the store stopped responding after K01");
    assert_eq!(report.results.len(), conformance::cases().len());
}
