//! `kv txn`: a whole transaction in and out as JSON.

mod request;

use std::io::{Read, stdin};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tenure::store::{Op, OpReply, Store, Values};

use self::request::Request;
use super::shape::Pair;
use crate::failure::{Code, Failure};
use crate::output::Output;

const HELP: &str = r#"A transaction, with everything it can hold:
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
A put with "lease": "keep" leaves the key under the lease it has."#;

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct TxnArgs {
    /// Read the transaction from a file instead of stdin.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Exit 0 whichever branch was done.
    #[arg(long)]
    either: bool,
}

/// The longest transaction that is read: what no engine would take was named by mistake.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

pub(super) async fn txn(args: &TxnArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    let txn = Request::parse(&read(args)?)?.into_txn()?;
    // Answers without values must not look like empty values.
    let with_values = |branch: &[Op]| -> Vec<bool> {
        branch.iter().map(|op| !matches!(op, Op::Get(get) if get.values == Values::Omitted)).collect()
    };
    let (then, otherwise) = (with_values(&txn.then), with_values(&txn.otherwise));
    let reply = store.txn(txn).await?;
    let with_values = if reply.succeeded { then } else { otherwise };
    let results = reply.results.iter().zip(with_values).map(|(result, values)| OpAnswer::new(result, values));
    output.object(&Answer {
        schema: super::SCHEMA,
        succeeded: reply.succeeded,
        revision: reply.revision.to_string(),
        results: results.collect(),
    })?;
    if !reply.succeeded && !args.either {
        return Err(Failure::new(Code::Conflict, "a condition did not hold, so `otherwise` was done")
            .hint("with --either that is no failure"));
    }
    Ok(())
}

fn read(args: &TxnArgs) -> Result<String, Failure> {
    let (name, reader): (String, Box<dyn Read>) = match &args.file {
        None => ("stdin".into(), Box::new(stdin())),
        Some(path) => {
            let name = path.display().to_string();
            let file = std::fs::File::open(path)
                .map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?;
            (name, Box::new(file))
        }
    };
    let mut text = String::new();
    reader
        .take(BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?;
    Ok(text)
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    succeeded: bool,
    revision: String,
    results: Vec<OpAnswer>,
}

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum OpAnswer {
    Put,
    Delete { deleted: u64 },
    Get { kvs: Vec<Pair>, more: bool },
}

impl OpAnswer {
    fn new(reply: &OpReply, with_values: bool) -> OpAnswer {
        match reply {
            OpReply::Put => OpAnswer::Put,
            OpReply::Delete { count } => OpAnswer::Delete { deleted: *count },
            OpReply::Get(page) => {
                let shape = if with_values { Pair::new } else { Pair::without_value };
                OpAnswer::Get { kvs: page.pairs.iter().map(shape).collect(), more: page.more }
            }
        }
    }
}
