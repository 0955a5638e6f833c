//! Every change since the last compaction, by revision for watches and by key for reads.
//!
//! Revisions that changed something have no gaps, so a batch is found by arithmetic, not by search.
//!
//! **Invariant**: `batches[i]` is the revision `compacted + 1 + i`, and the last batch is the
//! store's revision.
//!
//! **Invariant**: for every key, the newest version at or below `compacted` is kept if it is a
//! value, so that a read at `compacted` itself still works, as etcd's does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::change::Change;
use crate::kv::{KeyValue, Selection};
use crate::revision::Revision;
use crate::time::Moment;

/// The changes of one revision.
#[derive(Clone, Debug)]
pub(super) struct HistoryBatch {
    /// When they were made, for retention by age.
    pub at: Moment,
    /// The changes in order, each with its `previous`.
    pub changes: Vec<Change>,
}

/// The history since the last compaction.
#[derive(Clone, Debug)]
pub(super) struct KeyspaceHistory {
    compacted: Revision,
    batches: VecDeque<HistoryBatch>,
    /// Each key's versions, oldest first; none where it was deleted.
    versions: BTreeMap<Bytes, Vec<KeyVersion>>,
}

#[derive(Clone, Debug)]
struct KeyVersion {
    revision: Revision,
    pair: Option<KeyValue>,
}

impl KeyspaceHistory {
    /// Creates the history of a new store: its first revision, without changes.
    pub(super) fn new() -> KeyspaceHistory {
        let first = HistoryBatch { at: Moment::ORIGIN, changes: Vec::new() };
        KeyspaceHistory {
            compacted: Revision::ZERO,
            batches: VecDeque::from([first]),
            versions: BTreeMap::new(),
        }
    }

    pub(super) fn compacted(&self) -> Revision {
        self.compacted
    }

    /// Appends the next revision.
    pub(super) fn push(&mut self, at: Moment, changes: Vec<Change>) {
        for change in &changes {
            let (revision, pair) = match change {
                Change::Put { pair, .. } => (pair.modified, Some(pair.clone())),
                Change::Delete { revision, .. } => (*revision, None),
            };
            self.versions.entry(change.key().clone()).or_default().push(KeyVersion { revision, pair });
        }
        self.batches.push_back(HistoryBatch { at, changes });
    }

    /// Returns the changes of one revision; none if it was compacted or lies in the future.
    pub(super) fn batch(&self, revision: Revision) -> Option<&[Change]> {
        let index = usize::try_from(revision.0 - self.compacted.0 - 1).ok()?;
        self.batches.get(index).map(|batch| &batch.changes[..])
    }

    /// Returns what a selection contained after `at`, in key order.
    pub(super) fn select_at(&self, select: &Selection, at: Revision, limit: Option<usize>) -> Vec<KeyValue> {
        let Some(bounds) = super::bounds(select) else { return Vec::new() };
        let held = self.versions.range(bounds).filter_map(|(_, versions)| {
            let after = versions.partition_point(|version| version.revision <= at);
            versions[..after].last().and_then(|version| version.pair.clone())
        });
        held.take(limit.unwrap_or(usize::MAX)).collect()
    }

    /// Removes everything that a read at `revision` or above does not need.
    ///
    /// Only keys that changed in the removed revisions can have a version too many, so the cost is
    /// that of the changes, not of the store.
    pub(super) fn compact(&mut self, revision: Revision) {
        let gone = usize::try_from(revision.0 - self.compacted.0).unwrap_or(0).min(self.batches.len());
        let touched: BTreeSet<Bytes> = self
            .batches
            .drain(..gone)
            .flat_map(|batch| batch.changes)
            .map(|change| change.key().clone())
            .collect();
        self.compacted = revision;
        for key in touched {
            let Some(versions) = self.versions.get_mut(&key) else { continue };
            let after = versions.partition_point(|version| version.revision <= revision);
            let keep_from = match after.checked_sub(1) {
                Some(newest) if versions[newest].pair.is_some() => newest,
                Some(_) | None => after,
            };
            versions.drain(..keep_from);
            if versions.is_empty() {
                self.versions.remove(&key);
            }
        }
    }

    /// The number of revisions.
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// The revision up to which history may be compacted, if the newest `keep` revisions and all
    /// since `since` must stay.
    pub(super) fn compactable(&self, keep: usize, since: Moment) -> Option<Revision> {
        let surplus = self.batches.len().checked_sub(keep)?;
        let old = self.batches.iter().take(surplus).take_while(|batch| batch.at < since).count();
        let steps = i64::try_from(old).ok().filter(|&steps| steps > 0)?;
        Some(Revision(self.compacted.0 + steps))
    }
}
