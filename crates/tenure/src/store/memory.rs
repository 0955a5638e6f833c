//! The memory engine: the keyspace machine behind a mutex, with a clock and wakers.
//!
//! For tests, for single processes, and as what every other engine is compared with. It decides nothing itself.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_core::Stream;
use tenure_core::keyspace::{Keyspace, WatchId};
use tenure_core::time::Moment;
use tokio::sync::Notify;
use tokio::task::coop::poll_proceed;

use crate::clock::{BootClock, Clock};
use crate::rng;
use crate::store::{
    Durability, Engine, Get, Grant, LeaseId, LeaseView, Limits, Page, PreviousValues, Reach, Renewal,
    Revision, Selection, StoreError, StoreInfo, Txn, TxnReply, WatchError, WatchItem, WatchStart,
    WatchStream,
};

/// How many revisions of history are always kept: what a watcher may be behind before it has to list again.
const HISTORY_LEN_MIN: usize = 10_000;

/// How long history is kept at least, however much there is.
const HISTORY_AGE_MIN: Duration = Duration::from_secs(600);

/// How much more history than that there may be before it is compacted, so that not every write has to do it.
const HISTORY_SLACK: usize = 1_000;

/// A store inside this process, gone with it.
#[derive(Clone)]
pub struct MemoryEngine {
    info: Arc<StoreInfo>,
    shared: Arc<MemoryShared>,
}

struct MemoryShared {
    clock: Arc<dyn Clock>,
    state: Mutex<MemoryState>,
    /// Notified when the next lease ends sooner than the reaper expects, and when the store is dropped.
    reaper: Arc<Notify>,
}

struct MemoryState {
    keyspace: Keyspace,
    readers: BTreeMap<WatchId, Waker>,
    is_closed: bool,
    has_reaper: bool,
}

impl MemoryEngine {
    /// An empty store on the machine's clock.
    pub fn new() -> MemoryEngine {
        MemoryEngine::with_clock(BootClock, Limits::EMBEDDED)
    }

    /// An empty store on a clock and with limits of the caller's choice: virtual time and TTLs of milliseconds in tests.
    pub fn with_clock(clock: impl Clock, limits: Limits) -> MemoryEngine {
        let state = MemoryState {
            keyspace: Keyspace::new(limits),
            readers: BTreeMap::new(),
            is_closed: false,
            has_reaper: false,
        };
        let info = StoreInfo {
            kind: "memory",
            id: format!("memory-{:032x}", u128::from_le_bytes(rng::bytes())),
            limits,
            ttl_step: Duration::from_millis(1),
            durable: Durability::Process,
            reach: Reach::Process,
        };
        let shared = MemoryShared {
            clock: Arc::new(clock),
            state: Mutex::new(state),
            reaper: Arc::new(Notify::new()),
        };
        MemoryEngine { info: Arc::new(info), shared: Arc::new(shared) }
    }

    /// Runs `work` on the keyspace, then wakes the readers that have new changes.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut Keyspace, Moment) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let now = self.shared.clock.now();
        let mut state = self.shared.lock();
        if state.is_closed {
            return Err(StoreError::Closed);
        }
        let deadline = state.keyspace.next_deadline();
        let result = work(&mut state.keyspace, now);
        if state.keyspace.history_len() > HISTORY_LEN_MIN + HISTORY_SLACK {
            state.keyspace.retain(HISTORY_LEN_MIN, HISTORY_AGE_MIN, now);
        }
        let sooner =
            state.keyspace.next_deadline().is_some_and(|next| deadline.is_none_or(|before| next < before));
        if sooner {
            self.shared.ensure_reaper(&mut state);
        }
        wake(state);
        // After the lock is released: the reaper takes it at once.
        if sooner {
            self.shared.reaper.notify_one();
        }
        result
    }
}

impl Default for MemoryEngine {
    fn default() -> MemoryEngine {
        MemoryEngine::new()
    }
}

impl Engine for MemoryEngine {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        self.with(|keyspace, now| keyspace.get(&get, now))
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        self.with(|keyspace, now| keyspace.apply(&txn, now))
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let id = self.with(|keyspace, now| keyspace.watch(select, start, now))?;
        Ok(Box::pin(MemoryWatch { shared: self.shared.clone(), id, previous, is_over: false }))
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        let id = id.unwrap_or_else(|| LeaseId::from_random(rng::bytes()));
        self.with(|keyspace, now| Ok(Grant { id, ttl: keyspace.grant(id, ttl, now)?, asked_at: now }))
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        self.with(|keyspace, now| {
            Ok(keyspace.renew(id, now).map_or(Renewal::Gone, |ttl| Renewal::Renewed { ttl, asked_at: now }))
        })
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        self.with(|keyspace, now| keyspace.revoke(id, now))
    }

    async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        self.with(|keyspace, now| Ok(keyspace.lease(id, now)))
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.with(|keyspace, now| Ok(keyspace.leases(now)))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.with(|keyspace, now| keyspace.compact(revision, now))
    }

    async fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let readers = std::mem::take(&mut state.readers);
        drop(state);
        self.shared.reaper.notify_one();
        readers.into_values().for_each(Waker::wake);
    }
}

impl MemoryShared {
    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        // The machine asserts before it changes anything, so what a panic left behind is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task that ends leases on time. It lives as long as there is a store to reap.
    fn ensure_reaper(self: &Arc<Self>, state: &mut MemoryState) {
        if state.has_reaper {
            return;
        }
        state.has_reaper = true;
        tokio::spawn(reap(Arc::downgrade(self), self.clock.clone(), self.reaper.clone()));
    }
}

impl Drop for MemoryShared {
    fn drop(&mut self) {
        self.reaper.notify_one();
    }
}

/// Expires leases on time, so that watchers see it also while the store gets no requests.
async fn reap(shared: Weak<MemoryShared>, clock: Arc<dyn Clock>, changed: Arc<Notify>) {
    loop {
        let next = {
            // Weak: the task must not keep a dropped store alive.
            let Some(shared) = shared.upgrade() else { return };
            let mut state = shared.lock();
            if state.is_closed {
                return;
            }
            state.keyspace.expire(clock.now());
            let next = state.keyspace.next_deadline();
            wake(state);
            next
        };
        match next {
            None => changed.notified().await,
            Some(deadline) => tokio::select! {
                biased;
                () = changed.notified() => {}
                () = clock.sleep_until(deadline) => {}
            },
        }
    }
}

/// Wakes the readers that have new changes, after releasing the lock on the store.
fn wake(mut state: MutexGuard<'_, MemoryState>) {
    let mut woken = Vec::new();
    while let Some(id) = state.keyspace.poll_woken() {
        woken.extend(state.readers.remove(&id));
    }
    drop(state);
    woken.into_iter().for_each(Waker::wake);
}

/// One watch: reads the machine's history at its own pace.
struct MemoryWatch {
    shared: Arc<MemoryShared>,
    id: WatchId,
    previous: PreviousValues,
    is_over: bool,
}

impl Stream for MemoryWatch {
    type Item = Result<WatchItem, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        // Without a budget a reader of a busy store never yields, and the timers of its worker thread are late.
        let budget = ready!(poll_proceed(context));
        let mut state = self.shared.lock();
        if state.is_closed {
            drop(state);
            budget.made_progress();
            self.is_over = true;
            return Poll::Ready(Some(Err(WatchError::Lost(StoreError::Closed))));
        }
        let item = state.keyspace.poll_watch(self.id, self.previous);
        // Under the lock that writers hold, so that no change comes between the poll and the registration.
        if item.is_none() {
            state.readers.insert(self.id, context.waker().clone());
        }
        drop(state);
        match item {
            None => Poll::Pending,
            Some(item) => {
                budget.made_progress();
                self.is_over = item.is_err();
                Poll::Ready(Some(item))
            }
        }
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.keyspace.unwatch(self.id);
        state.readers.remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
