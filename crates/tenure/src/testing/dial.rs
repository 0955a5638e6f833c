//! The arithmetic of a clock that may run fast or slow, jump ahead or stand still.
//!
//! **Invariant**: it never goes back.

use std::time::Duration;

use tenure_core::time::Moment;

/// A millionth is the unit of drift.
const MILLION: i64 = 1_000_000;

/// How a clock is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skew {
    /// It jumps ahead. Before anything has happened, that is a constant offset.
    Ahead(Duration),
    /// It runs faster than the world by this many millionths, or slower if negative; 50,000 are five percent. Zero sets it right again.
    Drift {
        /// The millionths.
        ppm: i32,
    },
}

/// What a clock shows, given the world's time.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    /// When the clock was last adjusted, in the world's time, and what it showed then.
    adjusted_at: Duration,
    showed: Moment,
    ppm: i32,
    /// What it shows while it is stopped.
    stopped: Option<Moment>,
}

impl Dial {
    /// A clock that is right.
    pub(super) fn new() -> Dial {
        Dial { adjusted_at: Duration::ZERO, showed: Moment::ORIGIN, ppm: 0, stopped: None }
    }

    /// What it shows.
    pub(super) fn now(&self, world: Duration) -> Moment {
        self.stopped.unwrap_or_else(|| self.running(world))
    }

    /// When, in the world's time, it will show at least `moment`; none while it is stopped.
    pub(super) fn when(&self, moment: Moment) -> Option<Duration> {
        if self.stopped.is_some() {
            return None;
        }
        let ahead = moment.since(self.showed).as_nanos();
        Some(self.adjusted_at.saturating_add(from_nanos((ahead * MILLION as u128).div_ceil(self.rate()))))
    }

    pub(super) fn skew(&mut self, skew: Skew, world: Duration) {
        self.showed = self.running(world);
        self.adjusted_at = world;
        match skew {
            Skew::Ahead(by) => self.showed = self.showed + by,
            Skew::Drift { ppm } => {
                assert!(i64::from(ppm) > -MILLION, "a clock with a drift of {ppm} ppm would go back");
                self.ppm = ppm;
            }
        }
    }

    pub(super) fn stop(&mut self, world: Duration) {
        self.stopped = Some(self.now(world));
    }

    pub(super) fn go_on(&mut self) {
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
    fn a_clock_that_drifts_shows_more_or_less_and_is_asked_for_the_right_moment() {
        for (ppm, shown_ms) in [(0, 10_000), (50_000, 10_500), (-100_000, 9_000)] {
            let mut dial = Dial::new();
            dial.skew(Skew::Drift { ppm }, s(0));
            assert_eq!(dial.now(s(10)), Moment::from_ms(shown_ms));
            assert_eq!(dial.when(Moment::from_ms(shown_ms)), Some(s(10)));
        }
    }

    #[test]
    fn the_moment_a_drifting_clock_is_asked_for_is_never_early() {
        for ppm in [-999_999, -333_333, -1, 1, 7, 333_333, i32::MAX] {
            let mut dial = Dial::new();
            dial.skew(Skew::Drift { ppm }, s(3));
            for ms in [1, 17, 3_333, 100_001] {
                let moment = Moment::from_ms(ms) + s(3);
                assert!(dial.now(dial.when(moment).unwrap()) >= moment, "{ppm} ppm, {ms} ms");
            }
        }
    }

    #[test]
    fn a_jump_lasts_and_a_drift_counts_from_when_it_began() {
        let mut dial = Dial::new();
        dial.skew(Skew::Ahead(s(5)), s(10));
        assert_eq!(dial.now(s(10)).since_origin(), s(15));
        dial.skew(Skew::Drift { ppm: 1_000_000 }, s(20));
        assert_eq!(dial.now(s(30)).since_origin(), s(45));
        dial.skew(Skew::Drift { ppm: 0 }, s(30));
        assert_eq!(dial.now(s(31)).since_origin(), s(46));
    }

    #[test]
    fn a_stopped_clock_shows_one_moment_and_then_jumps() {
        let mut dial = Dial::new();
        dial.stop(s(2));
        assert_eq!((dial.now(s(9)).since_origin(), dial.when(Moment::from_ms(1))), (s(2), None));
        dial.go_on();
        assert_eq!(dial.now(s(9)).since_origin(), s(9));
    }
}
