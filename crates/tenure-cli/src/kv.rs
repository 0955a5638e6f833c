//! `tenure kv`: reads and writes raw keys, for scripts and for debugging.
//!
//! Keys are literal: they get no namespace prefix.

mod compact;
mod delete;
mod input;
mod key;
mod put;
mod read;
mod rows;
mod txn;
mod watch;

use clap::Subcommand;
use tenure::store::Store;

pub(crate) use input::InputSource;
pub(crate) use key::{parse_lease, parse_revision_or_zero};
pub(crate) use rows::KvKey;

use crate::audit::Trail;
use crate::failure::Failure;
use crate::output::Output;

/// The `schema` of JSON output about raw keys.
const SCHEMA: &str = "tenure.kv/v1";

/// The verbs. Keys are literal: they get no namespace prefix.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Keys are literal: they get NO namespace prefix.\nA prefix ends in '/', or is '' for every key."
)]
pub(crate) enum KvCommand {
    /// Print a key's value; exit 3 if there is none.
    Get(read::GetArgs),
    /// Put a value; prints the revision.
    Put(put::PutArgs),
    /// Delete a key, or all keys under a prefix; prints their number. Exit 3 if the key does not exist.
    #[command(aliases = ["delete", "rm"])]
    Del(delete::DelArgs),
    /// List the keys under a prefix, all at one revision.
    #[command(aliases = ["ls", "list"])]
    Range(read::RangeArgs),
    /// Print every change of a key or a prefix, one per line.
    Watch(watch::KvWatchArgs),
    /// Commit a transaction given as JSON; exit 4 if its conditions did not hold.
    Txn(txn::TxnArgs),
    /// Delete the history up to a revision.
    Compact(compact::CompactArgs),
}

/// Runs a verb on an open store.
pub(crate) async fn run(
    command: &KvCommand,
    store: &Store,
    trail: &Trail,
    output: &Output,
) -> Result<(), Failure> {
    match command {
        KvCommand::Get(args) => read::get(args, store, output).await,
        KvCommand::Put(args) => put::put(args, store, output).await,
        KvCommand::Del(args) => delete::delete(args, store, trail, output).await,
        KvCommand::Range(args) => read::range(args, store, output).await,
        KvCommand::Watch(args) => watch::watch(args, store, output).await,
        KvCommand::Txn(args) => txn::txn(args, store, output).await,
        KvCommand::Compact(args) => compact::compact(args, store, output).await,
    }
}

/// Checks the arguments before a store is opened.
pub(crate) fn check(command: &KvCommand, output: &Output) -> Result<(), Failure> {
    match command {
        KvCommand::Get(args) => args.key.bytes().map(drop),
        KvCommand::Put(args) => args.check(),
        KvCommand::Del(args) => args.check(output),
        KvCommand::Range(args) => args.check(),
        KvCommand::Watch(args) => args.selection().map(drop),
        KvCommand::Txn(_) | KvCommand::Compact(_) => Ok(()),
    }
}
