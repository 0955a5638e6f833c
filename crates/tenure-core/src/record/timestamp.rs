//! Timestamps as text: RFC 3339, displayed in UTC with milliseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::Timestamp;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Why a text is not a timestamp.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0:?} is not a time; write it as 2026-12-31T23:59:59Z or with an offset as +01:00")]
pub struct InvalidTimestamp(String);

impl Timestamp {
    /// The timestamp this much later; the largest one if it would overflow.
    #[must_use]
    pub fn after(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(span_ms(span)))
    }

    /// The timestamp this much earlier; the smallest one if it would underflow.
    #[must_use]
    pub fn before(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(span_ms(span)))
    }
}

fn span_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Parses RFC 3339. A time before 1970 and a leap second are refused, and digits below a
/// millisecond are ignored.
impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Timestamp, InvalidTimestamp> {
        read(text).ok_or_else(|| InvalidTimestamp(text.to_owned()))
    }
}

fn read(text: &str) -> Option<Timestamp> {
    let mut rest = Rest(text.as_bytes());
    let year = rest.number(4)?;
    rest.one_of(b"-")?;
    let month = rest.number(2)?;
    rest.one_of(b"-")?;
    let day = rest.number(2)?;
    rest.one_of(b"Tt ")?;
    let hour = rest.number(2)?;
    rest.one_of(b":")?;
    let minute = rest.number(2)?;
    rest.one_of(b":")?;
    let second = rest.number(2)?;
    let mut ms = 0;
    if rest.one_of(b".").is_some() {
        let digits = rest.digits();
        if digits.is_empty() {
            return None;
        }
        let three = digits.iter().chain(b"000").take(3);
        ms = three.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    }
    let offset_ms = match rest.one_of(b"Zz+-")? {
        sign @ (b'+' | b'-') => {
            let hours = rest.number(2)?;
            rest.one_of(b":")?;
            let minutes = rest.number(2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let ms = i64::try_from((hours * 60 + minutes) * 60_000).ok()?;
            if sign == b'+' { ms } else { -ms }
        }
        _ => 0,
    };
    let is_date = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    if !rest.0.is_empty() || !is_date || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let here_s = i64::try_from((hour * 60 + minute) * 60 + second).ok()?;
    let here_ms = (days(year, month, day)? * 86_400 + here_s) * 1_000 + ms;
    u64::try_from(here_ms - offset_ms).ok().map(Timestamp)
}

/// The rest of the text.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn number(&mut self, len: usize) -> Option<u64> {
        let (digits, rest) = self.0.split_at_checked(len)?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.0 = rest;
        Some(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
    }

    fn one_of(&mut self, bytes: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        if !bytes.contains(first) {
            return None;
        }
        self.0 = rest;
        Some(*first)
    }

    fn digits(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        self.0 = rest;
        digits
    }
}

fn days_in(year: u64, month: u64) -> u64 {
    let is_leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The number of days from 1970-01-01 to a date: the inverse of [`date`].
fn days(year: u64, month: u64, day: u64) -> Option<i64> {
    let year_from_march = year.checked_sub(u64::from(month <= 2))?;
    let (era, year_of_era) = (year_from_march / 400, year_from_march % 400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    i64::try_from(era * 146_097 + day_of_era).ok().map(|days| days - 719_468)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0 / DAY_MS);
        let ms = self.0 % DAY_MS;
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
    }
}

/// The date this many days after 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year. An era is the 400
/// years after which the calendar repeats.
fn date(days: u64) -> (u64, u64, u64) {
    let since_march_0 = days + 719_468;
    let (era, day_of_era) = (since_march_0 / 146_097, since_march_0 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_is_displayed_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_798_761_599_123, "2026-12-31T23:59:59.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(ms).to_string(), text);
        }
        // Any stored number is displayed.
        assert!(Timestamp(u64::MAX).to_string().ends_with('Z'));
    }

    #[test]
    fn displayed_days_are_parsed_back() {
        for day in (0..120_000).chain([2_932_896]) {
            let time = Timestamp(day * DAY_MS + 45_296_789);
            assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn offset_and_fraction_are_parsed() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t01:00:00.5z", 3_600_500),
            ("1970-01-01 01:30:00+01:30", 0),
            ("1969-12-31T23:00:00-01:00", 0),
            ("2026-12-31T23:59:59.123456789Z", 1_798_761_599_123),
        ] {
            assert_eq!(text.parse(), Ok(Timestamp(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-12-31",
            "2026-12-31T23:59:59",
            "2026-12-31T23:59Z",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00+24:00",
            "2026-01-01T00:00:00Zulu",
            "1969-12-31T23:59:59Z",
            "0000-01-01T00:00:00Z",
            "+026-01-01T00:00:00Z",
            "２026-01-01T00:00:00Z",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }
}
