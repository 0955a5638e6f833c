//! The one retry loop: waits between attempts on the injected clock, with growing, scattered delays.

use std::fmt;
use std::sync::Arc;

use tenure_core::backoff::{Backoff, BackoffState};
use tenure_core::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use tracing::debug;

use crate::clock::Clock;
use crate::rng;
use crate::store::Store;

/// Counts the failures of one operation and waits between its attempts.
pub(crate) struct Attempts {
    clock: Arc<dyn Clock>,
    backoff: BackoffState,
}

impl Attempts {
    pub(crate) fn new(clock: &Arc<dyn Clock>, retry: Backoff) -> Attempts {
        Attempts { clock: clock.clone(), backoff: BackoffState::new(retry) }
    }

    /// An attempt succeeded. Enough time without a failure makes the next one the first again.
    pub(crate) fn succeeded(&mut self) {
        self.backoff.after_success(self.clock.now());
    }

    /// Waits after a failed attempt.
    ///
    /// # Cancellation
    ///
    /// The failure counts.
    pub(crate) async fn wait(&mut self, operation: &'static str, error: &(dyn fmt::Display + Sync)) {
        let now = self.clock.now();
        let wait = self.backoff.after_failure(now, rng::jitter(), None);
        debug!(operation, %error, attempt = self.backoff.failures(), retry_in = ?wait, "store request failed");
        self.clock.sleep_until(now + wait).await;
    }
}

/// Runs an exchange to its result. Retries go on until it has one: the caller bounds them.
///
/// # Cancellation
///
/// The last request may be applied, also later.
pub(crate) async fn run<E: Exchange>(
    operation: &'static str,
    store: &Store,
    clock: &Arc<dyn Clock>,
    exchange: &mut E,
) -> E::Output {
    let mut attempts = Attempts::new(clock, Backoff::REQUEST);
    loop {
        // The exchange decides what to send next: after a lost reply it may read before it writes again.
        let reply = match exchange.request() {
            StoreRequest::Get(get) => store.get(get).await.map(StoreReply::Page),
            StoreRequest::Txn(txn) => store.txn(txn).await.map(StoreReply::Txn),
        };
        match exchange.handle(reply) {
            ExchangeStep::Send => {}
            ExchangeStep::Retry(error) => attempts.wait(operation, &error).await,
            ExchangeStep::Done(output) => return output,
        }
    }
}
