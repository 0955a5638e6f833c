//! `tenure lock`: a command that runs while a lock is held, and no longer.

mod keeping;
mod line;
mod waiting;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tenure_core::id::LockName;

pub(crate) use line::{LockLine, Wish};
pub(crate) use waiting::{held_by, held_for};

use crate::cli::Global;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::hold::{HoldArgs, Line, Patience, Progress, Stage, Stop, Wait, listen};
use crate::mistake::{Verbs, verb_as_name};
use crate::output::Output;
use crate::supervise::Signals;

/// What `--json` answers about locks carry as `schema`.
pub(crate) const SCHEMA: &str = "tenure.lock/v1";

const HELP: &str = "\
With --, our flags stand before it; without it, everything from the command's name on is the command's.
Without a command the lock is held until a signal, and stdout has one line when it is: name, fence, lease, key.

The lock is renewed every third of the TTL. If that fails, the command is asked to stop (--signal) at TTL - grace - margin after the last
renewal that was acknowledged, counted from when it was sent, and killed at TTL - margin: before the store can give the lock to anybody else.
If somebody revokes the lease or breaks the lock, it is asked at once and killed after the grace, at most 1 s.
Killed or stopped ourselves, a second process ends the command in time, with everything that it started: also what left its process group, as
`timeout`, `setsid` and daemons do. Processes of another user are out of its reach. The lock is held until the last of them has ended.

The command's environment has TENURE_LOCK, TENURE_LOCK_KEY, TENURE_FENCE, TENURE_LEASE, TENURE_TTL_SECONDS, TENURE_NAMESPACE, TENURE_NODE,
ETCD_LOCK_KEY and ETCD_LOCK_REV. TENURE_FENCE grows with every holder: whatever checks it together with the write is safe from late ones.

Exit codes: the command's own, 128+N if signal N killed it, 122 the lock was lost, 124 not acquired, 125 the command was not started,
126 not executable, 127 not found. Without a command, a signal is the normal end: 0.";

/// Which lock, how, and what to run under it.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct LockArgs {
    /// The lock's name.
    name: String,
    /// Wait this long for it, not for ever.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with = "try_once")]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(long = "try")]
    try_once: bool,
    /// Let this many hold it at once; all who use the name must say the same.
    #[arg(short = 'n', long = "permits", value_name = "N", conflicts_with = "shared")]
    permits: Option<NonZeroU32>,
    /// Hold it together with others that share it.
    #[arg(long)]
    shared: bool,
    /// Keep it at least this long, also after the command.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, requires = "command")]
    min_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Why, for whoever looks at the lock.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// The command.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Verbs of `tenure locks`, which are no names of locks unless `--` or a command follows.
const VERBS: Verbs = &[
    ("ls", "tenure locks ls"),
    ("list", "tenure locks ls"),
    ("show", "tenure locks show NAME"),
    ("get", "tenure locks show NAME"),
    ("break", "tenure locks break NAME"),
    ("help", "tenure lock --help"),
];

impl LockArgs {
    /// A verb in the place of the name.
    pub(crate) fn misread(&self) -> Option<Failure> {
        let act = "`tenure lock` would hold a lock of this name until a signal";
        verb_as_name(&self.name, &self.command, act, VERBS)
    }
}

/// Holds the lock, runs the command or waits for a signal, and gives it back.
pub(crate) async fn run(args: &LockArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let wish = Wish::new(parse(&args.name)?, line::mode(args.permits, args.shared), &args.reason)?;
    let wait = match (args.wait, args.try_once) {
        (Some(wait), _) => Wait::UpTo(wait),
        (None, true) => Wait::None,
        (None, false) => Wait::Endless,
    };
    let mut signals = listen()?;
    let stage = match Stage::open(&args.hold, &args.command, global, output, &mut signals, args.wait).await {
        Ok(stage) => stage,
        Err(stop) => return stop.exit(),
    };
    let line = LockLine::new(&stage, wish);
    let done = hold(&stage, &line, wait, args.min_hold.unwrap_or_default(), &mut signals).await;
    stage.close(Patience::after(&done)).await;
    done.or_else(Stop::exit)
}

/// A name as it was typed.
pub(crate) fn parse(name: &str) -> Result<LockName, Failure> {
    LockName::parse(name)
        .map_err(|error| Failure::usage(format!("the lock's name: {error}")).hint("use a name like deploy"))
}

async fn hold(
    stage: &Stage<'_>,
    line: &LockLine,
    wait: Wait,
    min_hold: Duration,
    signals: &mut Signals,
) -> Result<ExitCode, Stop> {
    let begin = Instant::now();
    let progress = Progress::default();
    loop {
        let guard = stage.acquire(line, wait, begin, &progress, signals).await?;
        let since = Instant::now();
        if let Err(failure) = line.tell(stage, &guard) {
            let _ = stage.release(guard.release()).await;
            return Err(failure.into());
        }
        let Some(program) = &stage.program else {
            return Ok(line.stay(stage, guard, signals).await);
        };
        match line.run(stage, program, &guard, signals).await {
            Ok(run) => {
                let rest = min_hold.saturating_sub(since.elapsed());
                return Ok(line.finish(stage, guard, run, rest, signals).await);
            }
            // Nothing ran, so nothing was lost: it is our turn again later.
            Err(failure) if failure.code == Code::Lost => {
                stage.again(line.name(), "was lost before the command was started");
            }
            Err(failure) => {
                let _ = stage.release(guard.release()).await;
                return Err(failure.into());
            }
        }
    }
}
