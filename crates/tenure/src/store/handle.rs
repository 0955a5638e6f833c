//! The handle on a store: any engine, with shorthands for common requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};
use tenure_core::chunk::chunks;
use tenure_core::multi_get;
use tenure_core::revision::Token;

use super::dyn_engine::DynEngine;
use super::memory::MemoryEngine;
use super::page::PageLen;
use super::{
    Condition, Engine, Get, Grant, KeyValue, LeaseChoice, LeaseId, LeaseView, Op, OpReply, Page,
    PreviousValues, Renewal, Revision, Selection, StoreError, StoreInfo, Txn, TxnReply, WatchStart,
    WatchStream,
};

/// How many chunks of a long list are in flight at once. One leaves the store idle between responses; beyond four nothing
/// was gained on etcd, and a slow store only gets a longer queue.
const CHUNKS_IN_FLIGHT: usize = 4;

/// A store, whatever its engine. Cheap to clone; all clones are one.
///
/// See [`Engine`] for what the verbs promise.
#[derive(Clone)]
pub struct Store {
    engine: Arc<dyn DynEngine>,
}

impl Store {
    /// A handle on an engine.
    pub fn new(engine: impl Engine) -> Store {
        Store { engine: Arc::new(engine) }
    }

    /// A store inside this process, gone with it.
    pub fn memory() -> Store {
        Store::new(MemoryEngine::new())
    }

    /// What this store is.
    pub fn info(&self) -> &StoreInfo {
        self.engine.info()
    }

    /// Reads one page of keys; see [`Engine::get`].
    pub async fn get(&self, get: Get) -> Result<Page, StoreError> {
        self.engine.get(get).await
    }

    /// Reads one key.
    pub async fn get_key(&self, key: impl Into<Bytes>) -> Result<Option<KeyValue>, StoreError> {
        Ok(self.get(Get::key(key)).await?.pairs.pop())
    }

    /// Reads all keys of a selection as they were at one revision, however many there are, page by page.
    pub async fn list(&self, select: Selection) -> Result<Page, StoreError> {
        self.list_all(Get::new(select)).await
    }

    /// Reads these keys as they were at one revision. Keys that did not exist are left out.
    pub(crate) async fn get_each(
        &self,
        keys: &[Bytes],
        revision: Revision,
    ) -> Result<Vec<KeyValue>, StoreError> {
        // Collected first: a stream that borrows what it maps would keep callers from sending the future to another thread.
        let requests = multi_get::requests(keys, revision).into_iter().map(|txn| self.txn(txn));
        let requests: Vec<_> = requests.collect();
        let replies: Vec<_> = stream::iter(requests).buffered(CHUNKS_IN_FLIGHT).try_collect().await?;
        Ok(multi_get::pairs(replies))
    }

    /// Reads all keys of a selection page by page, as [`Store::list`] does, but at the revision of the read if it has one, and with
    /// or without values according to it.
    pub(crate) async fn list_all(&self, get: Get) -> Result<Page, StoreError> {
        let mut len = PageLen::new();
        let end = get.select.end();
        let (mut pairs, mut at) = (Vec::new(), get.at);
        let mut rest = get.select.clone();
        loop {
            let page = Get { at, select: rest.clone(), ..get.clone() }.limit(len.get());
            let page = match self.get(page).await {
                Ok(page) => page,
                // The same page again, with fewer keys.
                Err(error) if len.shrinks_for(&error) => continue,
                Err(error) => return Err(error),
            };
            // All pages at the revision of the first, so that the list is one snapshot.
            let revision = *at.get_or_insert(page.revision);
            pairs.extend(page.pairs);
            match pairs.last() {
                Some(last) if page.more => {
                    // The first key after the last one: the same bytes and a zero.
                    let from = Selection::Key(last.key.clone()).end().unwrap_or_default();
                    rest = match &end {
                        Some(end) => Selection::Range(from, end.clone()),
                        None => Selection::From(from),
                    };
                }
                Some(_) | None => return Ok(Page { pairs, more: false, revision }),
            }
        }
    }

    /// Does a transaction; see [`Engine::txn`].
    pub async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        self.engine.txn(txn).await
    }

    /// Does independent transactions, each with an outcome of its own; see [`Engine::batch`]. An empty list sends nothing.
    pub async fn batch(&self, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        if txns.is_empty() {
            return Vec::new();
        }
        self.engine.batch(txns).await
    }

    /// Puts a key that stays until it is deleted.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<Revision, StoreError> {
        Ok(self.txn(Txn::from(Op::put(key, value))).await?.revision)
    }

    /// Puts a key that is deleted with a lease.
    pub async fn put_leased(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: LeaseId,
    ) -> Result<Revision, StoreError> {
        Ok(self.txn(Txn::from(Op::put_leased(key, value, lease))).await?.revision)
    }

    /// Deletes keys; returns how many there were.
    pub async fn delete(&self, select: Selection) -> Result<u64, StoreError> {
        let reply = self.txn(Txn::from(Op::Delete(select))).await?;
        match reply.results.first() {
            Some(OpReply::Delete { count }) => Ok(*count),
            _ => Err(StoreError::Corrupt("the reply to a delete has another type".into())),
        }
    }

    /// Puts a key if it does not exist; returns its token, or none if the key exists.
    pub async fn create(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: LeaseChoice,
    ) -> Result<Option<Token>, StoreError> {
        let key = key.into();
        let put = Op::Put { key: key.clone(), value: value.into(), lease };
        let reply = self.txn(Txn::new().when(Condition::absent(key)).then(put)).await?;
        Ok(reply.succeeded.then_some(Token(reply.revision)))
    }

    /// Does operations that need not happen together, in as few transactions as the store's limits allow, several at a
    /// time. Each transaction is atomic, the list is not, and they end in no particular order.
    ///
    /// # Errors
    ///
    /// One operation that no request could carry fails the call before anything is sent. Otherwise there is one outcome for each
    /// transaction, in the order of the operations.
    pub async fn apply_all(
        &self,
        ops: impl IntoIterator<Item = Op>,
    ) -> Result<Vec<Result<TxnReply, StoreError>>, StoreError> {
        let txns = chunks(ops, &self.info().limits)?;
        Ok(stream::iter(txns.into_iter().map(|txn| self.txn(txn))).buffered(CHUNKS_IN_FLIGHT).collect().await)
    }

    /// Watches keys; see [`Engine::watch`].
    pub async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        self.engine.watch(select, start, previous).await
    }

    /// Grants a lease; see [`Engine::grant`].
    pub async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        self.engine.grant(ttl, id).await
    }

    /// Renews a lease; see [`Engine::renew`].
    pub async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        self.engine.renew(id).await
    }

    /// Ends a lease and deletes its keys; see [`Engine::revoke`].
    pub async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        self.engine.revoke(id).await
    }

    /// A lease as it is now; none if it is gone.
    pub async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        self.engine.lease(id).await
    }

    /// All leases.
    pub async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.engine.leases().await
    }

    /// Compacts history up to `revision`; see [`Engine::compact`].
    pub async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.engine.compact(revision).await
    }

    /// Waits until a store that could not be reached responds again; see [`Engine::reachable`].
    pub async fn reachable(&self) {
        self.engine.reachable().await;
    }

    /// Waits until the store is lost for good, and returns why; see [`Engine::lost`].
    pub async fn lost(&self) -> StoreError {
        self.engine.lost().await
    }

    /// Closes the store for this handle and all its clones; see [`Engine::close`].
    pub async fn close(&self) {
        self.engine.close().await;
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({} {})", self.info().kind, self.info().id)
    }
}
