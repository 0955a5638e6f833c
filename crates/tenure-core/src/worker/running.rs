//! Claimed tasks, and the next step of each.
//!
//! An event about a task only records a fact and then calls [`WorkerMachine::advance`], which
//! derives the next step from all facts. So nothing depends on the order in which events arrive.

use crate::id::TaskId;
use crate::record::Timestamp;
use crate::revision::Token;
use crate::task::{Checkpoint, TaskStatus};
use crate::time::Moment;

use super::WorkerMachine;
use super::claimed_task::{ClaimedTask, HandlerState, WriteState};
use super::event::WorkerEvent;
use super::input::InputTime;
use super::output::{HandlerStart, WorkerOutput};
use super::pending_write::WriteContext;
use super::releasing::ClaimEnd;
use super::task_commands::TaskCommandChange;

impl WorkerMachine {
    /// Takes the next step of a task, from all facts that are known about it.
    pub(super) fn advance(&mut self, task: &TaskId, now: InputTime) {
        // Removed and inserted again, so that the methods below can borrow the machine. The indexes
        // over held tasks are rebuilt by the same step.
        let Some(mut held) = self.held.remove(task) else { return };
        if let Some(until) = held.sleeps_until.take() {
            self.sleepers.remove(&(until, task.clone()));
        }
        self.slots.take(task);
        // Only a lost claim without a handler is forgotten. While the handler runs, the task stays
        // here, so that no second handler can start.
        if held.loss.is_some() && held.handler == HandlerState::None {
            return self.end_claim(task, &held, ClaimEnd::Lost, now);
        }
        self.request_stop(task, &mut held, now);
        // One write at a time: the next one depends on the stored state, which only the reply
        // confirms.
        if held.loss.is_none() && matches!(held.write, WriteState::Idle) {
            let epoch = self.next_epoch();
            let writer = WriteContext { node: &self.config.node, policy: self.policy.as_ref(), now };
            match held.draft(task, epoch, &writer) {
                Some(draft) => {
                    self.outputs.push_back(WorkerOutput::WriteState(Box::new(draft.save.clone())));
                    held.write = WriteState::InFlight(Box::new(draft));
                }
                None => {
                    self.reply_checkpoints(task, &mut held);
                    if held.handler == HandlerState::None {
                        self.run_or_park(task, &mut held, now);
                    }
                }
            }
        }
        self.held.insert(task.clone(), held);
    }

    /// Nothing has to be written, so the stored checkpoint is the requested one already.
    fn reply_checkpoints(&mut self, task: &TaskId, held: &mut ClaimedTask) {
        held.checkpoint = None;
        let checkpoint_requests = std::mem::take(&mut held.checkpoint_requests);
        if !checkpoint_requests.is_empty() {
            let (task, token) = (task.clone(), held.token);
            self.outputs.push_back(WorkerOutput::CheckpointReply {
                task,
                token,
                checkpoint_requests,
                result: Ok(()),
            });
        }
    }

    /// Nothing has to be written and no handler runs: starts the handler, or parks the task.
    fn run_or_park(&mut self, task: &TaskId, held: &mut ClaimedTask, now: InputTime) {
        match held.record.state {
            // `advance` has taken the task out of the slots, so it is not counted itself.
            TaskStatus::Runnable if !self.has_slot() => self.slots.queue(task, now.at),
            TaskStatus::Runnable => {
                held.handler = HandlerState::Running;
                (held.began, held.has_run) = (now.wall, true);
                // Lost claims are added to the stored state with the next outcome, but this run
                // comes after them.
                let mut state = held.record.clone();
                state.lost = state.lost.saturating_add(held.lost.len() as u64);
                let (token, attempt) = (held.token, state.attempt());
                self.outputs.push_back(WorkerOutput::Start(Box::new(HandlerStart {
                    task: task.clone(),
                    token,
                    nonce: held.nonce.clone(),
                    lease: held.lease,
                    record: held.submitted.clone(),
                    props: held.props.clone(),
                    state,
                })));
                self.events.push_back(WorkerEvent::Started { task: task.clone(), token, attempt });
            }
            TaskStatus::Sleeping { until } => {
                self.slots.park(task);
                held.sleeps_until = Some(until);
                self.sleepers.insert((until, task.clone()));
            }
            TaskStatus::Paused => self.slots.park(task),
            TaskStatus::Fault => unreachable!("the policy has decided about a fault"),
            TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Killed => {
                unreachable!("what has ended is released")
            }
        }
    }

    pub(super) fn handle_checkpoint(
        &mut self,
        task: TaskId,
        token: Token,
        ask: u64,
        blob: Checkpoint,
        now: InputTime,
    ) {
        match self.held.get_mut(&task) {
            Some(held) if held.token == token && held.loss.is_none() => {
                held.checkpoint = Some(blob);
                held.checkpoint_requests.push(ask);
                self.advance(&task, now);
            }
            // The claim is lost, or the request is from an earlier handler. Its checkpoint must not
            // be stored under a claim that it did not run under.
            Some(_) | None => {
                let result = Err("the claim is over".to_owned());
                self.outputs.push_back(WorkerOutput::CheckpointReply {
                    task,
                    token,
                    checkpoint_requests: vec![ask],
                    result,
                });
            }
        }
    }

    pub(super) fn handle_task_command(&mut self, change: TaskCommandChange, now: InputTime) {
        let (task, entry, at) = match change {
            TaskCommandChange::Put(task, entry) => {
                let at = entry.modified;
                (task, Some(entry), at)
            }
            TaskCommandChange::Deleted(task, at) => (task, None, at),
        };
        if let Some(held) = self.held.get_mut(&task)
            && held.see_command(entry, at)
        {
            self.advance(&task, now);
        }
    }

    /// Wakes the sleepers that are due by the wall clock.
    pub(super) fn wake_sleepers(&mut self, now: InputTime) {
        while let Some((until, _)) = self.sleepers.first()
            && *until <= now.wall
            && let Some((_, task)) = self.sleepers.pop_first()
        {
            if let Some(held) = self.held.get_mut(&task) {
                held.sleeps_until = None;
            }
            self.advance(&task, now);
        }
    }
}

/// The moment of a wall-clock time, if the wall clock is not set in between.
pub(super) fn moment_of(until: Timestamp, now: InputTime) -> Moment {
    now.at + std::time::Duration::from_millis(until.0.saturating_sub(now.wall.0))
}
