//! `kv get` and `kv range`.

use std::num::NonZeroU32;

use clap::Args;
use serde::Serialize;
use tenure::store::{Get, KeyValue, Page, Revision, Selection, Store, StoreError};

use super::key::{KeyArg, parse_revision, prefix};
use super::rows::KvPair;
use crate::failure::{Code, Failure};
use crate::output::{Output, escape};

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(super) key: KeyArg,
    /// As it was at this revision.
    #[arg(long, value_name = "REV", value_parser = parse_revision)]
    at: Option<Revision>,
}

pub(super) async fn get(args: &GetArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct GetReport {
        schema: &'static str,
        #[serde(flatten)]
        pair: KvPair,
        revision: String,
    }
    let key = args.key.bytes()?;
    let mut question = Get::key(key.clone());
    question.at = args.at;
    let page = store.get(question).await?;
    let Some(pair) = page.pairs.first() else {
        let when = args.at.map(|at| format!(" at revision {at}")).unwrap_or_default();
        return Err(Failure::new(Code::NotFound, format!("there is no key {}{when}", escape(&key)))
            .hint("list what there is with `tenure kv range ''`"));
    };
    if output.is_json {
        let revision = page.revision.to_string();
        return output.object(&GetReport { schema: super::SCHEMA, pair: KvPair::new(pair), revision });
    }
    output.value(&pair.value)
}

#[derive(Args, Debug)]
pub(crate) struct RangeArgs {
    /// The prefix, which ends in '/', or '' for every key.
    #[arg(value_name = "PREFIX/")]
    prefix: String,
    /// Leave the values out.
    #[arg(long)]
    keys_only: bool,
    /// At most this many keys.
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroU32>,
    /// As it was at this revision.
    #[arg(long, value_name = "REV", value_parser = parse_revision)]
    at: Option<Revision>,
}

impl RangeArgs {
    pub(super) fn check(&self) -> Result<(), Failure> {
        prefix(&self.prefix).map(drop)
    }
}

/// Keys in one page: few round trips, and far below what a connection carries in one message for values of a few KiB.
const PAGE_LEN: u32 = 1_000;

pub(super) async fn range(args: &RangeArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct RangeReport {
        schema: &'static str,
        kvs: Vec<KvPair>,
        more: bool,
        revision: String,
    }
    let page = list(args, store).await?;
    if output.is_json {
        let shape = if args.keys_only { KvPair::without_value } else { KvPair::new };
        return output.object(&RangeReport {
            schema: super::SCHEMA,
            kvs: page.pairs.iter().map(shape).collect(),
            more: page.more,
            revision: page.revision.to_string(),
        });
    }
    for KeyValue { key, value, .. } in &page.pairs {
        if args.keys_only {
            output.record([key])?;
        } else {
            output.record([key, value])?;
        }
    }
    if page.more {
        output.note(&format!("there are more keys: --limit left them out (revision {})", page.revision));
    }
    Ok(())
}

/// All pages at the revision of the first one.
async fn list(args: &RangeArgs, store: &Store) -> Result<Page, Failure> {
    let select = prefix(&args.prefix)?;
    let end = select.end();
    let mut wanted = args.limit.map_or(u32::MAX, NonZeroU32::get);
    let question = |select: Selection, at: Option<Revision>, wanted: u32| {
        let get = Get { at, ..Get::new(select).limit(wanted.min(PAGE_LEN)) };
        if args.keys_only { get.keys_only() } else { get }
    };
    let mut whole = store.get(question(select, args.at, wanted)).await?;
    let at = args.at.unwrap_or(whole.revision);
    wanted = wanted.saturating_sub(len(&whole)?);
    while whole.more && wanted > 0 {
        let Some(last) = whole.pairs.last() else { break };
        let from = Selection::Key(last.key.clone()).end().unwrap_or_default();
        let rest = match &end {
            Some(end) => Selection::Range(from, end.clone()),
            None => Selection::From(from),
        };
        let page = store.get(question(rest, Some(at), wanted)).await?;
        wanted = wanted.saturating_sub(len(&page)?);
        whole.pairs.extend(page.pairs);
        whole.more = page.more;
    }
    Ok(whole)
}

fn len(page: &Page) -> Result<u32, StoreError> {
    u32::try_from(page.pairs.len()).map_err(|_| StoreError::Corrupt("a page larger than asked for".into()))
}
