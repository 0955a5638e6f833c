//! Commands to this node: one at a time, in the order in which they were sent, each answered in the step that deletes it.
//!
//! An order is worked on while everything else goes on; nothing here waits. Only `release_task`, `stop_task` and `drain` take longer than their
//! own answer.
//!
//! **Invariant**: an order is deleted only together with the writing of its result.

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

/// How many partings of a plan are told to whoever asked: a screen full, not a book.
const PLAN_LEN_MAX: usize = 100;

impl WorkerMachine {
    /// Begins the next order, if none is worked on.
    pub(super) fn begin_next_command(&mut self, now: InputTime) {
        while self.node_commands.current.is_none()
            && self.is_working()
            && self.incarnation.is_some()
            && self.peers.is_known()
        {
            let Some((id, order)) = self.node_commands.waiting.first_key_value() else { return };
            let (id, order) = (id.clone(), order.clone());
            self.begin_command(id, order, now);
        }
    }

    fn begin_command(&mut self, id: CommandId, order: QueuedNodeCommand, now: InputTime) {
        let modified = order.modified;
        let refused = |why: &str| (CommandOutcome::Refused, Some(why.to_owned()));
        let done = (CommandOutcome::Done, None);
        let (mark, (outcome, why), plan) = match order.command {
            _ if self.is_for_earlier_incarnation(&order) => {
                let why = "it was sent to an earlier incarnation of this node".to_owned();
                (FreezeMark::Keep, (CommandOutcome::Expired, Some(why)), None)
            }
            _ if order.expires_at.is_some_and(|expires_at| expires_at <= now.wall) => {
                let why = "it expired before the node handled it".to_owned();
                (FreezeMark::Keep, (CommandOutcome::Expired, Some(why)), None)
            }
            Err(why) => (FreezeMark::Keep, (CommandOutcome::Malformed, Some(why)), None),
            Ok(NodeCommand::Freeze) => (frozen_by(order.by, now), done, None),
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
                if self.held.get(&task).is_some_and(|held| held.over.is_none()) {
                    let stage = NodeCommandPhase::Releasing(task.clone());
                    self.node_commands.current = Some(ActiveNodeCommand { id, modified, stage });
                    self.release(&task, ReleaseReason::NodeCommand, now);
                    return self.fail_command_if_stuck(&task, now);
                }
                (FreezeMark::Keep, refused("this node does not own the task"), None)
            }
            Ok(NodeCommand::StopTask(task)) => match self.held.get_mut(&task) {
                Some(held) if held.handler != HandlerState::None => {
                    held.is_stop_ordered = true;
                    let stage = NodeCommandPhase::Stopping(task.clone());
                    self.node_commands.current = Some(ActiveNodeCommand { id, modified, stage });
                    self.advance(&task, now);
                    return self.fail_command_if_stuck(&task, now);
                }
                Some(_) | None => (FreezeMark::Keep, refused("the task does not run on this node"), None),
            },
            Ok(NodeCommand::Drain(after)) => {
                self.node_commands.current =
                    Some(ActiveNodeCommand { id, modified, stage: NodeCommandPhase::Begun });
                // Other nodes leave a draining node alone because of its own record. The mark is for the next process with this id.
                let mark = match after {
                    AfterDrain::TakeTasks => FreezeMark::Keep,
                    AfterDrain::StayFrozen => frozen_by(order.by, now),
                };
                return self.write_command_ack(mark, None, AfterNodeCommand::Drain);
            }
        };
        let mut result = ResultRecord::new(self.config.node.clone(), outcome, now.wall);
        result.why.clone_from(&why);
        if let Some((plan, parting)) = plan {
            result.unknown = plan_fields(self.balance.balancer.name(), &plan, parting);
        }
        self.node_commands.current = Some(ActiveNodeCommand { id, modified, stage: NodeCommandPhase::Begun });
        self.write_command_ack(mark, Some(&result), AfterNodeCommand::Ended { outcome, why });
    }

    /// Whether a command was sent to an earlier incarnation of this node: then it must not reach this one.
    fn is_for_earlier_incarnation(&self, order: &QueuedNodeCommand) -> bool {
        let Some(own) = self.incarnation else { return false };
        // A command of another writer does not name an incarnation, but was put before this one began.
        order.modified < own.0 || order.incarnation.is_some_and(|sent_to| sent_to != own.0.0.unsigned_abs())
    }

    /// Writes the answer to the current order.
    fn write_command_ack(&mut self, mark: FreezeMark, result: Option<&ResultRecord>, then: AfterNodeCommand) {
        let epoch = self.next_epoch();
        let Some(current) = &mut self.node_commands.current else { return };
        let (order, modified) = (current.id.clone(), current.modified);
        let reply = CommandAck { epoch, order, modified, mark, result: result.map(Record::encode) };
        self.outputs.push_back(WorkerOutput::AckCommand(Box::new(reply.clone())));
        current.stage = NodeCommandPhase::Acknowledging { reply: Box::new(reply), then };
    }

    /// The current order is over.
    fn finish_command(&mut self, outcome: CommandOutcome, why: Option<String>, now: InputTime) {
        let mut result = ResultRecord::new(self.config.node.clone(), outcome, now.wall);
        result.why.clone_from(&why);
        self.write_command_ack(FreezeMark::Keep, Some(&result), AfterNodeCommand::Ended { outcome, why });
    }

    pub(super) fn handle_command_acked(&mut self, epoch: RequestId, reply: CommandAckReply, now: InputTime) {
        let Some(ActiveNodeCommand {
            stage: NodeCommandPhase::Acknowledging { reply: requested, then }, ..
        }) = &self.node_commands.current
        else {
            return;
        };
        if requested.epoch != epoch {
            return;
        }
        let (mark, then) = (requested.mark.clone(), then.clone());
        match reply {
            CommandAckReply::NotDone => {
                let at = now.at + self.node_commands.backoff.after_failure(now.at, now.jitter, None);
                self.timers.set(Timer::NodeCommand, at);
            }
            // It was withdrawn, or an answer whose own answer was lost has been written.
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
                current.stage = NodeCommandPhase::Draining { tasks: self.held.len() };
                self.begin_drain(now);
            }
            AfterNodeCommand::Leave => {
                self.end_command(CommandOutcome::Done, None);
                self.leave();
            }
            // A drain that was withdrawn before it began.
            AfterNodeCommand::Drain => self.end_command(CommandOutcome::Expired, None),
            AfterNodeCommand::Ended { outcome, why } => self.end_command(outcome, why),
        }
    }

    fn end_command(&mut self, outcome: CommandOutcome, why: Option<String>) {
        if let Some(current) = self.node_commands.current.take() {
            // If the feed has not shown yet that it is gone, it will, and until then may show it again.
            if self.node_commands.waiting.remove(&current.id).is_some() {
                self.node_commands.answered.insert(current.id.clone());
            }
            self.events.push_back(WorkerEvent::NodeCommandHandled { id: current.id, outcome, why });
        }
    }

    /// An answer that was not written is tried again.
    pub(super) fn retry_command_ack(&mut self) {
        let epoch = self.next_epoch();
        if let Some(ActiveNodeCommand { stage: NodeCommandPhase::Acknowledging { reply, .. }, .. }) =
            &mut self.node_commands.current
        {
            reply.epoch = epoch;
            self.outputs.push_back(WorkerOutput::AckCommand(reply.clone()));
        }
    }

    /// Which task the current order waits for.
    fn commanded_task(&self) -> Option<&TaskId> {
        match &self.node_commands.current.as_ref()?.stage {
            NodeCommandPhase::Releasing(task) | NodeCommandPhase::Stopping(task) => Some(task),
            NodeCommandPhase::Begun
            | NodeCommandPhase::Draining { .. }
            | NodeCommandPhase::Acknowledging { .. } => None,
        }
    }

    /// A task has left us.
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
        if let Some(ActiveNodeCommand { stage: NodeCommandPhase::Stopping(stopping), .. }) =
            &self.node_commands.current
            && stopping == task
        {
            self.finish_command(CommandOutcome::Done, None, now);
        }
    }

    /// A handler does not stop: whoever sent the order is told, and the next order has its turn.
    pub(super) fn command_handler_stuck(&mut self, task: &TaskId, now: InputTime) {
        if self.commanded_task() == Some(task) {
            let why = "its handler does not stop".to_owned();
            self.finish_command(CommandOutcome::Refused, Some(why), now);
        }
    }

    fn fail_command_if_stuck(&mut self, task: &TaskId, now: InputTime) {
        let is_stuck = self.held.get(task).is_some_and(|held| {
            matches!(held.handler, HandlerState::Stopping { pressure: StopPhase::Stuck, .. })
        });
        if is_stuck {
            self.command_handler_stuck(task, now);
        }
    }

    /// The node is empty: whoever wanted it drained is told, and then it leaves.
    pub(super) fn finish_drain(&mut self, now: InputTime) {
        match &self.node_commands.current {
            Some(ActiveNodeCommand { stage: NodeCommandPhase::Draining { tasks }, .. })
                if self.phase == WorkerPhase::Draining =>
            {
                self.events.push_back(WorkerEvent::Drained);
                let result = ResultRecord::new(self.config.node.clone(), CommandOutcome::Done, now.wall);
                let result = result.why(format!("{tasks} tasks given away"));
                self.write_command_ack(FreezeMark::Keep, Some(&result), AfterNodeCommand::Leave);
            }
            Some(_) | None => {}
        }
    }
}

/// The mark of a node that is frozen by a command.
fn frozen_by(by: String, now: InputTime) -> FreezeMark {
    FreezeMark::Freeze {
        record: FrozenRecord { since: now.wall, by, unknown: UnknownFields::new() }.encode(),
    }
}

/// What a plan looks like to whoever asked for it.
fn plan_fields(balancer: &str, plan: &[Release], parting: usize) -> UnknownFields {
    let told = plan.iter().take(PLAN_LEN_MAX).map(|parting| {
        let fields = [("task", parting.task.to_string()), ("why", parting.reason.to_string())];
        fields.into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect::<UnknownFields>()
    });
    let fields = [
        ("balancer", balancer.into()),
        ("plan", Value::Array(told.map(Value::Object).collect())),
        ("planned", plan.len().into()),
        ("released", parting.into()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
