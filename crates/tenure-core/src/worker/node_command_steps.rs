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
    pub(super) fn next_order(&mut self, now: InputTime) {
        while self.orders.current.is_none()
            && self.is_working()
            && self.incarnation.is_some()
            && self.company.is_known()
        {
            let Some((id, order)) = self.orders.waiting.first_key_value() else { return };
            let (id, order) = (id.clone(), order.clone());
            self.begin_order(id, order, now);
        }
    }

    fn begin_order(&mut self, id: CommandId, order: QueuedNodeCommand, now: InputTime) {
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
                    self.orders.current = Some(ActiveNodeCommand { id, modified, stage });
                    self.want_release(&task, ReleaseReason::Order, now);
                    return self.order_stuck_already(&task, now);
                }
                (FreezeMark::Keep, refused("this node does not own the task"), None)
            }
            Ok(NodeCommand::StopTask(task)) => match self.held.get_mut(&task) {
                Some(held) if held.handler != HandlerState::None => {
                    held.is_stop_ordered = true;
                    let stage = NodeCommandPhase::Stopping(task.clone());
                    self.orders.current = Some(ActiveNodeCommand { id, modified, stage });
                    self.advance(&task, now);
                    return self.order_stuck_already(&task, now);
                }
                Some(_) | None => (FreezeMark::Keep, refused("the task does not run on this node"), None),
            },
            Ok(NodeCommand::Drain(after)) => {
                self.orders.current =
                    Some(ActiveNodeCommand { id, modified, stage: NodeCommandPhase::Begun });
                // Other nodes leave a draining node alone because of its own record. The mark is for the next process with this id.
                let mark = match after {
                    AfterDrain::TakeTasks => FreezeMark::Keep,
                    AfterDrain::StayFrozen => frozen_by(order.by, now),
                };
                return self.answer_order(mark, None, AfterNodeCommand::Drain);
            }
        };
        let mut result = ResultRecord::new(self.settings.node.clone(), outcome, now.wall);
        result.why.clone_from(&why);
        if let Some((plan, parting)) = plan {
            result.unknown = told_plan(self.scales.balancer.name(), &plan, parting);
        }
        self.orders.current = Some(ActiveNodeCommand { id, modified, stage: NodeCommandPhase::Begun });
        self.answer_order(mark, Some(&result), AfterNodeCommand::Told { outcome, why });
    }

    /// Whether a command was sent to an earlier incarnation of this node: then it must not reach this one.
    fn is_for_earlier_incarnation(&self, order: &QueuedNodeCommand) -> bool {
        let Some(own) = self.incarnation else { return false };
        // A command of another writer does not name an incarnation, but was put before this one began.
        order.modified < own.0 || order.incarnation.is_some_and(|sent_to| sent_to != own.0.0.unsigned_abs())
    }

    /// Writes the answer to the current order.
    fn answer_order(&mut self, mark: FreezeMark, result: Option<&ResultRecord>, then: AfterNodeCommand) {
        let epoch = self.next_epoch();
        let Some(current) = &mut self.orders.current else { return };
        let (order, modified) = (current.id.clone(), current.modified);
        let answer = CommandAck { epoch, order, modified, mark, result: result.map(Record::encode) };
        self.actions.push_back(WorkerOutput::Answer(Box::new(answer.clone())));
        current.stage = NodeCommandPhase::Answering { answer: Box::new(answer), then };
    }

    /// The current order is over.
    fn finish_order(&mut self, outcome: CommandOutcome, why: Option<String>, now: InputTime) {
        let mut result = ResultRecord::new(self.settings.node.clone(), outcome, now.wall);
        result.why.clone_from(&why);
        self.answer_order(FreezeMark::Keep, Some(&result), AfterNodeCommand::Told { outcome, why });
    }

    pub(super) fn handle_answered(&mut self, epoch: RequestId, answer: CommandAckReply, now: InputTime) {
        let Some(ActiveNodeCommand { stage: NodeCommandPhase::Answering { answer: asked, then }, .. }) =
            &self.orders.current
        else {
            return;
        };
        if asked.epoch != epoch {
            return;
        }
        let (mark, then) = (asked.mark.clone(), then.clone());
        match answer {
            CommandAckReply::NotDone => {
                let at = now.at + self.orders.backoff.after_failure(now.at, now.jitter, None);
                self.timers.set(Timer::Order, at);
            }
            // It was withdrawn, or an answer whose own answer was lost has been written.
            CommandAckReply::Applied | CommandAckReply::Changed => {
                self.orders.backoff.after_success(now.at);
                if answer == CommandAckReply::Applied {
                    self.mark_written(&mark, now);
                }
                self.answer_written(then, answer, now);
            }
        }
    }

    fn mark_written(&mut self, mark: &FreezeMark, now: InputTime) {
        let was_frozen = self.company.am_frozen();
        match mark {
            FreezeMark::Keep => return,
            FreezeMark::Freeze { .. } => self.company.mark_me(true),
            FreezeMark::Unfreeze => self.company.mark_me(false),
        }
        self.tell_frozen(was_frozen);
        self.weigh_in(now);
    }

    pub(super) fn tell_frozen(&mut self, was_frozen: bool) {
        match (was_frozen, self.company.am_frozen()) {
            (false, true) => self.notices.push_back(WorkerEvent::Frozen),
            (true, false) => self.notices.push_back(WorkerEvent::Unfrozen),
            (true, true) | (false, false) => {}
        }
    }

    fn answer_written(&mut self, then: AfterNodeCommand, answer: CommandAckReply, now: InputTime) {
        let Some(current) = &mut self.orders.current else { return };
        match then {
            AfterNodeCommand::Drain if answer == CommandAckReply::Applied => {
                current.stage = NodeCommandPhase::Draining { tasks: self.held.len() };
                self.begin_drain(now);
            }
            AfterNodeCommand::Leave => {
                self.order_over(CommandOutcome::Done, None);
                self.leave();
            }
            // A drain that was withdrawn before it began.
            AfterNodeCommand::Drain => self.order_over(CommandOutcome::Expired, None),
            AfterNodeCommand::Told { outcome, why } => self.order_over(outcome, why),
        }
    }

    fn order_over(&mut self, outcome: CommandOutcome, why: Option<String>) {
        if let Some(current) = self.orders.current.take() {
            // If the feed has not shown yet that it is gone, it will, and until then may show it again.
            if self.orders.waiting.remove(&current.id).is_some() {
                self.orders.answered.insert(current.id.clone());
            }
            self.notices.push_back(WorkerEvent::OrderHandled { id: current.id, outcome, why });
        }
    }

    /// An answer that was not written is tried again.
    pub(super) fn order_due(&mut self) {
        let epoch = self.next_epoch();
        if let Some(ActiveNodeCommand { stage: NodeCommandPhase::Answering { answer, .. }, .. }) =
            &mut self.orders.current
        {
            answer.epoch = epoch;
            self.actions.push_back(WorkerOutput::Answer(answer.clone()));
        }
    }

    /// Which task the current order waits for.
    fn ordered(&self) -> Option<&TaskId> {
        match &self.orders.current.as_ref()?.stage {
            NodeCommandPhase::Releasing(task) | NodeCommandPhase::Stopping(task) => Some(task),
            NodeCommandPhase::Begun
            | NodeCommandPhase::Draining { .. }
            | NodeCommandPhase::Answering { .. } => None,
        }
    }

    /// A task has left us.
    pub(super) fn order_departed(&mut self, task: &TaskId, how: ClaimEnd, now: InputTime) {
        if self.ordered() != Some(task) {
            return;
        }
        match how {
            ClaimEnd::Released => self.finish_order(CommandOutcome::Done, None, now),
            ClaimEnd::Ended(state) => {
                self.finish_order(CommandOutcome::Refused, Some(format!("the task is {state}")), now);
            }
            ClaimEnd::Lost => {
                self.finish_order(CommandOutcome::Refused, Some("the claim was lost".to_owned()), now);
            }
        }
    }

    /// A handler has ended.
    pub(super) fn order_stopped(&mut self, task: &TaskId, now: InputTime) {
        if let Some(ActiveNodeCommand { stage: NodeCommandPhase::Stopping(stopping), .. }) =
            &self.orders.current
            && stopping == task
        {
            self.finish_order(CommandOutcome::Done, None, now);
        }
    }

    /// A handler does not stop: whoever sent the order is told, and the next order has its turn.
    pub(super) fn order_stuck(&mut self, task: &TaskId, now: InputTime) {
        if self.ordered() == Some(task) {
            let why = "its handler does not stop".to_owned();
            self.finish_order(CommandOutcome::Refused, Some(why), now);
        }
    }

    fn order_stuck_already(&mut self, task: &TaskId, now: InputTime) {
        let is_stuck = self.held.get(task).is_some_and(|held| {
            matches!(held.handler, HandlerState::Stopping { pressure: StopPhase::Stuck, .. })
        });
        if is_stuck {
            self.order_stuck(task, now);
        }
    }

    /// The node is empty: whoever wanted it drained is told, and then it leaves.
    pub(super) fn finish_drain(&mut self, now: InputTime) {
        match &self.orders.current {
            Some(ActiveNodeCommand { stage: NodeCommandPhase::Draining { tasks }, .. })
                if self.standing == WorkerPhase::Draining =>
            {
                self.notices.push_back(WorkerEvent::Drained);
                let result = ResultRecord::new(self.settings.node.clone(), CommandOutcome::Done, now.wall);
                let result = result.why(format!("{tasks} tasks given away"));
                self.answer_order(FreezeMark::Keep, Some(&result), AfterNodeCommand::Leave);
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
fn told_plan(balancer: &str, plan: &[Release], parting: usize) -> UnknownFields {
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
