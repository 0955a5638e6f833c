//! `tenure kv`: the store's own verbs on raw keys, for scripts and for looking under the floor.
//!
//! Keys are taken literally: no namespace is put in front of them.

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

/// What `--json` answers to these verbs carry as `schema`.
const SCHEMA: &str = "tenure.kv/v1";

/// The verbs. Keys are literal: the namespace is not put in front of them.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Keys are taken literally: the namespace is NOT put in front of them.\nA prefix ends in '/', or is '' for every key there is."
)]
pub(crate) enum KvCommand {
    /// Print a key's value; exit 3 if there is none.
    Get(read::GetArgs),
    /// Put a value; print the revision.
    Put(put::PutArgs),
    /// Delete a key, or all under a prefix; print how many there were. Exit 3 if the key does not exist.
    #[command(aliases = ["delete", "rm"])]
    Del(delete::DelArgs),
    /// List the keys under a prefix, all at one revision.
    #[command(aliases = ["ls", "list"])]
    Range(read::RangeArgs),
    /// Tell every change of a key or a prefix, one on a line.
    Watch(watch::KvWatchArgs),
    /// Do a transaction given as JSON; exit 4 if its conditions did not hold.
    Txn(txn::TxnArgs),
    /// Forget history up to a revision.
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

/// Refuses what is wrong with a verb whatever the store, before any store is opened.
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
