//! The options of a session.

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

/// The options of a session that is about to be opened.
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
    /// The TTL of requests that do not choose another; 15 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> SessionOptions {
        self.plan.ttl = ttl;
        self
    }

    /// How long to wait before another request for a lease; 1, 2, 4, 8 s with full jitter.
    #[must_use]
    pub fn retry(mut self, retry: Backoff) -> SessionOptions {
        self.plan.retry = retry;
        self
    }

    /// How many keys and lease handles share a lease; 1,000.
    #[must_use]
    pub fn keys_per_lease(mut self, keys: usize) -> SessionOptions {
        self.plan.keys_per_lease = keys.max(1);
        self
    }

    /// The clock; the boot clock of the machine otherwise. It must be the clock that the store's engine counts on.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> SessionOptions {
        self.clock = Arc::new(clock);
        self
    }

    /// Opens the session. Sends nothing yet. Must be called inside a tokio runtime, on which its task runs.
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
    /// One lost reply would expire the lease.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// Retries would overload the store.
    #[error(transparent)]
    Backoff(#[from] InvalidBackoff),
}
