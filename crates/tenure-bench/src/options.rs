//! Values of the command line.

use std::time::Duration;

use clap::ValueEnum;
use tenure::store::{StoreUrl, Transport};

/// An engine to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Engine {
    Memory,
    File,
    Etcd,
}

/// An etcd that hand-written calls can reach: without TLS and users.
pub(crate) fn etcd(text: &str) -> Result<StoreUrl, String> {
    let members = text.split(',').map(|member| member.trim().trim_start_matches("http://"));
    let url = format!("etcd://{}", members.collect::<Vec<_>>().join(","));
    match url.parse() {
        Ok(url @ StoreUrl::Etcd { security: Transport::Plain, .. }) => Ok(url),
        Ok(url) => Err(format!("{url} is not an etcd without TLS")),
        Err(error) => Err(format!("{error}")),
    }
}

/// A duration with a unit, as in `200ms`, `12s` or `2m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write it as 200ms, 12s or 2m");
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// One of the workloads that there are.
pub(crate) fn named(
    text: &str,
    workloads: impl Iterator<Item = &'static str> + Clone,
) -> Result<&'static str, String> {
    let known = workloads.clone().find(|workload| *workload == text);
    known.ok_or_else(|| format!("there are {}", workloads.collect::<Vec<_>>().join(", ")))
}

/// A number from 1 on.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_option_parses_member_list() {
        for text in ["a:1,b:2", "http://a:1,http://b:2", "a:1, b:2"] {
            assert_eq!(etcd(text).unwrap().to_string(), "etcd://a:1,b:2");
        }
        for text in ["", "https://a:1", "user@a:1"] {
            assert!(etcd(text).is_err(), "{text}");
        }
    }

    #[test]
    fn duration_needs_a_number_and_a_unit() {
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("12s"), Ok(Duration::from_secs(12)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "12", "s", "-1s", "1h", "1s2", "99999999999999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
