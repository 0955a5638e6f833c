//! A memory engine with one thing changed: how the tests break a rule on purpose, or interrupt what works.

use std::future::Future;
use std::time::Duration;

use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Engine, Get, Grant, LeaseId, LeaseView, Page, PreviousValues, Renewal, Revision, Selection, Store,
    StoreError, StoreInfo, Txn, TxnReply, WatchStart, WatchStream,
};

/// What is changed; everything else is the memory engine's.
pub(crate) trait Twist: Send + Sync + 'static {
    fn get(&self, memory: &MemoryEngine, get: Get) -> impl Future<Output = Result<Page, StoreError>> + Send {
        Engine::get(memory, get)
    }

    fn txn(
        &self,
        memory: &MemoryEngine,
        txn: Txn,
    ) -> impl Future<Output = Result<TxnReply, StoreError>> + Send {
        Engine::txn(memory, txn)
    }

    fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> impl Future<Output = Result<WatchStream, StoreError>> + Send {
        Engine::watch(memory, select, start, previous)
    }

    fn grant(
        &self,
        memory: &MemoryEngine,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> impl Future<Output = Result<Grant, StoreError>> + Send {
        Engine::grant(memory, ttl, id)
    }

    fn renew(
        &self,
        memory: &MemoryEngine,
        id: LeaseId,
    ) -> impl Future<Output = Result<Renewal, StoreError>> + Send {
        Engine::renew(memory, id)
    }

    fn revoke(
        &self,
        memory: &MemoryEngine,
        id: LeaseId,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send {
        Engine::revoke(memory, id)
    }

    fn reachable(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    fn leases(&self, memory: &MemoryEngine) -> impl Future<Output = Result<Vec<LeaseId>, StoreError>> + Send {
        Engine::leases(memory)
    }

    fn batch(
        &self,
        memory: &MemoryEngine,
        txns: Vec<Txn>,
    ) -> impl Future<Output = Vec<Result<TxnReply, StoreError>>> + Send {
        Engine::batch(memory, txns)
    }
}

/// A memory engine with a twist.
pub(crate) struct Twisted<T>(pub(crate) MemoryEngine, pub(crate) T);

impl<T: Twist> Twisted<T> {
    pub(crate) fn store(memory: MemoryEngine, twist: T) -> Store {
        Store::new(Twisted(memory, twist))
    }
}

impl<T: Twist> Engine for Twisted<T> {
    fn info(&self) -> &StoreInfo {
        Engine::info(&self.0)
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        self.1.get(&self.0, get).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        self.1.txn(&self.0, txn).await
    }

    async fn batch(&self, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        self.1.batch(&self.0, txns).await
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        self.1.watch(&self.0, select, start, previous).await
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        self.1.grant(&self.0, ttl, id).await
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        self.1.renew(&self.0, id).await
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        self.1.revoke(&self.0, id).await
    }

    async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        Engine::lease(&self.0, id).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.1.leases(&self.0).await
    }

    async fn reachable(&self) {
        self.1.reachable().await;
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        Engine::compact(&self.0, revision).await
    }

    async fn close(&self) {
        Engine::close(&self.0).await;
    }
}
