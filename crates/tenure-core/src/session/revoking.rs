//! A lease that nobody needs any more, until the store has ended it or its time is surely over.
//!
//! **Invariant**: it is never renewed again, so trying to revoke it need not go on for ever.

use std::time::Duration;

use bytes::Bytes;

use crate::backoff::{Backoff, BackoffState};
use crate::revision::RequestId;
use crate::time::Moment;

#[derive(Clone, Debug)]
pub(super) struct RevokingLease {
    /// Keys that are gone when it is.
    pub keys: Vec<Bytes>,
    asking: Option<RequestId>,
    retry_at: Option<Moment>,
    backoff: BackoffState,
    /// When it is over even if the last renewal was received now.
    over_at: Moment,
}

impl RevokingLease {
    pub(super) fn new(ttl: Duration, keys: Vec<Bytes>, retry: Backoff, now: Moment) -> RevokingLease {
        RevokingLease {
            keys,
            asking: None,
            retry_at: None,
            backoff: BackoffState::new(retry),
            over_at: now + ttl,
        }
    }

    /// Whether to ask for the revocation now.
    pub(super) fn wants_revoke(&self, now: Moment) -> bool {
        self.asking.is_none() && self.retry_at.is_none_or(|at| at <= now)
    }

    pub(super) fn asked(&mut self, epoch: RequestId) {
        self.asking = Some(epoch);
        self.retry_at = None;
    }

    pub(super) fn is_asking(&self, request: RequestId) -> bool {
        self.asking == Some(request)
    }

    /// The revocation failed: true if it is tried again.
    pub(super) fn failed(&mut self, jitter: f64, now: Moment) -> bool {
        self.asking = None;
        self.retry_at = Some(now + self.backoff.after_failure(now, jitter, None));
        now < self.over_at
    }

    /// The store answers again.
    pub(super) fn wake(&mut self) {
        self.retry_at = None;
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.retry_at
    }

    /// How long until it is over in any case.
    pub(super) fn remaining(&self, now: Moment) -> Duration {
        self.over_at.remaining(now)
    }
}
