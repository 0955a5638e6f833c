//! Delays between retries: growing, with jitter, reset after a healthy period.
//!
//! Intuition: many clients lose one store at the same moment. If all of them return at the same
//! moments too, they keep it down. So the *longest* delay grows by a fixed rule, and the delay
//! itself is random below it ("full jitter"). A failure after a healthy period starts at the first
//! step again. Health is counted from a success, not from the last failure: a store that hangs
//! makes failures rare, and that is not health.
//!
//! The caller passes the random number: `jitter` is in `0.0..=1.0`, so that a test can choose it.
//!
//! **Invariant**: no delay is longer than the cap, or than the time in which a retry would still be
//! useful.

use std::time::Duration;

use thiserror::Error;

use crate::time::Moment;

/// How the longest delay grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Twice the one before: 1, 2, 4, 8 s.
    Exponential,
    /// One more step each time: 1, 2, 3, 4 s.
    Linear,
    /// Always the same.
    Constant,
}

/// Whether delays are random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jitter {
    /// Anywhere between zero and the longest delay. Needed wherever more than one client may fail
    /// at the same moment.
    Full,
    /// Always the longest delay: for tests, and for a single client.
    None,
}

/// The policy of a retry loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// How the longest delay grows.
    pub growth: Growth,
    /// The longest delay after the first failure.
    pub initial: Duration,
    /// The longest delay of all.
    pub cap: Duration,
    /// Whether delays are random.
    pub jitter: Jitter,
    /// After this long without a failure the next one counts as the first.
    pub healthy_after: Duration,
}

/// A policy without a delay, or with an unbounded one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidBackoff {
    /// Immediate endless retries would overload the store.
    #[error("the first delay must be greater than zero")]
    InitialZero,
    /// The cap is below the first delay.
    #[error("the longest delay ({cap:?}) must not be shorter than the first ({initial:?})")]
    CapBelowInitial {
        /// The cap.
        cap: Duration,
        /// The first delay.
        initial: Duration,
    },
}

impl Backoff {
    /// 1, 2, 4, 8 s with jitter, reset after 10 s of health: the default of sessions.
    pub const DEFAULT: Backoff = Backoff {
        growth: Growth::Exponential,
        initial: Duration::from_secs(1),
        cap: Duration::from_secs(8),
        jitter: Jitter::Full,
        healthy_after: Duration::from_secs(10),
    };

    /// 50 ms to 1 s with jitter: for a request that a caller waits for. Halved, a store that
    /// returns receives twice the requests; doubled, a caller waits up to a second longer.
    pub const REQUEST: Backoff = Backoff {
        growth: Growth::Exponential,
        initial: Duration::from_millis(50),
        cap: Duration::from_secs(1),
        jitter: Jitter::Full,
        healthy_after: Duration::from_secs(10),
    };

    /// 50 ms to 2 s with jitter: for a waiter in a queue and its watches. The first delay is about
    /// a round trip, because the caller that waits for a lock waits for this too. With the cap
    /// doubled, a key leaves the queue of a store that is back up to 2 s later.
    pub const QUEUE: Backoff = Backoff { cap: Duration::from_secs(2), ..Backoff::REQUEST };

    /// 50 ms to 5 s with jitter: for a feed. The first delay is short, because most breaks end at
    /// once and a follower sees no change in between; doubled, it would show in takeover times. The
    /// cap bounds a hundred followers of an unreachable store to some tens of requests a second.
    pub const FEED: Backoff = Backoff { cap: Duration::from_secs(5), ..Backoff::REQUEST };

    /// 100 ms to 2 s with jitter: for the claims and writes of a worker. The cap is a fraction of
    /// any usual validity, so several retries fit into it.
    pub const WORKER: Backoff =
        Backoff { initial: Duration::from_millis(100), cap: Duration::from_secs(2), ..Backoff::REQUEST };

    /// Rejects a policy that would overload the store.
    pub fn check(&self) -> Result<(), InvalidBackoff> {
        if self.initial.is_zero() {
            return Err(InvalidBackoff::InitialZero);
        }
        if self.cap < self.initial {
            return Err(InvalidBackoff::CapBelowInitial { cap: self.cap, initial: self.initial });
        }
        Ok(())
    }

    /// The longest delay after this many failures in a row. The first failure has number 1.
    fn ceiling(&self, failures: u32) -> Duration {
        let steps = failures.max(1);
        let wait = match self.growth {
            Growth::Exponential => {
                self.initial.saturating_mul(1_u32.checked_shl(steps - 1).unwrap_or(u32::MAX))
            }
            Growth::Linear => self.initial.saturating_mul(steps),
            Growth::Constant => self.initial,
        };
        wait.min(self.cap)
    }
}

/// The state of one retry loop.
#[derive(Clone, Debug)]
pub struct BackoffState {
    retry: Backoff,
    failures: u32,
    /// The time of the first success since the last failure.
    healthy_since: Option<Moment>,
}

impl BackoffState {
    /// Creates the state before the first failure.
    pub fn new(retry: Backoff) -> BackoffState {
        BackoffState { retry, failures: 0, healthy_since: None }
    }

    /// Records a failure and returns the delay. `useful` bounds the delay by the time in which a
    /// retry still makes sense, such as the remaining validity.
    pub fn after_failure(&mut self, now: Moment, jitter: f64, useful: Option<Duration>) -> Duration {
        if self.healthy_since.take().is_some_and(|since| now.since(since) >= self.retry.healthy_after) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let ceiling = self.retry.ceiling(self.failures);
        let wait = match self.retry.jitter {
            Jitter::Full => ceiling.mul_f64(jitter.clamp(0.0, 1.0)),
            Jitter::None => ceiling,
        };
        useful.map_or(wait, |useful| wait.min(useful))
    }

    /// Records a success. Once successes have lasted for `healthy_after`, the next failure counts
    /// as the first.
    pub fn after_success(&mut self, now: Moment) {
        self.healthy_since.get_or_insert(now);
    }

    /// Clears all failures immediately.
    pub fn reset(&mut self) {
        self.failures = 0;
        self.healthy_since = None;
    }

    /// The number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether to log this failure: the first, and then one per doubling.
    pub fn is_worth_logging(&self) -> bool {
        self.failures.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(retry: Backoff, count: usize, jitter: f64) -> Vec<u128> {
        let mut backoff = BackoffState::new(retry);
        (0..count).map(|_| backoff.after_failure(Moment::ORIGIN, jitter, None).as_millis()).collect()
    }

    #[test]
    fn delays_grow_up_to_the_cap() {
        let rule = |growth| Backoff { growth, ..Backoff::DEFAULT };
        assert_eq!(waits(rule(Growth::Exponential), 6, 1.0), [1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
        assert_eq!(waits(rule(Growth::Linear), 9, 1.0)[6..], [7_000, 8_000, 8_000]);
        assert_eq!(waits(rule(Growth::Constant), 3, 1.0), [1_000; 3]);
    }

    #[test]
    fn full_jitter_stays_below_the_longest_delay() {
        assert_eq!(waits(Backoff::DEFAULT, 3, 0.0), [0; 3]);
        assert_eq!(waits(Backoff::DEFAULT, 3, 0.5), [500, 1_000, 2_000]);
        assert_eq!(
            waits(Backoff { jitter: Jitter::None, ..Backoff::DEFAULT }, 3, 0.5),
            [1_000, 2_000, 4_000]
        );
    }

    #[test]
    fn healthy_period_resets_the_delay() {
        let mut backoff = BackoffState::new(Backoff::DEFAULT);
        let fail = |backoff: &mut BackoffState, ms| {
            backoff.after_failure(Moment::from_ms(ms), 1.0, None).as_millis()
        };
        assert_eq!((fail(&mut backoff, 0), fail(&mut backoff, 1_000)), (1_000, 2_000));
        backoff.after_success(Moment::from_ms(2_000));
        assert_eq!(fail(&mut backoff, 11_999), 4_000, "a short recovery is none");
        backoff.after_success(Moment::from_ms(20_000));
        backoff.after_success(Moment::from_ms(29_000));
        assert_eq!(fail(&mut backoff, 30_000), 1_000);
    }

    /// Failures used to be forgotten when the last one was long ago. A store that hangs ends each
    /// attempt with a timeout, so delays and warnings began again at the first step in the middle
    /// of one outage.
    #[test]
    fn hanging_attempts_do_not_reset_delay() {
        let mut backoff = BackoffState::new(Backoff::DEFAULT);
        let mut at = |s: u64| backoff.after_failure(Moment::from_ms(s * 1_000), 1.0, None).as_secs();
        assert_eq!([at(0), at(13), at(26), at(39), at(52)], [1, 2, 4, 8, 8]);
    }

    #[test]
    fn delay_is_bounded_by_its_use() {
        let mut backoff = BackoffState::new(Backoff::DEFAULT);
        let useful = Some(Duration::from_millis(300));
        assert_eq!(backoff.after_failure(Moment::ORIGIN, 1.0, useful), Duration::from_millis(300));
    }

    #[test]
    fn many_failures_do_not_overflow() {
        for growth in [Growth::Exponential, Growth::Linear, Growth::Constant] {
            let retry = Backoff { growth, cap: Duration::MAX, ..Backoff::DEFAULT };
            assert_eq!(waits(retry, 1_000, 1.0).len(), 1_000);
        }
    }

    #[test]
    fn first_and_doubled_failures_are_logged() {
        let mut backoff = BackoffState::new(Backoff::DEFAULT);
        let told: Vec<u32> = (1..=20)
            .filter(|_| {
                backoff.after_failure(Moment::ORIGIN, 1.0, None);
                backoff.is_worth_logging()
            })
            .collect();
        assert_eq!(told, [1, 2, 4, 8, 16]);
    }

    #[test]
    fn policy_without_delay_is_refused() {
        let zero = Backoff { initial: Duration::ZERO, ..Backoff::DEFAULT };
        assert_eq!(zero.check(), Err(InvalidBackoff::InitialZero));
        assert!(Backoff { cap: Duration::from_millis(1), ..Backoff::DEFAULT }.check().is_err());
        assert!(Backoff::DEFAULT.check().is_ok());
    }
}
