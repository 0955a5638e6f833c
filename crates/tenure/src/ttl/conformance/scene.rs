//! Where a case plays: the storage, and keys that are the case's alone.

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::elections::Key;
use super::super::stamp::{Nonce, Value};
use super::super::storage::{StorageError, TtlStorage};
use crate::conformance::{Failure, Verdict};

/// The TTL of what must not end while a case runs.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// The TTL of what must end: not a whole number of seconds, and above the floor of every storage that we know.
pub(super) const SHORT: Duration = Duration::from_millis(1_200);

/// How late a key may go. Halved, an etcd on a loaded machine would fail; it must stay far below [`LONG`].
pub(super) const LATE_MAX: Duration = Duration::from_secs(10);

/// Between two looks whether a key has become free.
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub(super) struct Scene<K, V, S> {
    pub(super) storage: Arc<S>,
    prefix: String,
    words: PhantomData<fn() -> (K, V)>,
}

impl<K, V, S> Scene<K, V, S>
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    pub(super) fn new(storage: Arc<S>, id: &str) -> Scene<K, V, S> {
        Scene { storage, prefix: format!("conformance-{id}-{}-", Nonce::random()), words: PhantomData }
    }

    /// A key of this case.
    pub(super) fn key(&self, name: &str) -> K {
        format!("{}{name}", self.prefix).into()
    }

    pub(super) fn value(&self, text: impl Display) -> V {
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

    /// Inserts `value` as soon as the key is free, doing `meanwhile` between the tries; says when that was confirmed.
    ///
    /// What was promised until `promised` must not go before, and not much later.
    pub(super) async fn insert_when_free<F: Future<Output = Verdict>>(
        &self,
        key: &str,
        value: &str,
        promised: Instant,
        meanwhile: impl Fn() -> F,
    ) -> Verdict {
        loop {
            if self.insert(key, value, LONG).await? {
                // It was free at some moment before this one.
                let now = Instant::now();
                if now < promised {
                    return Err(Failure::new(format!("gone {:?} before its time", promised - now)));
                }
                return Ok(());
            }
            if Instant::now() > promised + LATE_MAX {
                return Err(Failure::new(format!("still there {LATE_MAX:?} after its time")));
            }
            meanwhile().await?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
