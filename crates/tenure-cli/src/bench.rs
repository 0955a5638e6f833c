//! `tenure bench`: programs that measure, one JSON object a line.
//!
//! Nothing here is a test: figures move with the machine. The ratios inside one run are what counts.

mod election;
mod etcd;
mod lock;
mod metrics;
mod place;
mod process;
mod report;
mod sample;
mod session;
mod store;
mod tasks;
mod turns;
mod workload;

use clap::Subcommand;

use crate::cli::Global;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) use lock::{Contender, Contending};

/// What can be measured.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// The engines side by side; etcd beside hand-written calls, if endpoints are configured.
    Store(store::StoreArgs),
    /// Keys under shared leases: registering, recovering and idling, beside programs written by hand.
    Session(session::SessionArgs),
    /// Many tasks on several nodes: claimed beside the herd, taken over from a dead node, and held.
    Tasks(tasks::TasksArgs),
    /// Locks taken, given back and handed over, beside a program written by hand.
    Lock(lock::LockArgs),
    /// How soon the next candidate leads, beside a program written by hand.
    Election(election::ElectionArgs),
}

/// Measures.
pub(crate) async fn run(command: &BenchCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        BenchCommand::Store(args) => store::run(args, global, output).await,
        BenchCommand::Session(args) => session::run(args, global, output).await,
        BenchCommand::Tasks(args) => tasks::run(args, global, output).await,
        BenchCommand::Lock(args) => lock::run(args, global, output).await,
        BenchCommand::Election(args) => election::run(args, global, output).await,
    }
}
