//! The `tenure` command: the store, and what stands on it, from the shell.
//!
//! stdout is data, stderr is talk, and the exit code tells scripts what happened (see `failure`).

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
mod lock;
mod locks;
mod log;
mod mistake;
mod node;
mod once;
mod output;
mod register;
mod remaining;
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
use tenure::client::Client;
use tenure::store::Store;
use tenure_core::id::{Namespace, NodeId};

use crate::cli::{Cli, Command, PartCommand};
use crate::connect::{Decision, Purpose};
use crate::failure::{Code, Failure};
use crate::output::{Color, Output};

/// What `tenure` says when it is asked nothing.
const GREETING: &str = "\
tenure: locks, elections, registrations and tasks for programs on more than one machine

  tenure demo                        see the whole story by itself, in half a minute
  tenure kv put /greeting hello      put a key into the store of this machine
  tenure lock deploy -- ./deploy.sh  run a command that runs nowhere else meanwhile
  tenure elect scheduler -- ./run    run a command on one of all hosts that start it
  tenure register web/1=10.0.0.7:80 -- ./serve       keep a key alive while a command runs
  tenure worker --exec ./job.sh      run tasks, one process each, shared with all other workers
  tenure submit mail-1 --kind mail   give work to whichever node takes it
  tenure --endpoints host:2379 kv watch --prefix /     tell every change in an etcd

Commands: lock, elect, once, locks, election, register, worker, submit, task, node, service, lease, status, events, kv, doctor, demo, config, completions, version.
`tenure --help` lists everything, `tenure doctor` says whether it will work here.
";

/// What one thread reads from the store another frees, by the thousand: the C library's own allocator lets them wait for each other, which was a
/// quarter of all that eight nodes did to claim ten thousand tasks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Threads beside the one that writes output, for a command that moves many keys: while one reads what was answered, the other asks on.
const THREADS: usize = 2;

/// The same for a command that stands in line. It does little and wakes many; two threads hand that little to each other, and on two cores that the
/// store needs too, a lock and its release then cost twice the work.
const THREADS_IN_LINE: usize = 1;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::read(&words) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &words),
    };
    if let Some(Command::Part(command)) = &cli.command
        && let Some(code) = supervise::part(command)
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
            let is_part = matches!(cli.command, Some(Command::Part(_)));
            // A reader that had enough is no failure; one that never learns that something is held is.
            let has_enough = failure.code == Code::BrokenPipe && !cli.is_wrapper();
            let is_silent = has_enough || (is_part && failure.code == Code::Interrupted);
            if !is_silent {
                output.failure(&failure);
            }
            if cli.is_wrapper() { failure.wrapper_exit_code() } else { failure.exit_code() }
        }
    }
}

/// Help and version are answers; everything else that clap reports is a mistake of the caller's.
fn refuse(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A reader that left while help was printed has had enough of it.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let ours: Vec<&str> = words.iter().map_while(|word| word.to_str().filter(|word| *word != "--")).collect();
    let color = ours.windows(2).find(|pair| pair[0] == "--color").map(|pair| pair[1]);
    let color = color.or_else(|| ours.iter().find_map(|word| word.strip_prefix("--color=")));
    let color = color.and_then(|word| Color::from_str(word, true).ok()).unwrap_or_default();
    Output::new(ours.contains(&"--json"), color).failure(&mistake::failure(error, words));
    ExitCode::from(Cli::mistake_code(words))
}

fn run_to_end(cli: &Cli, output: &Output) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(if cli.stands_in_line() { THREADS_IN_LINE } else { THREADS })
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Failed, format!("the runtime cannot be started: {error}")))?;
    let done = runtime.block_on(async {
        match &cli.command {
            // Those who run a command have their own answers to signals.
            Some(Command::Lock(args)) => lock::run(args, &cli.global, output).await,
            Some(Command::Elect(args)) => elect::run(args, &cli.global, output).await,
            Some(Command::Once(args)) => once::run(args, &cli.global, output).await,
            Some(Command::Register(args)) => register::run(args, &cli.global, output).await,
            Some(Command::Worker(args)) => worker::run(args, &cli.global, output).await,
            Some(Command::Demo(args)) => demo::run(args, &cli.global, output).await,
            Some(Command::Part(PartCommand::Supervise(args))) => supervise::rehearse(args, output).await,
            _ => tokio::select! {
                biased;
                _ = tokio::signal::ctrl_c() => Err(Failure::new(Code::Interrupted, "interrupted")),
                done = run(cli, output) => done.map(|()| ExitCode::SUCCESS),
            },
        }
    });
    // A thread that waits for a terminal or a pipe must not keep us.
    runtime.shutdown_background();
    done
}

async fn run(cli: &Cli, output: &Output) -> Result<(), Failure> {
    let Some(command) = &cli.command else { return output.text(GREETING) };
    match command {
        Command::Lock(_)
        | Command::Elect(_)
        | Command::Once(_)
        | Command::Register(_)
        | Command::Worker(_)
        | Command::Demo(_)
        | Command::Part(PartCommand::Supervise(_)) => {
            Err(Failure::new(Code::Failed, "what handles signals itself is run by `run_to_end`"))
        }
        Command::Locks(command) => {
            locks::check(command, output)?;
            let decision = connect::decide(&cli.global)?;
            let (store, namespace) = open_decided(cli, &decision, output).await?;
            let done = locks::run(command, &store, &namespace, audit::actor(&decision), output).await;
            store.close().await;
            done
        }
        Command::Election(command) => {
            election::check(command)?;
            let decision = connect::decide(&cli.global)?;
            let (store, namespace) = open_decided(cli, &decision, output).await?;
            let who = hold::introduce(&decision, &[]);
            let who = format!("{} on {}", who.user, who.node);
            let done = election::run(command, &store, &namespace, &who, output).await;
            store.close().await;
            done
        }
        Command::Submit(args) => {
            let prepared = submit::prepare(args).await?;
            let (client, _) = open_client(cli, output).await?;
            let done = submit::run(prepared, &client, output).await;
            client.store().close().await;
            done
        }
        Command::Task(command) => {
            task::check(command, output)?;
            let (client, _) = open_client(cli, output).await?;
            let done = task::run(command, &client, output).await;
            client.store().close().await;
            done
        }
        Command::Lease(command) => {
            lease::check(command, output)?;
            let decision = connect::decide(&cli.global)?;
            let (store, namespace) = open_decided(cli, &decision, output).await?;
            let trail = audit::Trail::new(&namespace, audit::actor(&decision));
            let done = lease::run(command, &store, (&namespace, &trail), output).await;
            store.close().await;
            done
        }
        Command::Kv(command) => {
            kv::check(command, output)?;
            let decision = connect::decide(&cli.global)?;
            let (store, namespace) = open_decided(cli, &decision, output).await?;
            let trail = audit::Trail::new(&namespace, audit::actor(&decision));
            let done = kv::run(command, &store, &trail, output).await;
            store.close().await;
            done
        }
        Command::Node(command) => {
            node::check(command)?;
            let (client, namespace) = open_client(cli, output).await?;
            let done = node::run(command, &client, &namespace, output).await;
            client.store().close().await;
            done
        }
        Command::Service(command) => {
            let (store, namespace) = open(cli, output).await?;
            let done = service::run(command, &store, &namespace, output).await;
            store.close().await;
            done
        }
        Command::Status => {
            let (client, namespace) = open_client(cli, output).await?;
            let done = status::run(&client, &namespace, output).await;
            client.store().close().await;
            done
        }
        Command::Events(args) => {
            let (store, namespace) = open(cli, output).await?;
            let done = events::run(args, &store, &namespace, output).await;
            store.close().await;
            done
        }
        Command::Doctor => doctor::run(&cli.global, output).await,
        Command::Part(PartCommand::Worker { node, ledger, ttl }) => {
            demo::play_worker(node, ledger, *ttl, &cli.global, output).await
        }
        Command::Part(
            PartCommand::Launch { .. }
            | PartCommand::Reap { .. }
            | PartCommand::Sentinel
            | PartCommand::Terminal { .. },
        ) => Err(Failure::new(Code::Failed, "what needs no runtime is run by `main`")),
        Command::Config(command) => config::run(command, &cli.global, output),
        Command::Completions { shell } => output.text(&completions(*shell)),
        Command::Version => version::run(output),
    }
}

/// The store and the namespace that are meant.
async fn open(cli: &Cli, output: &Output) -> Result<(Store, Namespace), Failure> {
    open_decided(cli, &connect::decide(&cli.global)?, output).await
}

/// The tasks and nodes that are meant, for somebody whom others see as the sender.
async fn open_client(cli: &Cli, output: &Output) -> Result<(Client, Namespace), Failure> {
    let decision = connect::decide(&cli.global)?;
    let (store, namespace) = open_decided(cli, &decision, output).await?;
    let client = Client::new(store, &namespace).identity(audit::actor(&decision));
    let who = hold::introduce(&decision, &[]);
    let client = match NodeId::parse(&format!("{}@{}", who.user, who.node)) {
        Ok(name) => client.named(name),
        // A host whose name is none still has commands to send.
        Err(_) => client,
    };
    Ok((client, namespace))
}

async fn open_decided(
    cli: &Cli,
    decision: &Decision,
    output: &Output,
) -> Result<(Store, Namespace), Failure> {
    let namespace = Namespace::parse(&decision.namespace.value)
        .map_err(|error| Failure::usage(format!("the namespace: {error}")))?;
    let purpose = Purpose::of(cli.command.as_ref());
    Ok((connect::open_for(purpose, decision, output).await?, namespace))
}

/// A script that completes our command line in a shell.
fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
