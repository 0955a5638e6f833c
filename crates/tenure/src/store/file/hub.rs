//! What the watchers of one process share: their selections, and the newest part of history.
//!
//! One thread follows the log and reads each change once for all watchers. A watcher takes its changes from the
//! shared tail at its own speed. One that is further behind reads the log itself; one that is behind a compaction gets `Compacted`.
//!
//! **Invariant**: every revision in `tail_after < revision <= current` that changed something is in `tail`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tenure_core::keyspace::{WatchId, Watchers};

use crate::store::file::log::{LogBatch, LogSlice};
use crate::store::{PreviousValues, Revision, Selection, StoreError};

/// How much of history is kept in memory for watchers that are a little behind: about what a watcher misses in a tenth of a
/// second under full load. Without it each watcher would read the log for each change.
const TAIL_LEN_MAX: usize = 1_024;
const TAIL_BYTES_MAX: usize = 4 << 20;

/// What the watchers of one process share.
pub(super) struct Hub {
    state: Mutex<HubState>,
}

struct HubState {
    watchers: Watchers,
    sleepers: BTreeMap<WatchId, Waker>,
    /// How many watchers need previous values. They are read only while there is such a watcher.
    want_previous: usize,
    current: Revision,
    compacted: Revision,
    tail: VecDeque<Arc<LogBatch>>,
    tail_bytes: usize,
    tail_after: Revision,
    over: Option<StoreError>,
}

/// What a watcher finds at the next revision that may concern it.
pub(super) enum NextChange {
    /// Nothing yet; its waker is kept.
    Nothing,
    /// These changes, from which it must take its own selection.
    Batch(Arc<LogBatch>),
    /// It has to read the log in `after < revision <= up_to`.
    Behind { after: Revision, up_to: Revision },
    /// History up to this revision is gone, and it had not read it.
    Compacted(Revision),
    /// The store is lost.
    Over(StoreError),
}

impl Hub {
    pub(super) fn new() -> Hub {
        let watched = HubState {
            watchers: Watchers::default(),
            sleepers: BTreeMap::new(),
            want_previous: 0,
            current: Revision::ZERO,
            compacted: Revision::ZERO,
            tail: VecDeque::new(),
            tail_bytes: 0,
            tail_after: Revision::ZERO,
            over: None,
        };
        Hub { state: Mutex::new(watched) }
    }

    /// Adds a watcher of everything after `after`. `current` and `compacted` are the store's, read just now.
    pub(super) fn add(
        &self,
        select: Selection,
        after: Revision,
        previous: PreviousValues,
        (current, compacted): (Revision, Revision),
    ) -> WatchId {
        let mut state = self.lock();
        if state.watchers.is_empty() {
            // Without a watcher the log was not followed until now.
            state.restart(current);
        }
        // The follower may have read a later compaction already.
        state.compacted = state.compacted.max(compacted);
        if previous == PreviousValues::Included {
            state.want_previous += 1;
            if state.want_previous == 1 {
                // The tail was read without previous values.
                state.clear_tail();
            }
        }
        let noted = state.current;
        state.watchers.add(select, after, noted)
    }

    /// Removes a watcher.
    pub(super) fn remove(&self, id: WatchId, previous: PreviousValues) {
        let mut state = self.lock();
        state.watchers.remove(id);
        state.sleepers.remove(&id);
        if previous == PreviousValues::Included {
            state.want_previous -= 1;
        }
    }

    /// Up to where the log was followed, and how to continue; none without a watcher.
    pub(super) fn position(&self) -> Option<(Revision, PreviousValues)> {
        let state = self.lock();
        let previous =
            if state.want_previous > 0 { PreviousValues::Included } else { PreviousValues::Omitted };
        (!state.watchers.is_empty()).then_some((state.current, previous))
    }

    /// Notes what was read from the log after `position`; nothing if that has changed meanwhile.
    pub(super) fn note(&self, position: (Revision, PreviousValues), passage: LogSlice, compacted: Revision) {
        let mut state = self.lock();
        let previous_is_missing = position.1 == PreviousValues::Omitted && state.want_previous > 0;
        // The log was read without the lock: watchers may have come or gone since. Then the next round reads it again.
        if state.watchers.is_empty() || state.current != position.0 || previous_is_missing {
            return;
        }
        let mut woken = Vec::new();
        for batch in passage.batches {
            let readers = state.watchers.note(batch.revision, &batch.changes);
            woken.extend(readers.into_iter().filter_map(|id| state.sleepers.remove(&id)));
            state.push(batch);
        }
        state.current = passage.up_to;
        state.compacted = state.compacted.max(compacted);
        // Woken without the lock: a woken watcher takes it at once.
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Notes that the log was swept beyond `from` before it was read: every watcher must read the log itself.
    pub(super) fn skip(&self, from: Revision, to: Revision, compacted: Revision) {
        let mut state = self.lock();
        if state.watchers.is_empty() || state.current != from {
            return;
        }
        state.restart(to);
        state.compacted = state.compacted.max(compacted);
        state.watchers.skip();
        let sleepers = std::mem::take(&mut state.sleepers);
        drop(state);
        sleepers.into_values().for_each(Waker::wake);
    }

    /// Returns what a watcher finds next.
    pub(super) fn next(&self, id: WatchId, waker: &Waker) -> NextChange {
        let mut state = self.lock();
        if let Some(over) = &state.over {
            return NextChange::Over(over.clone());
        }
        let Some(revision) = state.watchers.next_revision(id, state.current) else {
            // Under the same lock as `note`, so that no change is added between the check and the registration.
            state.sleepers.insert(id, waker.clone());
            return NextChange::Nothing;
        };
        // From the tail while it reaches far enough, without a read of the database.
        if revision > state.tail_after {
            let first = state.tail.partition_point(|batch| batch.revision < revision);
            let batch = state.tail.get(first).cloned();
            return match batch {
                Some(batch) => NextChange::Batch(batch),
                None => NextChange::Behind { after: revision.previous(), up_to: state.current },
            };
        }
        // Compacted rows may be deleted at any moment, so the log is not read below this.
        if revision <= state.compacted {
            return NextChange::Compacted(state.compacted);
        }
        NextChange::Behind { after: revision.previous(), up_to: state.current }
    }

    /// Notes that a watcher has read everything up to `revision`.
    pub(super) fn delivered(&self, id: WatchId, revision: Revision) {
        let mut state = self.lock();
        let current = state.current;
        state.watchers.delivered(id, revision, current);
    }

    /// Ends all watches.
    pub(super) fn end(&self, error: &StoreError) {
        let mut state = self.lock();
        state.over.get_or_insert_with(|| error.clone());
        let sleepers = std::mem::take(&mut state.sleepers);
        drop(state);
        sleepers.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        // No method panics between two changes, so a poisoned state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HubState {
    fn restart(&mut self, current: Revision) {
        self.current = current;
        self.clear_tail();
    }

    fn clear_tail(&mut self) {
        self.tail.clear();
        self.tail_bytes = 0;
        self.tail_after = self.current;
    }

    fn push(&mut self, batch: LogBatch) {
        self.tail_bytes += batch.size();
        self.tail.push_back(Arc::new(batch));
        while self.tail.len() > TAIL_LEN_MAX || (self.tail_bytes > TAIL_BYTES_MAX && self.tail.len() > 1) {
            let Some(oldest) = self.tail.pop_front() else { break };
            self.tail_bytes -= oldest.size();
            self.tail_after = oldest.revision;
        }
    }
}
