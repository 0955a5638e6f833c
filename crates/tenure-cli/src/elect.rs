//! `tenure elect`: a candidate for as long as it lives. Its command runs only while it leads, and again at each term.

mod candidacy;
mod serving;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_core::id::{ElectionName, NodeId};

pub(crate) use candidacy::named;

use self::candidacy::Candidacy;
use crate::cli::Global;
use crate::duration;
use crate::failure::Failure;
use crate::hold::{HoldArgs, Patience, Stage, Stop, listen};
use crate::mistake::{Verbs, verb_as_name};
use crate::output::Output;

/// What `--json` answers about elections carry as `schema`.
pub(crate) const SCHEMA: &str = "tenure.election/v1";

const HELP: &str = "\
With --, our flags stand before it; without it, everything from the command's name on is the command's.
Without a command it leads until a signal, and stdout has a line whenever that begins or ends: leading, name, fence, lease, key; or
stopped, name, fence, why (ended, lost or asked). With --json they are objects, on stderr if there is a command.

When the command ends by itself, leadership is given up and its exit code is ours. A signal is passed on to it; then the same.
When leadership is lost, the command is stopped by the same times as with `tenure lock`, before the store can let anybody else lead;
when somebody asks for it (`tenure election resign` or `transfer`), the command is asked to stop, killed after the grace, and only then
leadership is given up or handed over. After both it is a candidate again, unless --one-term was said.

The command's environment has TENURE_ELECTION, TENURE_ELECTION_KEY, TENURE_FENCE, TENURE_LEASE, TENURE_TTL_SECONDS, TENURE_NAMESPACE and
TENURE_NODE. TENURE_FENCE grows with every term: whatever checks it together with the write is safe from late leaders.

Exit codes: the command's own, 128+N if signal N killed it or ended us while we waited, 122 leadership was lost and that was the end
(--one-term, or we were told to end), 124 it did not lead within --wait, 125 the command was not started, 126 not executable,
127 not found. Without a command, a signal while leading is the normal end: 0.";

/// Which election, how, and what to run while leading.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ElectArgs {
    /// The election's name.
    name: String,
    /// What everybody is told of the leader, such as where it can be reached [default: the node's name].
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// The name we go by among the candidates [default: the node's name].
    #[arg(long, value_name = "NAME", value_parser = NodeId::parse)]
    candidate: Option<NodeId>,
    /// Lead before candidates of a lower priority, whoever came first. Nobody is deposed for it.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Give up if it does not lead within this time. Once it has led, it waits for its next term without limit.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// End with the first term, however that ends.
    #[arg(long)]
    one_term: bool,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// The command.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Verbs of `tenure election`, which are no names of elections unless `--` or a command follows.
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
    /// A verb in the place of the name.
    pub(crate) fn misread(&self) -> Option<Failure> {
        let act = "`tenure elect` would lead an election of this name until a signal";
        verb_as_name(&self.name, &self.command, act, VERBS)
    }
}

/// Campaigns, runs the command or waits for a signal while leading, and resigns.
pub(crate) async fn run(args: &ElectArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let name = parse(&args.name)?;
    let mut signals = listen()?;
    let stage = match Stage::open(&args.hold, &args.command, global, output, &mut signals, args.wait).await {
        Ok(stage) => stage,
        Err(stop) => return stop.exit(),
    };
    let done = Candidacy::new(&stage, &name, args).serve(&mut signals).await;
    stage.close(Patience::after(&done)).await;
    done.or_else(Stop::exit)
}

/// A name as it was typed.
pub(crate) fn parse(name: &str) -> Result<ElectionName, Failure> {
    ElectionName::parse(name).map_err(|error| {
        Failure::usage(format!("the election's name: {error}")).hint("use a name like scheduler")
    })
}
