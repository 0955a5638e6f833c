//! `kv compact`.

use clap::Args;
use serde::Serialize;
use tenure::store::{Revision, Store};

use super::key::parse_revision;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct CompactArgs {
    /// The last revision to delete from the history. A read at this revision still works.
    #[arg(value_name = "REV", value_parser = parse_revision)]
    revision: Revision,
}

pub(super) async fn compact(args: &CompactArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct CompactReport {
        schema: &'static str,
        compacted_revision: String,
    }
    store.compact(args.revision).await?;
    if output.is_json {
        let compacted_revision = args.revision.to_string();
        return output.object(&CompactReport { schema: super::SCHEMA, compacted_revision });
    }
    output.record([args.revision.to_string()])
}
