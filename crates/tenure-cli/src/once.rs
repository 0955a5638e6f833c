//! `tenure once`: at most one run per period, across all hosts.
//!
//! The lock `once/NAME` lets one host at a time decide; the key `/NAMESPACE/once/NAME` says when the last run was started, and outlives it.
//! It is written before the command starts, guarded by the lock's fence: a run that was begun counts, even if its host dies.

mod list;

use std::cmp::Ordering;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use tenure::clock::wall_time;
use tenure::core::layout::{Key, Layout};
use tenure::core::line::Mode;
use tenure::core::name::{LockName, NAME_BYTES_MAX};
use tenure::core::record::{Record, RunRecord, WallTime};
use tenure::core::rendezvous;
use tenure::lock::Guard;
use tenure::store::{Condition, KeyValue, Op, StoreError, Txn};

use crate::cli::Global;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::hold::{HoldArgs, Patience, Progress, Stage, Stop, Wait, ago, listen};
use crate::lock::{LockLine, Wish, parse};
use crate::output::Output;
use crate::supervise::Signals;

/// Below this, the clocks of two hosts differ by more than a period.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// How far ahead of ours the clock of another host may be. Synchronised clocks differ by milliseconds and neglected ones by a minute or two, so a run that is
/// recorded further ahead was recorded by a wrong clock. Far larger, and such a run blocks the job; far smaller, and a slow clock repeats a run.
const AHEAD_MAX: Duration = Duration::from_secs(10 * 60);

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
    let wish = Wish::new(parse(&lock_name(&name))?, Mode::Exclusive, &args.reason)?;
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
    let key = Layout::new(&stage.namespace).encode(&Key::Run(name.clone()));
    let once = Once { args, every, name, line: LockLine::new(&stage, wish), key, stage: &stage };
    let done = once.run(&mut signals).await;
    stage.close(Patience::after(&done)).await;
    done.or_else(Stop::exit)
}

struct Once<'a> {
    args: &'a OnceArgs,
    every: Duration,
    name: LockName,
    line: LockLine,
    key: Bytes,
    stage: &'a Stage<'a>,
}

impl Once<'_> {
    async fn run(&self, signals: &mut Signals) -> Result<ExitCode, Stop> {
        let stage = self.stage;
        let Some(program) = &stage.program else {
            return Err(Failure::usage("no command to run").into());
        };
        // Most hosts come too late, and need no lock to learn that. Only a run that goes on may still fail.
        let last = self.first_look(signals).await?;
        self.refuse_if_done(last.as_ref())?;
        let progress = Progress::default();
        let guard = stage.acquire(&self.line, Wait::None, Instant::now(), &progress, signals).await?;
        let begun = match self.begin(&guard).await {
            Ok(record) => record,
            Err(stop) => {
                let _ = stage.release(guard).await;
                return Err(stop);
            }
        };
        match self.line.run(stage, program, &guard, signals).await {
            Ok(run) => {
                if !run.outcome.is_lost {
                    self.note_end(&guard, RunRecord { exit_code: Some(run.outcome.exit_code()), ..begun })
                        .await;
                }
                Ok(self.line.finish(stage, guard, run, Duration::ZERO, signals).await)
            }
            Err(failure) => {
                self.withdraw(&guard).await;
                let _ = stage.release(guard).await;
                Err(failure.into())
            }
        }
    }

    /// The last run, from a store that must not take longer than a start may.
    async fn first_look(&self, signals: &mut Signals) -> Result<Option<KeyValue>, Stop> {
        let looking = tokio::time::timeout_at(self.stage.start_by().into(), self.last());
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
        Ok(looked.map_err(too_late)??)
    }

    async fn last(&self) -> Result<Option<KeyValue>, StoreError> {
        self.stage.store.get_key(self.key.clone()).await
    }

    /// Ends with 124 if the last run was in this period. Returns what is wrong with its record, if it does not count for that.
    fn refuse_if_done(&self, last: Option<&KeyValue>) -> Result<Option<String>, Stop> {
        let Some(last) = last else { return Ok(None) };
        let key = String::from_utf8_lossy(&self.key);
        let record = RunRecord::decode(&last.value).map_err(|error| {
            Failure::new(Code::Failed, format!("{key} cannot be read: {}", error.reason()))
                .hint(format!("if nothing needs it, delete it with `tenure kv del {key}`"))
        })?;
        let counts = !self.args.retry_failed || record.exit_code == Some(0);
        match Age::of(record.started, wall_time(), self.every) {
            Age::Earlier => return Ok(None),
            Age::Future => {
                return Ok(Some(format!(
                    "the last run of '{}' is recorded in the future, at {} by {} pid {}, and does not count; check the clock of that host and of this one",
                    self.name, record.started, record.node, record.pid
                )));
            }
            Age::Current if !counts => return Ok(None),
            Age::Current => {}
        }
        let end = match record.exit_code {
            Some(code) => format!("it ended with {code}"),
            None => "it still runs, or nobody saw its end".to_owned(),
        };
        let message = format!(
            "'{}' was run in this period already: by {} pid {}, {} ago ({}); {end}",
            self.name,
            record.node,
            record.pid,
            ago(record.started),
            record.started
        );
        let failure = Failure::new(Code::NotAcquired, message)
            .hint(format!("delete {key} with `tenure kv del` to run it again"));
        Err(self.stage.not_acquired(&failure))
    }

    /// Notes that a run begins: only while we hold the lock, and only if nobody has noted another since we looked.
    async fn begin(&self, guard: &Guard) -> Result<RunRecord, Stop> {
        let who = &self.stage.who;
        let record = RunRecord {
            started: wall_time(),
            exit_code: None,
            node: who.node.clone(),
            pid: who.pid,
            command: who.program.clone(),
            ..RunRecord::default()
        };
        let last = self.last().await?;
        if let Some(wrong) = self.refuse_if_done(last.as_ref())? {
            self.stage.output.note(&wrong);
        }
        let unchanged = match &last {
            Some(last) => Condition::modified_at(self.key.clone(), last.modified),
            None => Condition::absent(self.key.clone()),
        };
        let put = Txn::new().when(unchanged).then(Op::put(self.key.clone(), record.encode()));
        match self.stage.store.txn(guard.fence().guard(put)).await {
            Ok(reply) if reply.succeeded => Ok(record),
            Ok(_) => Err(Failure::new(
                Code::Failed,
                format!("'{}' was lost before the command was started", self.line.lock()),
            )
            .hint("run it again")
            .into()),
            // Nobody knows whether it was noted, so it must count as noted.
            Err(error) => Err(Failure::from(error)
                .while_doing("the run could not be noted, and so was not begun")
                .into()),
        }
    }

    /// Notes how it ended, for people and for `--retry-failed`. A store that does not take it keeps nobody waiting.
    async fn note_end(&self, guard: &Guard, record: RunRecord) {
        let put = guard.fence().guard(Txn::new().then(Op::put(self.key.clone(), record.encode())));
        let noted = tokio::time::timeout(NOTE_WITHIN, self.stage.store.txn(put)).await;
        if !matches!(noted, Ok(Ok(reply)) if reply.succeeded) {
            self.stage.output.note(&format!("how '{}' ended could not be noted; the run counts", self.name));
        }
    }

    /// The command did not run after all.
    async fn withdraw(&self, guard: &Guard) {
        let delete = guard.fence().guard(Txn::new().then(Op::delete(self.key.clone())));
        // What cannot be withdrawn counts as a run: at most one.
        let _ = tokio::time::timeout(NOTE_WITHIN, self.stage.store.txn(delete)).await;
    }
}

/// The lock that the command runs under: `once/NAME`. Where that is too long for a name, its end is told by a number instead.
fn lock_name(name: &LockName) -> String {
    const MARK_BYTES: usize = "~0123456789abcdef".len();
    let whole = format!("once/{name}");
    if whole.len() <= NAME_BYTES_MAX {
        return whole;
    }
    let mark = rendezvous::score(name.as_str().as_bytes(), b"once");
    let mut end = NAME_BYTES_MAX - MARK_BYTES;
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}~{mark:016x}", &whole[..end])
}

/// Where a recorded run lies, seen from this host's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Age {
    /// In an earlier period.
    Earlier,
    /// In this period, or in a later one by no more than clocks may differ.
    Current,
    /// In a later period, and further ahead than any clock should be.
    Future,
}

impl Age {
    fn of(started: WallTime, now: WallTime, every: Duration) -> Age {
        match period(started, every).cmp(&period(now, every)) {
            Ordering::Less => Age::Earlier,
            Ordering::Greater if is_future(started, now) => Age::Future,
            Ordering::Equal | Ordering::Greater => Age::Current,
        }
    }
}

/// Whether a run was recorded by a clock that is too far ahead of this one.
fn is_future(started: WallTime, now: WallTime) -> bool {
    u128::from(started.0.saturating_sub(now.0)) > AHEAD_MAX.as_millis()
}

/// Which period a moment is in.
fn period(at: WallTime, every: Duration) -> u128 {
    u128::from(at.0) / every.as_millis().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_begins_where_the_wall_clock_says() {
        let hour = Duration::from_secs(3_600);
        let at = |s: u64| period(WallTime(s * 1_000), hour);
        assert_eq!(at(3_599), 0);
        assert_eq!((at(3_600), at(7_199)), (1, 1));
        assert_eq!(at(7_200), 2);
    }

    #[test]
    fn run_in_the_future_counts_only_within_clock_difference() {
        let hour = Duration::from_secs(3_600);
        let at = |s: u64| WallTime(s * 1_000);
        let now = at(7_190);
        for (started, age) in [
            (3_599, Age::Earlier),
            (3_600, Age::Current),
            (7_199, Age::Current),
            // Ten seconds later the next period begins, which a clock that is a little ahead has seen already.
            (7_200, Age::Current),
            (7_790, Age::Current),
            (7_791, Age::Future),
            (900_000_000, Age::Future),
        ] {
            assert_eq!(Age::of(at(started), now, hour), age, "{started}");
        }
        // A whole day ahead, but in the same period: the run was in this period.
        assert_eq!(Age::of(at(90_000), now, Duration::from_secs(1_000_000)), Age::Current);
        assert_eq!(Age::of(WallTime(u64::MAX), now, hour), Age::Future);
    }
}
