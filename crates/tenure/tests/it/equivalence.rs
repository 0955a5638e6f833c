//! One log, for every writer and through every handle.

use tenure::conformance::{EquivalenceSize, log_equivalence};
use tenure::store::Store;
use tenure::store::file::FileEngine;

/// As usual, and a hundred times as much when the machine has the night for it.
fn size() -> EquivalenceSize {
    let factor = if std::env::var_os("TENURE_SOAK").is_some() { 100 } else { 1 };
    let usual = EquivalenceSize::default();
    EquivalenceSize { ops: usual.ops * factor, ..usual }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clones_of_memory_store_share_log() {
    log_equivalence(&[Store::memory()], size()).await.unwrap();
}

/// Three handles with connections of their own, as three processes would have.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_handles_of_a_file_see_one_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state").join("store.db");
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(Store::new(FileEngine::options().open(path.clone()).await.unwrap()));
    }
    log_equivalence(&stores, size()).await.unwrap();
    for store in stores {
        store.close().await;
    }
}
