//! One seed for everything that is otherwise left to chance.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::time::Duration;

use tenure_core::record::Timestamp;
use tenure_core::rng;
use tenure_core::time::Moment;
use tokio::time::Instant;

/// What the wall shows when a fate begins: 2026-01-01. Any date would do that no test mistakes for its own.
const WALL_BEGINS_MS: u64 = 1_767_225_600_000;

/// What the machine's clock shows when a fate begins: it has been up for an hour, so that looking back a little is no underflow.
const BOOTED_FOR: Duration = Duration::from_secs(3_600);

thread_local! {
    static FATE: RefCell<Option<Told>> = const { RefCell::new(None) };
}

struct Told {
    dice: u64,
    began: Instant,
    wall_ms: u64,
}

/// As long as it lives, one seed decides everything on this thread that is otherwise left to chance.
///
/// Dice fall as the seed says, and the machine's clock and the one on the wall go with the runtime's paused time. Together with a
/// [`World`](super::World) on a current-thread runtime that makes a run repeatable to the byte: same seed, same story.
#[derive(Debug)]
#[must_use = "chance comes back when this is dropped"]
pub struct Fate {
    /// It belongs to the thread that it was begun on.
    here: PhantomData<*const ()>,
}

impl Fate {
    /// Begins, with time where the runtime's is now.
    ///
    /// # Panics
    ///
    /// If this thread has a fate already.
    pub fn decided_by(seed: u64) -> Fate {
        FATE.with_borrow_mut(|fate| {
            assert!(fate.is_none(), "a thread has one fate at a time");
            *fate = Some(Told { dice: seed, began: Instant::now(), wall_ms: WALL_BEGINS_MS });
        });
        Fate { here: PhantomData }
    }

    /// Sets the clock on the wall: forward, or back, as nobody would dare with the other clocks.
    pub fn step_wall(&self, by_ms: i64) {
        FATE.with_borrow_mut(|fate| {
            if let Some(told) = fate {
                told.wall_ms = told.wall_ms.saturating_add_signed(by_ms);
            }
        });
    }
}

impl Drop for Fate {
    fn drop(&mut self) {
        FATE.with_borrow_mut(|fate| *fate = None);
    }
}

/// Fills with what was decided; false if nothing was.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    FATE.with_borrow_mut(|fate| {
        let Some(told) = fate else { return false };
        for chunk in bytes.chunks_mut(8) {
            let number = rng::next(&mut told.dice).to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
        true
    })
}

/// What the wall shows, if that was decided.
pub(crate) fn wall() -> Option<Timestamp> {
    FATE.with_borrow(|fate| {
        let told = fate.as_ref()?;
        let passed = u64::try_from(told.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(Timestamp(told.wall_ms.saturating_add(passed)))
    })
}

/// What the machine's clock shows, if that was decided.
pub(crate) fn since_boot() -> Option<Moment> {
    FATE.with_borrow(|fate| {
        let told = fate.as_ref()?;
        Some(Moment::after_origin(BOOTED_FOR + told.began.elapsed()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{BootClock, Clock, wall_time};
    use crate::dice;

    fn throws(seed: u64) -> (f64, u64, [u8; 16]) {
        let _fate = Fate::decided_by(seed);
        (dice::throw(), dice::nonce(), dice::bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_throws_the_same_and_another_does_not() {
        assert_eq!(throws(7), throws(7));
        assert_ne!(throws(7), throws(8));
        assert_ne!(dice::nonce(), dice::nonce(), "chance is back");
    }

    #[tokio::test(start_paused = true)]
    async fn both_clocks_go_with_the_paused_time() {
        let fate = Fate::decided_by(0);
        let (wall, boot) = (wall_time(), BootClock.now());
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(wall_time().0 - wall.0, 1_500);
        assert_eq!(BootClock.now().since(boot), Duration::from_millis(1_500));
        fate.step_wall(-2_000);
        assert_eq!(wall_time().0 + 500, wall.0);
    }
}
