//! Stops handlers: asked to stop, aborted, reported as stuck.

use crate::id::TaskId;
use crate::revision::Token;

use super::claimed_task::{ClaimedTask, HandlerState, StopPhase};
use super::config::{ABORT_WITHIN, LOST_GRACE, StopMode};
use super::event::{ReleaseReason, WorkerEvent};
use super::input::{HandlerEnd, InputTime};
use super::output::{StopReason, WorkerOutput};
use super::timers::Timer;
use super::{WorkerMachine, WorkerPhase};

impl WorkerMachine {
    /// Requests the release of a task. Returns whether this worker holds it.
    pub(super) fn release(&mut self, task: &TaskId, why: ReleaseReason, now: InputTime) -> bool {
        let Some(held) = self.held.get_mut(task) else { return false };
        held.release.get_or_insert(why);
        self.balance.part(task);
        self.advance(task, now);
        true
    }

    /// Requests the release of all tasks.
    pub(super) fn release_all(&mut self, why: ReleaseReason, now: InputTime) {
        let tasks: Vec<TaskId> = self.held.keys().cloned().collect();
        for task in tasks {
            self.release(&task, why, now);
        }
    }

    /// Asks the handler to stop if any fact requires it, and sooner if that has become urgent.
    pub(super) fn request_stop(&mut self, task: &TaskId, held: &mut ClaimedTask, now: InputTime) {
        let Some(why) = held.stop_reason() else { return };
        let grace = if held.loss.is_some() { LOST_GRACE.min(self.config.grace) } else { self.config.grace };
        let mut latest = now.at + grace;
        if let WorkerPhase::Ending { deadline } = self.phase {
            // Leaves the time that an abort takes.
            latest = latest.min((deadline - ABORT_WITHIN).max(now.at));
        }
        let token = held.token;
        match held.handler {
            HandlerState::None => {}
            HandlerState::Running => {
                held.handler = HandlerState::Stopping { why, until: latest, phase: StopPhase::Requested };
                self.timers.set(Timer::Stop(task.clone()), latest);
                self.outputs.push_back(WorkerOutput::Stop { task: task.clone(), token, why, until: latest });
            }
            HandlerState::Stopping { why: before, until, phase: StopPhase::Requested } => {
                let until = until.min(latest);
                // The handler is notified again if it was stopping for a command and a stronger
                // reason follows, and always if the claim is lost: another worker may start the
                // task at any moment.
                let is_lost = matches!(why, StopReason::Lost | StopReason::Deleted);
                let is_new = why != before && (before == StopReason::Command || is_lost);
                let why = if is_new { why } else { before };
                held.handler = HandlerState::Stopping { why, until, phase: StopPhase::Requested };
                self.timers.set(Timer::Stop(task.clone()), until);
                if is_new {
                    self.outputs.push_back(WorkerOutput::Stop { task: task.clone(), token, why, until });
                }
            }
            HandlerState::Stopping { phase: StopPhase::Aborted | StopPhase::Stuck, .. } => {}
        }
    }

    /// The grace period of a handler is over, or its abort should have ended it.
    pub(super) fn stop_due(&mut self, task: &TaskId, now: InputTime) {
        let Some(held) = self.held.get_mut(task) else { return };
        let HandlerState::Stopping { phase, until, .. } = &mut held.handler else { return };
        let token = held.token;
        match phase {
            StopPhase::Requested => {
                *phase = StopPhase::Aborted;
                *until = now.at + ABORT_WITHIN;
                self.timers.set(Timer::Stop(task.clone()), now.at + ABORT_WITHIN);
                match self.config.stop_mode {
                    StopMode::Abort => {
                        self.outputs.push_back(WorkerOutput::Abort { task: task.clone(), token });
                    }
                    // The handler ends what it has started, and has the same time for it as an
                    // abort.
                    StopMode::Wait => {}
                }
            }
            StopPhase::Aborted => {
                *phase = StopPhase::Stuck;
                self.events.push_back(WorkerEvent::Stuck { task: task.clone(), token });
                self.command_handler_stuck(task, now);
            }
            StopPhase::Stuck => {}
        }
    }

    pub(super) fn handle_ended(&mut self, task: &TaskId, token: Token, outcome: HandlerEnd, now: InputTime) {
        let Some(held) = self.held.get_mut(task).filter(|held| held.token == token) else { return };
        if held.handler == HandlerState::None {
            return;
        }
        held.end_handler(outcome);
        self.timers.clear(&Timer::Stop(task.clone()));
        self.command_handler_stopped(task, now);
        self.advance(task, now);
    }

    /// Handlers that still run.
    pub(super) fn running(&self) -> Vec<TaskId> {
        let running = self.held.iter().filter(|(_, held)| held.handler != HandlerState::None);
        running.map(|(task, _)| task.clone()).collect()
    }
}
