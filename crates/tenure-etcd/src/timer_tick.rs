//! A timer that ticks while calls are made, so that their own timers cost nothing.
//!
//! Every call has a timer that nearly never fires. Where no other timer is due earlier, setting one
//! makes the runtime wake the thread that waits for the next event, only to let it wait again. That
//! costs some microseconds and a thread switch per call, several per cent of a bare call. While
//! this timer ticks there always is an earlier one. It stops when there are no calls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Shorter than the shortest timer of a call, which is half of the time for one attempt. Ten times
/// as often would show as idle load.
const BEAT: Duration = Duration::from_millis(200);

/// Counts calls, and ticks while there are some.
#[derive(Debug, Default)]
pub(crate) struct TimerTick {
    calls: AtomicU64,
    is_beating: AtomicBool,
    begin: Notify,
}

impl TimerTick {
    /// A call is made.
    pub(crate) fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if !self.is_beating.load(Ordering::Relaxed) && !self.is_beating.swap(true, Ordering::AcqRel) {
            self.begin.notify_one();
        }
    }

    /// Ticks until the client closes.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.begin.notified() => {}
            }
            let mut seen = None;
            while seen != Some(self.calls.load(Ordering::Relaxed)) {
                seen = Some(self.calls.load(Ordering::Relaxed));
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = sleep(BEAT) => {}
                }
            }
            self.is_beating.store(false, Ordering::Release);
        }
    }
}
