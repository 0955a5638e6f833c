//! The interface between TTL elections and a storage: three operations with a TTL, and optional capabilities.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::Cause;
use tenure_core::revision::Token;
use thiserror::Error;

use super::value::TtlValue;

/// Completes when a watched key may have become free.
pub type KeyFreed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A storage in which keys live for a bounded time. Implement it with plain `async fn`s.
///
/// `Ok(true)` means applied, `Ok(false)` means not applied because another value is stored, or none. An error is one of the two other
/// outcomes: [`StorageError::NotApplied`] or [`StorageError::Ambiguous`]. An implementation that cannot distinguish them returns `Ambiguous`.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
/// use std::time::{Duration, Instant};
/// use tenure::ttl::{StorageError, TtlStorage};
///
/// #[derive(Default)]
/// struct Rows(Mutex<HashMap<String, (String, Instant)>>);
///
/// impl TtlStorage for Rows {
///     type Key = String;
///     type Value = String;
///
///     async fn insert_if_absent(&self, key: &String, value: &String, ttl: Duration) -> Result<bool, StorageError> {
///         let (mut rows, now) = (self.0.lock().unwrap(), Instant::now());
///         let is_free = rows.get(key).is_none_or(|(_, until)| *until <= now);
///         if is_free {
///             rows.insert(key.clone(), (value.clone(), now + ttl));
///         }
///         Ok(is_free)
///     }
///
///     async fn compare_and_swap(
///         &self, key: &String, old: &String, new: &String, ttl: Duration,
///     ) -> Result<bool, StorageError> {
///         let (mut rows, now) = (self.0.lock().unwrap(), Instant::now());
///         let is_equal = rows.get(key).is_some_and(|(value, until)| value == old && now < *until);
///         if is_equal {
///             rows.insert(key.clone(), (new.clone(), now + ttl));
///         }
///         Ok(is_equal)
///     }
///
///     async fn compare_and_delete(&self, key: &String, value: &String) -> Result<bool, StorageError> {
///         let (mut rows, now) = (self.0.lock().unwrap(), Instant::now());
///         let is_equal = rows.get(key).is_some_and(|(stored, until)| stored == value && now < *until);
///         if is_equal {
///             rows.remove(key);
///         }
///         Ok(is_equal)
///     }
/// }
/// ```
///
/// # Guarantees
///
/// Each implementation must guarantee this; `ttl::conformance::run` checks it.
///
/// * Each operation is one atomic step, in one order that all clients of the storage agree on.
/// * A value stays for at least its TTL, counted from the arrival of the request, unless it is deleted. A TTL that the storage cannot count
///   exactly is rounded *up*. Soon after the TTL the value is gone: it can be neither swapped nor deleted.
///
/// The TTL is never zero: elections check it before they send anything.
///
/// # Cancellation
///
/// A dropped future leaves the outcome open, as [`StorageError::Ambiguous`] does.
pub trait TtlStorage: Send + Sync + 'static {
    /// The name of an election.
    type Key: Ord + Clone + fmt::Debug + Send + Sync + 'static;

    /// What is stored under it: `String`, `Bytes`, `Vec<u8>` or an own type.
    type Value: TtlValue;

    /// What the storage has beyond the three operations; nothing by default.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Stores `value` for `ttl` if nothing is stored under `key`.
    fn insert_if_absent(
        &self,
        key: &Self::Key,
        value: &Self::Value,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StorageError>> + Send;

    /// Stores `new` for `ttl`, counted anew, if exactly `old` is stored under `key`. The two may be equal: that renews.
    fn compare_and_swap(
        &self,
        key: &Self::Key,
        old: &Self::Value,
        new: &Self::Value,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StorageError>> + Send;

    /// Deletes `key` if exactly `value` is stored under it.
    fn compare_and_delete(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<bool, StorageError>> + Send;

    /// The fencing token of `value` while it is stored under `key`; none if it is not.
    ///
    /// It grows strictly from one insert of a key to the next, over restarts too, and stays the same through swaps. Called only with
    /// [`Capabilities::fencing`].
    fn token(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<Option<Token>, StorageError>> + Send {
        let _ = (key, value);
        std::future::ready(Ok(None))
    }

    /// Watches a key: once this has returned, no moment in which the key becomes free is missed. [`KeyFreed`] may complete early.
    ///
    /// Called only with [`Capabilities::watch`].
    fn watch(&self, key: &Self::Key) -> impl Future<Output = Result<KeyFreed, StorageError>> + Send {
        let _ = key;
        std::future::ready(Ok(Box::pin(std::future::pending()) as KeyFreed))
    }
}

/// What a storage can do beyond the three operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// It has a token for each insert, with which a resource can refuse an earlier leader.
    pub fencing: bool,
    /// It notifies when a key may have become free, so that waiting campaigns poll less often.
    pub watch: bool,
    /// Acknowledged writes survive the death of the storage's process.
    pub durable: bool,
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(self.fencing, "fencing"), (self.watch, "watch"), (self.durable, "durable")];
        let names: Vec<&str> = names.into_iter().filter_map(|(has, name)| has.then_some(name)).collect();
        if names.is_empty() { f.write_str("no capabilities") } else { f.write_str(&names.join(", ")) }
    }
}

/// Why a request to a storage failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// Certainly not applied: retrying is safe.
    #[error("the storage did not apply the request: {0}")]
    NotApplied(Cause),
    /// May have been applied, or may still be when it arrives: compare before anything else.
    #[error("the reply of the storage was lost, so the request may have been applied: {0}")]
    Ambiguous(Cause),
}

impl StorageError {
    /// The request was certainly not applied.
    pub fn not_applied(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StorageError {
        StorageError::NotApplied(Cause::new(why))
    }

    /// The request may have been applied.
    pub fn ambiguous(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StorageError {
        StorageError::Ambiguous(Cause::new(why))
    }

    /// Whether the request may have been applied.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, StorageError::Ambiguous(_))
    }
}

/// A storage that several elections share.
impl<S: TtlStorage> TtlStorage for Arc<S> {
    type Key = S::Key;
    type Value = S::Value;

    fn capabilities(&self) -> Capabilities {
        S::capabilities(self)
    }

    async fn insert_if_absent(
        &self,
        key: &S::Key,
        value: &S::Value,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        S::insert_if_absent(self, key, value, ttl).await
    }

    async fn compare_and_swap(
        &self,
        key: &S::Key,
        old: &S::Value,
        new: &S::Value,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        S::compare_and_swap(self, key, old, new, ttl).await
    }

    async fn compare_and_delete(&self, key: &S::Key, value: &S::Value) -> Result<bool, StorageError> {
        S::compare_and_delete(self, key, value).await
    }

    async fn token(&self, key: &S::Key, value: &S::Value) -> Result<Option<Token>, StorageError> {
        S::token(self, key, value).await
    }

    async fn watch(&self, key: &S::Key) -> Result<KeyFreed, StorageError> {
        S::watch(self, key).await
    }
}
