//! `kv del`.

use clap::Args;
use serde::Serialize;
use tenure::audit::AuditAction;
use tenure::store::{OpReply, Selection, Store, StoreError};

use super::key::KeyOrPrefix;
use crate::audit::Trail;
use crate::confirm::ConfirmArgs;
use crate::failure::{Code, Failure};
use crate::output::{Output, escape};

#[derive(Args, Debug)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    target: KeyOrPrefix,
    /// Allow --prefix '', which deletes every key in the store, also those of other programs.
    #[arg(long, requires = "prefix", conflicts_with_all = ["raw_key", "raw_key_b64"])]
    all: bool,
    /// The reason; `tenure events` shows it.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

impl DelArgs {
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        self.target.selection()
    }

    /// Refuses an unconfirmed deletion of many keys, and a deletion of all keys without `--all`.
    pub(super) fn check(&self, output: &Output) -> Result<(), Failure> {
        self.selection()?;
        let Some(prefix) = self.target.prefix() else { return Ok(()) };
        match (prefix.is_empty(), self.all) {
            (true, false) => {
                return Err(Failure::usage(
                    "an empty prefix selects every key in the store, also those of other programs; nothing was deleted",
                )
                .hint("name a prefix such as /shop/, or add --all if every key is meant"));
            }
            (false, true) => {
                return Err(Failure::usage(format!(
                    "--all selects every key, and --prefix only those under '{prefix}'"
                ))
                .hint("leave --all out, or use --prefix ''"));
            }
            (true, true) | (false, false) => {}
        }
        self.confirm.check(
            &format!("deleting every key under '{prefix}'"),
            &format!("tenure kv range '{prefix}'"),
            output,
        )
    }
}

pub(super) async fn delete(
    args: &DelArgs,
    store: &Store,
    trail: &Trail,
    output: &Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct DeleteReport {
        schema: &'static str,
        deleted: u64,
        revision: String,
    }
    let select = args.selection()?;
    let target = match &select {
        Selection::Key(key) | Selection::Prefix(key) | Selection::Range(key, _) | Selection::From(key) => {
            escape(key)
        }
    };
    let mut record = trail.record(AuditAction::DeleteKeys, target, &args.reason);
    if let Some(prefix) = args.target.prefix() {
        let listing = store.list(select.clone()).await?;
        let count = listing.pairs.len();
        record.count = Some(count as u64);
        let keys = if count == 1 { "key" } else { "keys" };
        args.confirm.prompt(&format!("delete {count} {keys} under '{prefix}'"), output).await?;
    }
    let reply = trail.delete(store, &select, record, output).await?;
    let Some(&OpReply::Delete { count: deleted }) = reply.results.first() else {
        return Err(StoreError::Corrupt("the reply to a delete is of another kind".into()).into());
    };
    if let Selection::Key(key) = &select
        && deleted == 0
    {
        return Err(Failure::new(Code::NotFound, format!("there is no key {}", escape(key)))
            .hint("list the keys with `tenure kv range ''`"));
    }
    if output.is_json {
        return output.object(&DeleteReport {
            schema: super::SCHEMA,
            deleted,
            revision: reply.revision.to_string(),
        });
    }
    output.record([deleted.to_string()])
}
