//! `kv del`.

use clap::Args;
use serde::Serialize;
use tenure::store::{Op, OpReply, Selection, Store, StoreError, Txn};

use super::key::KeyOrPrefix;
use crate::failure::{Code, Failure};
use crate::output::{Output, escape};

#[derive(Args, Debug)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    target: KeyOrPrefix,
}

impl DelArgs {
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        self.target.selection()
    }
}

pub(super) async fn delete(args: &DelArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Answer {
        schema: &'static str,
        deleted: u64,
        revision: String,
    }
    let select = args.selection()?;
    let reply = store.txn(Txn::new().then(Op::Delete(select.clone()))).await?;
    let Some(&OpReply::Delete { count: deleted }) = reply.results.first() else {
        return Err(StoreError::Corrupt("a delete was not answered as one".into()).into());
    };
    if let Selection::Key(key) = &select
        && deleted == 0
    {
        return Err(Failure::new(Code::NotFound, format!("there is no key {}", escape(key)))
            .hint("list what there is with `tenure kv range ''`"));
    }
    if output.is_json {
        return output.object(&Answer {
            schema: super::SCHEMA,
            deleted,
            revision: reply.revision.to_string(),
        });
    }
    output.record([deleted.to_string()])
}
