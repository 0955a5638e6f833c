//! Time as the machines receive it: an argument, never read from a clock.
//!
//! A [`Moment`] counts from an origin of its clock. On Linux that is boot time (`CLOCK_BOOTTIME`),
//! because a lease keeps running while the machine sleeps and `Instant` does not.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time on one clock. Moments of two clocks must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The origin of the clock.
    pub const ORIGIN: Moment = Moment(Duration::ZERO);

    /// The moment this long after the clock's origin.
    pub const fn after_origin(elapsed: Duration) -> Moment {
        Moment(elapsed)
    }

    /// The moment this many milliseconds after the clock's origin.
    pub const fn from_ms(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    /// The time since the clock's origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time since `earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from `now` until this moment, or zero if it has passed.
    pub const fn remaining(self, now: Moment) -> Duration {
        self.0.saturating_sub(now.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    /// Saturates: a TTL of centuries must not overflow into the past.
    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(duration))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_never_wraps() {
        assert_eq!(Moment::from_ms(5) - Duration::from_secs(1), Moment::ORIGIN);
        assert!(Moment::from_ms(5) + Duration::MAX > Moment::from_ms(u64::MAX));
    }

    #[test]
    fn a_passed_moment_has_nothing_remaining() {
        assert_eq!(Moment::from_ms(5).remaining(Moment::from_ms(9)), Duration::ZERO);
        assert_eq!(Moment::from_ms(9).since(Moment::from_ms(5)), Duration::from_millis(4));
    }
}
