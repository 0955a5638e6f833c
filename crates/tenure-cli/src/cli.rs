//! The command line as types; clap makes the parser, the help and the suggestions from them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::demo::DemoArgs;
use crate::duration;
use crate::elect::ElectArgs;
use crate::election::ElectionCommand;
use crate::events::EventsArgs;
use crate::failure::{Failure, WRAPPER_FAILED};
use crate::kv::KvCommand;
use crate::lease::LeaseCommand;
use crate::lock::LockArgs;
use crate::locks::LocksCommand;
use crate::node::NodeCommand;
use crate::once::OnceArgs;
use crate::output::Color;
use crate::register::RegisterArgs;
use crate::service::ServiceCommand;
use crate::submit::SubmitArgs;
use crate::supervise::SuperviseArgs;
use crate::task::TaskCommand;
use crate::worker::WorkerArgs;

/// Locks, elections, registrations and tasks for programs on more than one machine.
#[derive(Parser, Debug)]
#[command(
    name = "tenure",
    version,
    propagate_version = true,
    infer_subcommands = false,
    max_term_width = 110,
    after_help = "Run `tenure COMMAND --help` for more about a command."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Option<CliCommand>,
}

impl Cli {
    /// Reads a command line, our own name first. With `--`, a command to run stands after it; without, it is everything from its name on.
    pub(crate) fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
        let mut grammar = Cli::grammar(words);
        let matches = grammar.try_get_matches_from_mut(words)?;
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut grammar))
    }

    /// The grammar of this very command line.
    fn grammar(words: &[OsString]) -> clap::Command {
        let loosen = |command: clap::Command| {
            command.mut_arg("command", |arg| arg.last(false).trailing_var_arg(true).allow_hyphen_values(true))
        };
        if words.iter().any(|word| word == "--") {
            return Cli::command();
        }
        ["lock", "elect", "once"]
            .into_iter()
            .fold(Cli::command(), |all, name| all.mut_subcommand(name, loosen))
    }

    /// The exit code for a command line that clap refused. Whoever would have run a command of the user's must not answer with one of the
    /// codes that the command may have.
    pub(crate) fn mistake_code(words: &[OsString]) -> u8 {
        let has_command = words.iter().any(|word| word == "--");
        let guess = Cli::grammar(words).ignore_errors(true).try_get_matches_from(words);
        let is_wrapper = guess.is_ok_and(|matches| match matches.subcommand_name() {
            Some("lock" | "elect" | "once") => true,
            Some("register") => has_command,
            _ => false,
        });
        if is_wrapper { WRAPPER_FAILED } else { USAGE }
    }

    /// The commands that a command line names, as far as it can be understood: `tenure`, `task`, `ls`.
    pub(crate) fn path(words: &[OsString]) -> Vec<String> {
        let mut path = vec!["tenure".to_owned()];
        let guess = Cli::grammar(words).ignore_errors(true).try_get_matches_from(words);
        let mut matches = guess.as_ref().ok();
        while let Some((name, below)) = matches.and_then(|matches| matches.subcommand()) {
            path.push(name.to_owned());
            matches = Some(below);
        }
        path
    }

    /// The commands below a command, without the hidden ones.
    pub(crate) fn subcommands(path: &[String]) -> Vec<String> {
        let mut command = Cli::command();
        for name in path.iter().skip(1) {
            match command.find_subcommand(name) {
                Some(below) => command = below.clone(),
                None => return Vec::new(),
            }
        }
        let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
        visible.map(|below| below.get_name().to_owned()).collect()
    }

    /// The long flags of a command, with those of every command.
    pub(crate) fn flags(path: &[String]) -> Vec<String> {
        let mut all = Cli::command();
        // Flags of every command reach those below only when clap has built them.
        all.build();
        let mut command = &all;
        for name in path.iter().skip(1) {
            match command.find_subcommand(name) {
                Some(below) => command = below,
                None => return Vec::new(),
            }
        }
        command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
    }

    /// A verb in the place of a name, such as `tenure lock ls`.
    pub(crate) fn misread(&self) -> Option<Failure> {
        match &self.command {
            Some(CliCommand::Lock(args)) => args.misread(),
            Some(CliCommand::Elect(args)) => args.misread(),
            Some(CliCommand::Submit(args)) => args.misread(),
            _ => None,
        }
    }

    /// Whether locks and turns are all it asks of the store.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(&self.command, Some(CliCommand::Lock(_) | CliCommand::Elect(_) | CliCommand::Once(_)))
    }

    /// Whether it runs a command of the user's, whose exit code then is ours.
    pub(crate) fn is_wrapper(&self) -> bool {
        match &self.command {
            Some(CliCommand::Register(args)) => args.has_command(),
            Some(
                CliCommand::Lock(_)
                | CliCommand::Elect(_)
                | CliCommand::Once(_)
                | CliCommand::Internal(InternalCommand::Supervise(_)),
            ) => true,
            _ => false,
        }
    }
}

/// What every command understands, anywhere before `--`.
#[derive(Args, Debug, Clone)]
pub(crate) struct Global {
    /// The store: memory:, file:///path, etcd://host:2379,host2:2379 or etcds://host:2379.
    #[arg(long, global = true, value_name = "URL", help_heading = STORE)]
    pub(crate) store: Option<String>,
    /// The members of an etcd cluster, as host:port or URLs, separated by commas.
    #[arg(long, global = true, value_name = "LIST", help_heading = STORE)]
    pub(crate) endpoints: Option<String>,
    /// Use the embedded store of this machine and user.
    #[arg(long, global = true, help_heading = STORE)]
    pub(crate) local: bool,
    /// The namespace that names live in.
    #[arg(long, global = true, value_name = "NAME", help_heading = STORE)]
    pub(crate) namespace: Option<String>,
    /// The authorities to trust, as a PEM file.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) cacert: Option<String>,
    /// Our certificate, as a PEM file.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) cert: Option<String>,
    /// The key of our certificate, as a PEM file.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) key: Option<String>,
    /// Whom to sign in as.
    #[arg(long, global = true, value_name = "NAME", help_heading = STORE)]
    pub(crate) user: Option<String>,
    /// A file with the password, readable by its owner alone.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) password_file: Option<String>,
    /// How long connecting may take [default: 5s, or as long as --wait].
    #[arg(long, global = true, value_name = "DUR", value_parser = duration::parse, help_heading = STORE)]
    pub(crate) connect_timeout: Option<Duration>,
    /// Answer in JSON.
    #[arg(long, global = true, help_heading = TALK)]
    pub(crate) json: bool,
    /// Print nothing about the store, about waiting, nor that something was not acquired, which the exit code reports. Failures are always printed.
    #[arg(short, long, global = true, help_heading = TALK)]
    pub(crate) quiet: bool,
    /// When to colour.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", help_heading = TALK)]
    pub(crate) color: Color,
    /// Say more on stderr: -v what is done, -vv why.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = TALK)]
    pub(crate) verbose: u8,
}

/// The exit code for what cannot be understood, as shells have it.
pub(crate) const USAGE: u8 = 2;

const STORE: &str = "Which store";
const TALK: &str = "Output";

/// The commands there are.
#[derive(Subcommand, Debug)]
pub(crate) enum CliCommand {
    /// Run a command while holding a lock; without a command, hold it until a signal.
    Lock(LockArgs),
    /// Stay a candidate, and run a command only while leading; without a command, lead until a signal.
    Elect(ElectArgs),
    /// Run a command at most once per period, across all hosts.
    Once(OnceArgs),
    /// See who holds which lock and who waits, and break them.
    #[command(subcommand)]
    Locks(LocksCommand),
    /// See who leads and who waits to, and ask leaders to go.
    #[command(subcommand, alias = "elections")]
    Election(ElectionCommand),
    /// Keep keys alive under one shared lease, for a command's life or until a signal.
    Register(RegisterArgs),
    /// Join as a node: claim tasks, run each as a child process, share them with the other nodes.
    Worker(WorkerArgs),
    /// Give work to whichever node takes it.
    Submit(SubmitArgs),
    /// See tasks, tell them something, wait for their end.
    #[command(subcommand, alias = "tasks")]
    Task(TaskCommand),
    /// Look at leases, and end them.
    #[command(subcommand, alias = "leases")]
    Lease(LeaseCommand),
    /// Read, write and watch raw keys, as etcdctl does.
    #[command(subcommand)]
    Kv(KvCommand),
    /// See which nodes are alive and what they have, and tell them something.
    #[command(subcommand, alias = "nodes")]
    Node(NodeCommand),
    /// See which services have instances, and watch them.
    #[command(subcommand, alias = "services")]
    Service(ServiceCommand),
    /// Show on one screen how everything stands, and what somebody should look at.
    Status,
    /// Tell what has happened, as far as the store still knows, one event on a line.
    Events(EventsArgs),
    /// Look at configuration, connection, server and clock, and say what to do next.
    Doctor,
    /// The whole story by itself in under a minute: workers share tasks, one is killed, its tasks run elsewhere. Ends with a verdict.
    Demo(DemoArgs),
    /// Show the configuration and where each value came from.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a script that completes command lines, for bash, zsh, fish and others.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version,
    /// Take part in what another process does.
    #[command(hide = true, subcommand)]
    Internal(InternalCommand),
}

/// What can be done with the configuration.
#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Print each value with where it came from; secrets as (set).
    #[command(aliases = ["get", "ls", "list"])]
    Show,
    /// Print where configuration files are looked for, the stronger first.
    Path,
}

/// Parts that are played in processes of their own, for `demo` and supervision; not for people.
#[derive(Subcommand, Debug)]
pub(crate) enum InternalCommand {
    /// Run tasks that write down when they ran, until stdin ends.
    Worker {
        /// The node's id.
        node: String,
        /// Where they write it.
        ledger: PathBuf,
        /// The lease's length.
        #[arg(value_parser = duration::parse)]
        ttl: Duration,
    },
    /// Wait for a word on the socket that is stdin, then become the command.
    Launch {
        /// Where the command is.
        path: PathBuf,
        /// How many files it may have open.
        #[arg(long)]
        open_files: Option<u64>,
        /// Its name and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Start a launcher, wait for everything that its command starts, and kill all of it when the socket that is stdin is closed.
    Reap {
        /// Where the command is.
        path: PathBuf,
        /// How many files it may have open.
        #[arg(long)]
        open_files: Option<u64>,
        /// Its name and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Kill process trees when the process that feeds stdin no longer can.
    Sentinel,
    /// Hand the terminal that is stdin to a group.
    Terminal {
        /// The group.
        group: i32,
    },
    /// Supervise a command with deadlines of one's own.
    Supervise(SuperviseArgs),
}

#[cfg(test)]
mod fuzz;
