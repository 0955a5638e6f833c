//! What is sent to the command, and when: told what happened and what time it is, it answers with signals.
//!
//! Three things can end a command: somebody's signal, a wish of ours to stop it, and the end of what it relies on. The last has two
//! moments: at `term` the command is asked, at `kill` it is ended, because from then on somebody else may hold what it holds.
//!
//! **Invariant**: once `kill` has passed, the next call answers with SIGKILL, whatever else happened.
//!
//! **Invariant**: after SIGKILL nothing more is sent.

use std::time::Duration;

use rustix::process::Signal;
use tenure_core::time::Moment;

/// A second Ctrl-C within this time means it: shorter, and hands are too slow; longer, and two that have nothing to do with each
/// other would kill.
const INSIST_WITHIN: Duration = Duration::from_secs(2);

/// How long a command has that lost what it relied on: somebody else may have it already.
const LOST_GRACE_MAX: Duration = Duration::from_secs(1);

/// What a command's life hangs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StopTimes {
    /// Until when it may run; none if nothing it relies on can end.
    pub(crate) deadlines: Option<Deadlines>,
    /// What is wanted of it.
    pub(crate) order: SupervisorAction,
}

impl StopTimes {
    /// It may run for as long as it likes.
    pub(crate) const FREE: StopTimes = StopTimes { deadlines: None, order: SupervisorAction::Run };
}

/// Two moments on the boot clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadlines {
    /// When it is asked to stop.
    pub(crate) term: Moment,
    /// When it is killed.
    pub(crate) kill: Moment,
}

/// What is wanted of a command. Nothing but the first can be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SupervisorAction {
    /// Go on.
    Run,
    /// Stop: SIGTERM, and SIGKILL when the grace is over.
    Stop,
    /// What it relied on is known to be gone.
    Lost,
    /// Stop now: SIGKILL.
    End,
}

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScheduleInput {
    /// Somebody sent us this signal.
    Signal(Signal),
    /// The terms are these now.
    StopTimes(StopTimes),
    /// Time has passed.
    Time,
}

/// The way to the end of a command.
#[derive(Debug)]
pub(super) struct StopSchedule {
    /// How long after SIGTERM or SIGINT comes SIGKILL; none: never.
    grace: Option<Duration>,
    /// What asks it to stop.
    signal: Signal,
    deadlines: Option<Deadlines>,
    kill_at: Option<Moment>,
    interrupted_at: Option<Moment>,
    is_stopping: bool,
    is_lost: bool,
    is_signaled: bool,
    has_killed: bool,
}

impl StopSchedule {
    pub(super) fn new(grace: Option<Duration>, signal: Signal) -> StopSchedule {
        StopSchedule {
            grace,
            signal,
            deadlines: None,
            kill_at: None,
            interrupted_at: None,
            is_stopping: false,
            is_lost: false,
            is_signaled: false,
            has_killed: false,
        }
    }

    /// What to send to the group, in this order.
    pub(super) fn handle(&mut self, event: ScheduleInput, now: Moment) -> Vec<Signal> {
        let mut signals = Vec::new();
        match event {
            ScheduleInput::Signal(signal) => self.forward(signal, now, &mut signals),
            ScheduleInput::StopTimes(terms) => {
                self.deadlines = terms.deadlines;
                match terms.order {
                    SupervisorAction::Run => {}
                    SupervisorAction::Stop => self.stop(now, &mut signals),
                    SupervisorAction::Lost => self.lose(now + LOST_GRACE_MAX, now, &mut signals),
                    SupervisorAction::End => {
                        self.is_stopping = true;
                        self.kill_by(now);
                    }
                }
            }
            ScheduleInput::Time => {}
        }
        if let Some(Deadlines { term, kill }) = self.deadlines
            && now >= term
        {
            self.lose(kill, now, &mut signals);
        }
        if self.has_killed {
            return Vec::new();
        }
        if self.kill_at.is_some_and(|kill_at| now >= kill_at) {
            self.has_killed = true;
            return vec![Signal::KILL];
        }
        signals
    }

    /// When to be told the time again.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        if self.has_killed {
            return None;
        }
        let deadline = self.deadlines.map(|both| if self.is_lost { both.kill } else { both.term });
        [self.kill_at, deadline].into_iter().flatten().min()
    }

    /// Whether the command was stopped because it lost what it relied on.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether somebody told us to end.
    pub(super) fn is_signaled(&self) -> bool {
        self.is_signaled
    }

    /// Whether there is nothing left to send.
    pub(super) fn has_killed(&self) -> bool {
        self.has_killed
    }

    fn forward(&mut self, signal: Signal, now: Moment, signals: &mut Vec<Signal>) {
        signals.push(signal);
        if signal == Signal::INT {
            let before = self.interrupted_at.replace(now);
            if before.is_some_and(|before| now.since(before) <= INSIST_WITHIN) {
                self.kill_by(now);
            }
        }
        if signal == Signal::TERM {
            // A command that somebody has stopped cannot answer.
            signals.push(Signal::CONT);
        }
        if signal == Signal::TERM || signal == Signal::INT {
            self.is_signaled = true;
            if let Some(grace) = self.grace {
                self.kill_by(now + grace);
            }
        }
    }

    fn stop(&mut self, now: Moment, signals: &mut Vec<Signal>) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            signals.extend([self.signal, Signal::CONT]);
            if let Some(grace) = self.grace {
                self.kill_by(now + grace);
            }
        }
    }

    fn lose(&mut self, kill: Moment, now: Moment, signals: &mut Vec<Signal>) {
        self.kill_by(kill);
        if !std::mem::replace(&mut self.is_lost, true) {
            self.stop(now, signals);
        }
    }

    fn kill_by(&mut self, moment: Moment) {
        self.kill_at = Some(self.kill_at.map_or(moment, |before| before.min(moment)));
    }
}

#[cfg(test)]
mod tests;
