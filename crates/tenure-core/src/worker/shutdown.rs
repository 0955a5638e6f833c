//! The end of a worker: drained by a command, or shut down with its process.
//!
//! Handlers are stopped and joined, then tasks are released. A task with a handler that does not
//! stop is reported and not released. Its claim lapses with its lease, and no other handler starts
//! before that.

use crate::record::MemberState;
use crate::time::Moment;

use super::event::{ReleaseReason, WorkerEvent};
use super::input::InputTime;
use super::output::WorkerOutput;
use super::timers::Timer;
use super::{WorkerMachine, WorkerPhase};

impl WorkerMachine {
    /// Releases all tasks, then leaves.
    pub(super) fn begin_drain(&mut self, now: InputTime) {
        self.phase = WorkerPhase::Draining;
        self.outputs.push_back(WorkerOutput::Announce(MemberState::Draining));
        self.events.push_back(WorkerEvent::Draining { left: self.held.len() });
        self.update_own_load(now);
        self.release_all(ReleaseReason::Drain, now);
    }

    /// Shuts down. A second call can only make the deadline earlier.
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
        // `Ending` replaces `Draining`: the deadline of the process counts more than the
        // acknowledgement of the drain.
        self.timers.set(Timer::Deadline, deadline);
        self.update_own_load(now);
        self.release_all(ReleaseReason::Shutdown, now);
    }

    /// Continues the drain or shutdown if nothing is left to release.
    pub(super) fn check_ending(&mut self, now: InputTime) {
        // A claim in flight may still be won, and would leave a task without its worker.
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
                // At the deadline the worker leaves although handlers run: the process is about to
                // end.
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
