//! The boxed form of [`Engine`], so that a [`Store`](super::Store) can hold any engine.
//!
//! Written out, because the language has no trait objects with `async fn` yet; implementors never see it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::{
    Engine, Get, Grant, LeaseId, LeaseView, Page, PreviousValues, Renewal, Revision, Selection, StoreError,
    StoreInfo, Txn, TxnReply, WatchStart, WatchStream,
};

type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
type EngineFuture<'a, T> = BoxedFuture<'a, Result<T, StoreError>>;

pub(super) trait DynEngine: Send + Sync + 'static {
    fn info(&self) -> &StoreInfo;
    fn get(&self, get: Get) -> EngineFuture<'_, Page>;
    fn txn(&self, txn: Txn) -> EngineFuture<'_, TxnReply>;
    fn batch(&self, txns: Vec<Txn>) -> BoxedFuture<'_, Vec<Result<TxnReply, StoreError>>>;
    fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> EngineFuture<'_, WatchStream>;
    fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> EngineFuture<'_, Grant>;
    fn renew(&self, id: LeaseId) -> EngineFuture<'_, Renewal>;
    fn revoke(&self, id: LeaseId) -> EngineFuture<'_, Revision>;
    fn lease(&self, id: LeaseId) -> EngineFuture<'_, Option<LeaseView>>;
    fn leases(&self) -> EngineFuture<'_, Vec<LeaseId>>;
    fn compact(&self, revision: Revision) -> EngineFuture<'_, ()>;
    fn reachable(&self) -> BoxedFuture<'_, ()>;
    fn lost(&self) -> BoxedFuture<'_, StoreError>;
    fn close(&self) -> BoxedFuture<'_, ()>;
}

impl<E: Engine> DynEngine for E {
    fn info(&self) -> &StoreInfo {
        Engine::info(self)
    }

    fn get(&self, get: Get) -> EngineFuture<'_, Page> {
        Box::pin(Engine::get(self, get))
    }

    fn txn(&self, txn: Txn) -> EngineFuture<'_, TxnReply> {
        Box::pin(Engine::txn(self, txn))
    }

    fn batch(&self, txns: Vec<Txn>) -> BoxedFuture<'_, Vec<Result<TxnReply, StoreError>>> {
        Box::pin(Engine::batch(self, txns))
    }

    fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> EngineFuture<'_, WatchStream> {
        Box::pin(Engine::watch(self, select, start, previous))
    }

    fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> EngineFuture<'_, Grant> {
        Box::pin(Engine::grant(self, ttl, id))
    }

    fn renew(&self, id: LeaseId) -> EngineFuture<'_, Renewal> {
        Box::pin(Engine::renew(self, id))
    }

    fn revoke(&self, id: LeaseId) -> EngineFuture<'_, Revision> {
        Box::pin(Engine::revoke(self, id))
    }

    fn lease(&self, id: LeaseId) -> EngineFuture<'_, Option<LeaseView>> {
        Box::pin(Engine::lease(self, id))
    }

    fn leases(&self) -> EngineFuture<'_, Vec<LeaseId>> {
        Box::pin(Engine::leases(self))
    }

    fn compact(&self, revision: Revision) -> EngineFuture<'_, ()> {
        Box::pin(Engine::compact(self, revision))
    }

    fn reachable(&self) -> BoxedFuture<'_, ()> {
        Box::pin(Engine::reachable(self))
    }

    fn lost(&self) -> BoxedFuture<'_, StoreError> {
        Box::pin(Engine::lost(self))
    }

    fn close(&self) -> BoxedFuture<'_, ()> {
        Box::pin(Engine::close(self))
    }
}
