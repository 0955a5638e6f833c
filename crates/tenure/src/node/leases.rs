//! Leases that this node should end: of commands that it has answered, and its own for results that nobody got.
//!
//! A lease that nobody ends stays for a week. But nobody waits for its end either, so a node never does: many commands that were answered together
//! are ended a few at a time, and what the store cannot do now it is asked again.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tracing::debug;

use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::leftover::Leftover;
use crate::store::Store;

/// How many are ended at once. One at a time takes seconds for a thousand commands; many more would be in the way of claims and saves.
const IN_FLIGHT: usize = 8;

/// How long a node that ends waits for the last of them. What takes longer is left to the senders, and to the week.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// How long to rest between two tries: nobody waits, and the store that did not answer has other things to do.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(200),
    cap: Duration::from_secs(8),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// Leases that are to end.
pub(super) struct EndedLeases {
    store: Store,
    waiting: VecDeque<Leftover>,
    ending: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl EndedLeases {
    pub(super) fn new(store: Store) -> EndedLeases {
        EndedLeases { store, waiting: VecDeque::new(), ending: FuturesUnordered::new() }
    }

    pub(super) fn push(&mut self, leftover: Leftover) {
        self.waiting.push_back(leftover);
        self.begin();
    }

    /// Whether nothing is left to do.
    pub(super) fn is_empty(&self) -> bool {
        self.ending.is_empty()
    }

    /// Goes on until one more has ended.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost when it is dropped.
    pub(super) async fn next(&mut self) {
        self.ending.next().await;
        self.begin();
    }

    /// Ends what can be ended soon.
    pub(super) async fn finish(&mut self) {
        let all = async {
            while !self.is_empty() {
                self.next().await;
            }
        };
        let is_late = tokio::time::timeout(FINISH_WITHIN, all).await.is_err();
        if is_late {
            debug!(left = self.waiting.len() + self.ending.len(), "leases that nobody needs are left behind");
        }
    }

    fn begin(&mut self) {
        while self.ending.len() < IN_FLIGHT
            && let Some(leftover) = self.waiting.pop_front()
        {
            self.ending.push(Box::pin(end(self.store.clone(), leftover)));
        }
    }
}

/// Tries until there is nothing more to do.
async fn end(store: Store, leftover: Leftover) {
    let mut backoff = Backoff::new(RETRY);
    while !leftover.is_settled(&store).await {
        tokio::time::sleep(backoff.after_failure(BootClock.now(), dice::throw(), None)).await;
    }
}
