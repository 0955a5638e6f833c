//! Fuzz target: a duration that is read can be said, and what is said can be read.

use std::time::Duration;

use super::{BadDuration, parse, said};

fn duration(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    match parse(text) {
        Ok(duration) => {
            assert_eq!(parse(&in_full(duration)), Ok(duration), "{text:?}");
            let shown = said(duration);
            // Parts may add up to more milliseconds than one part can say.
            if u64::try_from(duration.as_millis()).is_ok() {
                let again =
                    parse(&shown).unwrap_or_else(|bad| panic!("{shown:?} is said and not read: {bad}"));
                assert!(again <= duration, "{shown} is more than {duration:?}");
                assert_eq!(said(again), shown);
            }
            shown.chars().filter(|c| !c.is_ascii_digit()).collect()
        }
        Err(bad) => {
            assert!(!bad.to_string().contains(char::is_control), "{bad:?}");
            match bad {
                BadDuration::Empty => "empty",
                BadDuration::NoUnit(_) => "no unit",
                BadDuration::UnknownUnit(_) => "unknown unit",
                BadDuration::NoNumber(_) => "no number",
                BadDuration::Disorder(_) => "disorder",
                BadDuration::TooLong(_) => "too long",
                BadDuration::Negative(_) => "negative",
            }
            .to_owned()
        }
    }
}

/// All of it, in parts of which each can be read.
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
