//! Commands to this worker: one at a time, in the order in which they were sent, each acknowledged
//! in the transaction that deletes it.
//!
//! A command does not block other work. Only `release_task`, `stop_task` and `drain` take longer
//! than their own acknowledgement.
//!
//! **Invariant**: a command is deleted only in the transaction that stores its result.

use serde_json::Value;

use crate::balance::Release;
use crate::command::{AfterDrain, BalanceMode, NodeCommand};
use crate::id::{CommandId, TaskId};
use crate::record::{CommandOutcome, FrozenRecord, Record, ResultRecord, UnknownFields};
use crate::revision::RequestId;

use super::claimed_task::{HandlerState, StopPhase};
use super::event::{ReleaseReason, WorkerEvent};
use super::input::{CommandAckReply, InputTime};
use super::node_commands::{ActiveNodeCommand, AfterNodeCommand, NodeCommandPhase, QueuedNodeCommand};
use super::output::{CommandAck, FreezeMark, WorkerOutput};
use super::releasing::ClaimEnd;
use super::timers::Timer;
use super::{WorkerMachine, WorkerPhase};

/// How many releases of a plan its reply contains: enough for a screen.
const PLAN_LEN_MAX: usize = 100;

impl WorkerMachine {
    /// Begins the next command, if none is in progress.
    pub(super) fn begin_next_command(&mut self, now: InputTime) {
        // Before the first snapshot of the members the worker does not know its own freeze mark,
        // and before it has joined not its incarnation. Both decide about commands.
        while self.node_commands.current.is_none()
            && self.is_working()
            && self.incarnation.is_some()
            && self.peers.is_known()
        {
            let Some((id, queued)) = self.node_commands.waiting.first_key_value() else { return };
            let (id, queued) = (id.clone(), queued.clone());
            self.begin_command(id, queued, now);
        }
    }

    fn begin_command(&mut self, id: CommandId, queued: QueuedNodeCommand, now: InputTime) {
        let modified = queued.modified;
        let refused = |why: &str| (CommandOutcome::Refused, Some(why.to_owned()));
        let done = (CommandOutcome::Done, None);
        // Checked before the command itself: a command to an earlier process with this id, or an
        // expired one, must have no effect.
        let (mark, (outcome, why), plan) = match queued.command {
            _ if self.is_for_earlier_incarnation(&queued) => {
                let why = "it was sent to an earlier incarnation of this node".to_owned();
                (FreezeMark::Keep, (CommandOutcome::Expired, Some(why)), None)
            }
            _ if queued.expires_at.is_some_and(|expires_at| expires_at <= now.wall) => {
                let why = "it expired before the node handled it".to_owned();
                (FreezeMark::Keep, (CommandOutcome::Expired, Some(why)), None)
            }
            Err(why) => (FreezeMark::Keep, (CommandOutcome::Malformed, Some(why)), None),
            Ok(NodeCommand::Freeze) => (frozen_by(queued.by, now), done, None),
            Ok(NodeCommand::Unfreeze) => (FreezeMark::Unfreeze, done, None),
            Ok(NodeCommand::Balance(_)) if !self.takes_tasks() => {
                (FreezeMark::Keep, refused("this node takes no tasks, so it does not balance"), None)
            }
            Ok(NodeCommand::Balance(BalanceMode::DryRun)) => {
                (FreezeMark::Keep, done, Some((self.plan(now.at), 0)))
            }
            Ok(NodeCommand::Balance(BalanceMode::Act)) => {
                (FreezeMark::Keep, done, Some(self.balance_round(now)))
            }
            Ok(NodeCommand::ReleaseTask(task)) => {
                // A task with a lost claim is leaving already, and its release is not in the hands
                // of this worker.
                if self.held.get(&task).is_some_and(|held| held.loss.is_none()) {
                    let phase = NodeCommandPhase::Releasing(task.clone());
                    self.node_commands.current = Some(ActiveNodeCommand { id, modified, phase });
                    self.release(&task, ReleaseReason::NodeCommand, now);
                    return self.fail_command_if_stuck(&task, now);
                }
                (FreezeMark::Keep, refused("this node does not own the task"), None)
            }
            Ok(NodeCommand::StopTask(task)) => match self.held.get_mut(&task) {
                Some(held) if held.handler != HandlerState::None => {
                    held.is_stop_commanded = true;
                    let phase = NodeCommandPhase::Stopping(task.clone());
                    self.node_commands.current = Some(ActiveNodeCommand { id, modified, phase });
                    self.advance(&task, now);
                    return self.fail_command_if_stuck(&task, now);
                }
                Some(_) | None => (FreezeMark::Keep, refused("the task does not run on this node"), None),
            },
            Ok(NodeCommand::Drain(after)) => {
                self.node_commands.current =
                    Some(ActiveNodeCommand { id, modified, phase: NodeCommandPhase::Begun });
                // Peers stop counting on a draining worker because of its own record. The mark is
                // for the next process with this id.
                let mark = match after {
                    AfterDrain::TakeTasks => FreezeMark::Keep,
                    AfterDrain::StayFrozen => frozen_by(queued.by, now),
                };
                // The mark is written before the drain begins. Otherwise a crash between the two
                // would let the next process take tasks again.
                return self.write_command_ack(mark, None, AfterNodeCommand::Drain);
            }
        };
        let mut result = ResultRecord::new(self.config.node.clone(), outcome, now.wall);
        result.why.clone_from(&why);
        if let Some((plan, parting)) = plan {
            result.unknown = plan_fields(self.balance.balancer.name(), &plan, parting);
        }
        self.node_commands.current = Some(ActiveNodeCommand { id, modified, phase: NodeCommandPhase::Begun });
        self.write_command_ack(mark, Some(&result), AfterNodeCommand::Ended { outcome, why });
    }

    /// Whether a command was sent to an earlier incarnation of this worker. It must not reach this
    /// one.
    fn is_for_earlier_incarnation(&self, queued: &QueuedNodeCommand) -> bool {
        let Some(own) = self.incarnation else { return false };
        // A command of a foreign program names no incarnation, but it was put before this
        // incarnation began.
        queued.modified < own.0 || queued.incarnation.is_some_and(|sent_to| sent_to != own.0.0.unsigned_abs())
    }

    /// Writes the acknowledgement of the command in progress.
    fn write_command_ack(&mut self, mark: FreezeMark, result: Option<&ResultRecord>, then: AfterNodeCommand) {
        let epoch = self.next_epoch();
        let Some(current) = &mut self.node_commands.current else { return };
        let (command, modified) = (current.id.clone(), current.modified);
        let reply = CommandAck { epoch, command, modified, mark, result: result.map(Record::encode) };
        self.outputs.push_back(WorkerOutput::AckCommand(Box::new(reply.clone())));
        current.phase = NodeCommandPhase::Acknowledging { reply: Box::new(reply), then };
    }

    /// Acknowledges the command in progress with its result.
    fn finish_command(&mut self, outcome: CommandOutcome, why: Option<String>, now: InputTime) {
        let mut result = ResultRecord::new(self.config.node.clone(), outcome, now.wall);
        result.why.clone_from(&why);
        self.write_command_ack(FreezeMark::Keep, Some(&result), AfterNodeCommand::Ended { outcome, why });
    }

    pub(super) fn handle_command_acked(&mut self, epoch: RequestId, reply: CommandAckReply, now: InputTime) {
        let Some(ActiveNodeCommand {
            phase: NodeCommandPhase::Acknowledging { reply: requested, then }, ..
        }) = &self.node_commands.current
        else {
            return;
        };
        // A reply to an earlier attempt. The attempt in flight decides.
        if requested.epoch != epoch {
            return;
        }
        let (mark, then) = (requested.mark.clone(), then.clone());
        match reply {
            CommandAckReply::NotDone => {
                let at = now.at + self.node_commands.backoff.after_failure(now.at, now.jitter, None);
                self.timers.set(Timer::NodeCommand, at);
            }
            // It was withdrawn, or an ambiguous acknowledgement was applied after all.
            CommandAckReply::Applied | CommandAckReply::Changed => {
                self.node_commands.backoff.after_success(now.at);
                if reply == CommandAckReply::Applied {
                    self.mark_written(&mark, now);
                }
                self.command_ack_written(then, reply, now);
            }
        }
    }

    fn mark_written(&mut self, mark: &FreezeMark, now: InputTime) {
        let was_frozen = self.peers.is_self_frozen();
        match mark {
            FreezeMark::Keep => return,
            FreezeMark::Freeze { .. } => self.peers.set_own_frozen(true),
            FreezeMark::Unfreeze => self.peers.set_own_frozen(false),
        }
        self.report_frozen(was_frozen);
        self.update_own_load(now);
    }

    pub(super) fn report_frozen(&mut self, was_frozen: bool) {
        match (was_frozen, self.peers.is_self_frozen()) {
            (false, true) => self.events.push_back(WorkerEvent::Frozen),
            (true, false) => self.events.push_back(WorkerEvent::Unfrozen),
            (true, true) | (false, false) => {}
        }
    }

    fn command_ack_written(&mut self, then: AfterNodeCommand, reply: CommandAckReply, now: InputTime) {
        let Some(current) = &mut self.node_commands.current else { return };
        match then {
            AfterNodeCommand::Drain if reply == CommandAckReply::Applied => {
                current.phase = NodeCommandPhase::Draining { tasks: self.held.len() };
                self.begin_drain(now);
            }
            AfterNodeCommand::Leave => {
                self.end_command(CommandOutcome::Done, None);
                self.leave();
            }
            // The drain was withdrawn before it began.
            AfterNodeCommand::Drain => self.end_command(CommandOutcome::Expired, None),
            AfterNodeCommand::Ended { outcome, why } => self.end_command(outcome, why),
        }
    }

    fn end_command(&mut self, outcome: CommandOutcome, why: Option<String>) {
        if let Some(current) = self.node_commands.current.take() {
            // The feed may show the command until it shows its deletion. It must not be begun again
            // in that time.
            if self.node_commands.waiting.remove(&current.id).is_some() {
                self.node_commands.answered.insert(current.id.clone());
            }
            self.events.push_back(WorkerEvent::NodeCommandHandled { id: current.id, outcome, why });
        }
    }

    /// Repeats an acknowledgement that was not applied. It is conditional on the command, so
    /// applying it twice is impossible.
    pub(super) fn retry_command_ack(&mut self) {
        let epoch = self.next_epoch();
        if let Some(ActiveNodeCommand { phase: NodeCommandPhase::Acknowledging { reply, .. }, .. }) =
            &mut self.node_commands.current
        {
            reply.epoch = epoch;
            self.outputs.push_back(WorkerOutput::AckCommand(reply.clone()));
        }
    }

    /// The task that the command in progress waits for.
    fn commanded_task(&self) -> Option<&TaskId> {
        match &self.node_commands.current.as_ref()?.phase {
            NodeCommandPhase::Releasing(task) | NodeCommandPhase::Stopping(task) => Some(task),
            NodeCommandPhase::Begun
            | NodeCommandPhase::Draining { .. }
            | NodeCommandPhase::Acknowledging { .. } => None,
        }
    }

    /// The claim of a task has ended.
    pub(super) fn command_task_gone(&mut self, task: &TaskId, how: ClaimEnd, now: InputTime) {
        if self.commanded_task() != Some(task) {
            return;
        }
        match how {
            ClaimEnd::Released => self.finish_command(CommandOutcome::Done, None, now),
            ClaimEnd::Ended(state) => {
                self.finish_command(CommandOutcome::Refused, Some(format!("the task is {state}")), now);
            }
            ClaimEnd::Lost => {
                self.finish_command(CommandOutcome::Refused, Some("the claim was lost".to_owned()), now);
            }
        }
    }

    /// A handler has ended.
    pub(super) fn command_handler_stopped(&mut self, task: &TaskId, now: InputTime) {
        if let Some(ActiveNodeCommand { phase: NodeCommandPhase::Stopping(stopping), .. }) =
            &self.node_commands.current
            && stopping == task
        {
            self.finish_command(CommandOutcome::Done, None, now);
        }
    }

    /// A handler does not stop: the command is refused, and the next command begins.
    pub(super) fn command_handler_stuck(&mut self, task: &TaskId, now: InputTime) {
        if self.commanded_task() == Some(task) {
            let why = "its handler does not stop".to_owned();
            self.finish_command(CommandOutcome::Refused, Some(why), now);
        }
    }

    fn fail_command_if_stuck(&mut self, task: &TaskId, now: InputTime) {
        let is_stuck = self.held.get(task).is_some_and(|held| {
            matches!(held.handler, HandlerState::Stopping { phase: StopPhase::Stuck, .. })
        });
        if is_stuck {
            self.command_handler_stuck(task, now);
        }
    }

    /// The worker has no tasks left: the drain is acknowledged, and then the worker leaves.
    pub(super) fn finish_drain(&mut self, now: InputTime) {
        match &self.node_commands.current {
            Some(ActiveNodeCommand { phase: NodeCommandPhase::Draining { tasks }, .. })
                if self.phase == WorkerPhase::Draining =>
            {
                self.events.push_back(WorkerEvent::Drained);
                let result = ResultRecord::new(self.config.node.clone(), CommandOutcome::Done, now.wall);
                let result = result.why(format!("{tasks} tasks released"));
                self.write_command_ack(FreezeMark::Keep, Some(&result), AfterNodeCommand::Leave);
            }
            Some(_) | None => {}
        }
    }
}

/// The mark of a worker that a command has frozen.
fn frozen_by(by: String, now: InputTime) -> FreezeMark {
    FreezeMark::Freeze {
        record: FrozenRecord { since: now.wall, by, unknown: UnknownFields::new() }.encode(),
    }
}

/// The plan as the reply of the command contains it.
fn plan_fields(balancer: &str, plan: &[Release], parting: usize) -> UnknownFields {
    let applied = plan.iter().take(PLAN_LEN_MAX).map(|parting| {
        let fields = [("task", parting.task.to_string()), ("why", parting.reason.to_string())];
        fields.into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect::<UnknownFields>()
    });
    let fields = [
        ("balancer", balancer.into()),
        ("plan", Value::Array(applied.map(Value::Object).collect())),
        ("planned", plan.len().into()),
        ("released", parting.into()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
