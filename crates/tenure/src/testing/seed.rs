//! One seed for all random numbers of a thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Numbers the seeds of all threads, so that a seed that was replaced does not end its successor.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

struct SeedState {
    id: u64,
    random: u64,
    began: Instant,
    wall_ms: u64,
}

/// While it lives, every random number of its thread is derived from one seed, unless a later seed of the thread replaces it.
///
/// The boot clock and the wall clock follow the runtime's paused time. On a current-thread runtime this makes a run repeatable to the byte.
#[derive(Debug)]
#[must_use = "dropping it ends the seed"]
pub(super) struct Seed {
    id: u64,
}

impl Seed {
    /// Begins with the current time of the runtime. Replaces the seed of this thread, if there is one.
    ///
    /// A former seed may outlive its test: an aborted task keeps its world until the runtime polls it again.
    pub(super) fn begin(seed: u64) -> Seed {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let state = SeedState { id, random: seed, began: Instant::now(), wall_ms: WALL_BEGINS_MS };
        SEED.set(Some(state));
        Seed { id }
    }

    /// Sets the wall clock forward or back.
    pub(super) fn step_wall(&self, by_ms: i64) {
        SEED.with_borrow_mut(|current| {
            if let Some(state) = current.as_mut().filter(|state| state.id == self.id) {
                state.wall_ms = state.wall_ms.saturating_add_signed(by_ms);
            }
        });
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        // An error means that the thread is ending, and its seed with it.
        let _ = SEED.try_with(|current| {
            // Neither a later seed of this thread nor that of another one, if the world was moved there.
            current.borrow_mut().take_if(|state| state.id == self.id);
        });
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
    async fn replaced_seed_does_not_end_its_successor() {
        let former = Seed::begin(7);
        let _current = Seed::begin(7);
        drop(former);
        let first = rng::nonce();
        let _again = Seed::begin(7);
        assert_eq!(rng::nonce(), first);
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
