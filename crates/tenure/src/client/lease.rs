//! Leases that a client is granted: one for each command, one for what those are told whose command it takes away. They end when nothing lies under them.
//!
//! A client holds nothing, so nobody ends them when it goes. And it may not be able to: the store that did not take a command does not take the end of
//! its lease either. What could not be ended is remembered, and tried again with the next command, or when the client is asked to before it goes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::layout::COMMAND_RESULT_TTL;
use tenure_core::record::{CommandRecord, Record};

use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::leftover::{Leftover, may_arrive_until};
use crate::store::{KeyValue, LeaseId, Store, StoreError, TxnReply};

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

impl Leftovers {
    /// A lease with an id of our choice: if it is not known whether it was granted, it is known which one to end.
    pub(super) async fn grant(&self, store: &Store, ttl: Duration) -> Result<Granted, StoreError> {
        let lease = LeaseId::from_random(dice::bytes());
        let mut granted =
            Granted { leftovers: self.clone(), lease, may_hold: BTreeSet::new(), is_open: true };
        match store.grant(ttl, Some(lease)).await {
            Ok(_) => Ok(granted),
            Err(error) => {
                granted.is_open = error.is_ambiguous();
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
        if let Some(leftover) = lease.map(Leftover::empty)
            && !leftover.is_settled(store).await
        {
            self.remember(leftover);
        }
    }

    /// The store answers: ends what is left from when it did not.
    pub(super) async fn end_all(&self, store: &Store) {
        for leftover in self.list() {
            if leftover.is_settled(store).await {
                self.left().retain(|left| left.lease() != leftover.lease());
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

/// A lease that was asked for. Whoever is dropped before it knows what came of it leaves it to be ended, unless something lies under it by then.
pub(super) struct Granted {
    leftovers: Leftovers,
    lease: LeaseId,
    /// What was put under it by requests without an answer.
    may_hold: BTreeSet<Bytes>,
    is_open: bool,
}

impl Granted {
    pub(super) fn id(&self) -> LeaseId {
        self.lease
    }

    /// This is about to be put under it.
    pub(super) fn will_hold(&mut self, key: Bytes) {
        self.may_hold.insert(key);
    }

    /// Something lies under it.
    pub(super) fn keep(&mut self) {
        self.is_open = false;
    }

    /// Nothing should lie under it, whatever was put there by a request without an answer.
    pub(super) async fn end(mut self, store: &Store) {
        self.is_open = false;
        self.leftovers.end(store, Some(self.lease)).await;
    }

    fn leftover(&self) -> Leftover {
        Leftover::doubtful(self.lease, self.may_hold.iter().cloned().collect(), may_arrive_until())
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if self.is_open {
            self.leftovers.remember(self.leftover());
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
pub(super) struct ResultLease(Option<Granted>);

impl ResultLease {
    /// The lease under which this result is about to be put.
    pub(super) async fn for_result(
        &mut self,
        store: &Store,
        leftovers: &Leftovers,
        key: &Bytes,
    ) -> Result<LeaseId, StoreError> {
        let granted = match &mut self.0 {
            Some(granted) => granted,
            none => none.insert(leftovers.grant(store, COMMAND_RESULT_TTL).await?),
        };
        granted.will_hold(key.clone());
        Ok(granted.id())
    }

    /// What came of the request that was to put this result. Without an answer it may be there, or come later.
    pub(super) fn note(&mut self, key: &Bytes, reply: &Result<TxnReply, StoreError>) {
        let Some(granted) = &mut self.0 else { return };
        match reply {
            Ok(reply) if reply.succeeded => granted.keep(),
            Err(error) if error.is_ambiguous() => {}
            Ok(_) | Err(_) => drop(granted.may_hold.remove(key)),
        }
    }

    /// Everything is asked. If nothing lies under it, it ends.
    pub(super) async fn settle(self, store: &Store) {
        let Some(mut granted) = self.0.filter(|granted| granted.is_open) else { return };
        if granted.may_hold.is_empty() {
            granted.end(store).await;
        } else if granted.leftover().is_settled(store).await {
            granted.keep();
        }
    }
}
