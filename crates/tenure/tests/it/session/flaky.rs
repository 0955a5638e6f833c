//! A memory store that fails on demand, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tenure::session::{Session, SessionOptions};
use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Cause, Engine, Grant, LeaseId, Limits, Renewal, Revision, Store, StoreError, Txn, TxnReply,
};

use crate::tokio_clock::TokioClock;
use crate::twisted::{Twist, Twisted};

/// How the store does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Weather {
    Works = 0,
    /// Nothing reaches it.
    Down = 1,
    /// Leases work, nothing can be written.
    Full = 2,
}

/// Fails as its weather requires, and counts its requests.
#[derive(Clone, Default)]
pub(super) struct Flaky {
    weather: Arc<AtomicU8>,
    pub(super) revocations: Arc<AtomicUsize>,
    pub(super) writes: Arc<AtomicUsize>,
}

impl Flaky {
    /// A store in virtual time, and a session with a TTL of 15 s on it.
    pub(super) fn session() -> (Flaky, Store, Session) {
        Flaky::session_with(|options| options)
    }

    pub(super) fn session_with(
        change: impl FnOnce(SessionOptions) -> SessionOptions,
    ) -> (Flaky, Store, Session) {
        let (flaky, clock) = (Flaky::default(), TokioClock::new());
        let store = Twisted::store(MemoryEngine::with_clock(clock, Limits::EMBEDDED), flaky.clone());
        let session = change(Session::options().clock(clock)).open(store.clone()).unwrap();
        (flaky, store, session)
    }

    pub(super) fn turn(&self, weather: Weather) {
        self.weather.store(weather as u8, Ordering::SeqCst);
    }

    fn is(&self, weather: Weather) -> bool {
        self.weather.load(Ordering::SeqCst) == weather as u8
    }

    fn reach(&self) -> Result<(), StoreError> {
        if self.is(Weather::Down) { Err(StoreError::Unavailable(Cause::new("down"))) } else { Ok(()) }
    }

    fn write(&self) -> Result<(), StoreError> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.reach()?;
        if self.is(Weather::Full) { Err(StoreError::NoSpace) } else { Ok(()) }
    }
}

impl Twist for Flaky {
    async fn txn(&self, memory: &MemoryEngine, txn: Txn) -> Result<TxnReply, StoreError> {
        self.write()?;
        Engine::txn(memory, txn).await
    }

    async fn batch(&self, memory: &MemoryEngine, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        match self.write() {
            Ok(()) => Engine::batch(memory, txns).await,
            Err(error) => txns.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn grant(
        &self,
        memory: &MemoryEngine,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> Result<Grant, StoreError> {
        self.reach()?;
        Engine::grant(memory, ttl, id).await
    }

    async fn renew(&self, memory: &MemoryEngine, id: LeaseId) -> Result<Renewal, StoreError> {
        self.reach()?;
        Engine::renew(memory, id).await
    }

    async fn revoke(&self, memory: &MemoryEngine, id: LeaseId) -> Result<Revision, StoreError> {
        self.revocations.fetch_add(1, Ordering::SeqCst);
        self.reach()?;
        Engine::revoke(memory, id).await
    }
}
