//! The world's time: the runtime's paused clock, exact to the millisecond.
//!
//! The runtime's timers have milliseconds of their own, counted from when the runtime began, and round up to them. A clock that was paused
//! somewhere within one would find every timer late by a part of a millisecond that differs from run to run. Paused time only
//! ever moves by whole milliseconds, so there is a way out: whoever asks for the first nanosecond of the millisecond *before* the one that
//! is meant is woken at the one that is meant, wherever the runtime's milliseconds begin.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock::{Clock, Sleep};

const TICK: Duration = Duration::from_millis(1);

/// Counts from when the world began.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorldTime {
    origin: Instant,
}

impl WorldTime {
    /// Stops the runtime's clock, unless it stands still already.
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
            let asked =
                (whole - TICK + Duration::from_nanos(1)).max(self.elapsed() + Duration::from_nanos(1));
            match self.origin.checked_add(asked) {
                Some(instant) => tokio::time::sleep_until(instant).await,
                // A moment that no clock can show never comes.
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

/// Lets every task run until none of them can, while the clock stands still.
///
/// The runtime itself knows best when nobody has anything to do: it parks its thread. It would skip to the next timer then, but not while
/// something runs on its pool of blocking threads. So there is something that does, and waits for exactly that.
pub(super) async fn settle() {
    let metrics = Handle::current().metrics();
    let parked_before = metrics.worker_park_count(0);
    // Whoever stops waiting, and be it by a panic, must not leave the thread behind: the runtime would wait for it for ever.
    let asked = Arc::new(());
    let is_asked = Arc::downgrade(&asked);
    let waiting = tokio::task::spawn_blocking(move || {
        while is_asked.strong_count() > 0 && metrics.worker_park_count(0) == parked_before {
            std::thread::yield_now();
        }
    });
    // It cannot panic, and nobody aborts it.
    let _ = waiting.await;
    drop(asked);
}

fn ms_not_before(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX)
}

/// Whether the runtime's clock moves with the machine's: tokio does not tell, and refuses to stop a clock twice.
fn is_running() -> bool {
    // In this order: as soon as the second clock has moved, the first one has too, if it moves at all.
    let (runtime, machine) = (Instant::now(), std::time::Instant::now());
    while machine.elapsed().is_zero() {
        std::hint::spin_loop();
    }
    !runtime.elapsed().is_zero()
}
