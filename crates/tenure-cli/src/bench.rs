//! `tenure bench`: programs that measure, one JSON object a line.
//!
//! Nothing here is a test: figures move with the machine. The ratios inside one run are what counts.

mod etcd;
mod metrics;
mod process;
mod report;
mod sample;
mod session;
mod store;
mod tasks;
mod workload;

use clap::Subcommand;

use crate::cli::Global;
use crate::failure::Failure;
use crate::output::Output;

/// What can be measured.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// The engines side by side; etcd beside hand-written calls, if endpoints are configured.
    Store(store::StoreArgs),
    /// Keys under shared leases: registering, recovering and idling, beside programs written by hand.
    Session(session::SessionArgs),
    /// Many tasks on several nodes: claimed beside the herd, taken over from a dead node, and held.
    Tasks(tasks::TasksArgs),
}

/// Measures.
pub(crate) async fn run(command: &BenchCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        BenchCommand::Store(args) => store::run(args, global, output).await,
        BenchCommand::Session(args) => session::run(args, global, output).await,
        BenchCommand::Tasks(args) => tasks::run(args, global, output).await,
    }
}
