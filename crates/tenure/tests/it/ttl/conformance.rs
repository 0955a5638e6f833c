//! The conformance suite on every shipped storage, and on storages with one defect each.

use bytes::Bytes;
use tempfile::TempDir;
use tenure::clock::BootClock;
use tenure::store::Store;
use tenure::ttl::conformance::{self, StorageReport};
use tenure::ttl::{MemoryStorage, RedisStorage, StoreStorage};
use tenure_core::id::Namespace;
use tenure_fixture::Etcd;

use super::flawed::{Flaw, Flawed};
use crate::tokio_clock::TokioClock;

fn over(store: Store) -> StoreStorage {
    StoreStorage::new(store, &Namespace::parse("shop").unwrap())
}

#[tokio::test(start_paused = true)]
async fn memory_storage_conforms_in_virtual_time() {
    conformance::run(|| async { MemoryStorage::<String, Bytes>::new(TokioClock::new()) })
        .await
        .assert_passed();
}

#[tokio::test]
async fn memory_storage_conforms_in_real_time() {
    conformance::run(|| async { MemoryStorage::<String, String>::new(BootClock) }).await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn memory_engine_storage_conforms() {
    conformance::run(|| async { over(TokioClock::store()) }).await.assert_passed();
}

#[tokio::test]
async fn file_engine_storage_conforms() {
    let folder = TempDir::new().unwrap();
    let url = format!("file://{}", folder.path().join("store.db").display());
    let store = Store::open(&url.parse().unwrap()).await.unwrap();
    conformance::run(|| async { over(store.clone()) }).await.assert_passed();
    store.close().await;
}

#[tokio::test]
async fn etcd_storage_conforms() {
    let etcd = Etcd::start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    conformance::run(|| async { over(store.clone()) }).await.assert_passed();
    store.close().await;
}

#[tokio::test]
async fn redis_storage_conforms() {
    let redis = tenure_fixture::Redis::start();
    let report = conformance::run(|| async { RedisStorage::open(&redis.url()).unwrap() }).await;
    report.assert_passed();
    let not_run: Vec<_> =
        report.results.iter().filter(|case| case.outcome.to_string().starts_with("not run")).collect();
    assert_eq!(not_run.len(), 3, "{report}");
}

async fn report_of(flaw: Flaw) -> StorageReport {
    conformance::run(|| async move { Flawed::new(TokioClock::new(), flaw) }).await
}

/// A suite that cannot fail proves nothing. Each flaw must be found by its case.
#[tokio::test(start_paused = true)]
async fn every_flaw_is_found_by_its_case() {
    report_of(Flaw::None).await.assert_passed();
    for (flaw, id) in [
        (Flaw::InsertOverwrites, "I01"),
        (Flaw::RefusedInsertStores, "I02"),
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
        let failed: Vec<_> = report.failures().map(|case| case.id).collect();
        assert!(failed.contains(&id), "{flaw:?}: {id} passed; failed: {failed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_report_lists_every_case() {
    let text = report_of(Flaw::DeletesByName).await.to_string();
    assert!(text.contains("D02 a delete with another value is refused"), "{text}");
    assert!(text.contains("failed: a delete with another value: expected false"), "{text}");
    assert!(text.contains("I01 an absent key is inserted, a present one is not\n    passed"), "{text}");
}
