//! The kit on every storage that we ship, and on storages that are wrong in one way each.

use bytes::Bytes;
use tempfile::TempDir;
use tenure::clock::BootClock;
use tenure::store::Store;
use tenure::ttl::conformance::{self, Report};
use tenure::ttl::{Memory, Redis, StoreStorage};
use tenure_core::id::Namespace;
use tenure_fixture::Etcd;

use super::wrong::{Flaw, Wrong};
use crate::tokio_clock::TokioClock;

fn over(store: Store) -> StoreStorage {
    StoreStorage::new(store, &Namespace::parse("shop").unwrap())
}

#[tokio::test(start_paused = true)]
async fn memory_passes_the_kit_in_virtual_time() {
    conformance::run(|| async { Memory::<String, Bytes>::new(TokioClock::new()) }).await.assert_passed();
}

#[tokio::test]
async fn memory_passes_the_kit_in_real_time() {
    conformance::run(|| async { Memory::<String, String>::new(BootClock) }).await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn the_memory_engine_passes_the_kit() {
    conformance::run(|| async { over(TokioClock::store()) }).await.assert_passed();
}

#[tokio::test]
async fn the_file_engine_passes_the_kit() {
    let folder = TempDir::new().unwrap();
    let url = format!("file://{}", folder.path().join("store.db").display());
    let store = Store::open(&url.parse().unwrap()).await.unwrap();
    conformance::run(|| async { over(store.clone()) }).await.assert_passed();
    store.close().await;
}

#[tokio::test]
async fn etcd_passes_the_kit() {
    let etcd = Etcd::start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    conformance::run(|| async { over(store.clone()) }).await.assert_passed();
    store.close().await;
}

#[tokio::test]
async fn redis_passes_the_kit() {
    let redis = tenure_fixture::Redis::start();
    let report = conformance::run(|| async { Redis::open(&redis.url()).unwrap() }).await;
    report.assert_passed();
    let not_run: Vec<_> =
        report.rulings.iter().filter(|ruling| ruling.outcome.to_string().starts_with("not run")).collect();
    assert_eq!(not_run.len(), 3, "{report}");
}

async fn report_of(flaw: Flaw) -> Report {
    conformance::run(|| async move { Wrong::new(TokioClock::new(), flaw) }).await
}

/// A kit that cannot fail proves nothing. Each flaw must be found by the case that speaks of it.
#[tokio::test(start_paused = true)]
async fn every_flaw_is_found_by_its_case() {
    report_of(Flaw::None).await.assert_passed();
    for (flaw, id) in [
        (Flaw::InsertOverwrites, "I01"),
        (Flaw::RefusedInsertStores, "I02"),
        (Flaw::TakesZero, "I03"),
        (Flaw::InsertsInTwoSteps, "I04"),
        (Flaw::FoldsKeys, "I05"),
        (Flaw::SwapStoresOld, "S01"),
        (Flaw::SwapsBlindly, "S02"),
        (Flaw::SwapInserts, "S03"),
        (Flaw::SwapsInTwoSteps, "S04"),
        (Flaw::ComparesBeginnings, "S05"),
        (Flaw::DeletesNothing, "D01"),
        (Flaw::DeletesByName, "D02"),
        (Flaw::DeletesTwice, "D03"),
        (Flaw::CutsTtlToSeconds, "T01"),
        (Flaw::CutsTtlToSeconds, "T02"),
        (Flaw::NeverEnds, "T01"),
        (Flaw::SwapKeepsTtl, "T03"),
        (Flaw::RefusalRenews, "T04"),
        (Flaw::SwapRevives, "T05"),
        (Flaw::TokenStands, "F01"),
        (Flaw::TokenGrowsWithSwaps, "F01"),
        (Flaw::WatchIsDeaf, "W01"),
        (Flaw::WatchIsDeaf, "W02"),
        (Flaw::DeletesNothing, "E01"),
        (Flaw::Hangs, "E02"),
    ] {
        let report = report_of(flaw).await;
        let failed: Vec<_> = report.failures().map(|ruling| ruling.id).collect();
        assert!(failed.contains(&id), "{flaw:?}: {id} did not notice; failed were {failed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_report_lists_every_case() {
    let text = report_of(Flaw::DeletesByName).await.to_string();
    assert!(text.contains("D02 a delete with another value is refused"), "{text}");
    assert!(text.contains("failed: a delete with another value: expected false"), "{text}");
    assert!(text.contains("I01 an absent key is inserted, a present one is not\n    passed"), "{text}");
}
