//! `tenure lock`: a command that runs only while a lock is held.

mod report;
mod subject;
mod wait_output;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tenure_core::id::LockName;

pub(crate) use report::MAYBE_DURING;
pub(crate) use subject::{LockOptions, LockSubject};
pub(crate) use wait_output::{ahead_of_you, held_by, held_for};

use crate::cli::Global;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::hold::{CloseDeadline, HoldArgs, HoldContext, HoldExit, HoldSubject, Wait, WaitProgress, listen};
use crate::mistake::{Verbs, verb_as_name};
use crate::output::Output;
use crate::supervise::Signals;

/// The `schema` of JSON output about locks.
pub(crate) const SCHEMA: &str = "tenure.lock/v1";

const HELP: &str = "\
Examples:
  tenure lock deploy -- ./deploy.sh              wait for the lock, run the script, release the lock
  tenure lock deploy --try -- ./deploy.sh        exit with 124 at once if another process holds it
  tenure lock gpu --permits 2 -- ./train.sh      at most two at a time

Flags of tenure go before --; without --, everything after the command's name belongs to the command.
Without a command, the lock is held until a signal, and stdout gets one line: name, token, lease, key.

Timing: the lock is renewed after every third of the TTL. If renewals fail, the command gets the stop signal (--signal) at
TTL - grace - margin and SIGKILL at TTL - margin, both counted from the send time of the last acknowledged renewal. The store can let
another process acquire the lock only after that. If the lease is revoked or the lock is broken, the command gets the stop signal at once
and SIGKILL after the grace, at most 1 s later.

Supervision: if tenure itself is killed or stopped, a second process ends the command in time, with every process that it started.
This includes processes that left its process group (timeout, setsid, daemons), but not processes of another user.
The lock is held until the last of them has ended.

Environment of the command: TENURE_LOCK, TENURE_LOCK_KEY, TENURE_FENCING_TOKEN, TENURE_LEASE, TENURE_TTL_SECONDS, TENURE_NAMESPACE,
TENURE_NODE, ETCD_LOCK_KEY, ETCD_LOCK_REV. The fencing token grows with every holder: a storage that compares it with each write
rejects late writes of earlier holders.

Exit codes: that of the command; 128+N signal N killed it; 122 the lock was lost; 124 not acquired; 125 the command was not started;
126 not executable; 127 not found. Without a command, a signal is the normal end: 0.";

/// The flags of `tenure lock`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct LockArgs {
    /// The lock's name.
    name: String,
    /// Wait at most this long [default: without limit].
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with = "try_once")]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(long = "try")]
    try_once: bool,
    /// Allow N holders at the same time. Every user of the name must give the same N.
    #[arg(short = 'n', long = "permits", value_name = "N", conflicts_with = "shared")]
    permits: Option<NonZeroU32>,
    /// Hold it together with other --shared holders; an exclusive holder excludes all of them.
    #[arg(long)]
    shared: bool,
    /// Hold it at least this long, even if the command ends earlier.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, requires = "command")]
    min_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// A reason that `tenure locks show` prints.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Verbs of `tenure locks`. They are names of locks only if `--` or a command follows.
const VERBS: Verbs = &[
    ("ls", "tenure locks ls"),
    ("list", "tenure locks ls"),
    ("show", "tenure locks show NAME"),
    ("get", "tenure locks show NAME"),
    ("break", "tenure locks break NAME"),
    ("help", "tenure lock --help"),
];

impl LockArgs {
    /// The failure if a verb was given as the name.
    pub(crate) fn misread(&self) -> Option<Failure> {
        let act = "`tenure lock` would hold a lock of this name until a signal";
        verb_as_name(&self.name, &self.command, act, VERBS)
    }
}

/// Acquires the lock, runs the command or waits for a signal, and releases the lock.
pub(crate) async fn run(args: &LockArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let options =
        LockOptions::new(parse(&args.name)?, subject::mode(args.permits, args.shared), &args.reason)?;
    let wait = match (args.wait, args.try_once) {
        (Some(wait), _) => Wait::UpTo(wait),
        (None, true) => Wait::None,
        (None, false) => Wait::Endless,
    };
    let mut signals = listen()?;
    let context =
        match HoldContext::open(&args.hold, &args.command, global, output, &mut signals, args.wait).await {
            Ok(context) => context,
            Err(stop) => return stop.exit(),
        };
    let subject = LockSubject::new(&context, options);
    let done = hold(&context, &subject, wait, args.min_hold.unwrap_or_default(), &mut signals).await;
    context.close(CloseDeadline::after(&done)).await;
    done.or_else(HoldExit::exit)
}

/// Checks a lock name.
pub(crate) fn parse(name: &str) -> Result<LockName, Failure> {
    LockName::parse(name)
        .map_err(|error| Failure::usage(format!("invalid lock name: {error}")).hint("use a name like deploy"))
}

async fn hold(
    context: &HoldContext<'_>,
    subject: &LockSubject,
    wait: Wait,
    min_hold: Duration,
    signals: &mut Signals,
) -> Result<ExitCode, HoldExit> {
    let begin = Instant::now();
    let progress = WaitProgress::default();
    loop {
        let guard = context.acquire(subject, wait, begin, &progress, signals).await?;
        let since = Instant::now();
        if let Err(failure) = subject.report(context, &guard) {
            let _ = context.release(guard.release()).await;
            return Err(failure.into());
        }
        let Some(program) = &context.program else {
            return Ok(subject.hold(context, guard, signals).await);
        };
        match subject.run(context, program, &guard, signals).await {
            Ok(run) => {
                let rest = min_hold.saturating_sub(since.elapsed());
                return Ok(subject.finish(context, guard, run, rest, signals).await);
            }
            // The command did not run, so this process can enter the queue again.
            Err(failure) if failure.code == Code::Lost => {
                context.note_retry(subject.name(), "was lost before the command was started");
            }
            Err(failure) => {
                let _ = context.release(guard.release()).await;
                return Err(failure.into());
            }
        }
    }
}
