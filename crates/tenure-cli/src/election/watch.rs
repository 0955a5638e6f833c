//! `election watch`: prints the leader, then every change, one per line, flushed, until Ctrl-C or `--count`.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;
use tenure::election::{Gap, Observation, TermEnd};
use tenure::store::StoreError;
use tenure_core::id::ElectionName;
use tenure_core::revision::Token;

use super::{ElectionTarget, SCHEMA};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::node::format_time;
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct ElectionWatchArgs {
    /// The election's name.
    pub(super) name: String,
    /// End after this many changes; the leader at the beginning does not count.
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// End with exit code 8 after this time.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

pub(super) async fn watch(
    args: &ElectionWatchArgs,
    target: &ElectionTarget,
    output: &Output,
) -> Result<(), Failure> {
    let following = follow(args, target, output);
    match args.wait {
        None => following.await,
        Some(wait) => tokio::time::timeout(wait, following).await.unwrap_or_else(|_| {
            Err(Failure::new(Code::TimedOut, format!("not enough changes within {wait:?}"))
                .hint("wait longer with --wait, or see the leader with `tenure election show`"))
        }),
    }
}

async fn follow(args: &ElectionWatchArgs, target: &ElectionTarget, output: &Output) -> Result<(), Failure> {
    let mut observe = target.election.observe();
    let mut seen: Option<u64> = None;
    while let Some(observation) = observe.next().await {
        let observation = observation?;
        report(&target.name, &observation, output)?;
        match &mut seen {
            Some(seen) => *seen += 1,
            None => {
                output.note("watching; Ctrl-C ends");
                seen = Some(0);
            }
        }
        if args.count.is_some_and(|count| seen >= Some(count.get())) {
            return Ok(());
        }
    }
    Err(StoreError::Closed.into())
}

/// One line of the stream.
#[derive(Serialize)]
struct LeaderLine<'a> {
    schema: &'static str,
    revision: String,
    event: &'static str,
    name: &'a str,
    token: Option<String>,
    candidate: Option<&'a str>,
    value: Option<&'a str>,
    since: Option<String>,
    /// How the term before this event ended: `resigned`, `lapsed` or `unseen`; null where none was seen to end.
    reason: Option<&'static str>,
    /// For a new leader: the election had no leader for at least this long before it.
    leaderless_min_seconds: Option<f64>,
    /// The lower bound if the former leader was not killed but cut off from the store.
    leaderless_min_if_cut_off_seconds: Option<f64>,
    /// And for at most this long; null if the observer cannot know.
    leaderless_max_seconds: Option<f64>,
    /// For how much of that time the observer itself had no connection.
    blind_seconds: Option<f64>,
}

fn report(name: &ElectionName, seen: &Observation, output: &Output) -> Result<(), Failure> {
    let leader = seen.leader.as_ref();
    let gap = seen.gap.as_ref();
    let line = LeaderLine {
        schema: SCHEMA,
        revision: seen.revision.to_string(),
        event: if leader.is_some() { "leader" } else { "none" },
        name: name.as_str(),
        token: leader.map(|leader| leader.token).as_ref().map(Token::to_string),
        candidate: leader.map(|leader| leader.record.candidate.as_str()),
        value: leader.map(|leader| leader.record.value.as_str()),
        since: leader.and_then(|leader| format_time(leader.record.acquired?)),
        reason: gap.map(|gap| gap.end).or(seen.end).map(TermEnd::as_str),
        leaderless_min_seconds: gap.map(|gap| gap.min.as_secs_f64()),
        leaderless_min_if_cut_off_seconds: gap.map(|gap| gap.min_if_cut_off.as_secs_f64()),
        leaderless_max_seconds: gap.and_then(|gap| gap.max).map(|max| max.as_secs_f64()),
        blind_seconds: gap.map(|gap| gap.blind.as_secs_f64()),
    };
    if output.is_json {
        return output.object(&line);
    }
    let dash = "-";
    let reason = line.reason.unwrap_or(dash);
    output.record([
        &line.revision,
        line.event,
        line.token.as_deref().unwrap_or(dash),
        line.candidate.unwrap_or(dash),
        line.value.unwrap_or(dash),
        &gap.map_or(reason.to_owned(), shown),
    ])
}

/// A time without a leader in one cell: the reason, the bounds, and the time in which nothing was seen.
fn shown(gap: &Gap) -> String {
    let bounds = match (gap.min, gap.max) {
        (min, Some(max)) if max.as_millis() == 0 => format!("{:.3} s", min.as_secs_f64()),
        (min, Some(max)) => format!("between {} and {}", seconds(min), seconds(max)),
        (min, None) => format!("at least {}", seconds(min)),
    };
    let cut_off = if gap.min_if_cut_off < gap.min {
        format!(" (from {} if it was cut off, not killed)", seconds(gap.min_if_cut_off))
    } else {
        String::new()
    };
    let blind = if gap.blind.is_zero() {
        String::new()
    } else {
        format!(", watcher blind for {}", seconds(gap.blind))
    };
    format!("{}: no leader for {bounds}{cut_off}{blind}", gap.end.as_str())
}

/// Tenths above one second, thousandths below: a handover takes milliseconds, an expiry seconds.
fn seconds(span: Duration) -> String {
    let digits = if span < Duration::from_secs(1) { 3 } else { 1 };
    format!("{:.digits$} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(end: TermEnd, min_ms: u64, max_ms: Option<u64>) -> Gap {
        let min = Duration::from_millis(min_ms);
        let max = max_ms.map(Duration::from_millis);
        Gap { end, min, max, min_if_cut_off: min, blind: Duration::ZERO }
    }

    #[test]
    fn gap_shows_reason_bounds_and_blind_time() {
        assert_eq!(
            shown(&gap(TermEnd::Resigned, 0, Some(4))),
            "resigned: no leader for between 0.000 s and 0.004 s"
        );
        let lapsed = gap(TermEnd::Lapsed, 3_800, Some(5_000));
        assert_eq!(shown(&lapsed), "lapsed: no leader for between 3.8 s and 5.0 s");
        assert_eq!(
            shown(&Gap { min_if_cut_off: Duration::from_millis(500), ..lapsed }),
            "lapsed: no leader for between 3.8 s and 5.0 s (from 0.500 s if it was cut off, not killed)"
        );
        let unseen = Gap { blind: Duration::from_secs(7), ..gap(TermEnd::Unseen, 0, None) };
        assert_eq!(shown(&unseen), "unseen: no leader for at least 0.000 s, watcher blind for 7.0 s");
    }
}
