//! The `tenure` command: locks, elections, registrations, tasks and their store, from the shell.
//!
//! stdout has data, stderr has notes and failures, and the exit code reports the result to scripts (see `failure`).

mod audit;
mod cli;
mod config;
mod confirm;
mod connect;
mod demo;
mod doctor;
mod duration;
mod elect;
mod election;
mod events;
mod failure;
mod hold;
mod kv;
mod lease;
mod lease_remaining;
mod lock;
mod locks;
mod log;
mod mistake;
mod node;
mod once;
mod output;
mod register;
mod service;
mod status;
mod submit;
mod supervise;
mod task;
mod version;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, ValueEnum};
use mimalloc::MiMalloc;
use tenure::Tenure;
use tenure::store::Store;
use tenure_core::id::NodeId;

use crate::cli::{Cli, CliCommand, InternalCommand};
use crate::connect::{ConnectSettings, StorePurpose};
use crate::failure::{Code, Failure};
use crate::output::{Color, Output};

/// The output of `tenure` without a command.
const GREETING: &str = "\
tenure: locks, elections, registrations and tasks for programs on more than one machine

  tenure demo                        watch workers share tasks and survive a crash, in half a minute
  tenure kv put /greeting hello      put a key into the store of this machine
  tenure lock deploy -- ./deploy.sh  run a command that runs nowhere else at the same time
  tenure elect scheduler -- ./run    run a command on one of several hosts; another host takes over
  tenure register web/1=10.0.0.7:80 -- ./serve       keep a key in the store while a command runs
  tenure worker --exec ./job.sh      run tasks, each as a process, together with other workers
  tenure submit mail-1 --kind mail   submit a task for the workers
  tenure --endpoints host:2379 kv watch --prefix /     print every change of an etcd

Commands: lock, elect, once, locks, election, register, worker, submit, task, node, service, lease, status, events, kv, doctor, demo, config, completions, version.
`tenure --help` lists everything; `tenure doctor` checks the configuration, the connection and the store.
";

/// Memory that one thread allocates is freed by another, in large numbers. The allocator of the C library contends there, which
/// was a quarter of the work of eight nodes that claim ten thousand tasks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Worker threads for a command that moves many keys: one reads replies while the other sends requests.
const THREADS: usize = 2;

/// Worker threads for a command that waits in a queue. With two threads, handing tasks over between them doubled the work of a lock
/// and its release on two cores that the store needs too.
const THREADS_QUEUED: usize = 1;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::read(&words) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &words),
    };
    if let Some(CliCommand::Internal(command)) = &cli.command
        && let Some(code) = supervise::run_helper(command)
    {
        return code;
    }
    let output = Output::new(cli.global.json, cli.global.color).quiet(cli.global.quiet);
    let checked = match cli.misread() {
        Some(failure) => Err(failure),
        None => log::start(cli.global.verbose, &output),
    };
    let done = checked.and_then(|()| run_to_end(&cli, &output));
    match done {
        Ok(code) => code,
        Err(failure) => {
            // Ctrl-C reaches the workers of a demo too; one report is enough.
            let is_internal = matches!(cli.command, Some(CliCommand::Internal(_)));
            // A reader that closed its pipe is not a failure, unless the pipe carries the report that something is held.
            let is_read = failure.code == Code::BrokenPipe && !cli.is_wrapper();
            let is_silent = is_read || (is_internal && failure.code == Code::Interrupted);
            if !is_silent {
                output.failure(&failure);
            }
            if cli.is_wrapper() { failure.wrapper_exit_code() } else { failure.exit_code() }
        }
    }
}

/// Prints help and version; reports everything else that clap returns as a mistake in the command line.
fn refuse(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A reader that closed its pipe has read enough of the help.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let flags: Vec<&str> =
        words.iter().map_while(|word| word.to_str().filter(|word| *word != "--")).collect();
    let color = flags.windows(2).find(|pair| pair[0] == "--color").map(|pair| pair[1]);
    let color = color.or_else(|| flags.iter().find_map(|word| word.strip_prefix("--color=")));
    let color = color.and_then(|word| Color::from_str(word, true).ok()).unwrap_or_default();
    Output::new(flags.contains(&"--json"), color).failure(&mistake::failure(error, words));
    ExitCode::from(Cli::mistake_code(words))
}

fn run_to_end(cli: &Cli, output: &Output) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(if cli.is_queued() { THREADS_QUEUED } else { THREADS })
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Failed, format!("cannot start the async runtime: {error}")))?;
    let done = runtime.block_on(async {
        match &cli.command {
            // These verbs run a command and handle signals themselves.
            Some(CliCommand::Lock(args)) => lock::run(args, &cli.global, output).await,
            Some(CliCommand::Elect(args)) => elect::run(args, &cli.global, output).await,
            Some(CliCommand::Once(args)) => once::run(args, &cli.global, output).await,
            Some(CliCommand::Register(args)) => register::run(args, &cli.global, output).await,
            Some(CliCommand::Worker(args)) => worker::run(args, &cli.global, output).await,
            Some(CliCommand::Demo(args)) => demo::run(args, &cli.global, output).await,
            Some(CliCommand::Internal(InternalCommand::Supervise(args))) => {
                supervise::run_test(args, output).await
            }
            _ => tokio::select! {
                biased;
                _ = tokio::signal::ctrl_c() => Err(Failure::new(Code::Interrupted, "interrupted")),
                done = run(cli, output) => done.map(|()| ExitCode::SUCCESS),
            },
        }
    });
    // A thread that reads a terminal or a pipe must not delay the exit.
    runtime.shutdown_background();
    done
}

async fn run(cli: &Cli, output: &Output) -> Result<(), Failure> {
    let Some(command) = &cli.command else { return output.text(GREETING) };
    match command {
        CliCommand::Doctor => return doctor::run(&cli.global, output).await,
        CliCommand::Config(command) => return config::run(command, &cli.global, output),
        CliCommand::Completions { shell } => return output.text(&completions(*shell)),
        CliCommand::Version => return version::run(output),
        CliCommand::Internal(InternalCommand::Worker { node, ledger, ttl }) => {
            return demo::run_demo_worker(node, ledger, *ttl, &cli.global, output).await;
        }
        _ => {}
    }
    // Mistakes are reported before a store is opened.
    match command {
        CliCommand::Locks(command) => locks::check(command, output)?,
        CliCommand::Election(command) => election::check(command)?,
        CliCommand::Task(command) => task::check(command, output)?,
        CliCommand::Lease(command) => lease::check(command, output)?,
        CliCommand::Kv(command) => kv::check(command, output)?,
        CliCommand::Node(command) => node::check(command)?,
        _ => {}
    }
    let prepared = match command {
        CliCommand::Submit(args) => Some(submit::prepare(args).await?),
        _ => None,
    };
    let settings = connect::decide(&cli.global)?;
    let store = connect::open_for(StorePurpose::of(Some(command)), &settings, output).await?;
    let done = run_on_store(command, prepared, &settings, &store, output).await;
    store.close().await;
    done
}

/// Runs a verb that needs a store.
async fn run_on_store(
    command: &CliCommand,
    prepared: Option<submit::PreparedTasks>,
    settings: &ConnectSettings,
    store: &Store,
    output: &Output,
) -> Result<(), Failure> {
    let namespace = &settings.namespace.value;
    let tenure = async || {
        let builder = Tenure::builder().store(store.clone()).namespace(namespace).identity(settings.actor());
        let builder = match NodeId::parse(&settings.sender()) {
            Ok(name) => builder.sender(name),
            // A host name that is no node id must not prevent commands.
            Err(_) => builder,
        };
        builder.connect().await.map_err(|error| Failure::new(Code::Failed, error.to_string()))
    };
    let trail = || audit::Trail::new(namespace, settings.actor());
    match (command, prepared) {
        (CliCommand::Submit(_), Some(prepared)) => submit::run(prepared, &tenure().await?, output).await,
        (CliCommand::Locks(command), _) => {
            locks::run(command, store, namespace, settings.actor(), output).await
        }
        (CliCommand::Election(command), _) => {
            election::run(command, store, namespace, &settings.sender(), output).await
        }
        (CliCommand::Task(command), _) => task::run(command, &tenure().await?, output).await,
        (CliCommand::Node(command), _) => node::run(command, &tenure().await?, namespace, output).await,
        (CliCommand::Status, _) => status::run(store, namespace, output).await,
        (CliCommand::Lease(command), _) => lease::run(command, store, (namespace, &trail()), output).await,
        (CliCommand::Kv(command), _) => kv::run(command, store, &trail(), output).await,
        (CliCommand::Service(command), _) => service::run(command, store, namespace, output).await,
        (CliCommand::Events(args), _) => events::run(args, store, namespace, output).await,
        _ => unreachable!("`run_to_end` and `run` handle every verb that needs no store"),
    }
}

/// The completion script for a shell.
fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
