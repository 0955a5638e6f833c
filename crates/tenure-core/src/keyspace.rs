//! The store as a pure machine: keys, revisions, leases, history and watches, with time as an
//! argument.
//!
//! It serves three purposes: it specifies what a store does, it is the memory engine (behind a
//! mutex), and it is the store of the simulator. Its semantics are those of etcd v3. The
//! conformance suite compares them case by case.
//!
//! Intuition: time only enters as `now`, and every call first ends the leases that have expired. So
//! no request can compare with, read, or renew an expired lease or its keys, however late the
//! driver's timer is.
//!
//! **Invariant**: `revision` grows by exactly one with each change of the store, and each has its
//! batch in history.
//!
//! **Invariant**: a key is listed by its lease exactly if its row names that lease.
//!
//! **Invariant**: a lease ends at or after its deadline, never before.

mod evaluate;
mod history;
mod leases;
mod rows;
mod watchers;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;

use crate::change::{Change, PreviousValues, WatchError, WatchItem, WatchStart};
use crate::error::StoreError;
use crate::kv::{Get, KeyValue, Page, Selection};
use crate::lease::{LeaseId, LeaseView};
use crate::limits::Limits;
use crate::revision::Revision;
use crate::time::Moment;
use crate::txn::{Txn, TxnReply};

pub use evaluate::{evaluate, read};
pub use rows::Rows;
pub use watchers::{WatchId, Watchers};

use history::KeyspaceHistory;
use leases::Leases;

/// A store: a revisioned key space with leases, transactions, ranges and watches.
#[derive(Clone, Debug)]
pub struct Keyspace {
    limits: Limits,
    revision: Revision,
    live: BTreeMap<Bytes, KeyValue>,
    leases: Leases,
    history: KeyspaceHistory,
    watchers: Watchers,
    woken: BTreeSet<WatchId>,
}

impl Keyspace {
    /// Creates an empty store. Its first revision is 1, as in etcd.
    pub fn new(limits: Limits) -> Keyspace {
        Keyspace {
            limits,
            revision: Revision(1),
            live: BTreeMap::new(),
            leases: Leases::default(),
            history: KeyspaceHistory::new(),
            watchers: Watchers::default(),
            woken: BTreeSet::new(),
        }
    }

    /// The limits of its requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The current revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Applies a transaction.
    pub fn apply(&mut self, txn: &Txn, now: Moment) -> Result<TxnReply, StoreError> {
        self.expire(now);
        let limits = self.limits;
        self.change(now, |rows| evaluate(rows, txn, &limits))
    }

    /// Reads keys.
    pub fn get(&mut self, get: &Get, now: Moment) -> Result<Page, StoreError> {
        self.expire(now);
        read(&Open { keyspace: self, changes: Vec::new() }, get)
    }

    /// Grants a lease under an id chosen by the caller. Returns the granted TTL.
    pub fn grant(&mut self, id: LeaseId, ttl: Duration, now: Moment) -> Result<Duration, StoreError> {
        self.expire(now);
        let ttl = self.limits.grant_ttl(ttl)?;
        if self.leases.contains(id) {
            return Err(StoreError::LeaseExists);
        }
        self.leases.insert(id, ttl, now);
        Ok(ttl)
    }

    /// Renews a lease and returns its whole TTL; none if the lease does not exist.
    pub fn renew(&mut self, id: LeaseId, now: Moment) -> Option<Duration> {
        self.expire(now);
        self.leases.renew(id, now)
    }

    /// Revokes a lease and deletes its keys, in one revision.
    pub fn revoke(&mut self, id: LeaseId, now: Moment) -> Result<Revision, StoreError> {
        self.expire(now);
        if !self.leases.contains(id) {
            return Err(StoreError::LeaseNotFound);
        }
        self.end_lease(id, now);
        Ok(self.revision)
    }

    /// Returns a lease with its current state.
    pub fn lease(&mut self, id: LeaseId, now: Moment) -> Option<LeaseView> {
        self.expire(now);
        self.leases.view(id, now)
    }

    /// All leases, by id.
    pub fn leases(&mut self, now: Moment) -> Vec<LeaseId> {
        self.expire(now);
        self.leases.ids()
    }

    /// Compacts history up to and including `revision`, except for what a read at `revision` needs.
    pub fn compact(&mut self, revision: Revision, now: Moment) -> Result<(), StoreError> {
        self.expire(now);
        if revision > self.revision {
            return Err(StoreError::FutureRevision);
        }
        if revision <= self.history.compacted() {
            return Err(StoreError::Compacted { at: Some(self.history.compacted()) });
        }
        self.history.compact(revision);
        Ok(())
    }

    /// Compacts history beyond the newest `keep` revisions, if it is older than `age` too.
    pub fn retain(&mut self, keep: usize, age: Duration, now: Moment) {
        if let Some(revision) = self.history.compactable(keep, now - age) {
            self.history.compact(revision);
        }
    }

    /// The number of revisions in history.
    pub fn history_len(&self) -> usize {
        self.history.len()
    }

    /// Opens a watch; [`Keyspace::poll_watch`] reads it.
    pub fn watch(
        &mut self,
        select: Selection,
        start: WatchStart,
        now: Moment,
    ) -> Result<WatchId, StoreError> {
        self.expire(now);
        select.check()?;
        let after = match start {
            WatchStart::Now | WatchStart::Recent => self.revision,
            WatchStart::After(revision) => revision,
        };
        Ok(self.watchers.add(select, after, self.revision))
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, id: WatchId) {
        self.watchers.remove(id);
        self.woken.remove(&id);
    }

    /// The number of watches.
    pub fn watches(&self) -> usize {
        self.watchers.len()
    }

    /// Returns the next item of a watch; none if there is none now. After an error the watch has
    /// ended.
    pub fn poll_watch(
        &mut self,
        id: WatchId,
        previous: PreviousValues,
    ) -> Option<Result<WatchItem, WatchError>> {
        loop {
            let revision = self.watchers.next_revision(id, self.revision)?;
            let compacted = self.history.compacted();
            if revision <= compacted {
                self.unwatch(id);
                return Some(Err(WatchError::Compacted { at: compacted }));
            }
            let (select, _) = self.watchers.position(id)?;
            let changes: Vec<Change> = self
                .history
                .batch(revision)
                .unwrap_or_default()
                .iter()
                .filter(|change| select.contains(change.key()))
                .map(|change| match previous {
                    PreviousValues::Included => change.clone(),
                    PreviousValues::Omitted => change.clone().without_previous(),
                })
                .collect();
            self.watchers.delivered(id, revision, self.revision);
            if !changes.is_empty() {
                return Some(Ok(WatchItem::Batch { revision, changes }));
            }
        }
    }

    /// Returns a watch with something to read since it was last polled. The driver wakes its
    /// reader.
    pub fn poll_woken(&mut self) -> Option<WatchId> {
        self.woken.pop_first()
    }

    /// Ends every lease that has expired, each in a revision of its own.
    pub fn expire(&mut self, now: Moment) {
        while let Some((deadline, id)) = self.leases.next_deadline() {
            if deadline > now {
                break;
            }
            self.end_lease(id, now);
        }
    }

    /// When the next lease expires without a renewal. The driver calls [`Keyspace::expire`] then.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.leases.next_deadline().map(|(deadline, _)| deadline)
    }

    fn end_lease(&mut self, id: LeaseId, now: Moment) {
        let Some(keys) = self.leases.remove(id) else { return };
        let revision = self.revision.next();
        let changes: Vec<Change> = keys
            .into_iter()
            .filter_map(|key| {
                let previous = self.live.remove(&key);
                previous.map(|pair| Change::Delete { key, revision, previous: Some(pair) })
            })
            .collect();
        self.commit(changes, now);
    }

    /// Runs `work` on the rows and makes its writes the next revision.
    fn change<T>(
        &mut self,
        now: Moment,
        work: impl FnOnce(&mut Open<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut open = Open { keyspace: &mut *self, changes: Vec::new() };
        let result = work(&mut open);
        let changes = open.changes;
        assert!(result.is_ok() || changes.is_empty(), "a failed transaction must not have written anything");
        self.commit(changes, now);
        result
    }

    fn commit(&mut self, changes: Vec<Change>, now: Moment) {
        if changes.is_empty() {
            return;
        }
        self.revision = self.revision.next();
        self.woken.extend(self.watchers.note(self.revision, &changes));
        self.history.push(now, changes);
    }
}

/// The rows of a keyspace during one call. Writes are visible at once; the end of the call makes
/// them a revision.
struct Open<'a> {
    keyspace: &'a mut Keyspace,
    changes: Vec<Change>,
}

impl Rows for Open<'_> {
    fn revision(&self) -> Revision {
        self.keyspace.revision
    }

    fn compacted(&self) -> Revision {
        self.keyspace.history.compacted()
    }

    fn current(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        Ok(self.keyspace.live.get(key).cloned())
    }

    fn select(&self, select: &Selection, limit: Option<usize>) -> Result<Vec<KeyValue>, StoreError> {
        let Some(bounds) = bounds(select) else { return Ok(Vec::new()) };
        let held = self.keyspace.live.range(bounds);
        Ok(held.map(|(_, pair)| pair.clone()).take(limit.unwrap_or(usize::MAX)).collect())
    }

    fn select_at(
        &self,
        select: &Selection,
        at: Revision,
        limit: Option<usize>,
    ) -> Result<Vec<KeyValue>, StoreError> {
        Ok(self.keyspace.history.select_at(select, at, limit))
    }

    fn has_lease(&self, lease: LeaseId) -> Result<bool, StoreError> {
        Ok(self.keyspace.leases.contains(lease))
    }

    fn write(&mut self, change: Change) -> Result<(), StoreError> {
        let Keyspace { live, leases, .. } = &mut *self.keyspace;
        match &change {
            Change::Put { pair, previous } => {
                leases.attach(&pair.key, previous.as_ref().and_then(|previous| previous.lease), pair.lease);
                live.insert(pair.key.clone(), pair.clone());
            }
            Change::Delete { key, previous, .. } => {
                leases.attach(key, previous.as_ref().and_then(|previous| previous.lease), None);
                live.remove(key);
            }
        }
        self.changes.push(change);
        Ok(())
    }
}

/// The bounds of a selection in an ordered map; none if it selects nothing, which a map's range
/// would panic at.
fn bounds(select: &Selection) -> Option<(Bound<Bytes>, Bound<Bytes>)> {
    let (first, end) = (select.first().clone(), select.end());
    if end.as_ref().is_some_and(|end| *end <= first) {
        return None;
    }
    Some((Bound::Included(first), end.map_or(Bound::Unbounded, Bound::Excluded)))
}

#[cfg(test)]
mod tests;
