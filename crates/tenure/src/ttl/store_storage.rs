//! A Tenure store as a TTL storage: each key has its own lease.
//!
//! A store cannot swap a value and renew its lease in one step, so a swap renews the lease first. If the swap then finds another value, a
//! lease was renewed without need, and it expires. In the other order a value could be acknowledged after its lease has ended.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::id::{ElectionName, Namespace};
use tenure_core::layout::{Key as StoreKey, Layout};
use tenure_core::revision::Token;
use tracing::debug;

use super::storage::{Capabilities, KeyFreed, StorageError, TtlStorage};
use crate::store::{
    Change, Condition, Durability, Get, KeyValue, LeaseChoice, LeaseId, Op, OpReply, PreviousValues, Renewal,
    Selection, Store, StoreError, Txn, WatchItem, WatchStart,
};

/// A Tenure store as a TTL storage: keys under `/<namespace>/ttl/`, tokens from create revisions.
///
/// A key is a name of 1 to 256 bytes without control characters; `/` and `%` in it are escaped, so that `a` never blocks `a/b`.
/// TTLs below the store's floor (1 s embedded, 1 to 2 s on etcd) and between its steps (1 s on etcd) are rounded up. A swap with a shorter TTL
/// than the key has leaves it the longer one.
#[derive(Clone, Debug)]
pub struct StoreStorage {
    store: Store,
    layout: Layout,
}

impl StoreStorage {
    /// The storage of this namespace in a store.
    pub fn new(store: Store, namespace: &Namespace) -> StoreStorage {
        StoreStorage { store, layout: Layout::new(namespace) }
    }

    fn key(&self, name: &str) -> Result<Bytes, StorageError> {
        let name = ElectionName::parse(name).map_err(StorageError::not_applied)?;
        Ok(self.layout.encode(&StoreKey::Ttl(name)))
    }

    async fn pair(&self, key: &Bytes, value: &Bytes) -> Result<Option<KeyValue>, StorageError> {
        // A read is never ambiguous: it changes nothing.
        let pair = self.store.get_key(key.clone()).await.map_err(StorageError::not_applied)?;
        Ok(pair.filter(|pair| pair.value == *value))
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StorageError> {
        // A granted lease without a reply has no keys, and expires.
        Ok(self.store.grant(ttl, None).await.map_err(StorageError::not_applied)?.id)
    }

    /// Revokes a lease without keys. If that fails, it expires.
    async fn revoke(&self, lease: LeaseId) {
        if let Err(error) = self.store.revoke(lease).await {
            debug!(%lease, %error, "lease not revoked");
        }
    }

    /// A lease that lasts at least `ttl` from now, and whether it is a new one; none if the key is gone.
    async fn renewed(
        &self,
        lease: Option<LeaseId>,
        ttl: Duration,
    ) -> Result<Option<(LeaseId, bool)>, StorageError> {
        let Some(lease) = lease else { return Ok(Some((self.grant(ttl).await?, true))) };
        match self.store.renew(lease).await.map_err(outcome)? {
            // The key was deleted with its lease.
            Renewal::Gone => Ok(None),
            Renewal::Renewed { ttl: granted, .. } if granted >= ttl => Ok(Some((lease, false))),
            // The TTL of a lease cannot be changed: a longer one needs a new lease.
            Renewal::Renewed { .. } => Ok(Some((self.grant(ttl).await?, true))),
        }
    }
}

impl TtlStorage for StoreStorage {
    type Key = String;
    type Value = Bytes;

    fn capabilities(&self) -> Capabilities {
        let durable = self.store.info().durable > Durability::Process;
        Capabilities { fencing: true, watch: true, durable }
    }

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &Bytes,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        let key = self.key(key)?;
        // The read saves a lease for each attempt of a waiting campaign.
        let found = self.store.get(Get::key(key.clone()).keys_only()).await;
        if !found.map_err(StorageError::not_applied)?.pairs.is_empty() {
            return Ok(false);
        }
        let lease = self.grant(ttl).await?;
        let put = Op::put_leased(key.clone(), value.clone(), lease);
        let reply = self.store.txn(Txn::new().when(Condition::absent(key)).then(put)).await;
        match reply {
            Ok(reply) => {
                if !reply.succeeded {
                    // Another candidate was faster. Nothing is stored under this lease.
                    self.revoke(lease).await;
                }
                Ok(reply.succeeded)
            }
            // The lease is not revoked: the key may be stored under it, and a swap settles that.
            Err(error) => Err(outcome(error)),
        }
    }

    async fn compare_and_swap(
        &self,
        key: &String,
        old: &Bytes,
        new: &Bytes,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        let key = self.key(key)?;
        let Some(pair) = self.pair(&key, old).await? else { return Ok(false) };
        let Some((lease, is_new)) = self.renewed(pair.lease, ttl).await? else { return Ok(false) };
        // The same create and modify revision: what was read is swapped, and it is stored under the lease that was renewed.
        let swap = Txn::new()
            .when(Condition::created_at(key.clone(), pair.created))
            .when(Condition::modified_at(key.clone(), pair.modified))
            .then(Op::Put { key, value: new.clone(), lease: LeaseChoice::Attach(lease) });
        let is_done = match self.store.txn(swap).await {
            Ok(reply) => reply.succeeded,
            // It expired between the renewal and the swap, and the key with it.
            Err(StoreError::LeaseNotFound) => false,
            Err(error) => return Err(outcome(error)),
        };
        match (is_new, is_done, pair.lease) {
            // The key has moved to the new lease, so the former one has no keys.
            (true, true, Some(before)) => self.revoke(before).await,
            (true, false, _) => self.revoke(lease).await,
            (true, true, None) | (false, _, _) => {}
        }
        Ok(is_done)
    }

    async fn compare_and_delete(&self, key: &String, value: &Bytes) -> Result<bool, StorageError> {
        let key = self.key(key)?;
        // By value and not by revision: after lost responses the caller knows no revision, and the nonce makes the value unique.
        let delete = Txn::new()
            .when(Condition::value_is(key.clone(), value.clone()))
            .then(Op::Get(Get::key(key.clone())))
            .then(Op::Delete(Selection::Key(key)));
        let reply = self.store.txn(delete).await.map_err(outcome)?;
        if let Some(OpReply::Get(page)) = reply.results.first()
            && let Some(lease) = page.pairs.first().and_then(|pair| pair.lease)
        {
            // Its only key was deleted.
            self.revoke(lease).await;
        }
        Ok(reply.succeeded)
    }

    async fn token(&self, key: &String, value: &Bytes) -> Result<Option<Token>, StorageError> {
        let key = self.key(key)?;
        Ok(self.pair(&key, value).await?.map(|pair| Token(pair.created)))
    }

    async fn watch(&self, key: &String) -> Result<KeyFreed, StorageError> {
        let key = self.key(key)?;
        // `Now` is enough: the campaign opens the watch before its attempt.
        let stream = self.store.watch(Selection::Key(key), WatchStart::Now, PreviousValues::Omitted).await;
        let mut stream = stream.map_err(StorageError::not_applied)?;
        Ok(Box::pin(async move {
            while let Some(item) = stream.next().await {
                match item {
                    Ok(WatchItem::Batch { changes, .. }) if changes.iter().any(is_deletion) => return,
                    Ok(WatchItem::Batch { .. } | WatchItem::Progress(_)) => {}
                    Err(_) => break,
                }
            }
            // The watch is lost. A waiting campaign still polls.
            std::future::pending::<()>().await;
        }))
    }
}

fn is_deletion(change: &Change) -> bool {
    matches!(change, Change::Delete { .. })
}

/// The outcome of a write that failed.
fn outcome(error: StoreError) -> StorageError {
    if error.is_ambiguous() { StorageError::ambiguous(error) } else { StorageError::not_applied(error) }
}
