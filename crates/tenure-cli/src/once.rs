//! `tenure once`: at most one run per period, across all hosts.
//!
//! The library decides which run counts and records it; here a command runs under the lock `once/NAME`, as with `tenure lock`.

mod list;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tenure::lock::Guard;
use tenure::once::{Begun, Decision, EVERY_MIN, OnceRecord, RunGate, RunGateError, lock_of};
use tenure_core::id::LockName;
use tenure_core::queue::LockMode;

use crate::cli::Global;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::hold::{HoldArgs, Patience, Progress, Stage, Stop, Wait, ago, listen};
use crate::lock::{LockLine, Wish, parse};
use crate::output::Output;
use crate::supervise::Signals;

/// How long the store may take to note how a run ended. The release comes after it, and both within 3 s of the command's end.
const NOTE_WITHIN: Duration = Duration::from_millis(800);

const HELP: &str = "\
Periods are counted by the wall clock, from 1970 on in UTC: --every 1h changes at each full hour, --every 1d at midnight UTC.
Each host asks its own clock which period it is, so hosts whose clocks differ agree as long as each starts the command by its own
clock, as cron does. A run is begun before the command starts and counts from then on, also if the command fails or its host dies.
With --retry-failed a run counts only if it ended with 0; one that nobody saw ending is tried again.
A run that is recorded more than 10 min ahead of this host's clock, in a later period, was recorded by a wrong clock and does not count.
Runs never overlap: while one goes on, even from an earlier period, another is refused.

The command runs under the lock once/NAME, on the same terms as with `tenure lock`; see there for its environment.
`tenure locks ls` shows how the lock's name is cut if NAME has more than 251 bytes.
`tenure once ls` lists the last run of every name, and those that are recorded in the future.
When it was last run is in the key /NAMESPACE/once/NAME; delete it with `tenure kv del` to run again in the same period.

Exit codes: the command's own, 124 it was run already or runs now (-E changes it), others as with `tenure lock`.";

/// What to run, and how often.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct OnceArgs {
    /// The name by which hosts know that it is the same.
    name: String,
    /// The period.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    every: Option<Duration>,
    /// Run again in the same period if the last run failed.
    #[arg(long)]
    retry_failed: bool,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Why, for whoever looks at the lock.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// The command.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl OnceArgs {
    /// Whether this is `tenure once ls`, which lists and runs nothing.
    pub(crate) fn is_list(&self) -> bool {
        self.name == "ls" && self.every.is_none() && self.command.is_empty()
    }
}

/// Runs the command, unless that was done already.
pub(crate) async fn run(args: &OnceArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    if args.is_list() {
        return list::run(global, output).await;
    }
    let Some(every) = args.every else {
        return Err(Failure::usage("a period is missing: --every DUR")
            .hint("for example: tenure once backup --every 1d -- ./backup.sh"));
    };
    if args.command.is_empty() {
        return Err(Failure::usage("a command is missing")
            .hint(format!("put it after --: tenure once {} --every 1d -- CMD", args.name)));
    }
    let name = parse(&args.name)?;
    let wish = Wish::new(lock_of(&name), LockMode::Exclusive, &args.reason)?;
    if every < EVERY_MIN {
        return Err(
            Failure::usage(format!("a period of {every:?} is too short")).hint("use --every 1s or more")
        );
    }
    let mut signals = listen()?;
    let stage = match Stage::open(&args.hold, &args.command, global, output, &mut signals, None).await {
        Ok(stage) => stage,
        Err(stop) => return stop.exit(),
    };
    let mut gate =
        RunGate::new(&stage.store, &stage.namespace, name.clone(), every).identity(stage.who.clone());
    if args.retry_failed {
        gate = gate.retry_failed();
    }
    let once = Once { name, line: LockLine::new(&stage, wish), gate, stage: &stage };
    let done = once.run(&mut signals).await;
    stage.close(Patience::after(&done)).await;
    done.or_else(Stop::exit)
}

struct Once<'a> {
    name: LockName,
    line: LockLine,
    gate: RunGate,
    stage: &'a Stage<'a>,
}

impl Once<'_> {
    async fn run(&self, signals: &mut Signals) -> Result<ExitCode, Stop> {
        let stage = self.stage;
        let Some(program) = &stage.program else {
            return Err(Failure::usage("no command to run").into());
        };
        // Most hosts come too late, and need no lock to learn that. Only a run that goes on may still fail.
        if let Decision::Done(last) = self.first_look(signals).await? {
            return Err(self.done(&last));
        }
        let progress = Progress::default();
        let guard = stage.acquire(&self.line, Wait::None, Instant::now(), &progress, signals).await?;
        let begun = match self.begin(&guard).await {
            Ok(record) => record,
            Err(stop) => {
                let _ = stage.release(guard.release()).await;
                return Err(stop);
            }
        };
        match self.line.run(stage, program, &guard, signals).await {
            Ok(run) => {
                if !run.outcome.is_lost {
                    let exit_code = Some(run.outcome.exit_code());
                    self.note_end(&guard, OnceRecord { exit_code, ..begun }).await;
                }
                Ok(self.line.finish(stage, guard, run, Duration::ZERO, signals).await)
            }
            Err(failure) => {
                self.withdraw(&guard).await;
                let _ = stage.release(guard.release()).await;
                Err(failure.into())
            }
        }
    }

    /// Whether a run is due, from a store that must not take longer than a start may.
    async fn first_look(&self, signals: &mut Signals) -> Result<Decision, Stop> {
        let looking = tokio::time::timeout_at(self.stage.start_by().into(), self.gate.decide());
        let looked = tokio::select! {
            biased;
            signal = signals.next_end() => return Err(Stop::signal(signal)),
            looked = looking => looked,
        };
        let too_late = |_| {
            Failure::new(
                Code::Unavailable,
                format!("the store did not tell in time when '{}' was last run", self.name),
            )
            .hint("run `tenure doctor`")
        };
        Ok(looked.map_err(too_late)?.map_err(|error| match error {
            RunGateError::Unreadable { reason } => self.unreadable(&reason),
            RunGateError::Store(error) => error.into(),
            error => Failure::new(Code::Failed, error.to_string()),
        })?)
    }

    fn key(&self) -> String {
        String::from_utf8_lossy(self.gate.key()).into_owned()
    }

    fn unreadable(&self, reason: &str) -> Failure {
        let key = self.key();
        Failure::new(Code::Failed, format!("{key} cannot be read: {reason}"))
            .hint(format!("if nothing needs it, delete it with `tenure kv del {key}`"))
    }

    /// The run of this period: ends with 124.
    fn done(&self, last: &OnceRecord) -> Stop {
        let key = self.key();
        let end = match last.exit_code {
            Some(code) => format!("it ended with {code}"),
            None => "it still runs, or nobody saw its end".to_owned(),
        };
        let message = format!(
            "'{}' was run in this period already: by {} pid {}, {} ago ({}); {end}",
            self.name,
            last.node,
            last.pid,
            ago(last.started),
            last.started
        );
        let failure = Failure::new(Code::NotAcquired, message)
            .hint(format!("delete {key} with `tenure kv del` to run it again"));
        self.stage.not_acquired(&failure)
    }

    /// Notes that a run begins: only while we hold the lock, and only if it is still due.
    async fn begin(&self, guard: &Guard) -> Result<OnceRecord, Stop> {
        match self.gate.begin(guard.fence()).await {
            Ok(Begun::Begun { record, ignored }) => {
                if let Some(last) = ignored {
                    self.stage.output.note(&format!(
                        "the last run of '{}' is recorded in the future, at {} by {} pid {}, and does not count; check the clock of that host and of this one",
                        self.name, last.started, last.node, last.pid
                    ));
                }
                Ok(record)
            }
            Ok(Begun::Done(last)) => Err(self.done(&last)),
            Ok(Begun::Unreadable { reason }) => Err(self.unreadable(&reason).into()),
            Ok(Begun::HoldLost) => Err(Failure::new(
                Code::Failed,
                format!("'{}' was lost before the command was started", self.line.lock()),
            )
            .hint("run it again")
            .into()),
            // Whether it was noted may be unknown, so it must count as noted.
            Err(error) => Err(Failure::from(error)
                .while_doing("the run could not be noted, and so was not begun")
                .into()),
        }
    }

    /// Notes how it ended, for people and for `--retry-failed`. A store that does not take it keeps nobody waiting.
    async fn note_end(&self, guard: &Guard, record: OnceRecord) {
        let noted = tokio::time::timeout(NOTE_WITHIN, self.gate.finish(&guard.fence(), &record)).await;
        if !matches!(noted, Ok(Ok(true))) {
            self.stage.output.note(&format!("how '{}' ended could not be noted; the run counts", self.name));
        }
    }

    /// The command did not run after all.
    async fn withdraw(&self, guard: &Guard) {
        // What cannot be withdrawn counts as a run: at most one.
        let _ = tokio::time::timeout(NOTE_WITHIN, self.gate.withdraw(&guard.fence())).await;
    }
}
