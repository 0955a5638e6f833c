//! Error policies: whether a task that failed is retried after a sleep, or fails for good.
//!
//! The default policy counts recent errors and not all of them. A task that fails once a day for a
//! year is retried; one that fails eight times in four hours is broken.

use std::time::Duration;

use super::record::{ERRORS_LEN_MAX, StateRecord};
use crate::record::Timestamp;

/// Decides about tasks that failed. Implemented for closures.
///
/// It gets the whole record: the newest errors, the present one last, and the number of all errors.
pub trait ErrorPolicy: Send + Sync {
    /// How the task continues.
    fn decide(&self, task: &StateRecord, now: Timestamp) -> RetryDecision;
}

/// How a task that failed continues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RetryDecision {
    /// It sleeps, and is then retried.
    Sleep {
        /// The time at which it is retried.
        until: Timestamp,
    },
    /// It fails for good.
    Fail {
        /// Why.
        reason: String,
    },
}

impl<F: Fn(&StateRecord, Timestamp) -> RetryDecision + Send + Sync> ErrorPolicy for F {
    fn decide(&self, task: &StateRecord, now: Timestamp) -> RetryDecision {
        self(task, now)
    }
}

/// Retries a failed task after a delay, and fails it after a number of attempts.
///
/// Unless changed, the delay is 10 min, and the eighth failure within 4 h fails the task.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::task::retry::Retry;
///
/// let second = Duration::from_secs(1);
/// let retry = Retry::exponential(second, 300 * second).max_attempts(8).within(4 * 3_600 * second);
/// assert_ne!(retry, Retry::never());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    initial: Duration,
    max: Duration,
    attempts_max: Option<u32>,
    within: Option<Duration>,
}

impl Default for Retry {
    /// Ten minutes after each failure; the eighth within four hours fails the task.
    fn default() -> Retry {
        let hour = Duration::from_secs(60 * 60);
        Retry::fixed(hour / 6).max_attempts(8).within(4 * hour)
    }
}

impl Retry {
    /// Retries after this delay, which doubles with each failure up to the maximum. Never fails the task unless attempts are limited.
    #[must_use]
    pub const fn exponential(initial: Duration, max: Duration) -> Retry {
        Retry { initial, max, attempts_max: None, within: None }
    }

    /// Retries after the same delay each time. Never fails the task unless attempts are limited.
    #[must_use]
    pub const fn fixed(delay: Duration) -> Retry {
        Retry::exponential(delay, delay)
    }

    /// Fails the task with its first failure.
    #[must_use]
    pub const fn never() -> Retry {
        Retry::fixed(Duration::ZERO).max_attempts(1)
    }

    /// Fails the task when this many attempts have failed. Zero counts as one.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Retry {
        self.attempts_max = Some(attempts);
        self
    }

    /// Counts only failures that are newer than this, so that a task which fails once a day is retried for ever.
    ///
    /// A task keeps its newest eight errors. More of them are estimated from the time that these eight took.
    #[must_use]
    pub const fn within(mut self, window: Duration) -> Retry {
        self.within = Some(window);
        self
    }

    /// The failures that count, this one among them.
    fn failures(&self, task: &StateRecord, now: Timestamp) -> u64 {
        let Some(window) = self.within else { return task.faults };
        let window_ms = ms(window);
        let since = now.0.saturating_sub(window_ms);
        // An error in the future comes from a clock that is ahead. It counts as recent.
        let recent = task.errors.iter().filter(|error| error.at.0 > since).count();
        let recent = u64::try_from(recent).unwrap_or(u64::MAX);
        let oldest = task.errors.first().filter(|error| error.at.0 > since);
        match oldest {
            // Older errors may lie in the window too, but are not kept: the same rate is assumed for them.
            Some(oldest) if task.errors.len() == ERRORS_LEN_MAX => {
                let took_ms = now.0.saturating_sub(oldest.at.0).max(1);
                let estimate = u128::from(recent) * u128::from(window_ms) / u128::from(took_ms);
                u64::try_from(estimate).unwrap_or(u64::MAX).min(task.faults).max(recent)
            }
            _ => recent,
        }
    }
}

impl ErrorPolicy for Retry {
    fn decide(&self, task: &StateRecord, now: Timestamp) -> RetryDecision {
        let failures = self.failures(task, now);
        if self.attempts_max.is_some_and(|max| failures >= u64::from(max.max(1))) {
            return RetryDecision::Fail { reason: "exceeded error rate".to_owned() };
        }
        // The first failure is followed by the initial delay.
        let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
        let delay = self.initial.saturating_mul(factor).min(self.max);
        RetryDecision::Sleep { until: Timestamp(now.0.saturating_add(ms(delay))) }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::task::{TaskMessage, TaskStatus};

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;

    /// Fails a task at these times, waking it before each, and returns its final record.
    fn failed_at(policy: &dyn ErrorPolicy, times: impl IntoIterator<Item = u64>) -> StateRecord {
        let node = NodeId::parse("n").unwrap();
        let mut task = StateRecord::default();
        for at in times {
            if task.state != TaskStatus::Runnable {
                let _ = task.apply(TaskMessage::Run, Timestamp(at), &node).unwrap();
            }
            let _ = task.fail("broken", Timestamp(at), &node, policy).unwrap();
        }
        task
    }

    #[test]
    fn error_is_followed_by_sleep() {
        let task = failed_at(&Retry::default(), [HOUR]);
        assert_eq!(task.state, TaskStatus::Sleeping { until: Timestamp(HOUR + 10 * MINUTE) });
    }

    #[test]
    fn eighth_error_within_four_hours_fails_task() {
        let every_half_hour = |count| (0..count).map(|n| HOUR + n * 30 * MINUTE);
        assert!(!failed_at(&Retry::default(), every_half_hour(7)).state.is_terminal());
        let task = failed_at(&Retry::default(), every_half_hour(8));
        assert_eq!(task.state, TaskStatus::Failed);
        assert_eq!(task.reason.as_deref(), Some("exceeded error rate"));
        assert_eq!((task.errors.len(), task.faults), (8, 8));
    }

    #[test]
    fn errors_older_than_four_hours_do_not_count() {
        let every_40_minutes = (0..1_000).map(|n| n * 40 * MINUTE);
        let task = failed_at(&Retry::default(), every_40_minutes);
        assert!(!task.state.is_terminal(), "six in four hours, for a month");
        assert_eq!((task.errors.len(), task.faults, task.attempt()), (8, 1_000, 1_001));
    }

    #[test]
    fn an_error_exactly_four_hours_old_is_old() {
        let times = [0, HOUR, HOUR, HOUR, HOUR, HOUR, HOUR, 4 * HOUR];
        assert!(!failed_at(&Retry::default(), times).state.is_terminal());
        let times = [1, HOUR, HOUR, HOUR, HOUR, HOUR, HOUR, 4 * HOUR];
        assert!(failed_at(&Retry::default(), times).state.is_terminal());
    }

    #[test]
    fn future_errors_count_without_overflow() {
        let policy = Retry::fixed(Duration::MAX).max_attempts(2).within(Duration::MAX);
        assert!(!failed_at(&policy, [u64::MAX]).state.is_terminal());
        assert!(failed_at(&policy, [u64::MAX, 5]).state.is_terminal());
    }

    #[test]
    fn closure_is_error_policy() {
        let third_time = |task: &StateRecord, now: Timestamp| match task.faults {
            0..3 => RetryDecision::Sleep { until: now },
            _ => RetryDecision::Fail { reason: "three times is enough".to_owned() },
        };
        assert!(!failed_at(&third_time, [1, 2]).state.is_terminal());
        assert_eq!(failed_at(&third_time, [1, 2, 3]).reason.as_deref(), Some("three times is enough"));
    }

    #[test]
    fn exponential_delay_doubles_up_to_maximum() {
        let policy = Retry::exponential(Duration::from_secs(1), Duration::from_secs(5));
        let mut task = StateRecord::default();
        for (failures, delay_ms) in [(1, 1_000), (2, 2_000), (3, 4_000), (4, 5_000), (100, 5_000)] {
            task.faults = failures;
            let until = Timestamp(7 + delay_ms);
            assert_eq!(policy.decide(&task, Timestamp(7)), RetryDecision::Sleep { until }, "{failures}");
        }
    }

    #[test]
    fn never_fails_with_first_error() {
        assert_eq!(failed_at(&Retry::never(), [1]).state, TaskStatus::Failed);
    }

    #[test]
    fn attempts_without_window_all_count() {
        let policy = Retry::fixed(Duration::ZERO).max_attempts(12);
        let daily = |count| (0..count).map(|n| n * 24 * HOUR);
        assert!(!failed_at(&policy, daily(11)).state.is_terminal());
        assert_eq!(failed_at(&policy, daily(12)).state, TaskStatus::Failed);
    }

    /// Only eight errors are kept: of a limit of 16 in 4 h, eight in 2 h count as reached.
    #[test]
    fn limit_above_eight_is_estimated_by_rate() {
        let policy = Retry::fixed(Duration::ZERO).max_attempts(16).within(Duration::from_secs(4 * 3_600));
        let every = |minutes: u64, count: u64| (0..count).map(move |n| HOUR + n * minutes * MINUTE);
        assert_eq!(failed_at(&policy, every(15, 16)).state, TaskStatus::Failed);
        assert!(!failed_at(&policy, every(15, 15)).state.is_terminal(), "only fifteen failures in all");
        assert!(!failed_at(&policy, every(30, 100)).state.is_terminal(), "eight in four hours");
    }
}
