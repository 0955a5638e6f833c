//! Parses and formats durations: `500ms`, `15s`, `2m`, `1h30m`.
//!
//! A number without a unit is refused: tools use different default units, and a TTL that is wrong by a factor of 1,000 is an outage.

use std::time::Duration;

use thiserror::Error;

/// Why a text is not a duration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum InvalidDuration {
    #[error("the duration is empty; write it as 500ms, 15s, 2m or 1h30m")]
    Empty,
    #[error("{0} has no unit; did you mean {0}s? (also ms, m, h, d)")]
    NoUnit(String),
    #[error("unknown unit {0:?}; use ms, s, m, h or d")]
    UnknownUnit(String),
    #[error("{0:?} is not a duration; write it as 500ms, 15s, 2m or 1h30m")]
    NoNumber(String),
    #[error("{0:?} is negative; write it as 500ms, 15s, 2m or 1h30m")]
    Negative(String),
    #[error("the units of {0:?} must go from large to small, each once, as in 1h30m")]
    Disorder(String),
    #[error("{0:?} is longer than the maximum of 2^64 ms")]
    TooLong(String),
}

/// Parses a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    if text.is_empty() {
        return Err(InvalidDuration::Empty);
    }
    if text.starts_with('-') {
        return Err(InvalidDuration::Negative(text.to_owned()));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    let mut last_unit_ms = u64::MAX;
    while !rest.is_empty() {
        let digits_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(digits_end);
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        if digits.is_empty() {
            return Err(InvalidDuration::NoNumber(text.to_owned()));
        }
        if unit.is_empty() {
            return Err(InvalidDuration::NoUnit(text.to_owned()));
        }
        let unit_ms = unit_ms(unit).ok_or_else(|| InvalidDuration::UnknownUnit(unit.to_owned()))?;
        if unit_ms >= last_unit_ms {
            return Err(InvalidDuration::Disorder(text.to_owned()));
        }
        let ms = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
        total = ms
            .and_then(|ms| total.checked_add(Duration::from_millis(ms)))
            .ok_or_else(|| InvalidDuration::TooLong(text.to_owned()))?;
        last_unit_ms = unit_ms;
        rest = after;
    }
    Ok(total)
}

/// Formats a duration in its two largest units: `850ms`, `12s`, `3m12s`, `2d4h`.
pub(crate) fn format(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{s}s"),
        60..3_600 => format!("{}m{}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{}m", s / 3_600, s / 60 % 60),
        _ => format!("{}d{}h", s / 86_400, s / 3_600 % 24),
    }
}

fn unit_ms(unit: &str) -> Option<u64> {
    match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_with_units_is_parsed() {
        for (text, ms) in [
            ("500ms", 500),
            ("15s", 15_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("0s", 0),
            ("007s", 7_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn duration_is_formatted_in_two_units() {
        for (ms, text) in
            [(850, "850ms"), (12_900, "12s"), (192_000, "3m12s"), (7_380_000, "2h3m"), (187_200_000, "2d4h")]
        {
            assert_eq!(format(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn number_without_unit_is_refused() {
        assert!(parse("15").unwrap_err().to_string().contains("did you mean 15s?"));
        assert_eq!(parse("1h30"), Err(InvalidDuration::NoUnit("1h30".into())));
    }

    #[test]
    fn invalid_duration_is_refused() {
        let long = "9".repeat(30);
        for (text, error) in [
            ("", InvalidDuration::Empty),
            ("s", InvalidDuration::NoNumber("s".into())),
            ("-5s", InvalidDuration::Negative("-5s".into())),
            (" 5s", InvalidDuration::NoNumber(" 5s".into())),
            ("1.5s", InvalidDuration::UnknownUnit(".".into())),
            ("5 s", InvalidDuration::UnknownUnit(" s".into())),
            ("5S", InvalidDuration::UnknownUnit("S".into())),
            ("5us", InvalidDuration::UnknownUnit("us".into())),
            ("30m1h", InvalidDuration::Disorder("30m1h".into())),
            ("1s1s", InvalidDuration::Disorder("1s1s".into())),
            ("99999999999999999d", InvalidDuration::TooLong("99999999999999999d".into())),
            (&format!("{long}s"), InvalidDuration::TooLong(format!("{long}s"))),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }
}
