//! How a session is opened.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backoff::{Backoff, InvalidBackoff};
use tenure_core::keepalive::TtlTooShort;
use tenure_core::session::{Session as Machine, SessionConfig};
use thiserror::Error;

use super::shared::SessionShared;
use super::{Session, SessionHandle, driver, metrics};
use crate::clock::{BootClock, Clock};
use crate::store::Store;

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    plan: SessionConfig,
    clock: Arc<dyn Clock>,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { plan: SessionConfig::DEFAULT, clock: Arc::new(BootClock) }
    }
}

impl SessionOptions {
    /// The TTL of keys that do not ask for another; 15 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> SessionOptions {
        self.plan.ttl = ttl;
        self
    }

    /// How long to wait before asking for a new lease again; 1, 2, 4, 8 s with full jitter.
    #[must_use]
    pub fn retry(mut self, retry: Backoff) -> SessionOptions {
        self.plan.retry = retry;
        self
    }

    /// How many keys and loans share a lease; 1,000.
    #[must_use]
    pub fn keys_per_lease(mut self, keys: usize) -> SessionOptions {
        self.plan.keys_per_lease = keys.max(1);
        self
    }

    /// Where the time comes from; the machine's boot clock. It must be the clock that the store's engine counts on.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> SessionOptions {
        self.clock = Arc::new(clock);
        self
    }

    /// Opens the session. Asks nothing of the store yet. Must be called inside a tokio runtime, on which its task runs.
    pub fn open(self, store: Store) -> Result<Session, InvalidOptions> {
        self.plan.retry.check()?;
        let machine = Machine::new(self.plan)?;
        metrics::register();
        let shared = Arc::new(SessionShared::new(store, self.clock, machine, self.plan.ttl));
        tokio::spawn(driver::drive(shared.clone()));
        Ok(Session { handle: Arc::new(SessionHandle { shared }) })
    }
}

/// Options that cannot work.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidOptions {
    /// One lost answer would end the lease.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// It would hammer the store.
    #[error(transparent)]
    Backoff(#[from] InvalidBackoff),
}
