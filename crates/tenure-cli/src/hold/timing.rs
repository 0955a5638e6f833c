//! Divides the TTL of a hold between the command, its grace and the margin.
//!
//! ```text
//! sent ─── ttl/3: renewal ───────── term ────── kill ────── earliest expiry in the store
//!                                    │◄─ grace ─►│◄─ margin ─►│
//! ```
//!
//! Everything counts from when the last acknowledged renewal was *sent*: the store starts to count later.

use std::time::Duration;

use tenure_core::keepalive;
use tenure_core::time::Moment;
use thiserror::Error;

use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::supervise::Deadlines;

/// How long a command has to stop by default, where the TTL allows it.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// A renewal is sent after this part of the TTL.
const RENEWED_AFTER: u32 = 3;

/// The part of the TTL that the reply to a renewal may take before the command is stopped. With less, every short delay stops it.
const ANSWERED_WITHIN: u32 = 12;

/// The shortest TTL that the default grace and margin fit into: a grace of a third, and 500 ms as a quarter of the TTL.
const TTL_MIN: Duration = Duration::from_secs(2);

/// From this TTL on, a dead host means a long outage. Below it, a reboot takes as long.
const TTL_LONG: Duration = Duration::from_secs(10 * 60);

/// The hint for a TTL that is too short.
pub(super) const LONGER_TTL: &str = "use a longer --ttl, such as the default 15s";

/// A TTL and its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timing {
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    margin: Option<Duration>,
}

/// Why times do not fit into the TTL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum InvalidTiming {
    #[error("the TTL is zero")]
    Zero,
    #[error(
        "a TTL of {ttl:?} is too short: the command would be stopped before a renewal can be acknowledged"
    )]
    ShortTtl { ttl: Duration },
    #[error(
        "a grace of {grace:?} is too long for a TTL of {ttl:?}: with a margin of {margin:?} the command would be stopped \
         {term:?} after a renewal, and the next renewal can take until {needed:?}"
    )]
    Grace { ttl: Duration, grace: Duration, margin: Duration, term: Duration, needed: Duration },
    #[error(
        "a margin of {margin:?} is too long for a TTL of {ttl:?}: with a grace of {grace:?} the command would be stopped \
         {term:?} after a renewal, and the next renewal can take until {needed:?}"
    )]
    LongMargin { ttl: Duration, grace: Duration, margin: Duration, term: Duration, needed: Duration },
    #[error("a margin of {margin:?} is too short for a TTL of {ttl:?}: the minimum is {least:?}")]
    Margin { ttl: Duration, margin: Duration, least: Duration },
}

impl From<InvalidTiming> for Failure {
    fn from(bad: InvalidTiming) -> Failure {
        let hint = match bad {
            InvalidTiming::ShortTtl { .. } => {
                format!("use --ttl {TTL_MIN:?} or longer; the default is 15s")
            }
            InvalidTiming::Zero => format!("use --ttl {TTL_MIN:?} or longer; the default is 15s"),
            InvalidTiming::Margin { least, .. } => format!("use --margin {least:?} or more, or leave it out"),
            InvalidTiming::Grace { ttl, margin, needed, .. } => match ttl.saturating_sub(needed + margin) {
                Duration::ZERO => "use a longer --ttl".to_owned(),
                most => format!("use --grace {}ms or less, or a longer --ttl", most.as_millis()),
            },
            InvalidTiming::LongMargin { ttl, grace, needed, .. } => {
                match ttl.saturating_sub(needed + grace) {
                    Duration::ZERO => "use a shorter --margin and --grace, or a longer --ttl".to_owned(),
                    most => format!("use --margin {}ms or less, or a longer --ttl", most.as_millis()),
                }
            }
        };
        Failure::usage(bad.to_string()).hint(hint)
    }
}

impl Timing {
    /// Divides a TTL.
    pub(crate) fn divide(
        ttl: Duration,
        grace: Option<Duration>,
        margin: Option<Duration>,
    ) -> Result<Timing, InvalidTiming> {
        if ttl.is_zero() {
            return Err(InvalidTiming::Zero);
        }
        let least = keepalive::Timing::margin_of(ttl);
        if let Some(margin) = margin.filter(|&margin| margin < least) {
            return Err(InvalidTiming::Margin { ttl, margin, least });
        }
        let is_usual_grace = grace.is_none();
        let grace = grace.unwrap_or(GRACE_DEFAULT.min(ttl / 3));
        let timing = Timing { ttl, grace, margin };
        let is_own_margin = margin.is_some();
        let margin = timing.margin(ttl);
        let (term, needed) =
            (ttl.saturating_sub(grace.saturating_add(margin)), ttl / RENEWED_AFTER + ttl / ANSWERED_WITHIN);
        if term < needed && is_usual_grace && !is_own_margin {
            return Err(InvalidTiming::ShortTtl { ttl });
        }
        // Messages show whole milliseconds.
        let [grace, term, needed] = [grace, term, needed].map(whole_ms);
        // The error names the flag that was given.
        if term < needed && is_own_margin && (is_usual_grace || ttl.saturating_sub(margin) < needed) {
            return Err(InvalidTiming::LongMargin { ttl, grace, margin, term, needed });
        }
        if term < needed {
            return Err(InvalidTiming::Grace { ttl, grace, margin, term, needed });
        }
        Ok(timing)
    }

    /// When the command is stopped and when it is killed, if the last acknowledged request was sent at `sent`. The store may have
    /// granted a longer TTL than requested.
    pub(crate) fn deadlines(&self, sent: Moment, granted: Duration) -> Deadlines {
        let kill = sent + granted.saturating_sub(self.margin(granted));
        Deadlines { term: kill - self.grace, kill }
    }

    /// When the renewal was sent that made a lease valid until then.
    pub(crate) fn sent(valid_until: Moment, granted: Duration) -> Moment {
        valid_until + keepalive::Timing::margin_of(granted) - granted
    }

    /// When the next renewal is due.
    pub(super) fn renewal(sent: Moment, granted: Duration) -> Moment {
        sent + granted / RENEWED_AFTER
    }

    fn margin(&self, ttl: Duration) -> Duration {
        let least = keepalive::Timing::margin_of(ttl);
        self.margin.map_or(least, |margin| margin.max(least))
    }
}

/// Warns of a long TTL: after the death of a host, no other process can take over until it has passed.
pub(crate) fn warn_of_long(ttl: Duration, output: &Output) {
    if ttl >= TTL_LONG {
        let ttl = duration::format(ttl);
        output.warn(&format!(
            "with a TTL of {ttl}, no other process can take over for up to {ttl} if this host dies; \
             --ttl 15s is enough, because it is renewed while this process lives"
        ));
    }
}

fn whole_ms(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn default_times_match_the_documentation() {
        for (ttl, term, kill) in [(15_000, 9_250, 14_250), (60_000, 52_000, 57_000), (3_000, 1_500, 2_500)] {
            let timing = Timing::divide(ms(ttl), None, None).unwrap();
            let deadlines = timing.deadlines(Moment::from_ms(1_000), ms(ttl));
            let at = |moment: Moment| moment.since(Moment::from_ms(1_000));
            assert_eq!((at(deadlines.term), at(deadlines.kill)), (ms(term), ms(kill)), "{ttl}");
        }
    }

    #[test]
    fn longer_granted_ttl_moves_both_deadlines() {
        let timing = Timing::divide(ms(15_000), Some(ms(4_000)), Some(ms(1_000))).unwrap();
        let deadlines = timing.deadlines(Moment::ORIGIN, ms(30_000));
        assert_eq!((deadlines.term, deadlines.kill), (Moment::from_ms(24_500), Moment::from_ms(28_500)));
    }

    #[test]
    fn unfit_times_are_refused_with_numbers() {
        let text =
            |ttl, grace, margin| Failure::from(Timing::divide(ms(ttl), grace, margin).unwrap_err()).message;
        assert!(text(0, None, None).contains("zero"));
        let grace = text(15_000, Some(ms(9_000)), None);
        for number in ["9s", "15s", "750ms", "5.25s", "6.25s"] {
            assert!(grace.contains(number), "{grace} has no {number}");
        }
        for ttl in [1, 200, 1_500, 1_999] {
            assert!(text(ttl, None, None).contains("too short"), "{ttl}");
        }
        let margin = text(15_000, None, Some(ms(100)));
        assert!(margin.contains("100ms") && margin.contains("750ms"), "{margin}");
        assert!(Timing::divide(ms(15_000), Some(ms(8_000)), None).is_ok());
        assert!(Timing::divide(ms(2_000), None, None).is_ok());
        assert!(Timing::divide(ms(15_000), Some(Duration::MAX), None).is_err());
    }
}
