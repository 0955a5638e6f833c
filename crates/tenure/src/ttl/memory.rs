//! A TTL storage inside this process, on the caller's clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::revision::{Revision, Token};
use tenure_core::time::Moment;
use tokio_util::sync::CancellationToken;

use super::storage::{Capabilities, KeyFreed, StorageError, TtlStorage};
use super::value::TtlValue;
use crate::clock::Clock;

/// A storage inside this process, for tests. Cheap to clone; all clones are one storage.
///
/// With a [`VirtualClock`](crate::clock::VirtualClock), a test of years runs in milliseconds.
#[derive(Clone, Debug)]
pub struct MemoryStorage<K = String, V = String> {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<StorageState<K, V>>>,
}

#[derive(Debug)]
struct StorageState<K, V> {
    entries: BTreeMap<K, StoredValue<V>>,
    /// The keys by their expiry, so that expired ones are found without a search.
    ends: BTreeSet<(Moment, K)>,
    inserts: i64,
}

#[derive(Debug)]
struct StoredValue<V> {
    value: V,
    until: Moment,
    token: Token,
    /// Cancelled when the key is deleted or has expired.
    gone: CancellationToken,
}

impl<K: Ord + Clone, V: Clone> MemoryStorage<K, V> {
    /// An empty storage on this clock.
    pub fn new(clock: impl Clock) -> MemoryStorage<K, V> {
        let state = StorageState { entries: BTreeMap::new(), ends: BTreeSet::new(), inserts: 0 };
        MemoryStorage { clock: Arc::new(clock), state: Arc::new(Mutex::new(state)) }
    }

    /// What is stored under a key now, with the nonce of its campaign.
    pub fn stored(&self, key: &K) -> Option<V> {
        self.expire().0.entries.get(key).map(|entry| entry.value.clone())
    }

    /// Removes the expired keys.
    fn expire(&self) -> (MutexGuard<'_, StorageState<K, V>>, Moment) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        while state.ends.first().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, key)) = state.ends.pop_first()
                && let Some(entry) = state.entries.remove(&key)
            {
                entry.gone.cancel();
            }
        }
        (state, now)
    }
}

impl<K, V> TtlStorage for MemoryStorage<K, V>
where
    K: Ord + Clone + fmt::Debug + Send + Sync + 'static,
    V: TtlValue,
{
    type Key = K;
    type Value = V;

    fn capabilities(&self) -> Capabilities {
        Capabilities { fencing: true, watch: true, durable: false }
    }

    async fn insert_if_absent(&self, key: &K, value: &V, ttl: Duration) -> Result<bool, StorageError> {
        let (mut state, now) = self.expire();
        if state.entries.contains_key(key) {
            return Ok(false);
        }
        let until = now + ttl;
        // Never reused, also after a deletion: a token must grow with every leader.
        state.inserts += 1;
        let token = Token(Revision(state.inserts));
        let entry = StoredValue { value: value.clone(), until, token, gone: CancellationToken::new() };
        state.entries.insert(key.clone(), entry);
        state.ends.insert((until, key.clone()));
        Ok(true)
    }

    async fn compare_and_swap(&self, key: &K, old: &V, new: &V, ttl: Duration) -> Result<bool, StorageError> {
        let (mut state, now) = self.expire();
        let Some(entry) = state.entries.get_mut(key).filter(|entry| entry.value == *old) else {
            return Ok(false);
        };
        // The token stays: a renewal is the same leadership.
        let before = std::mem::replace(&mut entry.until, now + ttl);
        entry.value = new.clone();
        state.ends.remove(&(before, key.clone()));
        state.ends.insert((now + ttl, key.clone()));
        Ok(true)
    }

    async fn compare_and_delete(&self, key: &K, value: &V) -> Result<bool, StorageError> {
        let (mut state, _) = self.expire();
        if state.entries.get(key).is_none_or(|entry| entry.value != *value) {
            return Ok(false);
        }
        if let Some(entry) = state.entries.remove(key) {
            state.ends.remove(&(entry.until, key.clone()));
            entry.gone.cancel();
        }
        Ok(true)
    }

    async fn token(&self, key: &K, value: &V) -> Result<Option<Token>, StorageError> {
        let (state, _) = self.expire();
        Ok(state.entries.get(key).filter(|entry| entry.value == *value).map(|entry| entry.token))
    }

    async fn watch(&self, key: &K) -> Result<KeyFreed, StorageError> {
        let (memory, key) = (self.clone(), key.clone());
        let current = {
            let (state, _) = memory.expire();
            state.entries.get(&key).map(|entry| (entry.gone.clone(), entry.until))
        };
        Ok(Box::pin(async move {
            let Some((gone, mut until)) = current else { return };
            // No task removes an expired key: the next access does. So this accesses it when it expires.
            while !gone.is_cancelled() {
                tokio::select! {
                    biased;
                    () = gone.cancelled() => return,
                    () = memory.clock.sleep_until(until) => {}
                }
                let (state, _) = memory.expire();
                match state.entries.get(&key) {
                    Some(entry) => until = entry.until,
                    None => return,
                }
            }
        }))
    }
}
