//! Runs one of many commands: without a terminal, under a shared sentinel.

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

/// The resources of one of many commands.
pub(crate) struct PooledCommand<'a> {
    /// The sentinels that guard it.
    pub(crate) sentinels: &'a SentinelPool,
    /// The lease that limits its run.
    pub(crate) hold: GroupLease,
    /// Its standard input.
    pub(crate) stdin: File,
    /// Its standard error.
    pub(crate) stderr: OwnedFd,
    /// Notified when the processes that handle SIGUSR1 are to get it.
    pub(crate) nudge: &'a Notify,
    /// Its limit of open files, if it differs from this process's.
    pub(crate) open_files: Option<u64>,
    /// The permit to start, released after the start.
    pub(crate) turn: SemaphorePermit<'a>,
}

/// Runs a command, and waits for its end and for the end of every process that it started. The stop times must have deadlines.
///
/// # Cancellation
///
/// Dropping the future kills the process tree without waiting for its end.
///
/// # Errors
///
/// If the command could not be started. It did not run.
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
    let mut schedule = StopSchedule::new(job.grace, job.signal);
    running.send(&schedule.handle(ScheduleInput::StopTimes(now), BootClock.now()), output);
    let (mut has_feed, mut is_stopped) = (true, false);
    loop {
        let woken_by = tokio::select! {
            biased;
            changed = terms.changed(), if has_feed => match changed {
                Ok(()) => PooledEvent::StopTimes(*terms.borrow_and_update()),
                // The task that renews the lease is gone, so the lease counts as lost.
                Err(_) => {
                    has_feed = false;
                    PooledEvent::StopTimes(StopTimes { deadlines: Some(deadlines), order: SupervisorAction::Lost })
                }
            },
            () = sleep_until(schedule.next_wake()) => PooledEvent::Time,
            () = nudge.notified() => PooledEvent::Nudge,
            change = running.tree.next() => PooledEvent::Changed(change),
        };
        let event = match woken_by {
            PooledEvent::StopTimes(terms) => {
                if let Some(newer) = terms.deadlines {
                    deadlines = newer;
                    sentinels.until(hold, newer.kill);
                }
                if terms.order != SupervisorAction::Run && !is_stopped {
                    // A command that ended by itself before the request was not stopped.
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
            // The process that stopped the command may continue it.
            PooledEvent::Changed(TreeChange::Stopped(_)) => continue,
        };
        running.send(&schedule.handle(event, BootClock.now()), output);
    }
    running.is_over = true;
    sentinels.leave(running.tree.id);
    let end = running.tree.end();
    // If this process was stopped, the sentinel killed the command. Its end is then seen before the deadline is.
    let is_lost = schedule.is_lost() || BootClock.now() >= deadlines.term;
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
    // Checked after the sentinel guards the tree: from here on the sentinel enforces the deadline, but it does not notice one that had passed before.
    if BootClock.now() >= deadlines.term {
        launch.abort();
        sentinels.leave(tree);
        return Err(too_late());
    }
    let started = launch.go(job.program, stdin.as_fd()).await;
    drop(turn);
    match started {
        Ok(tree) => Ok(tree),
        Err((failure, unstarted)) => {
            unstarted.abandon();
            sentinels.leave(tree);
            Err(failure)
        }
    }
}

/// A running command; dropping it kills its tree.
struct PooledChild {
    tree: ProcessTree,
    is_over: bool,
}

impl PooledChild {
    fn send(&self, signals: &[Signal], output: &Output) {
        for &signal in signals {
            if let Err(error) = self.tree.signal(signal) {
                output
                    .note(&format!("{signal:?} could not be sent to all processes of the command: {error}"));
            }
        }
    }
}

impl Drop for PooledChild {
    fn drop(&mut self) {
        if !self.is_over {
            // The sentinel still guards the tree, and kills what this signal does not reach.
            let _ = self.tree.signal(Signal::KILL);
        }
    }
}
