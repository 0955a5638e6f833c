//! Runs a command while a hold is valid, for every wrapper.
//!
//! The command runs in its own process group, in the foreground if the supervisor is, as the child of a reaper. Every process that the command starts
//! stays below the reaper. The supervisor forwards its signals to the command. When the hold ends, the command gets SIGTERM and then SIGKILL;
//! `stop_schedule` decides when.
//! If the supervisor is killed, reaper and sentinel kill the whole process tree; if it is stopped, the sentinel does.
//! After the command has ended, the supervisor waits for the rest of its tree.
//!
//! **Invariant**: the command never runs without a sentinel that guards it.

mod descendants;
mod group;
mod launch;
mod lookup;
mod outcome;
mod pooled;
mod process_tree;
mod reaper;
mod sentinel;
mod sentinel_pool;
mod signals;
mod stop_schedule;
mod terminal;
mod test_command;

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tenure::clock::{BootClock, Clock};
use tenure_core::time::Moment;
use tokio::signal::unix;
use tokio::sync::watch;

pub(crate) use launch::raise_open_files;
pub(crate) use lookup::Program;
pub(crate) use outcome::{CommandExit, ProcessEnd};
pub(crate) use pooled::{PooledCommand, run_pooled};
pub(crate) use sentinel::GroupLease;
pub(crate) use sentinel_pool::SentinelPool;
pub(crate) use signals::Signals;
pub(crate) use stop_schedule::{Deadlines, StopTimes, SupervisorAction};
pub(crate) use test_command::{SuperviseArgs, run_test};

use self::launch::Launch;
use self::process_tree::{ProcessTree, TreeChange, left_running};
use self::sentinel::Sentinel;
use self::stop_schedule::{ScheduleInput, StopSchedule};
use self::terminal::Terminal;
use crate::cli::InternalCommand;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// A command to run.
pub(crate) struct Job<'a> {
    pub(crate) program: &'a Program,
    pub(crate) args: &'a [OsString],
    /// The variables that are added to this process's environment.
    pub(crate) env: &'a [(&'static str, OsString)],
    /// The time from SIGTERM or SIGINT to SIGKILL; `None` for no limit.
    pub(crate) grace: Option<Duration>,
    /// The signal that requests its end.
    pub(crate) signal: Signal,
}

/// Runs a helper process, before a runtime or a logger is set up. `None` for any other command.
pub(crate) fn run_helper(command: &InternalCommand) -> Option<ExitCode> {
    match command {
        InternalCommand::Launch { path, open_files, command } => {
            Some(launch::run(path, command, *open_files))
        }
        InternalCommand::Reap { path, open_files, command } => Some(reaper::run(path, command, *open_files)),
        InternalCommand::Sentinel => Some(sentinel::run()),
        InternalCommand::Terminal { group } => Some(terminal::run(*group)),
        _ => None,
    }
}

/// Runs a command, and waits for its end and for the end of every process that it started.
///
/// # Cancellation
///
/// Dropping the future closes the socket of the reaper, which then kills the process tree.
///
/// # Errors
///
/// If the command could not be started. It did not run.
pub(crate) async fn run(
    job: &Job<'_>,
    mut terms: watch::Receiver<StopTimes>,
    signals: &mut Signals,
    output: &Output,
) -> Result<CommandExit, Failure> {
    let now = *terms.borrow_and_update();
    let mut schedule = StopSchedule::new(job.grace, job.signal);
    let mut running = RunningCommand::start(job, now.deadlines).await?;
    for signal in schedule.handle(ScheduleInput::StopTimes(now), BootClock.now()) {
        running.send(signal, output);
    }
    let (mut has_feed, mut is_stopped) = (true, false);
    loop {
        let woken_by = tokio::select! {
            biased;
            signal = signals.next() => SupervisorEvent::ScheduleInput(ScheduleInput::Signal(signal)),
            changed = terms.changed(), if has_feed => match changed {
                Ok(()) => SupervisorEvent::StopTimes,
                Err(_) => SupervisorEvent::NoFeed,
            },
            () = sleep_until(schedule.next_wake()) => SupervisorEvent::ScheduleInput(ScheduleInput::Time),
            event = running.next() => event,
        };
        let event = match woken_by {
            SupervisorEvent::ScheduleInput(event) => event,
            SupervisorEvent::StopTimes => {
                let terms = *terms.borrow_and_update();
                running.limit(terms.deadlines, output);
                if terms.order == SupervisorAction::Stop && !is_stopped {
                    // A command that ended by itself before the request was not stopped.
                    is_stopped = !running.tree.has_ended();
                }
                ScheduleInput::StopTimes(terms)
            }
            SupervisorEvent::NoFeed => {
                // The task that renews the hold is gone, so the hold counts as lost.
                has_feed = false;
                ScheduleInput::StopTimes(StopTimes {
                    deadlines: running.deadlines,
                    order: SupervisorAction::Lost,
                })
            }
            SupervisorEvent::SentinelGone => {
                running.replace_sentinel(&schedule, output).await;
                continue;
            }
            SupervisorEvent::Continued => {
                running.resume(output);
                continue;
            }
            SupervisorEvent::Changed(TreeChange::Gone) => break,
            SupervisorEvent::Changed(change) => {
                running.note(change, output);
                continue;
            }
        };
        for signal in schedule.handle(event, BootClock.now()) {
            running.send(signal, output);
        }
    }
    let end = running.tree.end();
    // If this process was stopped, as by Ctrl-Z, the sentinel killed the command. Its end is then seen before the deadline is.
    let is_too_late = running.deadlines.is_some_and(|deadlines| BootClock.now() >= deadlines.term);
    running.finish().await;
    Ok(CommandExit {
        end,
        is_lost: schedule.is_lost() || is_too_late,
        is_stopped,
        is_signaled: schedule.is_signaled(),
    })
}

/// The events of the supervision loop.
enum SupervisorEvent {
    ScheduleInput(ScheduleInput),
    StopTimes,
    NoFeed,
    SentinelGone,
    Continued,
    Changed(TreeChange),
}

/// The lease id of a single command, which shares its sentinel with no other.
const ONLY: GroupLease = GroupLease(0);

/// A command with its process tree and its sentinel.
struct RunningCommand {
    tree: ProcessTree,
    /// `None` once it was killed and could not be replaced; the tree is killed then.
    sentinel: Option<Sentinel>,
    terminal: Option<Terminal>,
    continued: unix::Signal,
    deadlines: Option<Deadlines>,
}

impl RunningCommand {
    async fn start(job: &Job<'_>, deadlines: Option<Deadlines>) -> Result<RunningCommand, Failure> {
        let cannot = |error: io::Error| unsupervised(&error);
        let continued = signals::stream(Signal::CONT).map_err(cannot)?;
        let mut sentinel = Sentinel::start().map_err(cannot)?;
        let launch = Launch::prepare(job.program, job.args, job.env, Stdio::inherit(), None);
        let launch = in_time(launch).await.map_err(cannot)?;
        let group = launch.tree.id.group;
        let kill = deadlines.map(|deadlines| deadlines.kill);
        in_time(sentinel.guard(launch.tree.id, ONLY, kill)).await.map_err(cannot)?;
        // Checked after the sentinel guards the tree: from here on the sentinel enforces the deadline, but it does not notice one that had passed before.
        if deadlines.is_some_and(|deadlines| BootClock.now() >= deadlines.term) {
            sentinel.dismiss().await;
            launch.abort();
            return Err(too_late());
        }
        let terminal = Terminal::own();
        if let Some(terminal) = &terminal {
            terminal.give(group).map_err(cannot)?;
        }
        match launch.go(job.program, io::stdin().as_fd()).await {
            Ok(tree) => Ok(RunningCommand { tree, sentinel: Some(sentinel), terminal, continued, deadlines }),
            Err((failure, unstarted)) => {
                if let Some(terminal) = &terminal {
                    terminal.take_back(group).map_err(cannot)?;
                }
                unstarted.abandon();
                sentinel.dismiss().await;
                Err(failure)
            }
        }
    }

    fn send(&self, signal: Signal, output: &Output) {
        if let Err(error) = self.tree.signal(signal) {
            output.note(&format!("{signal:?} could not be sent to all processes of the command: {error}"));
        }
    }

    /// Stores new deadlines and passes them to the sentinel.
    fn limit(&mut self, deadlines: Option<Deadlines>, output: &Output) {
        self.deadlines = deadlines;
        if let Some(sentinel) = &mut self.sentinel
            && let Err(error) = sentinel.until(ONLY, deadlines.map(|deadlines| deadlines.kill))
        {
            output.note(&format!("the new deadline could not be sent to the sentinel: {error}"));
        }
    }

    /// Waits for the next event of the tree, the sentinel or the job control.
    async fn next(&mut self) -> SupervisorEvent {
        let RunningCommand { sentinel, continued, tree, .. } = self;
        let sentinel_gone = async {
            match sentinel {
                Some(sentinel) => sentinel.gone().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = sentinel_gone => SupervisorEvent::SentinelGone,
            _ = continued.recv() => SupervisorEvent::Continued,
            change = tree.next() => SupervisorEvent::Changed(change),
        }
    }

    /// Handles a change in the tree.
    fn note(&mut self, change: TreeChange, output: &Output) {
        match change {
            TreeChange::Stopped(Signal::STOP) | TreeChange::Gone => {}
            TreeChange::Stopped(_) => self.suspend(output),
            TreeChange::Ended => {
                if let Some(terminal) = &self.terminal
                    && let Err(error) = terminal.take_back(self.tree.id.group)
                {
                    tracing::warn!(%error, "the terminal could not be taken back");
                }
                // Once reaped, the group's number may be reused, so the terminal is taken back before.
                self.tree.reap_command();
            }
            TreeChange::Left(names) => output.note(&left_running(&names)),
        }
    }

    /// Stops this process after the command, which Ctrl-Z stopped. Continues the command if no shell would continue this process.
    fn suspend(&mut self, output: &Output) {
        if let Some(terminal) = &self.terminal
            && !terminal.stop_too()
        {
            self.send(Signal::CONT, output);
        }
    }

    /// Continues the command after this process was continued.
    fn resume(&mut self, output: &Output) {
        if let Some(terminal) = &self.terminal {
            // A command that ended while this process was stopped gets no terminal: its end is handled already, so the terminal would
            // stay with its group, and the next command would not be in the foreground.
            if !self.tree.has_ended()
                && let Err(error) = terminal.give(self.tree.id.group)
            {
                output.note(&format!("the terminal could not be given to the command again: {error}"));
            }
            self.send(Signal::CONT, output);
        }
    }

    /// Starts another sentinel after the first one was killed.
    async fn replace_sentinel(&mut self, schedule: &StopSchedule, output: &Output) {
        if let Some(mut gone) = self.sentinel.take() {
            gone.reap();
        }
        let kill = self.deadlines.map(|deadlines| deadlines.kill).filter(|_| !schedule.has_killed());
        let replaced = async {
            let mut sentinel = Sentinel::start()?;
            in_time(sentinel.guard(self.tree.id, ONLY, kill)).await?;
            io::Result::Ok(sentinel)
        };
        match replaced.await {
            Ok(sentinel) => {
                self.sentinel = Some(sentinel);
                output.note("the sentinel was killed; another one guards the command now");
            }
            Err(error) => {
                // Without a sentinel no process would kill the command after this one, so it must not go on.
                output.note(&format!("the sentinel was killed and no other can be started: {error}"));
                self.send(Signal::KILL, output);
            }
        }
    }

    async fn finish(self) {
        if let Some(sentinel) = self.sentinel {
            sentinel.dismiss().await;
        }
    }
}

fn unsupervised(error: &io::Error) -> Failure {
    Failure::new(Code::Failed, format!("cannot supervise the command: {error}"))
        .hint("see how many processes and open files you may have with `ulimit -a`")
}

fn too_late() -> Failure {
    Failure::new(Code::Lost, "the hold ended before the command was started")
}

/// The time limit for a reply of a helper process. A start takes milliseconds, or seconds on an overloaded host; a slower process never replies.
const HELPER_TIMEOUT: Duration = Duration::from_secs(10);

async fn in_time<T>(reply: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(HELPER_TIMEOUT, reply).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => BootClock.sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
