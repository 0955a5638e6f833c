//! One seed for all random numbers of a thread.

use std::cell::RefCell;
use std::thread::{self, ThreadId};
use std::time::Duration;

use tenure_core::record::Timestamp;
use tenure_core::rng;
use tenure_core::time::Moment;
use tokio::time::Instant;

/// What the wall clock shows when a seed begins: 2026-01-01. Any date is right that no test uses for itself.
const WALL_BEGINS_MS: u64 = 1_767_225_600_000;

/// What the boot clock shows when a seed begins: an hour, so that subtracting a short time from it does not underflow.
const BOOTED_FOR: Duration = Duration::from_secs(3_600);

thread_local! {
    static SEED: RefCell<Option<SeedState>> = const { RefCell::new(None) };
}

struct SeedState {
    random: u64,
    began: Instant,
    wall_ms: u64,
}

/// While it lives, every random number of its thread is derived from one seed.
///
/// The boot clock and the wall clock follow the runtime's paused time. On a current-thread runtime this makes a run repeatable to the byte.
#[derive(Debug)]
#[must_use = "dropping it ends the seed"]
pub(super) struct Seed {
    /// The thread that it was begun on. A world may be dropped on another thread, which then must not end that thread's seed.
    thread: ThreadId,
}

impl Seed {
    /// Begins with the current time of the runtime.
    ///
    /// # Panics
    ///
    /// If this thread has a seed already.
    pub(super) fn begin(seed: u64) -> Seed {
        SEED.with_borrow_mut(|current| {
            assert!(
                current.is_none(),
                "another seeded world of this thread is alive, perhaps kept by one of its tasks"
            );
            *current = Some(SeedState { random: seed, began: Instant::now(), wall_ms: WALL_BEGINS_MS });
        });
        Seed { thread: thread::current().id() }
    }

    /// Sets the wall clock forward or back.
    pub(super) fn step_wall(&self, by_ms: i64) {
        debug_assert_eq!(self.thread, thread::current().id(), "a seed belongs to its thread");
        SEED.with_borrow_mut(|current| {
            if let Some(state) = current {
                state.wall_ms = state.wall_ms.saturating_add_signed(by_ms);
            }
        });
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if self.thread == thread::current().id() {
            // The thread-local value may be gone already when the thread ends.
            let _ = SEED.try_with(|current| current.replace(None));
        }
    }
}

/// Fills `bytes` from the seed; returns `false` if this thread has none.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    SEED.with_borrow_mut(|current| {
        let Some(state) = current else { return false };
        for chunk in bytes.chunks_mut(8) {
            let number = rng::next(&mut state.random).to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
        true
    })
}

/// What the wall clock shows, if this thread has a seed.
pub(crate) fn wall() -> Option<Timestamp> {
    SEED.with_borrow(|current| {
        let state = current.as_ref()?;
        let passed = u64::try_from(state.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(Timestamp(state.wall_ms.saturating_add(passed)))
    })
}

/// What the boot clock shows, if this thread has a seed.
pub(crate) fn since_boot() -> Option<Moment> {
    SEED.with_borrow(|current| {
        let state = current.as_ref()?;
        Some(Moment::after_origin(BOOTED_FOR + state.began.elapsed()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{BootClock, Clock, wall_time};
    use crate::rng;

    fn random(seed: u64) -> (f64, u64, [u8; 16]) {
        let _seed = Seed::begin(seed);
        (rng::jitter(), rng::nonce(), rng::bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn same_seed_repeats_all_numbers() {
        assert_eq!(random(7), random(7));
        assert_ne!(random(7), random(8));
        assert_ne!(rng::nonce(), rng::nonce(), "without a seed numbers are random");
    }

    #[tokio::test(start_paused = true)]
    async fn both_clocks_follow_paused_time() {
        let seed = Seed::begin(0);
        let (wall, boot) = (wall_time(), BootClock.now());
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(wall_time().0 - wall.0, 1_500);
        assert_eq!(BootClock.now().since(boot), Duration::from_millis(1_500));
        seed.step_wall(-2_000);
        assert_eq!(wall_time().0 + 500, wall.0);
    }
}
