//! `election watch`: who leads, then every change, one on a line, flushed, until Ctrl-C or `--count`.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;
use tenure::core::revision::Token;
use tenure::election::{Election, Observation};
use tenure::store::StoreError;

use super::SCHEMA;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::node::said;
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// The election's name.
    pub(super) name: String,
    /// End after this many changes; who leads at the beginning is none.
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// End with 8 if that takes longer.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

pub(super) async fn watch(args: &WatchArgs, election: &Election, output: &Output) -> Result<(), Failure> {
    let following = follow(args, election, output);
    match args.wait {
        None => following.await,
        Some(wait) => tokio::time::timeout(wait, following).await.unwrap_or_else(|_| {
            Err(Failure::new(Code::TimedOut, format!("not enough changes within {wait:?}"))
                .hint("wait longer with --wait, or see who leads with `tenure election show`"))
        }),
    }
}

async fn follow(args: &WatchArgs, election: &Election, output: &Output) -> Result<(), Failure> {
    let mut observe = election.observe();
    let mut seen: Option<u64> = None;
    while let Some(observation) = observe.next().await {
        let observation = observation?;
        tell(election, &observation, seen.is_none(), output)?;
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
struct Line<'a> {
    schema: &'static str,
    revision: String,
    event: &'static str,
    name: &'a str,
    fence: Option<String>,
    candidate: Option<&'a str>,
    value: Option<&'a str>,
    since: Option<String>,
    /// For a leader: how long nobody led before it; null where that is not known.
    leaderless_seconds: Option<f64>,
}

fn tell(election: &Election, seen: &Observation, is_first: bool, output: &Output) -> Result<(), Failure> {
    let leader = seen.leader.as_ref();
    let gap = match (leader, seen.leaderless) {
        (Some(_), Some(gap)) => Some(gap),
        // It follows another at once.
        (Some(_), None) if !is_first => Some(Duration::ZERO),
        (Some(_) | None, _) => None,
    };
    let line = Line {
        schema: SCHEMA,
        revision: seen.revision.to_string(),
        event: if leader.is_some() { "leader" } else { "none" },
        name: election.name().as_str(),
        fence: leader.map(|leader| leader.token).as_ref().map(Token::to_string),
        candidate: leader.map(|leader| leader.record.candidate.as_str()),
        value: leader.map(|leader| leader.record.value.as_str()),
        since: leader.and_then(|leader| said(leader.record.since)),
        leaderless_seconds: gap.map(|gap| gap.as_secs_f64()),
    };
    if output.is_json {
        return output.object(&line);
    }
    let dash = "-";
    let gap = gap.map_or(dash.to_owned(), |gap| format!("{:.3}", gap.as_secs_f64()));
    output.record([
        &line.revision,
        line.event,
        line.fence.as_deref().unwrap_or(dash),
        line.candidate.unwrap_or(dash),
        line.value.unwrap_or(dash),
        &gap,
    ])
}
