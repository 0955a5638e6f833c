//! A lease that should end, because nothing lies under it or because it may be so.
//!
//! Nobody renews such leases, but they are granted for a day or for a week. And a request that was given up may still be on its way: the grant, or a
//! put under the lease. What the store says before it must have arrived proves nothing.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::store::{LeaseId, Store, StoreError};

/// For how long a request that was given up may still be carried out. etcd gives up a request after 7 s; halved, one that a member took while it
/// stood still would leave a lease for a week. Nobody waits for this but a client that goes.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

/// Until when a request may be carried out that is given up now.
pub(crate) fn may_arrive_until() -> Instant {
    Instant::now() + ARRIVES_WITHIN
}

/// A lease that should end.
#[derive(Clone, Debug)]
pub(crate) struct Leftover {
    lease: LeaseId,
    /// Until then a request may be carried out that was given up.
    certain_from: Option<Instant>,
    /// If one of these lies under it, it stays.
    may_hold: Vec<Bytes>,
}

impl Leftover {
    /// One under which nothing lies.
    pub(crate) fn empty(lease: LeaseId) -> Leftover {
        Leftover { lease, certain_from: None, may_hold: Vec::new() }
    }

    /// One that may be granted until then, or under which these keys may come to lie, by a request that was given up.
    pub(crate) fn doubtful(lease: LeaseId, may_hold: Vec<Bytes>, until: Instant) -> Leftover {
        Leftover { lease, certain_from: Some(until), may_hold }
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Ends it, unless it is needed: true when there is nothing more to do, false to be asked again later.
    pub(crate) async fn is_settled(&self, store: &Store) -> bool {
        // Before the answer: what arrives between the two is not known.
        let is_certain = self.certain_from.is_none_or(|from| from <= Instant::now());
        match self.is_needed(store).await {
            Ok(true) => return true,
            Ok(false) if !is_certain && !self.may_hold.is_empty() => return false,
            Ok(false) => {}
            Err(error) => return self.is_hopeless(&error),
        }
        match store.revoke(self.lease).await {
            Ok(_) => true,
            Err(StoreError::LeaseNotFound) => is_certain,
            Err(error) => self.is_hopeless(&error),
        }
    }

    /// Whether something lies under it now. Asked by the keys: etcd reads those through its leader, and the lease itself not always.
    async fn is_needed(&self, store: &Store) -> Result<bool, StoreError> {
        for key in &self.may_hold {
            if store.get_key(key.clone()).await?.is_some_and(|pair| pair.lease == Some(self.lease)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_hopeless(&self, error: &StoreError) -> bool {
        tracing::debug!(lease = %self.lease, %error, "a lease that nobody needs is left");
        !(error.is_retryable() || error.is_ambiguous())
    }
}
