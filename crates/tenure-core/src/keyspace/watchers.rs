//! Who watches what, and who has something to read.
//!
//! A watcher is never pushed changes: it is told *that* there is something at a revision and reads it from history
//! at its own pace. So a slow watcher costs a short list of numbers, blocks nobody, and meets `Compacted` when it sleeps
//! through a compaction.
//!
//! Intuition: the way from a change to its watchers is by the key itself and by each of its `/`-ended prefixes, so a
//! thousand waiters on a thousand keys cost one wake-up per change, not a thousand.
//!
//! **Invariant**: `pending` holds, in order, every revision after `delivered` that may concern the watcher, unless `behind` is set:
//! then every revision after `delivered` must be looked at.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::change::Change;
use crate::kv::Selection;
use crate::revision::Revision;

/// One watcher of a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WatchId(u64);

/// How many revisions are listed for a watcher before it is told to look at all of history instead. Halving it
/// makes a watcher that pauses shortly scan sooner; doubling it costs 8 KiB more for each watcher that never reads.
const PENDING_MAX: usize = 1_024;

/// All watchers of a store.
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
    /// Adds a watcher of everything after `after`. If the store is already past that, it has to look back first.
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

    /// Forgets a watcher.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Notes the next revision; returns who has something to read now.
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

    /// Who watches a key.
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

    /// The next revision that a watcher must look at, up to the store's `current`; none if it has seen all.
    pub fn next_revision(&self, id: WatchId, current: Revision) -> Option<Revision> {
        let watcher = self.by_id.get(&id)?;
        if watcher.behind {
            return (watcher.delivered < current).then(|| watcher.delivered.next());
        }
        watcher.pending.front().copied()
    }

    /// Notes that a watcher has looked at everything up to `revision`.
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

    /// What a watcher selected, and up to where it has looked.
    pub fn position(&self, id: WatchId) -> Option<(&Selection, Revision)> {
        self.by_id.get(&id).map(|watcher| (&watcher.select, watcher.delivered))
    }
}
