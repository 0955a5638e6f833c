//! At most one run per period, across all processes: which run counts, and how a run is recorded.
//!
//! Periods are buckets of the wall clock, counted from 1970 on in UTC: a period of an hour begins at each full hour, one of a day at
//! midnight. A lock lets one process at a time decide, and the key `once/NAME` keeps when the last run was started. The key outlives the
//! process that ran it.
//!
//! Intuition: the record is put *before* the work starts, under the fence of the lock. A process that dies later has used up its run; a
//! process that was paused before the put finds its fence gone. Putting it after the work would run the work twice whenever the put fails.
//!
//! **Invariant** (at most once): [`BeginRun`] reports a begun run only if its record was put while
//! the lock was held and while the record it decided by was the last one.
//!
//! **Invariant** (G6): an ambiguous put is resolved by reading the record back. The token in it
//! identifies the hold that has put it.

mod request;

use std::cmp::Ordering;
use std::time::Duration;

use crate::id::{LockName, NAME_BYTES_MAX};
use crate::record::{OnceRecord, Timestamp};
use crate::rendezvous;

pub use request::{BeginRun, Begun, EndRun};

/// The shortest period. Below it the clocks of two hosts differ by more than a period.
pub const EVERY_MIN: Duration = Duration::from_secs(1);

/// How far the clock of another host may be ahead of this one. Synchronised clocks differ by milliseconds and neglected ones by a minute
/// or two, so a run that is recorded further ahead was recorded by a wrong clock. Far larger, and such a run blocks the job; far smaller,
/// and a slow clock repeats a run.
pub const AHEAD_MAX: Duration = Duration::from_secs(10 * 60);

/// How often something runs, and which runs count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnceRule {
    /// The period.
    pub every: Duration,
    /// Which runs of a period count.
    pub counted: CountedRuns,
}

/// Which runs of a period count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CountedRuns {
    /// Each that was begun.
    #[default]
    Begun,
    /// Only those that are recorded as a success. A run that failed, or has no recorded end, is
    /// repeated.
    Succeeded,
}

/// Whether something is to be run now.
#[derive(Clone, PartialEq, Debug)]
pub enum OnceDecision {
    /// No run of this period counts.
    Due {
        /// A run that was recorded in the future, by a clock that is wrong, and does not count.
        ignored: Option<OnceRecord>,
    },
    /// This run counts for this period.
    Done(OnceRecord),
}

impl OnceRule {
    /// Whether something is to be run at `now`, if this is the record of its last run.
    pub fn decide(&self, last: Option<&OnceRecord>, now: Timestamp) -> OnceDecision {
        let Some(last) = last else { return OnceDecision::Due { ignored: None } };
        let is_counted = match self.counted {
            CountedRuns::Begun => true,
            CountedRuns::Succeeded => last.exit_code == Some(0),
        };
        match RunAge::of(last.started, now, self.every) {
            RunAge::Earlier => OnceDecision::Due { ignored: None },
            RunAge::Future => OnceDecision::Due { ignored: Some(last.clone()) },
            RunAge::Current if is_counted => OnceDecision::Done(last.clone()),
            RunAge::Current => OnceDecision::Due { ignored: None },
        }
    }

    /// The number of the period that a moment is in.
    pub fn period(&self, at: Timestamp) -> u128 {
        u128::from(at.0) / self.every.as_millis().max(1)
    }

    /// How long until the next period begins.
    pub fn until_next(&self, now: Timestamp) -> Duration {
        let every = self.every.as_millis().max(1);
        let left = every - u128::from(now.0) % every;
        Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

/// Where a recorded run lies, seen from the clock of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunAge {
    /// In an earlier period.
    Earlier,
    /// In this period, or in a later one by no more than clocks may differ.
    Current,
    /// In a later period, and further ahead than the clocks of two hosts should differ.
    Future,
}

impl RunAge {
    fn of(started: Timestamp, now: Timestamp, every: Duration) -> RunAge {
        let rule = OnceRule { every, counted: CountedRuns::default() };
        match rule.period(started).cmp(&rule.period(now)) {
            Ordering::Less => RunAge::Earlier,
            Ordering::Greater if is_in_future(started, now) => RunAge::Future,
            Ordering::Equal | Ordering::Greater => RunAge::Current,
        }
    }
}

/// Whether a run was recorded by a clock that is too far ahead of this one.
pub fn is_in_future(started: Timestamp, now: Timestamp) -> bool {
    u128::from(started.0.saturating_sub(now.0)) > AHEAD_MAX.as_millis()
}

/// The lock under which something runs: `once/NAME`. Where that is too long for a name, a number takes the place of its end.
pub fn lock_of(name: &LockName) -> LockName {
    const MARK_BYTES: usize = "~0123456789abcdef".len();
    let whole = format!("once/{name}");
    let text = if whole.len() <= NAME_BYTES_MAX {
        whole
    } else {
        let mark = rendezvous::score(name.as_str().as_bytes(), b"once");
        let mut end = NAME_BYTES_MAX - MARK_BYTES;
        while !whole.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}~{mark:016x}", &whole[..end])
    };
    LockName::parse(&text).expect("a name behind a prefix is one, and it was cut to the length of one")
}

#[cfg(test)]
mod tests;
