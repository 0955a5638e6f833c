//! The random numbers of one world: every choice of the schedule and of an actor comes from its
//! seed.

use std::time::Duration;

use tenure_core::rng;

/// Small, good enough for schedules, and every seed is a good one.
#[derive(Clone, Debug)]
pub struct SimRng {
    state: u64,
}

impl SimRng {
    /// A generator with the same numbers for the same seed.
    pub fn new(seed: u64) -> SimRng {
        SimRng { state: seed }
    }

    /// A generator for another actor. How often it is used does not change the numbers of this one.
    pub fn split(&mut self) -> SimRng {
        SimRng::new(self.number())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        rng::next(&mut self.state)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.number() % end }
    }

    /// A number from `low` on, below `end`.
    pub fn between(&mut self, low: u64, end: u64) -> u64 {
        low + self.below(end.saturating_sub(low))
    }

    /// A time from `low` milliseconds on, below `end`.
    pub fn ms(&mut self, low: u64, end: u64) -> Duration {
        Duration::from_millis(self.between(low, end))
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
        let len = u64::try_from(of.len()).expect("a slice fits into the address space");
        let at = usize::try_from(self.below(len)).expect("it is below the length");
        &of[at]
    }
}
