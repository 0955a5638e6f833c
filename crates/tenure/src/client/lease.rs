//! Leases that a client is granted: one for each command, one for what those are told whose command it takes away. They end when nothing lies under them.
//!
//! A client holds nothing, so nobody ends them when it goes. And it may not be able to: the store that did not take a command does not take the end of
//! its lease either. What could not be ended is remembered, and tried again with the next command, or when the client is asked to before it goes.
//!
//! A grant that was given up may still be on its way. That the store does not know its lease says nothing before it must have arrived.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::layout::COMMAND_RESULT_TTL;
use tenure_core::record::{CommandRecord, Record};

use tokio::time::Instant;

use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::store::{KeyValue, LeaseId, Store, StoreError};

/// For how long a grant that was given up may still be carried out. etcd gives up a request after 7 s; halved, one that a member took while it
/// stood still would leave a lease for a week. Nobody waits for this but a client that goes.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

/// How many are remembered. Each is one command that was not sent because the store was away; after so many it is better to leave some to their own end.
const LEFT_LEN_MAX: usize = 1_024;

/// Rests between tries to end them: a client that goes waits for this.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(1),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// Leases that should have ended.
#[derive(Clone, Default)]
pub(super) struct Leftovers(Arc<Mutex<Vec<Leftover>>>);

/// One that should.
#[derive(Clone, Copy)]
struct Leftover {
    lease: LeaseId,
    /// It may be granted until then, by a request that was given up.
    may_come_until: Option<Instant>,
}

impl Leftovers {
    /// A lease with an id of our choice: if it is not known whether it was granted, it is known which one to end.
    pub(super) async fn grant(&self, store: &Store, ttl: Duration) -> Result<LeaseId, StoreError> {
        let lease = LeaseId::from_random(dice::bytes());
        match store.grant(ttl, Some(lease)).await {
            Ok(_) => Ok(lease),
            Err(error) => {
                if error.is_ambiguous() {
                    self.remember(Leftover { lease, may_come_until: Some(Instant::now() + ARRIVES_WITHIN) });
                }
                Err(error)
            }
        }
    }

    fn remember(&self, leftover: Leftover) {
        let mut left = self.left();
        if left.len() < LEFT_LEN_MAX {
            left.push(leftover);
        }
    }

    /// Ends a lease under which nothing lies. If the store does not answer it is tried again later.
    pub(super) async fn end(&self, store: &Store, lease: Option<LeaseId>) {
        let leftover = lease.map(|lease| Leftover { lease, may_come_until: None });
        if let Some(leftover) = leftover
            && !leftover.is_ended(store).await
        {
            self.remember(leftover);
        }
    }

    /// The store answers: ends what is left from when it did not.
    pub(super) async fn end_all(&self, store: &Store) {
        for leftover in self.list() {
            if leftover.is_ended(store).await {
                self.left().retain(|left| left.lease != leftover.lease);
            }
        }
    }

    /// Tries until nothing is left.
    pub(super) async fn settle(&self, store: &Store) {
        let mut backoff = Backoff::new(RETRY);
        loop {
            self.end_all(store).await;
            if self.len() == 0 {
                return;
            }
            tokio::time::sleep(backoff.after_failure(BootClock.now(), dice::throw(), None)).await;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.left().len()
    }

    fn list(&self) -> Vec<Leftover> {
        self.left().clone()
    }

    fn left(&self) -> MutexGuard<'_, Vec<Leftover>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leftover {
    /// Asks the store to end it; false if that has to be asked again.
    async fn is_ended(self, store: &Store) -> bool {
        // Before the answer: what arrives between the two is not known.
        let asked_at = Instant::now();
        match store.revoke(self.lease).await {
            Ok(_) => true,
            Err(StoreError::LeaseNotFound) => self.may_come_until.is_none_or(|until| until <= asked_at),
            Err(error) => {
                tracing::debug!(lease = %self.lease, %error, "a lease that nobody needs is left");
                !(error.is_retryable() || error.is_ambiguous())
            }
        }
    }
}

/// The lease that lies under this command alone.
pub(super) fn own_lease(pair: Option<&KeyValue>) -> Option<LeaseId> {
    let pair = pair?;
    CommandRecord::decode(&pair.value).ok()?.own_lease(pair.lease)
}

/// The lease of what senders are told whose commands nobody will handle: a day long, granted when the first of them is to be told.
#[derive(Default)]
pub(super) struct ResultLease {
    granted: Option<LeaseId>,
    may_hold: bool,
}

impl ResultLease {
    pub(super) async fn id(&mut self, store: &Store, leftovers: &Leftovers) -> Result<LeaseId, StoreError> {
        if let Some(lease) = self.granted {
            return Ok(lease);
        }
        let lease = leftovers.grant(store, COMMAND_RESULT_TTL).await?;
        self.granted = Some(lease);
        Ok(lease)
    }

    /// Something was put under it, or may have been.
    pub(super) fn note_put(&mut self) {
        self.may_hold |= self.granted.is_some();
    }

    /// Everything is asked. If nothing can lie under it, it ends.
    pub(super) async fn settle(self, store: &Store, leftovers: &Leftovers) {
        leftovers.end(store, self.granted.filter(|_| !self.may_hold)).await;
    }
}
