//! Fuzz target: a parsed duration can be formatted, and the text can be parsed again.

use std::time::Duration;

use super::{InvalidDuration, format, parse};

fn duration(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    match parse(text) {
        Ok(duration) => {
            assert_eq!(parse(&in_full(duration)), Ok(duration), "{text:?}");
            let shown = format(duration);
            // The sum of the parts may be larger than one part can be.
            if u64::try_from(duration.as_millis()).is_ok() {
                let again = parse(&shown).unwrap_or_else(|bad| panic!("{shown:?} is not parsed: {bad}"));
                assert!(again <= duration, "{shown} is more than {duration:?}");
                assert_eq!(format(again), shown);
            }
            shown.chars().filter(|c| !c.is_ascii_digit()).collect()
        }
        Err(bad) => {
            assert!(!bad.to_string().contains(char::is_control), "{bad:?}");
            match bad {
                InvalidDuration::Empty => "empty",
                InvalidDuration::NoUnit(_) => "no unit",
                InvalidDuration::UnknownUnit(_) => "unknown unit",
                InvalidDuration::NoNumber(_) => "no number",
                InvalidDuration::Disorder(_) => "disorder",
                InvalidDuration::TooLong(_) => "too long",
                InvalidDuration::Negative(_) => "negative",
            }
            .to_owned()
        }
    }
}

/// The whole duration, in parts that can each be parsed.
fn in_full(duration: Duration) -> String {
    let (ms, days) = (duration.as_millis() % 86_400_000, duration.as_millis() / 86_400_000);
    let day_max = u128::from(u64::MAX / 86_400_000);
    let (days, hours_more) = if days > day_max { (day_max, (days - day_max) * 24) } else { (days, 0) };
    let hours = ms / 3_600_000 + hours_more;
    format!("{days}d{hours}h{}m{}s{}ms", ms / 60_000 % 60, ms / 1_000 % 60, ms % 1_000)
}

#[test]
fn durations_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "duration", duration);
}
