//! Asking again until the store answers, for those who wait for something anyway.

use std::future::Future;
use std::time::Duration;

use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};

use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::store::StoreError;

/// How long to rest between two tries: whoever waits for a command to be handled notices a second.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(1),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// Asks something that changes nothing until the store answers, or never will. The caller has a deadline.
pub(super) async fn answered<T, F>(ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut backoff = Backoff::new(RETRY);
    loop {
        match ask().await {
            Err(error) if error.is_retryable() || error.is_ambiguous() => {
                let wait = backoff.after_failure(BootClock.now(), dice::throw(), None);
                if backoff.is_worth_telling() {
                    tracing::debug!(%error, tries = backoff.failures(), "asking again");
                }
                tokio::time::sleep(wait).await;
            }
            answer => return answer,
        }
    }
}
