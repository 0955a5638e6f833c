//! The watch over those who wait for the write lock: who waits for long is told for whom, and who waits for too long is sent away.
//!
//! The thread that writes sleeps in the kernel until it is its turn, and cannot give up by itself. A process that was
//! stopped inside a transaction keeps everybody waiting: safe, not live. This thread makes that visible and bounded.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::file::job::JobQueue;
use crate::store::file::lock::{LockFileContent, read_lock_file};
use crate::store::{Cause, StoreError};

/// After how long someone should know. A healthy commit takes far less than a tenth of it.
const ALARM_AFTER: Duration = Duration::from_secs(1);

/// After how long without progress a request fails. While other processes get their turns, a request waits: five hundred
/// that start at once are all served. Longer would only delay the report of a process that stands still.
pub(super) const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// How often it looks while somebody waits: what the two times above may be late.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many times it looks at nothing before it sleeps again.
const LOOKS_BEFORE_SLEEP: u32 = 20;

/// What the watching thread and the others share.
#[derive(Debug, Default)]
pub(super) struct LockWatchdog {
    /// Someone had to wait since the last look.
    someone_waits: AtomicBool,
    state: Mutex<WatchdogState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchdogState {
    is_awake: bool,
    is_over: bool,
}

impl LockWatchdog {
    /// Called by one who is about to wait.
    pub(super) fn arm(&self) {
        if self.someone_waits.swap(true, Ordering::Relaxed) {
            return;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_awake {
            self.changed.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.changed.notify_one();
    }

    /// What the thread does, until the end.
    pub(super) fn run(&self, line: &JobQueue, lock: &Path) {
        let mut queue = ObservedQueue::default();
        let mut idle_looks = 0;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_over {
            state.is_awake = idle_looks < LOOKS_BEFORE_SLEEP;
            let nobody_waits = !self.someone_waits.swap(false, Ordering::Relaxed) && line.oldest().is_none();
            state = if state.is_awake || !nobody_waits {
                self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
            idle_looks = if nobody_waits { idle_looks.saturating_add(1) } else { 0 };
            queue.look(line, lock);
        }
    }
}

/// What was seen of the queue while requests waited.
#[derive(Default)]
struct ObservedQueue {
    shown: LockFileContent,
    /// When it was last seen to move.
    moved_at: Option<Instant>,
    /// One warning for one stall, however many requests it holds up.
    has_warned: bool,
}

impl ObservedQueue {
    fn look(&mut self, line: &JobQueue, lock: &Path) {
        let now = Instant::now();
        let oldest = line.oldest().filter(|oldest| now.saturating_duration_since(*oldest) >= ALARM_AFTER);
        let Some(oldest) = oldest else {
            *self = ObservedQueue::default();
            return;
        };
        let found = read_lock_file(lock);
        if self.moved_at.is_none() {
            // What happened before the first look is not known: it counts from when the request began to wait.
            (self.shown, self.moved_at) = (found, Some(oldest));
        } else if found.stamp != self.shown.stamp {
            *self = ObservedQueue { shown: found, moved_at: Some(now), has_warned: false };
        } else {
            self.shown = found;
        }
        let stalled = now.saturating_duration_since(self.moved_at.unwrap_or(now));
        if stalled < ALARM_AFTER {
            return;
        }
        let holder = self.shown.pid;
        if !self.has_warned {
            let (store, pid) = (lock.display(), holder.unwrap_or(0));
            let waited_ms = stalled.as_millis();
            tracing::warn!(%store, holder_pid = pid, waited_ms, "write lock was held for long by another process");
            self.has_warned = true;
        }
        if stalled < GIVE_UP_AFTER {
            return;
        }
        let Some(limit) = now.checked_sub(GIVE_UP_AFTER) else { return };
        for job in line.take_older_than(limit) {
            let holder = holder.map_or("an unknown process".to_owned(), |pid| format!("process {pid}"));
            let reason = format!("{holder} held the write lock for more than {GIVE_UP_AFTER:?}");
            job.fail(StoreError::Busy(Cause::new(reason)));
        }
    }
}
