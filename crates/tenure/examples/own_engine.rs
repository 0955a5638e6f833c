//! An engine of your own, and the suite that checks whether it conforms.
//!
//! This one is the memory engine behind a counter: how many writes went through it. Real ones bring their own storage; the trait
//! and the five lines of `main` stay the same. Run it with `cargo run -p tenure --example own_engine`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::conformance;
use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Engine, Get, Grant, LeaseId, LeaseView, Page, PreviousValues, Renewal, Revision, Selection, Store,
    StoreError, StoreInfo, Txn, TxnReply, WatchStart, WatchStream,
};

struct Counting {
    inner: MemoryEngine,
    info: StoreInfo,
    writes: Arc<AtomicU64>,
}

impl Counting {
    fn new(writes: Arc<AtomicU64>) -> Counting {
        let inner = MemoryEngine::new();
        let info = StoreInfo { kind: "counting", ..inner.info().clone() };
        Counting { inner, info, writes }
    }
}

impl Engine for Counting {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        self.inner.get(get).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        self.writes.fetch_add(u64::from(txn.may_write()), Ordering::Relaxed);
        self.inner.txn(txn).await
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        self.inner.watch(select, start, previous).await
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        self.inner.grant(ttl, id).await
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        self.inner.renew(id).await
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        self.inner.revoke(id).await
    }

    async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        self.inner.lease(id).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.inner.leases().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "an example shows what it did")]
async fn main() {
    let writes = Arc::new(AtomicU64::new(0));
    let report = conformance::run(|| async { Store::new(Counting::new(writes.clone())) }).await;
    report.assert_passed();
    println!("{report}, with {} writes", writes.load(Ordering::Relaxed));
}
