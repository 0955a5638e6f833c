//! What the watchers of one process share: who watches what, and the newest part of history.
//!
//! One thread follows the log and reads each change once, however many watch. A watcher takes what it needs from the
//! shared tail at its own pace. One that is further behind reads the log itself; one that has slept through a compaction is told so.
//!
//! **Invariant**: every revision in `tail_after < revision <= current` that changed something is in `tail`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tenure_core::keyspace::{WatchId, Watchers};

use crate::store::file::log::{LogBatch, LogSlice};
use crate::store::{PreviousValues, Revision, Selection, StoreError};

/// How much of history is kept in memory for those who are a little behind: about what a watcher misses in a tenth of a
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
    /// How many want to know what was before a change: if nobody does, nobody looks it up.
    want_previous: usize,
    current: Revision,
    compacted: Revision,
    tail: VecDeque<Arc<LogBatch>>,
    tail_bytes: usize,
    tail_after: Revision,
    over: Option<StoreError>,
}

/// What a watcher finds when it asks for the next revision that may concern it.
pub(super) enum NextChange {
    /// Nothing yet; its waker is kept.
    Nothing,
    /// These changes, of which it must take its own.
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
            // Nobody followed the log until now.
            state.restart(current);
        }
        state.compacted = state.compacted.max(compacted);
        if previous == PreviousValues::Included {
            state.want_previous += 1;
            if state.want_previous == 1 {
                // What is in the tail was read without.
                state.forget_tail();
            }
        }
        let noted = state.current;
        state.watchers.add(select, after, noted)
    }

    /// Forgets a watcher.
    pub(super) fn remove(&self, id: WatchId, previous: PreviousValues) {
        let mut state = self.lock();
        state.watchers.remove(id);
        state.sleepers.remove(&id);
        if previous == PreviousValues::Included {
            state.want_previous -= 1;
        }
    }

    /// Up to where the log was followed, and how to go on; none if nobody watches.
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
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Notes that the log was swept beyond `from` before it was read: everyone has to look for themselves.
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

    /// What a watcher finds next.
    pub(super) fn next(&self, id: WatchId, waker: &Waker) -> NextChange {
        let mut state = self.lock();
        if let Some(over) = &state.over {
            return NextChange::Over(over.clone());
        }
        let Some(revision) = state.watchers.next_revision(id, state.current) else {
            state.sleepers.insert(id, waker.clone());
            return NextChange::Nothing;
        };
        if revision > state.tail_after {
            let first = state.tail.partition_point(|batch| batch.revision < revision);
            let batch = state.tail.get(first).cloned();
            return match batch {
                Some(batch) => NextChange::Batch(batch),
                None => NextChange::Behind { after: revision.previous(), up_to: state.current },
            };
        }
        if revision <= state.compacted {
            return NextChange::Compacted(state.compacted);
        }
        NextChange::Behind { after: revision.previous(), up_to: state.current }
    }

    /// Notes that a watcher has looked at everything up to `revision`.
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
        // Nothing here panics half-way: what is in it is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HubState {
    fn restart(&mut self, current: Revision) {
        self.current = current;
        self.forget_tail();
    }

    fn forget_tail(&mut self) {
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
