//! `tenure elect`: a candidate until it ends. Its command runs only while it leads, and again in each term.

mod output;
mod subject;
mod terms;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_core::id::{ElectionName, NodeId};

pub(crate) use subject::leader_name;

use self::subject::ElectionSubject;
use crate::cli::Global;
use crate::duration;
use crate::failure::Failure;
use crate::hold::{CloseDeadline, HoldArgs, HoldContext, HoldExit, listen};
use crate::mistake::{Verbs, verb_as_name};
use crate::output::Output;

/// The `schema` of JSON output about elections.
pub(crate) const SCHEMA: &str = "tenure.election/v1";

const HELP: &str = "\
Examples:
  tenure elect scheduler -- ./scheduler          run it on one host at a time; another host takes over when it ends
  tenure elect scheduler --value 10.0.0.7:80 -- ./scheduler     publish the leader's address

Flags of tenure go before --; without --, everything after the command's name belongs to the command.
Without a command, this process leads until a signal, and stdout gets a line at each start and end of a term:
`leading`, name, token, lease, key; or `stopped`, name, token, cause (ended, lost or asked). With --json the lines are objects,
on stderr if there is a command.

End of a term:
  the command ends, or this process gets a signal   leadership is released, and tenure ends with the command's exit code
  leadership is lost                                the command is stopped in the same times as with `tenure lock`, before another leads
  `tenure election resign` or `transfer`            the command is stopped within the grace, then leadership is released or handed over
After the last two, this process is a candidate again, unless --one-term is given.

Environment of the command: TENURE_ELECTION, TENURE_ELECTION_KEY, TENURE_FENCING_TOKEN, TENURE_LEASE, TENURE_TTL_SECONDS,
TENURE_NAMESPACE, TENURE_NODE. The fencing token grows with every term: a storage that compares it with each write rejects late
writes of earlier leaders.

Exit codes: that of the command; 128+N signal N killed it, or ended tenure while it waited; 122 leadership was lost in the last term
(--one-term, or after a signal); 124 it did not lead within --wait; 125 the command was not started; 126 not executable; 127 not found.
Without a command, a signal while leading is the normal end: 0.";

/// The flags of `tenure elect`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ElectArgs {
    /// The election's name.
    name: String,
    /// A text that observers see while this process leads, such as its address [default: the node name].
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// This candidate's name in listings [default: the node name].
    #[arg(long, value_name = "NAME", value_parser = NodeId::parse)]
    candidate: Option<NodeId>,
    /// Candidates of a higher priority lead first. A current leader keeps its term.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// End if the first term does not start within this time. Later terms have no limit.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// End after the first term.
    #[arg(long)]
    one_term: bool,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Verbs of `tenure election`. They are names of elections only if `--` or a command follows.
const VERBS: Verbs = &[
    ("ls", "tenure election ls"),
    ("list", "tenure election ls"),
    ("show", "tenure election show NAME"),
    ("get", "tenure election show NAME"),
    ("watch", "tenure election watch NAME"),
    ("resign", "tenure election resign NAME"),
    ("help", "tenure elect --help"),
];

impl ElectArgs {
    /// The failure if a verb was given as the name.
    pub(crate) fn misread(&self) -> Option<Failure> {
        let act = "`tenure elect` would lead an election of this name until a signal";
        verb_as_name(&self.name, &self.command, act, VERBS)
    }
}

/// Campaigns, runs the command or waits for a signal while leading, and resigns.
pub(crate) async fn run(args: &ElectArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let name = parse(&args.name)?;
    let mut signals = listen()?;
    let context =
        match HoldContext::open(&args.hold, &args.command, global, output, &mut signals, args.wait).await {
            Ok(context) => context,
            Err(stop) => return stop.exit(),
        };
    let done = ElectionSubject::new(&context, &name, args).lead(&mut signals).await;
    context.close(CloseDeadline::after(&done)).await;
    done.or_else(HoldExit::exit)
}

/// Checks an election name.
pub(crate) fn parse(name: &str) -> Result<ElectionName, Failure> {
    ElectionName::parse(name).map_err(|error| {
        Failure::usage(format!("invalid election name: {error}")).hint("use a name like scheduler")
    })
}
