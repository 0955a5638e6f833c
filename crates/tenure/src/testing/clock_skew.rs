//! The arithmetic of a clock that may run fast or slow, jump ahead or stop.
//!
//! **Invariant**: the clock never goes back.

use std::time::Duration;

use tenure_core::time::Moment;

/// A millionth is the unit of drift.
const MILLION: i64 = 1_000_000;

/// How the clock of a process is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockSkew {
    /// The clock jumps ahead. Before its first use, this is a constant offset.
    Ahead(Duration),
    /// The clock runs faster than the world by this many millionths, or slower if negative. 50,000 are five percent; zero ends the drift.
    Drift {
        /// The millionths.
        ppm: i32,
    },
}

/// A clock with its skew: what it shows at a given time of the world.
#[derive(Clone, Debug)]
pub(super) struct SkewedClock {
    /// When the clock was last adjusted, in the world's time.
    adjusted_at: Duration,
    /// What it showed at that time.
    showed: Moment,
    ppm: i32,
    /// What it shows while it is stopped; none while it runs.
    stopped: Option<Moment>,
}

impl SkewedClock {
    /// A clock without skew.
    pub(super) fn new() -> SkewedClock {
        SkewedClock { adjusted_at: Duration::ZERO, showed: Moment::ORIGIN, ppm: 0, stopped: None }
    }

    /// Returns what the clock shows.
    pub(super) fn now(&self, world: Duration) -> Moment {
        self.stopped.unwrap_or_else(|| self.running(world))
    }

    /// Returns when, in the world's time, the clock shows at least `moment`; none while it is stopped.
    pub(super) fn when(&self, moment: Moment) -> Option<Duration> {
        if self.stopped.is_some() {
            return None;
        }
        let ahead = moment.since(self.showed).as_nanos();
        Some(self.adjusted_at.saturating_add(from_nanos((ahead * MILLION as u128).div_ceil(self.rate()))))
    }

    pub(super) fn adjust(&mut self, skew: ClockSkew, world: Duration) {
        self.showed = self.running(world);
        self.adjusted_at = world;
        match skew {
            ClockSkew::Ahead(by) => self.showed = self.showed + by,
            ClockSkew::Drift { ppm } => {
                assert!(i64::from(ppm) > -MILLION, "a clock with a drift of {ppm} ppm would go back");
                self.ppm = ppm;
            }
        }
    }

    pub(super) fn stop(&mut self, world: Duration) {
        self.stopped = Some(self.now(world));
    }

    pub(super) fn resume(&mut self) {
        self.stopped = None;
    }

    fn running(&self, world: Duration) -> Moment {
        let passed = world.saturating_sub(self.adjusted_at).as_nanos();
        self.showed + from_nanos(passed * self.rate() / MILLION as u128)
    }

    /// Millionths of its time per time of the world.
    fn rate(&self) -> u128 {
        u128::try_from(MILLION + i64::from(self.ppm)).expect("a clock never goes back")
    }
}

fn from_nanos(nanos: u128) -> Duration {
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn drifting_clock_is_read_and_inverted() {
        for (ppm, shown_ms) in [(0, 10_000), (50_000, 10_500), (-100_000, 9_000)] {
            let mut clock = SkewedClock::new();
            clock.adjust(ClockSkew::Drift { ppm }, s(0));
            assert_eq!(clock.now(s(10)), Moment::from_ms(shown_ms));
            assert_eq!(clock.when(Moment::from_ms(shown_ms)), Some(s(10)));
        }
    }

    #[test]
    fn wake_up_of_drifting_clock_is_never_early() {
        for ppm in [-999_999, -333_333, -1, 1, 7, 333_333, i32::MAX] {
            let mut clock = SkewedClock::new();
            clock.adjust(ClockSkew::Drift { ppm }, s(3));
            for ms in [1, 17, 3_333, 100_001] {
                let moment = Moment::from_ms(ms) + s(3);
                assert!(clock.now(clock.when(moment).unwrap()) >= moment, "{ppm} ppm, {ms} ms");
            }
        }
    }

    #[test]
    fn drift_counts_from_its_begin() {
        let mut clock = SkewedClock::new();
        clock.adjust(ClockSkew::Ahead(s(5)), s(10));
        assert_eq!(clock.now(s(10)).since_origin(), s(15));
        clock.adjust(ClockSkew::Drift { ppm: 1_000_000 }, s(20));
        assert_eq!(clock.now(s(30)).since_origin(), s(45));
        clock.adjust(ClockSkew::Drift { ppm: 0 }, s(30));
        assert_eq!(clock.now(s(31)).since_origin(), s(46));
    }

    #[test]
    fn stopped_clock_jumps_when_resumed() {
        let mut clock = SkewedClock::new();
        clock.stop(s(2));
        assert_eq!((clock.now(s(9)).since_origin(), clock.when(Moment::from_ms(1))), (s(2), None));
        clock.resume();
        assert_eq!(clock.now(s(9)).since_origin(), s(9));
    }
}
