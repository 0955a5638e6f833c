//! What a group of waiters hands on, and the clock that runs meanwhile.
//!
//! **Invariant**: one has it at a time. Two at once is no figure but a broken lock, and ends the benchmark.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::failure::BenchFailure;
use crate::sample::Sample;
use crate::workload::wrong;

/// Handed on until each waiter has had it about once, and then as often as is counted.
pub(super) struct Baton {
    state: Mutex<BatonState>,
    is_over: Notify,
    /// Hand-offs before the clock runs: until then not all waiters have entered.
    uncounted: usize,
    counted: usize,
}

#[derive(Default)]
struct BatonState {
    is_held: bool,
    /// When its last holder began to give it back.
    released: Option<Instant>,
    handed: usize,
    began: Option<Instant>,
    took: Vec<Duration>,
    total: Duration,
}

impl Baton {
    pub(super) fn new(uncounted: usize, counted: usize) -> Baton {
        Baton { state: Mutex::default(), is_over: Notify::new(), uncounted, counted }
    }

    /// A waiter has acquired the lock.
    pub(super) fn taken(&self) -> Result<(), BenchFailure> {
        let now = Instant::now();
        let mut state = self.state();
        if std::mem::replace(&mut state.is_held, true) {
            return Err(wrong("two held one lock at once"));
        }
        state.handed += 1;
        if state.handed == self.uncounted {
            state.began = Some(now);
        }
        if state.handed > self.uncounted && state.took.len() < self.counted {
            let took = state.released.map(|released| now.duration_since(released)).unwrap_or_default();
            state.took.push(took);
            if state.took.len() == self.counted {
                state.total = state.began.map(|began| now.duration_since(began)).unwrap_or_default();
                self.is_over.notify_one();
            }
        }
        Ok(())
    }

    /// Its holder begins to give it back.
    pub(super) fn released(&self) {
        let mut state = self.state();
        state.is_held = false;
        state.released = Some(Instant::now());
    }

    /// Waits until it was handed on often enough.
    pub(super) async fn over(&self) -> Sample {
        self.is_over.notified().await;
        let state = self.state();
        Sample::new(state.took.clone(), state.total, state.took.len())
    }

    fn state(&self) -> MutexGuard<'_, BatonState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holders_end_the_benchmark() {
        let baton = Baton::new(1, 1);
        baton.taken().unwrap();
        assert!(baton.taken().is_err());
    }

    #[tokio::test]
    async fn warm_up_hand_offs_do_not_count() {
        let baton = Baton::new(3, 2);
        for _ in 0..6 {
            baton.taken().unwrap();
            baton.released();
        }
        assert_eq!(baton.over().await.count, 2);
    }
}
