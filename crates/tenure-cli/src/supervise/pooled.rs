//! Running a command beside others: without a terminal, under a sentinel that all share.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use rustix::process::Signal;
use tenure::clock::{BootClock, Clock};
use tokio::sync::{Notify, SemaphorePermit, watch};

use super::launch::Launch;
use super::outcome::CommandExit;
use super::process_tree::{ProcessTree, TreeChange, left_running};
use super::sentinel::GroupLease;
use super::sentinel_pool::SentinelPool;
use super::stop_schedule::{ScheduleInput, StopSchedule};
use super::{Deadlines, Job, StopTimes, SupervisorAction, in_time, sleep_until, too_late, unsupervised};
use crate::failure::Failure;
use crate::output::Output;

/// What a command has that runs beside others.
pub(crate) struct PooledCommand<'a> {
    /// Who guards it.
    pub(crate) sentinels: &'a SentinelPool,
    /// What its life hangs on.
    pub(crate) hold: GroupLease,
    /// What it reads.
    pub(crate) stdin: File,
    /// Where it writes what went wrong.
    pub(crate) stderr: OwnedFd,
    /// Rung when whoever catches SIGUSR1 is to be sent it.
    pub(crate) nudge: &'a Notify,
    /// How many files it may have open, if not as many as we.
    pub(crate) open_files: Option<u64>,
    /// Its turn to start, given back when it has.
    pub(crate) turn: SemaphorePermit<'a>,
}

/// Runs a command to its end, and to the end of everything that it started. Its terms must have deadlines.
///
/// # Cancellation
///
/// Dropped, it kills the process tree, and does not wait until that is gone.
///
/// # Errors
///
/// If the command could not be started; it has certainly not run then.
pub(crate) async fn run_pooled(
    job: &Job<'_>,
    pooled: PooledCommand<'_>,
    mut terms: watch::Receiver<StopTimes>,
    output: &Output,
) -> Result<CommandExit, Failure> {
    let now = *terms.borrow_and_update();
    let Some(mut deadlines) = now.deadlines else { return Err(too_late()) };
    let (sentinels, hold, nudge) = (pooled.sentinels, pooled.hold, pooled.nudge);
    let tree = start(job, pooled, deadlines).await?;
    let mut running = PooledChild { tree, is_over: false };
    let mut course = StopSchedule::new(job.grace, job.signal);
    running.send(&course.handle(ScheduleInput::StopTimes(now), BootClock.now()), output);
    let (mut has_feed, mut is_stopped) = (true, false);
    loop {
        let happened = tokio::select! {
            biased;
            changed = terms.changed(), if has_feed => match changed {
                Ok(()) => PooledEvent::StopTimes(*terms.borrow_and_update()),
                // Whoever kept what the command relies on is gone.
                Err(_) => {
                    has_feed = false;
                    PooledEvent::StopTimes(StopTimes { deadlines: Some(deadlines), order: SupervisorAction::Lost })
                }
            },
            () = sleep_until(course.next_wake()) => PooledEvent::Time,
            () = nudge.notified() => PooledEvent::Nudge,
            change = running.tree.next() => PooledEvent::Changed(change),
        };
        let event = match happened {
            PooledEvent::StopTimes(terms) => {
                if let Some(newer) = terms.deadlines {
                    deadlines = newer;
                    sentinels.until(hold, newer.kill);
                }
                if terms.order != SupervisorAction::Run && !is_stopped {
                    // One that has ended by itself is not one that was stopped.
                    is_stopped = !running.tree.has_ended();
                }
                ScheduleInput::StopTimes(terms)
            }
            PooledEvent::Time => ScheduleInput::Time,
            PooledEvent::Nudge => {
                running.tree.signal_catching(Signal::USR1);
                continue;
            }
            PooledEvent::Changed(TreeChange::Gone) => break,
            PooledEvent::Changed(TreeChange::Ended) => {
                running.tree.reap_command();
                continue;
            }
            PooledEvent::Changed(TreeChange::Left(names)) => {
                output.note(&left_running(&names));
                continue;
            }
            // It may be continued by the process that stopped it.
            PooledEvent::Changed(TreeChange::Stopped(_)) => continue,
        };
        running.send(&course.handle(event, BootClock.now()), output);
    }
    running.is_over = true;
    sentinels.leave(running.tree.id);
    let end = running.tree.end();
    // Should we have been stopped ourselves, the sentinel has ended it, and we learn of its end before we learn that its time was over.
    let is_lost = course.is_lost() || BootClock.now() >= deadlines.term;
    Ok(CommandExit { end, is_lost, is_stopped, is_signaled: false })
}

enum PooledEvent {
    StopTimes(StopTimes),
    Time,
    Nudge,
    Changed(TreeChange),
}

async fn start(
    job: &Job<'_>,
    pooled: PooledCommand<'_>,
    deadlines: Deadlines,
) -> Result<ProcessTree, Failure> {
    let PooledCommand { sentinels, hold, stdin, stderr, open_files, turn, .. } = pooled;
    let launch = Launch::prepare(job.program, job.args, job.env, Stdio::from(stderr), open_files);
    let launch = in_time(launch).await.map_err(|error| unsupervised(&error))?;
    let tree = launch.tree.id;
    if let Err(error) = sentinels.guard(tree, hold, deadlines.kill).await {
        launch.abort();
        return Err(unsupervised(&error));
    }
    // Only now: the sentinel ends a command that comes after this, but not one that was late before it was guarded.
    if BootClock.now() >= deadlines.term {
        launch.abort();
        sentinels.leave(tree);
        return Err(too_late());
    }
    let gone = launch.go(job.program, stdin.as_fd()).await;
    drop(turn);
    match gone {
        Ok(tree) => Ok(tree),
        Err((failure, unstarted)) => {
            unstarted.abandon();
            sentinels.leave(tree);
            Err(failure)
        }
    }
}

/// A command in our charge.
struct PooledChild {
    tree: ProcessTree,
    is_over: bool,
}

impl PooledChild {
    fn send(&self, signals: &[Signal], output: &Output) {
        for &signal in signals {
            if let Err(error) = self.tree.signal(signal) {
                output.note(&format!("{signal:?} could not be sent to everybody of the command: {error}"));
            }
        }
    }
}

impl Drop for PooledChild {
    fn drop(&mut self) {
        if !self.is_over {
            // It stays guarded: what this does not reach, the sentinel will.
            let _ = self.tree.signal(Signal::KILL);
        }
    }
}
