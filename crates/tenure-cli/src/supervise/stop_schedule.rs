//! Decides which signals the command gets, and when. A pure state machine: events and the time in, signals out.
//!
//! Three things end a command: a forwarded signal, a stop request of this process, and the end of its hold. The hold has two deadlines: at `term` the
//! command gets the stop signal, at `kill` SIGKILL, because from then on another process may hold it.
//!
//! **Invariant**: once `kill` has passed, the next call returns SIGKILL, whatever else happened.
//!
//! **Invariant**: after SIGKILL nothing more is sent.

use std::time::Duration;

use rustix::process::Signal;
use tenure_core::time::Moment;

/// A second Ctrl-C within this time kills. Shorter, and a person is too slow; longer, and two unrelated ones would kill.
const INSIST_WITHIN: Duration = Duration::from_secs(2);

/// The time from the stop signal to SIGKILL after a known loss: another process may hold the lock already.
const LOST_GRACE_MAX: Duration = Duration::from_secs(1);

/// The deadlines of a command, and the requested action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StopTimes {
    /// Its deadlines; `None` if it relies on no hold.
    pub(crate) deadlines: Option<Deadlines>,
    /// The requested action.
    pub(crate) order: SupervisorAction,
}

impl StopTimes {
    /// No deadline and no request.
    pub(crate) const FREE: StopTimes = StopTimes { deadlines: None, order: SupervisorAction::Run };
}

/// Two moments on the boot clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadlines {
    /// When it gets the stop signal.
    pub(crate) term: Moment,
    /// When it gets SIGKILL.
    pub(crate) kill: Moment,
}

/// The requested action for a command. Every action except `Run` is final.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SupervisorAction {
    /// Run.
    Run,
    /// Stop it: the stop signal, and SIGKILL after the grace.
    Stop,
    /// Its hold is known to be lost.
    Lost,
    /// Kill it now.
    End,
}

/// An input of the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScheduleInput {
    /// This process got this signal.
    Signal(Signal),
    /// New stop times.
    StopTimes(StopTimes),
    /// Time has passed.
    Time,
}

/// The stop schedule of one command.
#[derive(Debug)]
pub(super) struct StopSchedule {
    /// The time from SIGTERM or SIGINT to SIGKILL; `None` for no limit.
    grace: Option<Duration>,
    /// The stop signal.
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

    /// Handles an input, and returns the signals to send, in this order.
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

    /// When the next `Time` input is due.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        if self.has_killed {
            return None;
        }
        let deadline = self.deadlines.map(|both| if self.is_lost { both.kill } else { both.term });
        [self.kill_at, deadline].into_iter().flatten().min()
    }

    /// Whether the command was stopped because its hold ended.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether this process got SIGTERM or SIGINT.
    pub(super) fn is_signaled(&self) -> bool {
        self.is_signaled
    }

    /// Whether SIGKILL was returned.
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
            // A stopped command handles SIGTERM only after it is continued.
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
