//! Leases inside the store: the deadline of each, and the keys that are deleted with it.
//!
//! **Invariant**: `deadlines` holds exactly one entry for each lease, with its deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::lease::{LeaseId, LeaseView};
use crate::time::Moment;

/// All leases of a store.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    by_id: BTreeMap<LeaseId, Lease>,
    deadlines: BTreeSet<(Moment, LeaseId)>,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: Duration,
    deadline: Moment,
    keys: BTreeSet<Bytes>,
}

impl Leases {
    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn ids(&self) -> Vec<LeaseId> {
        self.by_id.keys().copied().collect()
    }

    pub(super) fn insert(&mut self, id: LeaseId, ttl: Duration, now: Moment) {
        let deadline = now + ttl;
        self.deadlines.insert((deadline, id));
        self.by_id.insert(id, Lease { ttl, deadline, keys: BTreeSet::new() });
    }

    /// Restarts the TTL of a lease; none if it does not exist.
    pub(super) fn renew(&mut self, id: LeaseId, now: Moment) -> Option<Duration> {
        let lease = self.by_id.get_mut(&id)?;
        self.deadlines.remove(&(lease.deadline, id));
        lease.deadline = now + lease.ttl;
        self.deadlines.insert((lease.deadline, id));
        Some(lease.ttl)
    }

    /// Ends a lease. The caller deletes its keys, in key order.
    pub(super) fn remove(&mut self, id: LeaseId) -> Option<BTreeSet<Bytes>> {
        let lease = self.by_id.remove(&id)?;
        self.deadlines.remove(&(lease.deadline, id));
        Some(lease.keys)
    }

    /// The next lease to expire, and its deadline.
    pub(super) fn next_deadline(&self) -> Option<(Moment, LeaseId)> {
        self.deadlines.first().copied()
    }

    pub(super) fn view(&self, id: LeaseId, now: Moment) -> Option<LeaseView> {
        let lease = self.by_id.get(&id)?;
        Some(LeaseView {
            granted: lease.ttl,
            remaining: lease.deadline.remaining(now),
            keys: lease.keys.iter().cloned().collect(),
        })
    }

    /// Moves a key from one lease to another; either may be none.
    pub(super) fn attach(&mut self, key: &Bytes, from: Option<LeaseId>, to: Option<LeaseId>) {
        if from == to {
            return;
        }
        if let Some(lease) = from.and_then(|from| self.by_id.get_mut(&from)) {
            lease.keys.remove(key);
        }
        if let Some(lease) = to.and_then(|to| self.by_id.get_mut(&to)) {
            lease.keys.insert(key.clone());
        }
    }
}
