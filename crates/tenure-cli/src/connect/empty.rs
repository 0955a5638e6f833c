//! The default store before its file exists, for commands that only read.

use std::time::Duration;

use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Durability, Engine, Get, Grant, LeaseId, LeaseView, Limits, Page, PreviousValues, Reach, Renewal,
    Revision, Selection, StoreError, StoreInfo, Txn, TxnReply, WatchStart, WatchStream,
};

/// A file store without a file. It replies as an empty store; changes are lost with this process.
pub(super) struct EmptyStore {
    memory: MemoryEngine,
    info: StoreInfo,
}

impl EmptyStore {
    pub(super) fn new() -> EmptyStore {
        let info = StoreInfo {
            kind: "file",
            id: "none".to_owned(),
            limits: Limits::EMBEDDED,
            ttl_step: Duration::from_millis(1),
            durable: Durability::Process,
            reach: Reach::Process,
        };
        EmptyStore { memory: MemoryEngine::new(), info }
    }
}

impl Engine for EmptyStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        self.memory.get(get).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        self.memory.txn(txn).await
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        self.memory.watch(select, start, previous).await
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        self.memory.grant(ttl, id).await
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        self.memory.renew(id).await
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        self.memory.revoke(id).await
    }

    async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        self.memory.lease(id).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.memory.leases().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.memory.compact(revision).await
    }

    async fn close(&self) {
        self.memory.close().await;
    }
}
