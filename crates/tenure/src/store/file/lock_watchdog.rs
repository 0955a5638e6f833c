//! Watchdog for the write lock: it logs the holder's pid after 1 s without progress, and fails the request with `Busy` after 5 s.
//!
//! The writing thread sleeps in the kernel until it gets the lock, and cannot time out by itself. A process that was stopped
//! inside a transaction blocks all writers: safe, but not live. This thread makes that visible and bounded.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::file::job::JobQueue;
use crate::store::file::lock::{LockFileContent, read_lock_file};
use crate::store::{Cause, StoreError};

/// After how long without progress a warning is logged. A healthy commit takes far less than a tenth of it.
const WARN_AFTER: Duration = Duration::from_secs(1);

/// After how long without progress a request fails. While other processes commit, a request waits: five hundred processes
/// that start together are all served. Longer would only delay the report of a stopped process.
pub(super) const BUSY_AFTER: Duration = Duration::from_secs(5);

/// How often it polls while a request waits: by this much the two times above may be exceeded.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// How many polls without a waiting request it makes before it sleeps until `arm`.
const IDLE_POLLS: u32 = 20;

/// The state that the watchdog thread shares with the others.
#[derive(Debug, Default)]
pub(super) struct LockWatchdog {
    /// Whether a request had to wait since the last poll.
    is_armed: AtomicBool,
    state: Mutex<WatchdogState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchdogState {
    is_awake: bool,
    is_over: bool,
}

impl LockWatchdog {
    /// Called before a thread waits for the write lock.
    pub(super) fn arm(&self) {
        if self.is_armed.swap(true, Ordering::Relaxed) {
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

    /// The body of the watchdog thread. Returns after `end`.
    pub(super) fn run(&self, line: &JobQueue, lock: &Path) {
        let mut queue = ObservedQueue::default();
        let mut idle_polls = 0;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_over {
            state.is_awake = idle_polls < IDLE_POLLS;
            let is_idle = !self.is_armed.swap(false, Ordering::Relaxed) && line.oldest().is_none();
            state = if state.is_awake || !is_idle {
                self.changed.wait_timeout(state, POLL_EVERY).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
            idle_polls = if is_idle { idle_polls.saturating_add(1) } else { 0 };
            queue.poll(line, lock);
        }
    }
}

/// What the watchdog saw of the lock file while requests waited.
#[derive(Default)]
struct ObservedQueue {
    shown: LockFileContent,
    /// When the lock file last changed, which means that another process committed.
    moved_at: Option<Instant>,
    /// One warning per stall, for any number of waiting requests.
    has_warned: bool,
}

impl ObservedQueue {
    fn poll(&mut self, line: &JobQueue, lock: &Path) {
        let now = Instant::now();
        let oldest = line.oldest().filter(|oldest| now.saturating_duration_since(*oldest) >= WARN_AFTER);
        let Some(oldest) = oldest else {
            *self = ObservedQueue::default();
            return;
        };
        let found = read_lock_file(lock);
        if self.moved_at.is_none() {
            // Commits before the first poll are unknown, so the stall counts from when the request began to wait.
            (self.shown, self.moved_at) = (found, Some(oldest));
        } else if found.stamp != self.shown.stamp {
            *self = ObservedQueue { shown: found, moved_at: Some(now), has_warned: false };
        } else {
            self.shown = found;
        }
        let stalled = now.saturating_duration_since(self.moved_at.unwrap_or(now));
        if stalled < WARN_AFTER {
            return;
        }
        let holder = self.shown.pid;
        if !self.has_warned {
            let (store, pid) = (lock.display(), holder.unwrap_or(0));
            let waited_ms = stalled.as_millis();
            tracing::warn!(%store, holder_pid = pid, waited_ms, "write lock held by another process");
            self.has_warned = true;
        }
        if stalled < BUSY_AFTER {
            return;
        }
        let Some(limit) = now.checked_sub(BUSY_AFTER) else { return };
        for job in line.take_older_than(limit) {
            let holder = holder.map_or("an unknown process".to_owned(), |pid| format!("process {pid}"));
            let reason = format!("{holder} held the write lock for more than {BUSY_AFTER:?}");
            job.fail(StoreError::Busy(Cause::new(reason)));
        }
    }
}
