//! The flags for the retention of ended tasks.

use std::time::Duration;

use clap::Args;
use tenure::worker::Keep;

use crate::duration;

/// The limits of retention.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct KeepArgs {
    /// How long an ended task is kept with its state, kind, labels and props, as in 12h; or `forever`. One worker of the namespace deletes
    /// for all of them, so use the same value everywhere.
    #[arg(long, value_name = "DUR", default_value = "7d", value_parser = parse_age)]
    keep: KeepFor,
    /// How many ended tasks are kept in the namespace, the newest first; or `unlimited`.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = parse_max)]
    keep_max: KeepMax,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KeepFor(Option<Duration>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KeepMax(Option<u64>);

impl KeepArgs {
    pub(super) fn keep(self) -> Keep {
        Keep { age: self.keep.0, tasks_max: self.keep_max.0 }
    }
}

fn parse_age(text: &str) -> Result<KeepFor, String> {
    match text {
        "forever" => Ok(KeepFor(None)),
        text => duration::parse(text).map(|age| KeepFor(Some(age))).map_err(|bad| bad.to_string()),
    }
}

fn parse_max(text: &str) -> Result<KeepMax, String> {
    match (text, text.parse()) {
        ("unlimited", _) => Ok(KeepMax(None)),
        (_, Ok(tasks)) => Ok(KeepMax(Some(tasks))),
        _ => Err("use a number, or `unlimited`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_absent() {
        assert_eq!(parse_age("forever"), Ok(KeepFor(None)));
        assert_eq!(parse_age("2d"), Ok(KeepFor(Some(Duration::from_secs(172_800)))));
        assert!(parse_age("7").unwrap_err().contains("7s"));
        assert_eq!((parse_max("unlimited"), parse_max("9")), (Ok(KeepMax(None)), Ok(KeepMax(Some(9)))));
        assert!(parse_max("-1").is_err());
    }
}
