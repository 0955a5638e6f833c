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
    let mut request = Get::key(key.clone());
    request.at = args.at;
    let page = store.get(request).await?;
    let Some(pair) = page.pairs.first() else {
        let when = args.at.map(|at| format!(" at revision {at}")).unwrap_or_default();
        return Err(Failure::new(Code::NotFound, format!("there is no key {}{when}", escape(&key)))
            .hint("list the keys with `tenure kv range ''`"));
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
    /// Print keys without values.
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

/// Keys per page: few round trips, and with values of a few KiB far below the size limit of a message.
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

/// Reads all pages at the revision of the first one, so that the list is one snapshot.
async fn list(args: &RangeArgs, store: &Store) -> Result<Page, Failure> {
    let select = prefix(&args.prefix)?;
    let end = select.end();
    let mut remaining = args.limit.map_or(u32::MAX, NonZeroU32::get);
    let request = |select: Selection, at: Option<Revision>, remaining: u32| {
        let get = Get { at, ..Get::new(select).limit(remaining.min(PAGE_LEN)) };
        if args.keys_only { get.keys_only() } else { get }
    };
    let mut whole = store.get(request(select, args.at, remaining)).await?;
    let at = args.at.unwrap_or(whole.revision);
    remaining = remaining.saturating_sub(len(&whole)?);
    while whole.more && remaining > 0 {
        let Some(last) = whole.pairs.last() else { break };
        let from = Selection::Key(last.key.clone()).end().unwrap_or_default();
        let rest = match &end {
            Some(end) => Selection::Range(from, end.clone()),
            None => Selection::From(from),
        };
        let page = store.get(request(rest, Some(at), remaining)).await?;
        remaining = remaining.saturating_sub(len(&page)?);
        whole.pairs.extend(page.pairs);
        whole.more = page.more;
    }
    Ok(whole)
}

fn len(page: &Page) -> Result<u32, StoreError> {
    u32::try_from(page.pairs.len()).map_err(|_| StoreError::Corrupt("a page larger than requested".into()))
}
