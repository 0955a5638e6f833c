//! A storage inside this process, on a clock of the caller's choice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::revision::{Revision, Token};
use tenure_core::time::Moment;
use tokio_util::sync::CancellationToken;

use super::elections::Key;
use super::stamp::Value;
use super::storage::{Capabilities, Freed, StorageError, TtlStorage, refuse_zero};
use crate::clock::Clock;

/// A storage inside this process, gone with it. Cheap to clone; all clones are one.
///
/// With a [`VirtualClock`](crate::clock::VirtualClock) a test of years takes no time at all.
#[derive(Clone, Debug)]
pub struct Memory<K, V> {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State<K, V>>>,
}

#[derive(Debug)]
struct State<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    /// The same entries by when they end, so that the dead are found without looking at the living.
    ends: BTreeSet<(Moment, K)>,
    inserts: i64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    until: Moment,
    token: Token,
    /// Cancelled when the entry goes.
    gone: CancellationToken,
}

impl<K: Key, V: Value> Memory<K, V> {
    /// An empty storage on this clock.
    pub fn new(clock: impl Clock) -> Memory<K, V> {
        let state = State { entries: BTreeMap::new(), ends: BTreeSet::new(), inserts: 0 };
        Memory { clock: Arc::new(clock), state: Arc::new(Mutex::new(state)) }
    }

    /// What is stored under a key now: with its nonce, where an election stored it.
    pub fn stored(&self, key: &K) -> Option<V> {
        self.look().0.entries.get(key).map(|entry| entry.value.clone())
    }

    /// The storage as it is now, without what is over.
    fn look(&self) -> (MutexGuard<'_, State<K, V>>, Moment) {
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

impl<K: Key, V: Value> TtlStorage<K, V> for Memory<K, V> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { fencing: true, watch: true, durable: false }
    }

    async fn insert_if_absent(&self, key: &K, value: &V, ttl: Duration) -> Result<bool, StorageError> {
        refuse_zero(ttl)?;
        let (mut state, now) = self.look();
        if state.entries.contains_key(key) {
            return Ok(false);
        }
        let until = now + ttl;
        state.inserts += 1;
        let token = Token(Revision(state.inserts));
        let entry = Entry { value: value.clone(), until, token, gone: CancellationToken::new() };
        state.entries.insert(key.clone(), entry);
        state.ends.insert((until, key.clone()));
        Ok(true)
    }

    async fn compare_and_swap(&self, key: &K, old: &V, new: &V, ttl: Duration) -> Result<bool, StorageError> {
        refuse_zero(ttl)?;
        let (mut state, now) = self.look();
        let Some(entry) = state.entries.get_mut(key).filter(|entry| entry.value == *old) else {
            return Ok(false);
        };
        let before = std::mem::replace(&mut entry.until, now + ttl);
        entry.value = new.clone();
        state.ends.remove(&(before, key.clone()));
        state.ends.insert((now + ttl, key.clone()));
        Ok(true)
    }

    async fn compare_and_delete(&self, key: &K, value: &V) -> Result<bool, StorageError> {
        let (mut state, _) = self.look();
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
        let (state, _) = self.look();
        Ok(state.entries.get(key).filter(|entry| entry.value == *value).map(|entry| entry.token))
    }

    async fn watch(&self, key: &K) -> Result<Freed, StorageError> {
        let (memory, key) = (self.clone(), key.clone());
        let current = {
            let (state, _) = memory.look();
            state.entries.get(&key).map(|entry| (entry.gone.clone(), entry.until))
        };
        Ok(Box::pin(async move {
            let Some((gone, mut until)) = current else { return };
            // Nobody ends an entry when its time is over: whoever looks next finds it gone. So look then.
            while !gone.is_cancelled() {
                tokio::select! {
                    biased;
                    () = gone.cancelled() => return,
                    () = memory.clock.sleep_until(until) => {}
                }
                let (state, _) = memory.look();
                match state.entries.get(&key) {
                    Some(entry) => until = entry.until,
                    None => return,
                }
            }
        }))
    }
}
