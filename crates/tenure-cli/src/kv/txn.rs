//! `kv txn`: commits a transaction given as JSON, and prints its reply as JSON.

mod request;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tenure::store::{Op, OpReply, Store, ValueMode};

use self::request::TxnRequest;
use super::input::InputSource;
use super::rows::KvPair;
use crate::failure::{Code, Failure};
use crate::output::Output;

const HELP: &str = r#"A transaction with every possible element:
  {
    "when":      [ {"key": "/a", "is": "equal", "modified_revision": "7"},
                   {"key": "/b", "absent": true}, {"key": "/c", "exists": true},
                   {"key": "/d", "is": "not_equal", "value": "x"} ],
    "then":      [ {"put": {"key": "/a", "value": "1", "lease": "1f"}},
                   {"delete": {"prefix": "/old/"}},
                   {"get": {"prefix": "/new/", "limit": 10, "keys_only": true}} ],
    "otherwise": [ {"get": {"key": "/a"}} ]
  }
"is" is equal, not_equal, less or greater; it compares version, created_revision,
modified_revision, lease, value or value_b64. Keys may be given as key_b64.
A put with "lease": "keep" keeps the key's lease."#;

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct TxnArgs {
    /// Read the transaction from a file instead of stdin.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Exit 0 for both branches.
    #[arg(long)]
    either: bool,
}

pub(super) async fn txn(args: &TxnArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    let txn = TxnRequest::parse(&read(args).await?)?.into_txn()?;
    // A reply without values must not look like one with empty values.
    let with_values = |branch: &[Op]| -> Vec<bool> {
        branch.iter().map(|op| !matches!(op, Op::Get(get) if get.values == ValueMode::Omitted)).collect()
    };
    let (then, otherwise) = (with_values(&txn.then), with_values(&txn.otherwise));
    let reply = store.txn(txn).await?;
    let with_values = if reply.succeeded { then } else { otherwise };
    let results = reply.results.iter().zip(with_values).map(|(result, values)| OpReport::new(result, values));
    output.object(&TxnReport {
        schema: super::SCHEMA,
        succeeded: reply.succeeded,
        revision: reply.revision.to_string(),
        results: results.collect(),
    })?;
    if !reply.succeeded && !args.either {
        return Err(Failure::new(Code::Conflict, "a condition did not hold, so `otherwise` was executed")
            .hint("with --either, this is not a failure"));
    }
    Ok(())
}

async fn read(args: &TxnArgs) -> Result<String, Failure> {
    let input = args.file.clone().map_or(InputSource::Stdin, InputSource::File);
    String::from_utf8(input.read().await?).map_err(|_| Failure::usage("the transaction is not UTF-8 text"))
}

#[derive(Serialize)]
struct TxnReport {
    schema: &'static str,
    succeeded: bool,
    revision: String,
    results: Vec<OpReport>,
}

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum OpReport {
    Put,
    Delete { deleted: u64 },
    Get { kvs: Vec<KvPair>, more: bool },
}

impl OpReport {
    fn new(reply: &OpReply, with_values: bool) -> OpReport {
        match reply {
            OpReply::Put => OpReport::Put,
            OpReply::Delete { count } => OpReport::Delete { deleted: *count },
            OpReply::Get(page) => {
                let shape = if with_values { KvPair::new } else { KvPair::without_value };
                OpReport::Get { kvs: page.pairs.iter().map(shape).collect(), more: page.more }
            }
        }
    }
}
