//! The world's time: the runtime's paused clock, exact to the millisecond.
//!
//! The runtime's timers have milliseconds of their own, counted from the start of the runtime, and round up to them. A clock that was paused
//! within one of them would find every timer late by a fraction of a millisecond, another one in each run. Paused time moves by whole
//! milliseconds only. A timer for the first nanosecond of the *previous* millisecond therefore fires exactly at the requested one, wherever
//! the runtime's milliseconds begin.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock::{Clock, Sleep};

const TICK: Duration = Duration::from_millis(1);

/// Time since the world was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorldTime {
    origin: Instant,
}

impl WorldTime {
    /// Pauses the runtime's clock, unless it is paused already.
    pub(super) fn begin() -> WorldTime {
        if is_running() {
            tokio::time::pause();
        }
        WorldTime { origin: Instant::now() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Waits until the first whole millisecond that is not before `deadline`.
    pub(super) async fn sleep_until(&self, deadline: Duration) {
        let whole = Duration::from_millis(ms_not_before(deadline));
        while self.elapsed() < deadline {
            let target =
                (whole - TICK + Duration::from_nanos(1)).max(self.elapsed() + Duration::from_nanos(1));
            match self.origin.checked_add(target) {
                Some(instant) => tokio::time::sleep_until(instant).await,
                // No clock reaches this moment.
                None => std::future::pending().await,
            }
        }
    }
}

impl Clock for WorldTime {
    fn now(&self) -> Moment {
        Moment::after_origin(self.elapsed())
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        let time = *self;
        Box::pin(async move { WorldTime::sleep_until(&time, deadline.since_origin()).await })
    }
}

/// Runs every task until none can continue, while the clock is paused.
///
/// The runtime parks its thread when every task is idle. It would then skip to the next timer, but not while a blocking task runs. So this
/// function starts a blocking task that waits for the runtime to park.
pub(super) async fn run_until_idle() {
    let metrics = Handle::current().metrics();
    let parked_before = metrics.worker_park_count(0);
    // If this future is dropped, also by a panic, the blocking task must end: the runtime would otherwise wait for it for ever.
    let alive = Arc::new(());
    let is_alive = Arc::downgrade(&alive);
    let waiting = tokio::task::spawn_blocking(move || {
        while is_alive.strong_count() > 0 && metrics.worker_park_count(0) == parked_before {
            std::thread::yield_now();
        }
    });
    // The task cannot panic, and it is never aborted.
    let _ = waiting.await;
    drop(alive);
}

fn ms_not_before(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX)
}

/// Whether the runtime's clock moves with the machine's. tokio does not report it, and panics when a clock is paused twice.
fn is_running() -> bool {
    // In this order: once the machine's clock has moved, the runtime's has too, if it moves at all.
    let (runtime, machine) = (Instant::now(), std::time::Instant::now());
    while machine.elapsed().is_zero() {
        std::hint::spin_loop();
    }
    !runtime.elapsed().is_zero()
}
