//! The context of a case: a store, and a prefix that only this case uses.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::CheckResult;
use super::watching::Watching;
use crate::rng;
use crate::store::{
    Get, Grant, KeyValue, LeaseId, PreviousValues, Revision, Selection, Store, StoreError, Txn, TxnReply,
    WatchStart,
};

/// The TTL of leases that a case ends by itself: longer than any case may take.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A store, and a prefix of it that belongs to one case.
#[derive(Debug)]
pub struct TestContext {
    /// The store.
    pub store: Store,
    prefix: String,
    /// What [`TestContext::tidy`] has to revoke: a lease that outlived its case would change the revision during another case.
    leases: Mutex<Vec<LeaseId>>,
}

impl TestContext {
    /// Makes a context under `/conformance/<id>-<random>/`.
    pub fn new(store: Store, id: &str) -> TestContext {
        let random: String = rng::bytes::<6>().iter().map(|byte| format!("{byte:02x}")).collect();
        TestContext { store, prefix: format!("/conformance/{id}-{random}/"), leases: Mutex::new(Vec::new()) }
    }

    /// The key of this case with this name.
    pub fn key(&self, name: &str) -> Bytes {
        format!("{}{name}", self.prefix).into()
    }

    /// All keys of this case.
    pub fn all(&self) -> Selection {
        Selection::prefix(self.prefix.clone())
    }

    /// All keys of this case below a name that ends in `/`.
    pub fn below(&self, name: &str) -> Selection {
        Selection::Prefix(self.key(name))
    }

    /// The store's revision.
    pub async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.store.get(Get::key(self.key("revision"))).await?.revision)
    }

    /// Ends the leases that the case left, and deletes its keys.
    pub async fn tidy(&self) {
        let leases = std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner));
        for lease in leases {
            // The case itself has revoked most of them.
            let _ = self.store.revoke(lease).await;
        }
        // A closed store is tidy.
        let _ = self.store.delete(self.all()).await;
    }

    pub(super) async fn put(&self, name: &str, value: &str) -> Result<Revision, StoreError> {
        self.store.put(self.key(name), value.to_owned()).await
    }

    pub(super) async fn put_leased(
        &self,
        name: &str,
        value: &str,
        lease: LeaseId,
    ) -> Result<Revision, StoreError> {
        self.store.put_leased(self.key(name), value.to_owned(), lease).await
    }

    pub(super) async fn delete(&self, name: &str) -> Result<u64, StoreError> {
        self.store.delete(Selection::Key(self.key(name))).await
    }

    pub(super) async fn pair(&self, name: &str) -> Result<Option<KeyValue>, StoreError> {
        self.store.get_key(self.key(name)).await
    }

    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        self.store.txn(txn).await
    }

    /// The names of the keys of this case, as a listing gives them.
    pub(super) async fn names(&self) -> Result<Vec<String>, StoreError> {
        let page = self.store.list(self.all()).await?;
        Ok(page.pairs.iter().map(|pair| self.name(&pair.key)).collect())
    }

    /// The name of a key of this case; of another key, all of it.
    pub(super) fn name(&self, key: &[u8]) -> String {
        String::from_utf8_lossy(key.strip_prefix(self.prefix.as_bytes()).unwrap_or(key)).into_owned()
    }

    /// A lease that is ended with the case.
    pub(super) async fn lease(&self, ttl: Duration) -> Result<Grant, StoreError> {
        self.lease_as(ttl, None).await
    }

    pub(super) async fn lease_as(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        let grant = self.store.grant(ttl, id).await?;
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).push(grant.id);
        Ok(grant)
    }

    /// The id of a lease that does not exist.
    pub(super) async fn dead_lease(&self) -> Result<LeaseId, StoreError> {
        let lease = self.lease(LONG).await?.id;
        self.store.revoke(lease).await?;
        Ok(lease)
    }

    pub(super) async fn watch(&self, select: Selection, start: WatchStart) -> CheckResult<Watching> {
        self.watch_with(select, start, PreviousValues::Omitted).await
    }

    pub(super) async fn watch_with(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> CheckResult<Watching> {
        let stream = self.store.watch(select.clone(), start, previous).await?;
        Ok(Watching::new(stream, select, start))
    }
}
