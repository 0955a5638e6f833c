//! `tenure once`: at most one run per period, across all hosts.
//!
//! The library decides whether a run is due and records it. The command runs under the lock `once/NAME`, as with `tenure lock`.

mod list;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tenure::lock::Guard;
use tenure::once::{Begun, EVERY_MIN, OnceDecision, OnceRecord, RunGate, RunGateError, lock_of};
use tenure_core::id::LockName;
use tenure_core::queue::LockMode;

use crate::cli::Global;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::hold::{CloseDeadline, HoldArgs, HoldContext, HoldExit, Wait, WaitProgress, ago, listen};
use crate::lock::{LockOptions, LockSubject, parse};
use crate::output::Output;
use crate::supervise::Signals;

/// How long the record of a run's end may take. The release follows it, and both end within 3 s of the command's end.
const RECORD_WITHIN: Duration = Duration::from_millis(800);

const HELP: &str = "\
Example, in the crontab of every host:
  0 3 * * * tenure once backup --every 1d -- ./backup.sh

Periods follow the wall clock in UTC, counted from 1970: --every 1h changes at each full hour, --every 1d at midnight UTC.
Each host computes the period from its own clock. A run is recorded before the command starts and counts from then on, even if the command
fails or its host dies. With --retry-failed, a run counts only if it ended with 0; a run without a recorded end is repeated.
A record that is more than 10 min ahead of this host's clock, in a later period, comes from a wrong clock and does not count.
Runs never overlap: while one is active, even from an earlier period, another is refused.

The command runs under the lock once/NAME, with the same timing and environment as with `tenure lock`.
`tenure locks ls` shows how the lock's name is shortened if NAME has more than 251 bytes.
`tenure once ls` lists the last run of every name, and the records in the future.
The last run is recorded in the key /NAMESPACE/once/NAME. Delete it with `tenure kv del` to run again in the same period.

Exit codes: that of the command; 124 it has run in this period or runs now (-E changes it); others as with `tenure lock`.";

/// The flags of `tenure once`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct OnceArgs {
    /// The name that all hosts use for this command; `ls` lists all names.
    name: String,
    /// The period, such as 1h or 1d.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    every: Option<Duration>,
    /// Run again in the same period if the last run failed.
    #[arg(long)]
    retry_failed: bool,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// A reason that `tenure locks show` prints.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl OnceArgs {
    /// Whether this is `tenure once ls`.
    pub(crate) fn is_list(&self) -> bool {
        self.name == "ls" && self.every.is_none() && self.command.is_empty()
    }
}

/// Runs the command unless it has run in this period.
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
    let options = LockOptions::new(lock_of(&name), LockMode::Exclusive, &args.reason)?;
    if every < EVERY_MIN {
        return Err(
            Failure::usage(format!("a period of {every:?} is too short")).hint("use --every 1s or more")
        );
    }
    let mut signals = listen()?;
    let context = match HoldContext::open(&args.hold, &args.command, global, output, &mut signals, None).await
    {
        Ok(context) => context,
        Err(stop) => return stop.exit(),
    };
    let mut gate = RunGate::new(&context.store, &context.namespace, name.clone(), every)
        .identity(context.identity.clone());
    if args.retry_failed {
        gate = gate.retry_failed();
    }
    let once = PeriodicRun { name, subject: LockSubject::new(&context, options), gate, context: &context };
    let done = once.run(&mut signals).await;
    context.close(CloseDeadline::after(&done)).await;
    done.or_else(HoldExit::exit)
}

struct PeriodicRun<'a> {
    name: LockName,
    subject: LockSubject,
    gate: RunGate,
    context: &'a HoldContext<'a>,
}

impl PeriodicRun<'_> {
    async fn run(&self, signals: &mut Signals) -> Result<ExitCode, HoldExit> {
        let context = self.context;
        let Some(program) = &context.program else {
            return Err(Failure::usage("a command is missing").into());
        };
        // Most hosts come too late, and one read without the lock is enough for them.
        if let OnceDecision::Done(last) = self.decide(signals).await? {
            return Err(self.already_run(&last));
        }
        let progress = WaitProgress::default();
        let guard = context.acquire(&self.subject, Wait::None, Instant::now(), &progress, signals).await?;
        let begun = match self.begin(&guard).await {
            Ok(record) => record,
            Err(stop) => {
                let _ = context.release(guard.release()).await;
                return Err(stop);
            }
        };
        match self.subject.run(context, program, &guard, signals).await {
            Ok(run) => {
                if !run.outcome.is_lost {
                    let exit_code = Some(run.outcome.exit_code());
                    self.record_end(&guard, OnceRecord { exit_code, ..begun }).await;
                }
                Ok(self.subject.finish(context, guard, run, Duration::ZERO, signals).await)
            }
            Err(failure) => {
                self.withdraw(&guard).await;
                let _ = context.release(guard.release()).await;
                Err(failure.into())
            }
        }
    }

    /// Reads whether a run is due, within the deadline of a start.
    async fn decide(&self, signals: &mut Signals) -> Result<OnceDecision, HoldExit> {
        let deciding = tokio::time::timeout_at(self.context.start_by().into(), self.gate.decide());
        let decided = tokio::select! {
            biased;
            signal = signals.next_end() => return Err(HoldExit::signal(signal)),
            decided = deciding => decided,
        };
        let too_late = |_| {
            let message = format!("the store did not return the last run of '{}' in time", self.name);
            Failure::new(Code::Unavailable, message).hint("run `tenure doctor`")
        };
        Ok(decided.map_err(too_late)?.map_err(|error| match error {
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
        Failure::new(Code::Failed, format!("the record of the last run, {key}, cannot be read: {reason}"))
            .hint(format!("delete it with `tenure kv del {key}` to run the command again"))
    }

    /// Reports the run of this period and ends with 124.
    fn already_run(&self, last: &OnceRecord) -> HoldExit {
        let key = self.key();
        let end = match last.exit_code {
            Some(code) => format!("it ended with {code}"),
            None => "it is still running, or its end was not recorded".to_owned(),
        };
        let message = format!(
            "'{}' has already run in this period: on {} pid {}, {} ago ({}); {end}",
            self.name,
            last.node,
            last.pid,
            ago(last.started),
            last.started
        );
        let failure = Failure::new(Code::NotAcquired, message)
            .hint(format!("delete {key} with `tenure kv del` to run it again"));
        self.context.not_acquired(&failure)
    }

    /// Records the start of a run, fenced by the lock, and only if the run is still due.
    async fn begin(&self, guard: &Guard) -> Result<OnceRecord, HoldExit> {
        match self.gate.begin(guard.fence()).await {
            Ok(Begun::Begun { record, ignored }) => {
                if let Some(last) = ignored {
                    self.context.output.note(&format!(
                        "the last run of '{}' is recorded in the future, at {} by {} pid {}, and does not count; check the clocks of that host and of this one",
                        self.name, last.started, last.node, last.pid
                    ));
                }
                Ok(record)
            }
            Ok(Begun::Done(last)) => Err(self.already_run(&last)),
            Ok(Begun::Unreadable { reason }) => Err(self.unreadable(&reason).into()),
            Ok(Begun::HoldLost) => Err(Failure::new(
                Code::Failed,
                format!("the lock '{}' was lost before the command was started", self.subject.lock()),
            )
            .hint("run `tenure once` again")
            .into()),
            // The record may have been written, so the run must count.
            Err(error) => Err(Failure::from(error)
                .while_doing("the start of the run could not be recorded, so the command was not started")
                .into()),
        }
    }

    /// Records the exit code, for listings and for `--retry-failed`, within a limit: the exit of this process waits for it.
    async fn record_end(&self, guard: &Guard, record: OnceRecord) {
        let recorded = tokio::time::timeout(RECORD_WITHIN, self.gate.finish(&guard.fence(), &record)).await;
        if !matches!(recorded, Ok(Ok(true))) {
            self.context
                .output
                .note(&format!("the end of '{}' could not be recorded; the run counts", self.name));
        }
    }

    /// Deletes the record of a run if its command was not started.
    async fn withdraw(&self, guard: &Guard) {
        // If this fails the run counts: at most one run is the safe side.
        let _ = tokio::time::timeout(RECORD_WITHIN, self.gate.withdraw(&guard.fence())).await;
    }
}
