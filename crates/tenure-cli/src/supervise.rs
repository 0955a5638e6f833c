//! Runs a command for as long as something is held: under one roof for every wrapper.
//!
//! The command runs in a process group of its own, in the foreground if we are, as the child of a reaper below which everything stays that the
//! command starts. Signals to us are passed on. When what it relies on ends, the command is asked to stop and then killed; `course` decides when.
//! Should we be killed, reaper and sentinel kill the whole process tree; should we be stopped, the sentinel does.
//! When the command has ended and something of its tree is left, that is waited for.
//!
//! **Invariant**: there is no moment in which the command runs and the sentinel does not know it.

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
    /// What its environment has beside ours.
    pub(crate) env: &'a [(&'static str, OsString)],
    /// How long after SIGTERM or SIGINT it is killed; none: it may take its time.
    pub(crate) grace: Option<Duration>,
    /// What it is asked to stop with.
    pub(crate) signal: Signal,
}

/// Parts that are played in processes of their own, without a runtime and before anything else is set up.
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

/// Runs a command to its end, and to the end of everything that it started.
///
/// # Cancellation
///
/// Dropped, it closes the socket of the reaper, which kills the process tree.
///
/// # Errors
///
/// If the command could not be started; it has certainly not run then.
pub(crate) async fn run(
    job: &Job<'_>,
    mut terms: watch::Receiver<StopTimes>,
    signals: &mut Signals,
    output: &Output,
) -> Result<CommandExit, Failure> {
    let now = *terms.borrow_and_update();
    let mut course = StopSchedule::new(job.grace, job.signal);
    let mut running = RunningCommand::start(job, now.deadlines).await?;
    for signal in course.handle(ScheduleInput::StopTimes(now), BootClock.now()) {
        running.send(signal, output);
    }
    let (mut has_feed, mut is_stopped) = (true, false);
    loop {
        let happened = tokio::select! {
            biased;
            signal = signals.next() => SupervisorEvent::ScheduleInput(ScheduleInput::Signal(signal)),
            changed = terms.changed(), if has_feed => match changed {
                Ok(()) => SupervisorEvent::StopTimes,
                Err(_) => SupervisorEvent::NoFeed,
            },
            () = sleep_until(course.next_wake()) => SupervisorEvent::ScheduleInput(ScheduleInput::Time),
            happened = running.next() => happened,
        };
        let event = match happened {
            SupervisorEvent::ScheduleInput(event) => event,
            SupervisorEvent::StopTimes => {
                let terms = *terms.borrow_and_update();
                running.limit(terms.deadlines, output);
                if terms.order == SupervisorAction::Stop && !is_stopped {
                    // One that has ended by itself is not one that was stopped.
                    is_stopped = !running.tree.has_ended();
                }
                ScheduleInput::StopTimes(terms)
            }
            SupervisorEvent::NoFeed => {
                // Whoever kept what the command relies on is gone.
                has_feed = false;
                ScheduleInput::StopTimes(StopTimes {
                    deadlines: running.deadlines,
                    order: SupervisorAction::Lost,
                })
            }
            SupervisorEvent::SentinelGone => {
                running.replace_sentinel(&course, output).await;
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
        for signal in course.handle(event, BootClock.now()) {
            running.send(signal, output);
        }
    }
    let end = running.tree.end();
    // Should we have been stopped ourselves, as by Ctrl-Z, the sentinel has ended it, and we learn of its end before we look at the clock.
    let is_too_late = running.deadlines.is_some_and(|deadlines| BootClock.now() >= deadlines.term);
    running.finish().await;
    Ok(CommandExit {
        end,
        is_lost: course.is_lost() || is_too_late,
        is_stopped,
        is_signaled: course.is_signaled(),
    })
}

/// What woke us.
enum SupervisorEvent {
    ScheduleInput(ScheduleInput),
    StopTimes,
    NoFeed,
    SentinelGone,
    Continued,
    Changed(TreeChange),
}

/// A command that has no other beside it: its life hangs on one thing.
const ONLY: GroupLease = GroupLease(0);

/// A command that runs, or what it left running.
struct RunningCommand {
    tree: ProcessTree,
    /// None once it was ended by somebody and no other could be started; everybody is killed then.
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
        // Only now: the sentinel ends a command that comes after this, but not one that was late before it was guarded.
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
            output.note(&format!("{signal:?} could not be sent to everybody of the command: {error}"));
        }
    }

    /// Tells the sentinel, too, until when the command may run.
    fn limit(&mut self, deadlines: Option<Deadlines>, output: &Output) {
        self.deadlines = deadlines;
        if let Some(sentinel) = &mut self.sentinel
            && let Err(error) = sentinel.until(ONLY, deadlines.map(|deadlines| deadlines.kill))
        {
            output.note(&format!("the sentinel cannot be told: {error}"));
        }
    }

    /// Waits for something new of the command, of its tree or of the sentinel.
    async fn next(&mut self) -> SupervisorEvent {
        let RunningCommand { sentinel, continued, tree, .. } = self;
        let unguarded = async {
            match sentinel {
                Some(sentinel) => sentinel.gone().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = unguarded => SupervisorEvent::SentinelGone,
            _ = continued.recv() => SupervisorEvent::Continued,
            change = tree.next() => SupervisorEvent::Changed(change),
        }
    }

    /// Takes note of a change in the tree.
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
                // The last moment at which the group certainly is the command's own was before this.
                self.tree.reap_command();
            }
            TreeChange::Left(names) => output.note(&left_running(&names)),
        }
    }

    /// The command was stopped with the terminal's Ctrl-Z.
    fn suspend(&mut self, output: &Output) {
        if let Some(terminal) = &self.terminal
            && !terminal.stop_too()
        {
            self.send(Signal::CONT, output);
        }
    }

    /// We go on after a stop, and so does the command.
    fn resume(&mut self, output: &Output) {
        if let Some(terminal) = &self.terminal {
            // A command that ended while this process was stopped has no use for the terminal. No one would take it back from a
            // group whose end is handled already, and the next command would not be in the foreground.
            if !self.tree.has_ended()
                && let Err(error) = terminal.give(self.tree.id.group)
            {
                output.note(&format!("the terminal could not be handed to the command again: {error}"));
            }
            self.send(Signal::CONT, output);
        }
    }

    /// A sentinel is gone that should not be: somebody killed it.
    async fn replace_sentinel(&mut self, course: &StopSchedule, output: &Output) {
        if let Some(mut gone) = self.sentinel.take() {
            gone.reap();
        }
        let kill = self.deadlines.map(|deadlines| deadlines.kill).filter(|_| !course.has_killed());
        let replaced = async {
            let mut sentinel = Sentinel::start()?;
            in_time(sentinel.guard(self.tree.id, ONLY, kill)).await?;
            io::Result::Ok(sentinel)
        };
        match replaced.await {
            Ok(sentinel) => {
                self.sentinel = Some(sentinel);
                output.note("the sentinel was ended by somebody; another one guards the command now");
            }
            Err(error) => {
                // Nobody would end the command after us, so it must not go on.
                output.note(&format!("the sentinel was ended and no other can be started: {error}"));
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
    Failure::new(Code::Failed, format!("the command cannot be supervised: {error}"))
        .hint("see how many processes and open files you may have with `ulimit -a`")
}

fn too_late() -> Failure {
    Failure::new(Code::Lost, "what the command relies on ended before it was started")
}

/// A process that starts needs milliseconds, and seconds on a machine that is on its knees; one that needs longer never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

async fn in_time<T>(answer: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(ANSWER_WITHIN, answer).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => BootClock.sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
