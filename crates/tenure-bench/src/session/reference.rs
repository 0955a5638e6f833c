//! The reference program: leases, transactions, and a watch of one's own keys, with bare calls.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use crate::internal::VALUE;
use crate::raw::{BoxError, Raw};

/// Keys of one lease, as many as a session puts under one: a put costs the server time in proportion to them.
pub(super) const KEYS_PER_LEASE: usize = 1_000;

/// Operations in one transaction, and transactions in flight.
const TXN_OPS: usize = 128;
const TXNS_IN_FLIGHT: usize = 4;

/// A lease that outlives every benchmark, so that it needs no renewal.
const TTL_S: i64 = 120;

/// Keys that are registered with bare calls.
pub(super) struct Reference<'a> {
    raw: &'a Raw,
    leases: Mutex<Vec<i64>>,
    /// Transactions that may be sent now.
    room: Semaphore,
}

impl<'a> Reference<'a> {
    pub(super) fn new(raw: &'a Raw) -> Reference<'a> {
        Reference { raw, leases: Mutex::default(), room: Semaphore::new(TXNS_IN_FLIGHT) }
    }

    /// Puts all keys, under as many leases as they need.
    pub(super) async fn register(&self, keys: &[Bytes]) -> Result<(), BoxError> {
        let leases = keys.chunks(KEYS_PER_LEASE).map(|_| self.raw.grant(TTL_S));
        let leases = try_join_all(leases).await?;
        self.note(&leases);
        let txns = keys.chunks(KEYS_PER_LEASE).zip(leases).flat_map(|(keys, lease)| {
            keys.chunks(TXN_OPS).map(move |keys| self.raw.txn_puts(pairs(keys), lease))
        });
        stream::iter(txns).buffer_unordered(TXNS_IN_FLIGHT).try_collect::<Vec<_>>().await.map(drop)
    }

    /// Puts back what is deleted, under new leases, until it is dropped. `on_ready` is called when
    /// the watch is created.
    pub(super) async fn keep(&self, prefix: &str, on_ready: impl FnOnce()) -> Result<(), BoxError> {
        let mut end = prefix.as_bytes().to_vec();
        // A prefix ends in `/`, and the next byte is `0`.
        end.pop();
        end.push(b'0');
        let deletes = self.raw.watch_deletes(Bytes::copy_from_slice(prefix.as_bytes()), end.into()).await?;
        on_ready();
        deletes.try_for_each_concurrent(None, |keys| self.put_back(keys)).await
    }

    async fn put_back(&self, keys: Vec<Bytes>) -> Result<(), BoxError> {
        for keys in keys.chunks(KEYS_PER_LEASE) {
            let lease = self.raw.grant(TTL_S).await?;
            self.note(&[lease]);
            try_join_all(keys.chunks(TXN_OPS).map(async |keys| {
                let _room = self.room.acquire().await?;
                self.raw.txn_puts(pairs(keys), lease).await
            }))
            .await?;
        }
        Ok(())
    }

    /// The leases granted since the last call.
    pub(super) fn take_leases(&self) -> Vec<i64> {
        std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the leases, and the keys with them.
    pub(super) async fn close(self) -> Result<(), BoxError> {
        try_join_all(self.take_leases().into_iter().map(|lease| self.raw.revoke(lease))).await.map(drop)
    }

    fn note(&self, leases: &[i64]) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).extend(leases);
    }
}

fn pairs(keys: &[Bytes]) -> Vec<(Bytes, Bytes)> {
    keys.iter().map(|key| (key.clone(), Bytes::from_static(&VALUE))).collect()
}
