//! The context of a case: the storage, and keys that only this case uses.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::storage::{StorageError, TtlStorage};
use super::super::value::Nonce;
use crate::conformance::{CheckFailure, CheckResult};

/// The TTL of keys that must not expire while a case runs.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// The TTL of keys that must expire: not a whole number of seconds, and above the floor of all known storages.
pub(super) const SHORT: Duration = Duration::from_millis(1_200);

/// How late a key may expire. Halved, an etcd on a loaded machine would fail; it must stay far below [`LONG`].
pub(super) const LATE_MAX: Duration = Duration::from_secs(10);

/// The time between two attempts to insert a key that is not free yet.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// A storage with keys and values that can be made of text.
pub(super) trait TextStorage: TtlStorage<Key: From<String>, Value: From<String>> {}

impl<S: TtlStorage<Key: From<String>, Value: From<String>>> TextStorage for S {}

pub(super) struct StorageContext<S> {
    pub(super) storage: Arc<S>,
    prefix: String,
}

impl<S: TextStorage> StorageContext<S> {
    pub(super) fn new(storage: Arc<S>, id: &str) -> StorageContext<S> {
        StorageContext { storage, prefix: format!("conformance-{id}-{}-", Nonce::random()) }
    }

    /// A key of this case.
    pub(super) fn key(&self, name: &str) -> S::Key {
        format!("{}{name}", self.prefix).into()
    }

    pub(super) fn value(&self, text: impl Display) -> S::Value {
        text.to_string().into()
    }

    pub(super) async fn insert(&self, key: &str, value: &str, ttl: Duration) -> Result<bool, StorageError> {
        self.storage.insert_if_absent(&self.key(key), &self.value(value), ttl).await
    }

    pub(super) async fn swap(
        &self,
        key: &str,
        old: &str,
        new: &str,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        self.storage.compare_and_swap(&self.key(key), &self.value(old), &self.value(new), ttl).await
    }

    pub(super) async fn delete(&self, key: &str, value: &str) -> Result<bool, StorageError> {
        self.storage.compare_and_delete(&self.key(key), &self.value(value)).await
    }

    /// Inserts `value` as soon as the key is free, and runs `meanwhile` between the attempts.
    ///
    /// The key must not expire before `promised`, and not much later.
    pub(super) async fn insert_when_free<F: Future<Output = CheckResult>>(
        &self,
        key: &str,
        value: &str,
        promised: Instant,
        meanwhile: impl Fn() -> F,
    ) -> CheckResult {
        loop {
            if self.insert(key, value, LONG).await? {
                // It was free at some moment before this one.
                let now = Instant::now();
                if now < promised {
                    return Err(CheckFailure::new(format!("expired {:?} early", promised - now)));
                }
                return Ok(());
            }
            if Instant::now() > promised + LATE_MAX {
                return Err(CheckFailure::new(format!("still stored {LATE_MAX:?} after its TTL")));
            }
            meanwhile().await?;
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }
}
