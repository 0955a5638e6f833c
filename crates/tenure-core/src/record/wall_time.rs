//! How a stored time is shown: RFC 3339, UTC, with milliseconds.

use std::fmt;

use super::WallTime;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0 / DAY_MS);
        let ms = self.0 % DAY_MS;
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
    }
}

/// The date that is this many days after 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year; an era is the 400 years after which the calendar repeats.
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
    fn a_time_is_shown_as_rfc_3339_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_798_761_599_123, "2026-12-31T23:59:59.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(WallTime(ms).to_string(), text);
        }
        // Whatever somebody stored is shown somehow.
        assert!(WallTime(u64::MAX).to_string().ends_with('Z'));
    }
}
