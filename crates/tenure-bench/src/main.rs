//! `tenure-bench`: workloads that measure, one JSON object on a line.
//!
//! Nothing here is a test: figures depend on the machine. The ratios inside one run are what counts.
//! Some workloads need other processes; they run this binary again, with the hidden command `internal`.

mod child;
mod election;
mod etcd;
mod failure;
mod internal;
mod lock;
mod metrics;
mod options;
mod process;
mod raw;
mod report;
mod sample;
mod session;
mod store;
mod store_under_test;
mod tasks;
mod turns;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
use tenure::store::StoreUrl;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::BenchFailure;
use crate::internal::InternalCommand;

/// The allocator of the `tenure` command, so that its figures are measured.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Worker threads of a workload that moves many keys, as many as the `tenure` command has: while one reads replies, the other sends requests.
const THREADS: usize = 2;

/// The same for a workload with tasks that mostly wait. Two threads pass the little work to each
/// other, and on two cores that the store needs too, a lock and its release then cost twice the
/// work.
const THREADS_IN_QUEUE: usize = 1;

/// Measures the engines, and on etcd Tenure beside hand-written calls. JSON lines on stdout.
#[derive(Parser, Debug)]
#[command(name = "tenure-bench", version, max_term_width = 110)]
struct Cli {
    /// The members of an etcd without TLS and users, as host:port, separated by commas.
    #[arg(long, global = true, env = "TENURE_ENDPOINTS", value_name = "LIST", value_parser = options::etcd)]
    endpoints: Option<StoreUrl>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// The engines side by side; etcd beside hand-written calls, if endpoints are configured.
    Store(store::StoreArgs),
    /// Keys under shared leases: registering, recovering and idling, beside hand-written programs.
    Session(session::SessionArgs),
    /// Many tasks on several nodes: claimed beside nodes that all claim everything, taken over from a dead node, and held.
    Tasks(tasks::TasksArgs),
    /// Locks taken, released and handed over, beside a hand-written program.
    Lock(lock::LockArgs),
    /// How soon the next candidate leads, beside a hand-written program.
    Election(election::ElectionArgs),
    /// What a workload runs in another process.
    #[command(hide = true, subcommand)]
    Internal(InternalCommand),
}

impl Command {
    /// How many worker threads suit it.
    fn threads(&self) -> usize {
        match self {
            Command::Lock(_) | Command::Election(_) | Command::Internal(InternalCommand::Contend { .. }) => {
                THREADS_IN_QUEUE
            }
            Command::Store(_) | Command::Session(_) | Command::Tasks(_) | Command::Internal(_) => THREADS,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(LevelFilter::WARN).init();
    match run_to_end(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report::note(&format!("error: {failure}"));
            failure.exit_code()
        }
    }
}

fn run_to_end(cli: &Cli) -> Result<(), BenchFailure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cli.command.threads())
        .enable_all()
        .build()
        .map_err(|error| BenchFailure::new(format!("the runtime cannot be started: {error}")))?;
    let done = runtime.block_on(async {
        match &cli.command {
            // Ctrl-C ends a helper process by the default action; its parent reports the interruption.
            Command::Internal(command) => internal::run(command).await,
            _ => tokio::select! {
                biased;
                _ = tokio::signal::ctrl_c() => Err(BenchFailure::interrupted()),
                done = run(cli) => done,
            },
        }
    });
    // A thread that reads stdin must not delay the end.
    runtime.shutdown_background();
    done
}

async fn run(cli: &Cli) -> Result<(), BenchFailure> {
    let etcd = cli.endpoints.as_ref();
    match &cli.command {
        Command::Store(args) => store::run(args, etcd).await,
        Command::Session(args) => session::run(args, etcd).await,
        Command::Tasks(args) => tasks::run(args, etcd).await,
        Command::Lock(args) => lock::run(args, etcd).await,
        Command::Election(args) => election::run(args, etcd).await,
        Command::Internal(command) => internal::run(command).await,
    }
}
