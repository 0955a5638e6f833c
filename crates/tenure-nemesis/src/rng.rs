//! Random numbers from one seed: when a fault begins, which target it hits, how long a client
//! holds.
//!
//! Only the schedule is repeated by the seed. Real processes on real time are not, so a finding is
//! kept as its histories, not as a number.

use std::time::Duration;

use tenure_core::rng;

/// Small, good enough for schedules, and every seed is a good one.
#[derive(Clone, Debug)]
pub struct NemesisRng {
    state: u64,
}

impl NemesisRng {
    /// A generator with the same numbers for the same seed.
    pub fn new(seed: u64) -> NemesisRng {
        NemesisRng { state: seed }
    }

    /// A generator for another actor. How often it is used does not change the numbers of this one.
    pub fn split(&mut self) -> NemesisRng {
        NemesisRng::new(self.number())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        rng::next(&mut self.state)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.number() % end }
    }

    /// A place in a list that long.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(u64::try_from(len).unwrap_or(u64::MAX))).unwrap_or(0)
    }

    /// A time from `low` milliseconds on, below `end`.
    pub fn ms(&mut self, low: u64, end: u64) -> Duration {
        Duration::from_millis(low + self.below(end.saturating_sub(low)))
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }
}
