//! How a node ends: drained by an order, or shut down with its process.
//!
//! Stop, join, then release. What does not stop is named and not released: its claim lapses with its lease, and nobody else begins before that.

use crate::record::MemberState;
use crate::time::Moment;

use super::event::{ReleaseReason, WorkerEvent};
use super::input::InputTime;
use super::output::WorkerOutput;
use super::timers::Timer;
use super::{WorkerMachine, WorkerPhase};

impl WorkerMachine {
    /// Everything is given away, and then the node leaves.
    pub(super) fn begin_drain(&mut self, now: InputTime) {
        self.phase = WorkerPhase::Draining;
        self.outputs.push_back(WorkerOutput::Announce(MemberState::Draining));
        self.events.push_back(WorkerEvent::Draining { left: self.held.len() });
        self.update_own_load(now);
        self.release_all(ReleaseReason::Drain, now);
    }

    /// The process wants to end. Asked again, the earlier deadline counts.
    pub(super) fn begin_shutdown(&mut self, deadline: Moment, now: InputTime) {
        let deadline = match self.phase {
            WorkerPhase::Working | WorkerPhase::Draining => {
                self.outputs.push_back(WorkerOutput::Announce(MemberState::Draining));
                self.events.push_back(WorkerEvent::ShuttingDown { left: self.held.len() });
                deadline
            }
            WorkerPhase::Ending { deadline: before } => before.min(deadline),
            WorkerPhase::Leaving | WorkerPhase::Finished => return,
        };
        self.phase = WorkerPhase::Ending { deadline };
        self.timers.set(Timer::Deadline, deadline);
        self.update_own_load(now);
        self.release_all(ReleaseReason::Shutdown, now);
    }

    /// Goes on with ending, if everything is gone that has to be.
    pub(super) fn check_ending(&mut self, now: InputTime) {
        let is_empty = self.held.is_empty() && !self.is_claiming();
        match self.phase {
            WorkerPhase::Working | WorkerPhase::Leaving | WorkerPhase::Finished => {}
            WorkerPhase::Draining => {
                if self.held.len() < self.drain_reported {
                    self.drain_reported = self.held.len();
                    self.events.push_back(WorkerEvent::Draining { left: self.held.len() });
                }
                if is_empty {
                    self.finish_drain(now);
                }
            }
            WorkerPhase::Ending { deadline } => {
                if is_empty || deadline <= now.at {
                    self.leave();
                }
            }
        }
    }

    pub(super) fn leave(&mut self) {
        self.phase = WorkerPhase::Leaving;
        self.timers.clear(&Timer::Deadline);
        self.outputs.push_back(WorkerOutput::Leave);
    }

    pub(super) fn handle_left(&mut self) {
        if self.phase == WorkerPhase::Leaving {
            self.phase = WorkerPhase::Finished;
            self.outputs.push_back(WorkerOutput::Finish { running: self.running() });
        }
    }
}
