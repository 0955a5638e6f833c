//! The types of the command line, from which clap generates the parser and the help.

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
    /// Parses a command line with the program's name. A command to run follows `--`; without `--`, it is everything from the command's name on.
    pub(crate) fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
        let mut grammar = Cli::grammar(words);
        let matches = grammar.try_get_matches_from_mut(words)?;
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut grammar))
    }

    /// The grammar for this command line, which depends on whether it has `--`.
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

    /// The exit code for a command line that clap refused. A wrapper uses a code of its own, because the command that it would have run may
    /// use any other.
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

    /// The commands in a command line, as far as it can be parsed: `tenure`, `task`, `ls`.
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

    /// The visible subcommands of a command.
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

    /// The long flags of a command, including the global ones.
    pub(crate) fn flags(path: &[String]) -> Vec<String> {
        let mut all = Cli::command();
        // clap passes global flags to subcommands only when it builds them.
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

    /// The failure if a verb was given as a name, as in `tenure lock ls`.
    pub(crate) fn misread(&self) -> Option<Failure> {
        match &self.command {
            Some(CliCommand::Lock(args)) => args.misread(),
            Some(CliCommand::Elect(args)) => args.misread(),
            Some(CliCommand::Submit(args)) => args.misread(),
            _ => None,
        }
    }

    /// Whether the command only waits in a queue of the store and holds.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(&self.command, Some(CliCommand::Lock(_) | CliCommand::Elect(_) | CliCommand::Once(_)))
    }

    /// Whether it runs a command of the user and ends with that command's exit code.
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

/// The global flags, allowed anywhere before `--`.
#[derive(Args, Debug, Clone)]
pub(crate) struct Global {
    /// The store: memory:, file:///path, etcd://host:2379,host2:2379 or etcds://host:2379.
    #[arg(long, global = true, value_name = "URL", help_heading = STORE)]
    pub(crate) store: Option<String>,
    /// The members of an etcd cluster, as host:port or URLs, separated by commas.
    #[arg(long, global = true, value_name = "LIST", help_heading = STORE)]
    pub(crate) endpoints: Option<String>,
    /// Use the embedded store of this host and user.
    #[arg(long, global = true, help_heading = STORE)]
    pub(crate) local: bool,
    /// The namespace of all names.
    #[arg(long, global = true, value_name = "NAME", help_heading = STORE)]
    pub(crate) namespace: Option<String>,
    /// The trusted certificate authorities, as a PEM file.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) cacert: Option<String>,
    /// The client certificate, as a PEM file.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) cert: Option<String>,
    /// The key of the client certificate, as a PEM file.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) key: Option<String>,
    /// The user to sign in as.
    #[arg(long, global = true, value_name = "NAME", help_heading = STORE)]
    pub(crate) user: Option<String>,
    /// A file with the password, readable by its owner alone.
    #[arg(long, global = true, value_name = "FILE", help_heading = STORE)]
    pub(crate) password_file: Option<String>,
    /// How long connecting may take [default: 5s, or as long as --wait].
    #[arg(long, global = true, value_name = "DUR", value_parser = duration::parse, help_heading = STORE)]
    pub(crate) connect_timeout: Option<Duration>,
    /// Print JSON.
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Print no notes about the store, about waiting, or that a lock was not acquired, which the exit code reports. Failures are always printed.
    #[arg(short, long, global = true, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
    /// When to use colours.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", help_heading = OUTPUT)]
    pub(crate) color: Color,
    /// Log more on stderr: -v changes of state, -vv decisions and retries.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = OUTPUT)]
    pub(crate) verbose: u8,
}

/// The exit code for a mistake in the command line, as in shells.
pub(crate) const USAGE: u8 = 2;

const STORE: &str = "Which store";
const OUTPUT: &str = "Output";

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum CliCommand {
    /// Run a command while holding a lock; without a command, hold it until a signal.
    Lock(LockArgs),
    /// Stay a candidate, and run a command only while leading; without a command, lead until a signal.
    Elect(ElectArgs),
    /// Run a command at most once per period, across all hosts.
    Once(OnceArgs),
    /// List locks with their holders and waiters, and break locks.
    #[command(subcommand)]
    Locks(LocksCommand),
    /// List elections with their leaders and candidates, and request that a leader steps down.
    #[command(subcommand, alias = "elections")]
    Election(ElectionCommand),
    /// Keep keys in the store under one lease while a command runs, or until a signal.
    Register(RegisterArgs),
    /// Run a worker: claim tasks, run each as a child process, share tasks with the other workers.
    Worker(WorkerArgs),
    /// Submit tasks for the workers.
    Submit(SubmitArgs),
    /// List tasks, send them commands, wait for their end.
    #[command(subcommand, alias = "tasks")]
    Task(TaskCommand),
    /// List leases, and revoke them.
    #[command(subcommand, alias = "leases")]
    Lease(LeaseCommand),
    /// Read, write and watch raw keys, as etcdctl does.
    #[command(subcommand)]
    Kv(KvCommand),
    /// List live nodes and their tasks, and send them commands.
    #[command(subcommand, alias = "nodes")]
    Node(NodeCommand),
    /// List services and their instances, and watch them.
    #[command(subcommand, alias = "services")]
    Service(ServiceCommand),
    /// Show the state of the namespace on one screen, with warnings.
    Status,
    /// Print past events, as far as the store's history reaches, one per line.
    Events(EventsArgs),
    /// Check configuration, connection, server and clock, and print what to do next.
    Doctor,
    /// Demonstrate workers in half a minute: they share tasks, one is killed, the others run its tasks. Prints the result in one line.
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
    /// Run a helper process of another command.
    #[command(hide = true, subcommand)]
    Internal(InternalCommand),
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Print each value with its source; secrets as (set).
    #[command(aliases = ["get", "ls", "list"])]
    Show,
    /// Print the paths of configuration files, the stronger first.
    Path,
}

/// Helper processes of `demo` and of the supervision; not for users.
#[derive(Subcommand, Debug)]
pub(crate) enum InternalCommand {
    /// Run tasks that record when they ran, until stdin ends.
    Worker {
        /// The node's id.
        node: String,
        /// The ledger file.
        ledger: PathBuf,
        /// The TTL of the lease.
        #[arg(value_parser = duration::parse)]
        ttl: Duration,
    },
    /// Wait for a message on the socket at stdin, then become the command.
    Launch {
        /// The path of the command.
        path: PathBuf,
        /// Its limit of open files.
        #[arg(long)]
        open_files: Option<u64>,
        /// Its name and arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Start a launcher, wait for every process that its command starts, and kill all of them when the socket at stdin is closed.
    Reap {
        /// The path of the command.
        path: PathBuf,
        /// Its limit of open files.
        #[arg(long)]
        open_files: Option<u64>,
        /// Its name and arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Kill process trees when the process that writes to stdin no longer can.
    Sentinel,
    /// Give the terminal at stdin to a process group.
    Terminal {
        /// The process group.
        group: i32,
    },
    /// Supervise a command with deadlines from the command line.
    Supervise(SuperviseArgs),
}

#[cfg(test)]
mod fuzz;
