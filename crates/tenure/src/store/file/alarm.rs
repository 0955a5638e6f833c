//! The watch over those who wait for the write lock: who waits for long is told for whom, and who waits for too long is sent away.
//!
//! The thread that writes sleeps in the kernel until it is its turn, and cannot give up by itself. A process that was
//! stopped inside a transaction keeps everybody waiting: safe, not live. This thread makes that visible and bounded.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::file::job::Line;
use crate::store::file::lock::holder_pid;
use crate::store::{Cause, StoreError};

/// After how long someone should know. A healthy commit takes far less than a tenth of it.
const ALARM_AFTER: Duration = Duration::from_secs(1);

/// After how long a request is given up: longer would outlast the leases that the caller wants to keep.
pub(super) const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// How often it looks while somebody waits: what the two times above may be late.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many times it looks at nothing before it sleeps again.
const LOOKS_BEFORE_SLEEP: u32 = 20;

/// What the watching thread and the others share.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// Someone had to wait since the last look.
    someone_waits: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_awake: bool,
    is_over: bool,
}

impl Alarm {
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
    pub(super) fn run(&self, line: &Line, lock: &Path) {
        let mut warned_of: Option<Instant> = None;
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
            look(line, lock, &mut warned_of);
        }
    }
}

fn look(line: &Line, lock: &Path, warned_of: &mut Option<Instant>) {
    let now = Instant::now();
    let Some(oldest) = line.oldest() else {
        *warned_of = None;
        return;
    };
    let waited = now.saturating_duration_since(oldest);
    if waited < ALARM_AFTER {
        *warned_of = None;
        return;
    }
    let holder = holder_pid(lock);
    // One warning for one stall, however many requests it holds up.
    if warned_of.is_none() {
        let (store, pid) = (lock.display(), holder.unwrap_or(0));
        let waited_ms = waited.as_millis();
        tracing::warn!(%store, holder_pid = pid, waited_ms, "write lock was held for long by another process");
        *warned_of = Some(now);
    }
    if let Some(limit) = now.checked_sub(GIVE_UP_AFTER) {
        for job in line.take_older_than(limit) {
            let holder = holder.map_or("an unknown process".to_owned(), |pid| format!("process {pid}"));
            let reason = format!("{holder} held the write lock for more than {GIVE_UP_AFTER:?}");
            job.fail(StoreError::Busy(Cause::new(reason)));
        }
    }
}
