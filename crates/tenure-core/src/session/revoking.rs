//! A lease that is no longer needed, until the store has revoked it or it has surely expired.
//!
//! **Invariant**: the lease is never renewed again, so the retries of the revocation are bounded by
//! its TTL.

use std::time::Duration;

use bytes::Bytes;

use crate::backoff::{Backoff, BackoffState};
use crate::revision::RequestId;
use crate::time::Moment;

#[derive(Clone, Debug)]
pub(super) struct RevokingLease {
    /// Keys that are deleted with the lease.
    pub keys: Vec<Bytes>,
    in_flight: Option<RequestId>,
    retry_at: Option<Moment>,
    backoff: BackoffState,
    /// When it has expired, even if the store received the last renewal just now.
    over_at: Moment,
}

impl RevokingLease {
    pub(super) fn new(ttl: Duration, keys: Vec<Bytes>, retry: Backoff, now: Moment) -> RevokingLease {
        RevokingLease {
            keys,
            in_flight: None,
            retry_at: None,
            backoff: BackoffState::new(retry),
            over_at: now + ttl,
        }
    }

    /// Whether the revocation is due.
    pub(super) fn wants_revoke(&self, now: Moment) -> bool {
        self.in_flight.is_none() && self.retry_at.is_none_or(|at| at <= now)
    }

    pub(super) fn sent(&mut self, epoch: RequestId) {
        self.in_flight = Some(epoch);
        self.retry_at = None;
    }

    pub(super) fn is_in_flight(&self, request: RequestId) -> bool {
        self.in_flight == Some(request)
    }

    /// Records a failed revocation. Returns whether to retry.
    pub(super) fn failed(&mut self, jitter: f64, now: Moment) -> bool {
        self.in_flight = None;
        self.retry_at = Some(now + self.backoff.after_failure(now, jitter, None));
        now < self.over_at
    }

    /// Ends the backoff, because the store is reachable again.
    pub(super) fn wake(&mut self) {
        self.retry_at = None;
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.retry_at
    }

    /// How long until it has expired at the latest.
    pub(super) fn remaining(&self, now: Moment) -> Duration {
        self.over_at.remaining(now)
    }
}
