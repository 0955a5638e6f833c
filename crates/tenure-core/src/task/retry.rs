//! Error policies: whether a task that failed is retried after a sleep, or fails for good.
//!
//! The default policy counts recent errors and not all of them. A task that fails once a day for a
//! year is retried; one that fails eight times in four hours is broken.

use std::time::Duration;

use thiserror::Error;

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

/// The default policy: a number of errors within a period is too many. Until then the task sleeps
/// after each error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorRate {
    within: Duration,
    errors_max: usize,
    sleep: Duration,
}

/// A policy that could never fail a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{0} errors are to be too many, but only 1 to {ERRORS_LEN_MAX} are counted")]
pub struct InvalidRetry(pub usize);

impl Default for ErrorRate {
    /// Eight errors within four hours are too many. After any other error the task sleeps for ten
    /// minutes.
    fn default() -> ErrorRate {
        ErrorRate {
            within: Duration::from_secs(4 * 60 * 60),
            errors_max: ERRORS_LEN_MAX,
            sleep: Duration::from_secs(10 * 60),
        }
    }
}

impl ErrorRate {
    /// Sets how many errors within which period are too many.
    ///
    /// # Errors
    ///
    /// [`InvalidRetry`] unless there are 1 to 8: a record keeps the newest eight.
    pub fn too_many(mut self, errors: usize, within: Duration) -> Result<ErrorRate, InvalidRetry> {
        if !(1..=ERRORS_LEN_MAX).contains(&errors) {
            return Err(InvalidRetry(errors));
        }
        (self.errors_max, self.within) = (errors, within);
        Ok(self)
    }

    /// Sets how long the task sleeps after an error.
    #[must_use]
    pub fn sleep(mut self, sleep: Duration) -> ErrorRate {
        self.sleep = sleep;
        self
    }
}

impl ErrorPolicy for ErrorRate {
    fn decide(&self, task: &StateRecord, now: Timestamp) -> RetryDecision {
        let since = Timestamp(now.0.saturating_sub(ms(self.within)));
        // An error in the future comes from a clock that is ahead. It counts as recent.
        let recent = task.errors.iter().filter(|error| error.at > since).count();
        if recent >= self.errors_max {
            return RetryDecision::Fail { reason: "exceeded error rate".to_owned() };
        }
        RetryDecision::Sleep { until: Timestamp(now.0.saturating_add(ms(self.sleep))) }
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
        let task = failed_at(&ErrorRate::default(), [HOUR]);
        assert_eq!(task.state, TaskStatus::Sleeping { until: Timestamp(HOUR + 10 * MINUTE) });
    }

    #[test]
    fn eighth_error_within_four_hours_fails_task() {
        let every_half_hour = |count| (0..count).map(|n| HOUR + n * 30 * MINUTE);
        assert!(!failed_at(&ErrorRate::default(), every_half_hour(7)).state.is_terminal());
        let task = failed_at(&ErrorRate::default(), every_half_hour(8));
        assert_eq!(task.state, TaskStatus::Failed);
        assert_eq!(task.reason.as_deref(), Some("exceeded error rate"));
        assert_eq!((task.errors.len(), task.faults), (8, 8));
    }

    #[test]
    fn errors_older_than_four_hours_do_not_count() {
        let every_40_minutes = (0..1_000).map(|n| n * 40 * MINUTE);
        let task = failed_at(&ErrorRate::default(), every_40_minutes);
        assert!(!task.state.is_terminal(), "six in four hours, for a month");
        assert_eq!((task.errors.len(), task.faults, task.attempt()), (8, 1_000, 1_001));
    }

    #[test]
    fn an_error_exactly_four_hours_old_is_old() {
        let times = [0, HOUR, HOUR, HOUR, HOUR, HOUR, HOUR, 4 * HOUR];
        assert!(!failed_at(&ErrorRate::default(), times).state.is_terminal());
        let times = [1, HOUR, HOUR, HOUR, HOUR, HOUR, HOUR, 4 * HOUR];
        assert!(failed_at(&ErrorRate::default(), times).state.is_terminal());
    }

    #[test]
    fn future_errors_count_without_overflow() {
        let policy = ErrorRate::default().sleep(Duration::MAX).too_many(2, Duration::MAX).unwrap();
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
    fn invalid_error_limit_is_refused() {
        for errors in [0, 9] {
            assert_eq!(ErrorRate::default().too_many(errors, Duration::MAX), Err(InvalidRetry(errors)));
        }
        assert_eq!(InvalidRetry(9).to_string(), "9 errors are to be too many, but only 1 to 8 are counted");
    }
}
