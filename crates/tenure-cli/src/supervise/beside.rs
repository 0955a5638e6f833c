//! Running a command beside others: without a terminal, under a sentinel that all share.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use rustix::process::Signal;
use tenure::clock::{BootClock, Clock};
use tokio::sync::{Notify, SemaphorePermit, watch};

use super::course::{Course, Event};
use super::family::{Family, Left, Seen, left_running};
use super::launch::Launch;
use super::outcome::{End, Outcome};
use super::post::Post;
use super::sentinel::Hold;
use super::{Deadlines, Job, Order, Terms, signals, sleep_until, too_late, unsupervised};
use crate::failure::Failure;
use crate::output::Output;

/// What a command has that runs beside others.
pub(crate) struct Beside<'a> {
    /// Who guards it.
    pub(crate) post: &'a Post,
    /// What its life hangs on.
    pub(crate) hold: Hold,
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

/// Runs a command to its end, and to the end of its group. Its terms must have deadlines.
///
/// # Cancellation
///
/// Dropped, it kills the group, and nobody is told when that is gone.
///
/// # Errors
///
/// If the command could not be started; it has certainly not run then.
pub(crate) async fn run_beside(
    job: &Job<'_>,
    beside: Beside<'_>,
    mut terms: watch::Receiver<Terms>,
    output: &Output,
) -> Result<Outcome, Failure> {
    let now = *terms.borrow_and_update();
    let Some(mut deadlines) = now.deadlines else { return Err(too_late()) };
    let mut children = signals::stream(Signal::CHILD).map_err(|error| unsupervised(&error))?;
    let (post, hold, nudge) = (beside.post, beside.hold, beside.nudge);
    let family = start(job, beside, deadlines).await?;
    let mut running = Charge { family, is_over: false };
    let mut course = Course::new(job.grace, job.signal);
    running.send(&course.handle(Event::Terms(now), BootClock.now()), output);
    let (mut has_feed, mut is_stopped) = (true, false);
    let end = loop {
        let family = &mut running.family;
        let changed = async {
            if family.awaits_others() {
                family.changed().await;
            } else {
                children.recv().await;
            }
        };
        let happened = tokio::select! {
            biased;
            changed = terms.changed(), if has_feed => match changed {
                Ok(()) => Happened::Terms(*terms.borrow_and_update()),
                // Whoever kept what the command relies on is gone.
                Err(_) => {
                    has_feed = false;
                    Happened::Terms(Terms { deadlines: Some(deadlines), order: Order::Lost })
                }
            },
            () = sleep_until(course.next_wake()) => Happened::Time,
            () = nudge.notified() => Happened::Nudge,
            () = changed => Happened::Changed,
        };
        let event = match happened {
            Happened::Terms(terms) => {
                if let Some(newer) = terms.deadlines {
                    deadlines = newer;
                    post.until(hold, newer.kill);
                }
                if terms.order != Order::Run && !is_stopped {
                    // One that has ended by itself is not one that was stopped.
                    if let Some(end) = running.look(post, output).await? {
                        break end;
                    }
                    is_stopped = running.family.end.is_none();
                }
                Event::Terms(terms)
            }
            Happened::Time => Event::Time,
            Happened::Nudge => {
                running.family.group.nudge(Signal::USR1);
                continue;
            }
            Happened::Changed => match running.look(post, output).await? {
                Some(end) => break end,
                None => continue,
            },
        };
        running.send(&course.handle(event, BootClock.now()), output);
    };
    running.is_over = true;
    post.leave(running.family.group);
    // Should we have been stopped ourselves, the sentinel has ended it, and we learn of its end before we learn that its time was over.
    let is_lost = course.is_lost() || BootClock.now() >= deadlines.term;
    Ok(Outcome { end, is_lost, is_stopped, is_told: false })
}

enum Happened {
    Terms(Terms),
    Time,
    Nudge,
    Changed,
}

async fn start(job: &Job<'_>, beside: Beside<'_>, deadlines: Deadlines) -> Result<Family, Failure> {
    let Beside { post, hold, stdin, stderr, open_files, turn, .. } = beside;
    let launch = Launch::prepare(job.program, job.args, job.env, Stdio::from(stderr), open_files)
        .map_err(|error| unsupervised(&error))?;
    let group = launch.group;
    if let Err(error) = post.guard(group, hold, deadlines.kill).await {
        launch.give_up();
        return Err(unsupervised(&error));
    }
    // Only now: the sentinel ends a command that comes after this, but not one that was late before it was guarded.
    if BootClock.now() >= deadlines.term {
        launch.give_up();
        post.leave(group);
        return Err(too_late());
    }
    let gone = launch.go(job.program, stdin.as_fd()).await;
    drop(turn);
    match gone {
        Ok(child) => Ok(Family::new(child, group)),
        Err((failure, mut launcher)) => {
            let _ = launcher.wait();
            post.leave(group);
            Err(failure)
        }
    }
}

/// A command in our charge.
struct Charge {
    family: Family,
    is_over: bool,
}

impl Charge {
    /// Looks how the command is. Gives its end when nothing of its group is left.
    async fn look(&mut self, post: &Post, output: &Output) -> Result<Option<End>, Failure> {
        loop {
            match self.family.look()? {
                Seen::Running => return Ok(None),
                // Whoever stopped it may let it go on.
                Seen::Stopped(_) => {}
                Seen::Ended => break,
            }
        }
        let others = post.census.others(self.family.group).await;
        match self.family.judge(others, || {}) {
            Left::Nobody => return Ok(self.family.end),
            Left::Somebody(others) => output.note(&left_running(&others)),
            Left::Still => {}
        }
        Ok(None)
    }

    fn send(&self, signals: &[Signal], output: &Output) {
        for &signal in signals {
            if let Err(error) = self.family.group.signal(signal) {
                output.note(&format!("{signal:?} could not be sent to everybody of the command: {error}"));
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.is_over {
            // It stays guarded: what this does not reach, the sentinel will.
            let _ = self.family.group.signal(Signal::KILL);
        }
    }
}
