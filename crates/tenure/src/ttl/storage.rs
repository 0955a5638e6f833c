//! What an election needs of a storage: three verbs with a TTL, and what it may offer beyond them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::Cause;
use tenure_core::revision::Token;
use thiserror::Error;

/// Done when the key that was watched may have become free.
pub type Freed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A storage in which keys live for a bounded time: what implementors write, as plain `async fn`s.
///
/// `Ok(true)` means done, `Ok(false)` means not done because something else is stored (or nothing), and an error says which of the
/// two remaining outcomes it is: [`StorageError::NotApplied`] or [`StorageError::Unknown`]. Whoever cannot tell says `Unknown`.
///
/// # Guarantees
///
/// * Each verb is one atomic step, in one order that all clients of the storage agree on.
/// * A value that was stored with a TTL stays for at least that TTL, counted from when the request reached the storage, unless it is
///   deleted. A TTL that the storage cannot count exactly is rounded *up*. After that it is gone, soon: it can be neither swapped nor deleted.
/// * A TTL of zero is refused with [`StorageError::ZeroTtl`] before anything is sent.
///
/// [`conformance::run`](super::conformance::run) checks all of it.
///
/// # Cancellation
///
/// Dropping the future of a verb leaves it open whether it is applied, as [`StorageError::Unknown`] does.
pub trait TtlStorage<K, V>: Send + Sync + 'static {
    /// What can be relied upon beyond the three verbs.
    fn capabilities(&self) -> Capabilities;

    /// Stores `value` for `ttl` if nothing is stored under `key`.
    fn insert_if_absent(
        &self,
        key: &K,
        value: &V,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StorageError>> + Send;

    /// Stores `new` for `ttl`, counted anew, if exactly `old` is stored under `key`. The two may be the same: that renews.
    fn compare_and_swap(
        &self,
        key: &K,
        old: &V,
        new: &V,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StorageError>> + Send;

    /// Removes `key` if exactly `value` is stored under it.
    fn compare_and_delete(
        &self,
        key: &K,
        value: &V,
    ) -> impl Future<Output = Result<bool, StorageError>> + Send;

    /// The fencing token of `value` while it is stored under `key`; none if it is not.
    ///
    /// It grows strictly from one insert of a key to the next, over restarts too, and stays the same through swaps. Only asked where
    /// [`Capabilities::fencing`] is set.
    fn token(&self, key: &K, value: &V) -> impl Future<Output = Result<Option<Token>, StorageError>> + Send {
        let _ = (key, value);
        std::future::ready(Ok(None))
    }

    /// Watches a key: once the call has returned, no moment in which the key becomes free goes unnoticed. It may be done early.
    ///
    /// Only asked where [`Capabilities::watch`] is set.
    fn watch(&self, key: &K) -> impl Future<Output = Result<Freed, StorageError>> + Send {
        let _ = key;
        std::future::ready(Ok(Box::pin(std::future::pending()) as Freed))
    }
}

/// What a storage can do beyond the three verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// It has a token for each insert, with which a resource can refuse a leader of the past.
    pub fencing: bool,
    /// It tells when a key may have become free, so that those who wait need not ask all the time.
    pub watch: bool,
    /// What was acknowledged survives the death of the storage's process.
    pub durable: bool,
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |is_there, name| if is_there { name } else { "" };
        let names = [said(self.fencing, "fencing"), said(self.watch, "watch"), said(self.durable, "durable")];
        let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
        if names.is_empty() { f.write_str("nothing more") } else { f.write_str(&names.join(", ")) }
    }
}

/// What went wrong with a request to a storage.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// Nothing is stored for no time: nothing was sent.
    #[error("a TTL must be longer than nothing")]
    ZeroTtl,
    /// Certainly had no effect: trying again is safe.
    #[error("the storage did not apply the request: {0}")]
    NotApplied(Cause),
    /// May have taken effect, now or when it arrives: compare before anything else is believed.
    #[error("the storage's answer was lost, so the request may or may not have been applied: {0}")]
    Unknown(Cause),
}

impl StorageError {
    /// The request certainly had no effect.
    pub fn not_applied(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StorageError {
        StorageError::NotApplied(Cause::new(why))
    }

    /// The request may have taken effect.
    pub fn unknown(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StorageError {
        StorageError::Unknown(Cause::new(why))
    }

    /// Whether the request may have taken effect.
    pub fn is_unknown(&self) -> bool {
        matches!(self, StorageError::Unknown(_))
    }
}

/// Refuses a TTL of nothing: the first line of every verb with a TTL.
pub fn refuse_zero(ttl: Duration) -> Result<(), StorageError> {
    if ttl.is_zero() { Err(StorageError::ZeroTtl) } else { Ok(()) }
}

/// A storage that several electors share.
impl<K, V, S> TtlStorage<K, V> for Arc<S>
where
    K: Sync,
    V: Sync,
    S: TtlStorage<K, V>,
{
    fn capabilities(&self) -> Capabilities {
        S::capabilities(self)
    }

    async fn insert_if_absent(&self, key: &K, value: &V, ttl: Duration) -> Result<bool, StorageError> {
        S::insert_if_absent(self, key, value, ttl).await
    }

    async fn compare_and_swap(&self, key: &K, old: &V, new: &V, ttl: Duration) -> Result<bool, StorageError> {
        S::compare_and_swap(self, key, old, new, ttl).await
    }

    async fn compare_and_delete(&self, key: &K, value: &V) -> Result<bool, StorageError> {
        S::compare_and_delete(self, key, value).await
    }

    async fn token(&self, key: &K, value: &V) -> Result<Option<Token>, StorageError> {
        S::token(self, key, value).await
    }

    async fn watch(&self, key: &K) -> Result<Freed, StorageError> {
        S::watch(self, key).await
    }
}
