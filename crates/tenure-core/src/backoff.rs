//! How long to wait before trying again: growing, scattered, forgotten after good times.
//!
//! Intuition: many clients lose one store at the same moment. If all of them come back at the same moments too, they keep it
//! down. So the *longest* wait grows by a fixed rule, and the wait itself is thrown anywhere below it ("full jitter").
//! A failure after a healthy period is a new story and starts at the first step again. Health is counted from a success, not from the
//! last failure: a store that hangs makes failures rare, and that is not health.
//!
//! The dice are the caller's: `jitter` is a throw in `0.0..=1.0`, so that a test can throw what it likes.
//!
//! **Invariant**: no wait is longer than the cap, or than the time in which it would still be of use.

use std::time::Duration;

use thiserror::Error;

use crate::time::Moment;

/// By which rule the longest wait grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Twice the one before: 1, 2, 4, 8 s.
    Exponential,
    /// One more step each time: 1, 2, 3, 4 s.
    Linear,
    /// Always the same.
    Constant,
}

/// Whether waits are scattered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jitter {
    /// Anywhere between nothing and the longest wait. The rule, wherever more than one client may fail at once.
    Full,
    /// Always the longest wait: for tests and for the only client there is.
    None,
}

/// The rule of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// How the longest wait grows.
    pub growth: Growth,
    /// The longest wait after the first failure.
    pub initial: Duration,
    /// The longest wait ever.
    pub cap: Duration,
    /// Whether waits are scattered.
    pub jitter: Jitter,
    /// After this long in which things went well the next failure is the first again.
    pub healthy_after: Duration,
}

/// A rule of waiting that would not wait, or wait without end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidBackoff {
    /// Trying again at once, for ever, is an attack on the store.
    #[error("the first wait must be longer than nothing")]
    InitialZero,
    /// The cap cuts even the first wait.
    #[error("the longest wait ({cap:?}) must not be shorter than the first ({initial:?})")]
    CapBelowInitial {
        /// The cap.
        cap: Duration,
        /// The first wait.
        initial: Duration,
    },
}

impl Backoff {
    /// 1, 2, 4, 8 s, scattered, forgotten after 10 s of health: what sessions do unless told otherwise.
    pub const DEFAULT: Backoff = Backoff {
        growth: Growth::Exponential,
        initial: Duration::from_secs(1),
        cap: Duration::from_secs(8),
        jitter: Jitter::Full,
        healthy_after: Duration::from_secs(10),
    };

    /// 50 ms to 1 s, scattered: for a request that a caller waits for. Halved, a store that comes back is met by twice the requests;
    /// doubled, a caller waits up to a second longer for it.
    pub const REQUEST: Backoff = Backoff {
        growth: Growth::Exponential,
        initial: Duration::from_millis(50),
        cap: Duration::from_secs(1),
        jitter: Jitter::Full,
        healthy_after: Duration::from_secs(10),
    };

    /// 50 ms to 2 s, scattered: for a waiter in a queue and its watches. The first wait is about a round trip, because the caller that waits for a
    /// lock waits for this too; doubled, the cap delays by up to 2 s more when a key leaves the queue of a store that is back.
    pub const QUEUE: Backoff = Backoff { cap: Duration::from_secs(2), ..Backoff::REQUEST };

    /// 50 ms to 5 s, scattered: for a feed. The first wait is short, because most breaks are over at once and every follower is blind
    /// meanwhile; doubled, it would show in takeover times. The cap keeps a hundred followers of a dead store at some tens of requests a second.
    pub const FEED: Backoff = Backoff { cap: Duration::from_secs(5), ..Backoff::REQUEST };

    /// 100 ms to 2 s, scattered: for the claims and writes of a node. The cap is a fraction of any usual validity, so that there are several
    /// retries before it ends.
    pub const WORKER: Backoff =
        Backoff { initial: Duration::from_millis(100), cap: Duration::from_secs(2), ..Backoff::REQUEST };

    /// Refuses a rule that would hammer the store.
    pub fn check(&self) -> Result<(), InvalidBackoff> {
        if self.initial.is_zero() {
            return Err(InvalidBackoff::InitialZero);
        }
        if self.cap < self.initial {
            return Err(InvalidBackoff::CapBelowInitial { cap: self.cap, initial: self.initial });
        }
        Ok(())
    }

    /// The longest wait after this many failures in a row; the first has number 1.
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

/// Where one retry loop stands.
#[derive(Clone, Debug)]
pub struct BackoffState {
    retry: Backoff,
    failures: u32,
    /// Since when things have been going well.
    healthy_since: Option<Moment>,
}

impl BackoffState {
    /// Nothing has failed yet.
    pub fn new(retry: Backoff) -> BackoffState {
        BackoffState { retry, failures: 0, healthy_since: None }
    }

    /// Notes a failure and says how long to wait. `useful` bounds the wait by how long trying again still makes sense, such as the
    /// validity that is left.
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

    /// Notes that things go well: once they have for long enough, the next failure is the first.
    pub fn after_success(&mut self, now: Moment) {
        self.healthy_since.get_or_insert(now);
    }

    /// Forgets all failures at once.
    pub fn reset(&mut self) {
        self.failures = 0;
        self.healthy_since = None;
    }

    /// How many failures there were in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether this failure is worth a line in the log: the first, and then one per doubling.
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
    fn waits_grow_by_their_rule_up_to_the_cap() {
        let rule = |growth| Backoff { growth, ..Backoff::DEFAULT };
        assert_eq!(waits(rule(Growth::Exponential), 6, 1.0), [1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
        assert_eq!(waits(rule(Growth::Linear), 9, 1.0)[6..], [7_000, 8_000, 8_000]);
        assert_eq!(waits(rule(Growth::Constant), 3, 1.0), [1_000; 3]);
    }

    #[test]
    fn full_jitter_throws_anywhere_below_the_longest_wait() {
        assert_eq!(waits(Backoff::DEFAULT, 3, 0.0), [0; 3]);
        assert_eq!(waits(Backoff::DEFAULT, 3, 0.5), [500, 1_000, 2_000]);
        assert_eq!(
            waits(Backoff { jitter: Jitter::None, ..Backoff::DEFAULT }, 3, 0.5),
            [1_000, 2_000, 4_000]
        );
    }

    #[test]
    fn a_failure_after_a_healthy_period_is_the_first_again() {
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

    /// Failures used to be forgotten when the last one was long ago. A store that hangs answers each try after its time-out, so in the
    /// middle of one outage the waits began again at the first step, and so did the warnings.
    #[test]
    fn tries_that_hang_are_not_health() {
        let mut backoff = BackoffState::new(Backoff::DEFAULT);
        let mut at = |s: u64| backoff.after_failure(Moment::from_ms(s * 1_000), 1.0, None).as_secs();
        assert_eq!([at(0), at(13), at(26), at(39), at(52)], [1, 2, 4, 8, 8]);
    }

    #[test]
    fn no_wait_outlives_its_use() {
        let mut backoff = BackoffState::new(Backoff::DEFAULT);
        let useful = Some(Duration::from_millis(300));
        assert_eq!(backoff.after_failure(Moment::ORIGIN, 1.0, useful), Duration::from_millis(300));
    }

    #[test]
    fn a_thousand_failures_overflow_nothing() {
        for growth in [Growth::Exponential, Growth::Linear, Growth::Constant] {
            let retry = Backoff { growth, cap: Duration::MAX, ..Backoff::DEFAULT };
            assert_eq!(waits(retry, 1_000, 1.0).len(), 1_000);
        }
    }

    #[test]
    fn the_log_hears_of_the_first_failure_and_of_each_doubling() {
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
    fn a_rule_that_would_hammer_the_store_is_refused() {
        let zero = Backoff { initial: Duration::ZERO, ..Backoff::DEFAULT };
        assert_eq!(zero.check(), Err(InvalidBackoff::InitialZero));
        assert!(Backoff { cap: Duration::from_millis(1), ..Backoff::DEFAULT }.check().is_err());
        assert!(Backoff::DEFAULT.check().is_ok());
    }
}
