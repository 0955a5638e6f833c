//! Watches of a store, and which of them have something to read.
//!
//! Changes are never pushed to a watch. It is notified *that* there is something at a revision, and
//! its reader takes it from history in its own time. So a slow reader costs a short list of
//! numbers, blocks no other one, and gets `Compacted` when it sleeps through a compaction.
//!
//! Intuition: a change finds its watches by its key and by each prefix of the key that ends in `/`.
//! So a thousand waiters on a thousand keys cost one wake-up per change, not a thousand.
//!
//! **Invariant**: `pending` contains, in order, every revision after `delivered` that may concern
//! the watch, unless `behind` is set: then every revision after `delivered` must be read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::change::Change;
use crate::kv::Selection;
use crate::revision::Revision;

/// One watcher of a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WatchId(u64);

/// The number of revisions listed for a watch before it must read all of history instead. Halved, a
/// watch that pauses shortly scans sooner; doubled, each watch that never reads costs 8 KiB more.
const PENDING_MAX: usize = 1_024;

/// All watches of a store.
#[derive(Clone, Debug, Default)]
pub struct Watchers {
    next: u64,
    by_id: BTreeMap<WatchId, Watcher>,
    by_key: BTreeMap<Bytes, BTreeSet<WatchId>>,
    by_prefix: BTreeMap<Bytes, BTreeSet<WatchId>>,
    by_range: BTreeSet<WatchId>,
}

#[derive(Clone, Debug)]
struct Watcher {
    select: Selection,
    delivered: Revision,
    pending: VecDeque<Revision>,
    behind: bool,
}

impl Watchers {
    /// Adds a watch of everything after `after`. If the store is past that already, the watch must
    /// read history first.
    pub fn add(&mut self, select: Selection, after: Revision, current: Revision) -> WatchId {
        let id = WatchId(self.next);
        self.next += 1;
        match &select {
            Selection::Key(key) => {
                self.by_key.entry(key.clone()).or_default().insert(id);
            }
            Selection::Prefix(prefix) => {
                self.by_prefix.entry(prefix.clone()).or_default().insert(id);
            }
            Selection::Range(..) | Selection::From(_) => {
                self.by_range.insert(id);
            }
        }
        let watcher = Watcher { select, delivered: after, pending: VecDeque::new(), behind: after < current };
        self.by_id.insert(id, watcher);
        id
    }

    /// Removes a watch.
    pub fn remove(&mut self, id: WatchId) {
        let Some(watcher) = self.by_id.remove(&id) else { return };
        let (index, name) = match &watcher.select {
            Selection::Key(key) => (&mut self.by_key, key),
            Selection::Prefix(prefix) => (&mut self.by_prefix, prefix),
            Selection::Range(..) | Selection::From(_) => {
                self.by_range.remove(&id);
                return;
            }
        };
        if let Some(ids) = index.get_mut(name) {
            ids.remove(&id);
            if ids.is_empty() {
                index.remove(name);
            }
        }
    }

    /// The number of watches.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is no watch.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Records the next revision. Returns the watches that have something to read now.
    pub fn note(&mut self, revision: Revision, changes: &[Change]) -> BTreeSet<WatchId> {
        let mut woken = BTreeSet::new();
        if self.by_id.is_empty() {
            return woken;
        }
        for change in changes {
            self.find(change.key(), &mut woken);
        }
        woken.retain(|id| {
            let Some(watcher) = self.by_id.get_mut(id) else { return false };
            if revision <= watcher.delivered {
                return false;
            }
            if watcher.pending.len() == PENDING_MAX {
                watcher.behind = true;
                watcher.pending.clear();
            }
            if !watcher.behind {
                watcher.pending.push_back(revision);
            }
            true
        });
        woken
    }

    /// Records revisions that were not listed one by one: every watch must read history itself.
    pub fn skip(&mut self) -> BTreeSet<WatchId> {
        for watcher in self.by_id.values_mut() {
            watcher.behind = true;
            watcher.pending.clear();
        }
        self.by_id.keys().copied().collect()
    }

    /// The watches of a key.
    fn find(&self, key: &[u8], found: &mut BTreeSet<WatchId>) {
        if let Some(ids) = self.by_key.get(key) {
            found.extend(ids);
        }
        if !self.by_prefix.is_empty() {
            let ends = key.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at + 1);
            for end in std::iter::once(0).chain(ends) {
                if let Some(ids) = self.by_prefix.get(&key[..end]) {
                    found.extend(ids);
                }
            }
        }
        for id in &self.by_range {
            if self.by_id.get(id).is_some_and(|watcher| watcher.select.contains(key)) {
                found.insert(*id);
            }
        }
    }

    /// The next revision that a watch must read, up to the store's `current`; none if it has read
    /// all.
    pub fn next_revision(&self, id: WatchId, current: Revision) -> Option<Revision> {
        let watcher = self.by_id.get(&id)?;
        if watcher.behind {
            return (watcher.delivered < current).then(|| watcher.delivered.next());
        }
        watcher.pending.front().copied()
    }

    /// Records that a watch has read everything up to `revision`.
    pub fn delivered(&mut self, id: WatchId, revision: Revision, current: Revision) {
        let Some(watcher) = self.by_id.get_mut(&id) else { return };
        watcher.delivered = watcher.delivered.max(revision);
        while watcher.pending.front().is_some_and(|&first| first <= watcher.delivered) {
            watcher.pending.pop_front();
        }
        if watcher.delivered >= current {
            watcher.behind = false;
        }
    }

    /// The selection of a watch, and up to where it has read.
    pub fn position(&self, id: WatchId) -> Option<(&Selection, Revision)> {
        self.by_id.get(&id).map(|watcher| (&watcher.select, watcher.delivered))
    }
}
