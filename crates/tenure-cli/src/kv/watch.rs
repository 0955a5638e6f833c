//! `kv watch`: prints every change, one per line, flushed, until Ctrl-C, `--count` or the end of the stream.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;
use tenure::store::{
    Change, PreviousValues, Revision, Selection, Store, StoreError, WatchItem, WatchStart, WatchStream,
};

use super::key::{KeyOrPrefix, parse_revision_or_zero};
use super::rows::{KvKey, KvPair};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct KvWatchArgs {
    #[command(flatten)]
    target: KeyOrPrefix,
    /// Start after this revision, with the changes since then; without it, start now.
    #[arg(long, value_name = "REV", value_parser = parse_revision_or_zero)]
    after: Option<Revision>,
    /// Also print the previous value.
    #[arg(long)]
    prev: bool,
    /// End after this many changes; a transaction is always printed completely.
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// End with exit code 8 after this time.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

impl KvWatchArgs {
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        self.target.selection()
    }
}

pub(super) async fn watch(args: &KvWatchArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    let start = args.after.map_or(WatchStart::Now, WatchStart::After);
    let previous = if args.prev { PreviousValues::Included } else { PreviousValues::Omitted };
    let stream = store.watch(args.selection()?, start, previous).await?;
    output.note("watching; Ctrl-C ends");
    let following = follow(args, stream, output);
    match args.wait {
        None => following.await,
        Some(wait) => tokio::time::timeout(wait, following).await.unwrap_or_else(|_| {
            Err(Failure::new(Code::TimedOut, format!("not enough changes within {wait:?}"))
                .hint("wait longer with --wait, or list the keys with `tenure kv range`"))
        }),
    }
}

async fn follow(args: &KvWatchArgs, mut stream: WatchStream, output: &Output) -> Result<(), Failure> {
    let mut seen = 0;
    while let Some(item) = stream.next().await {
        let WatchItem::Batch { changes, .. } = item? else { continue };
        for change in &changes {
            report(change, output)?;
            seen += 1;
        }
        if args.count.is_some_and(|count| seen >= count.get()) {
            return Ok(());
        }
    }
    Err(StoreError::Closed.into())
}

#[derive(Serialize)]
struct KvEvent {
    schema: &'static str,
    revision: String,
    event: &'static str,
    kv: KeyOrPair,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<KvPair>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum KeyOrPair {
    Key(KvKey),
    KvPair(KvPair),
}

fn report(change: &Change, output: &Output) -> Result<(), Failure> {
    let revision = change.revision().to_string();
    let (event, previous) = match change {
        Change::Put { previous, .. } => ("put", previous),
        Change::Delete { previous, .. } => ("delete", previous),
    };
    if output.is_json {
        let kv = match change {
            Change::Put { pair, .. } => KeyOrPair::KvPair(KvPair::new(pair)),
            Change::Delete { key, .. } => KeyOrPair::Key(KvKey::new(key)),
        };
        let previous = previous.as_ref().map(KvPair::new);
        return output.object(&KvEvent { schema: super::SCHEMA, revision, event, kv, previous });
    }
    let mut cells = vec![revision.as_bytes(), event.as_bytes(), change.key()];
    match change {
        Change::Put { pair, .. } => cells.push(&pair.value),
        Change::Delete { .. } if previous.is_some() => cells.push(b""),
        Change::Delete { .. } => {}
    }
    cells.extend(previous.as_ref().map(|previous| &previous.value[..]));
    output.record(cells)
}
