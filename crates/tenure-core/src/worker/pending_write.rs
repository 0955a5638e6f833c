//! What has to be written about a task, derived from all facts known at this moment.
//!
//! Intuition: nothing is remembered about intentions. The stored state, the outcome of the handler,
//! the pending command and a wanted release determine the next state. If that is the stored one and
//! no request waits for a reply, there is nothing to write.
//!
//! **Invariant**: while a handler runs nothing is written that parks, releases or ends its task.
//!
//! **Invariant**: a kill command that is known takes precedence over the outcome of the handler.
//!
//! **Invariant**: a write that ends a task answers its pending command, or requires that there is
//! none.

use crate::id::{NodeId, TaskId};
use crate::record::{CommandOutcome, Record, ResultRecord, UnknownFields};
use crate::revision::RequestId;
use crate::sabotage::{SabotageRule, is_broken};
use crate::task::retry::ErrorPolicy;
use crate::task::{
    Applied, Attempt, AttemptEnd, AttemptRecord, StateRecord, TaskMessage, TaskState, TaskStatus, transition,
};

use super::claimed_task::{ClaimedTask, HandledCommand, HandlerState, PendingWrite};
use super::claiming::claim_of;
use super::event::ReleaseReason;
use super::input::{HandlerEnd, InputTime};
use super::output::{AfterWrite, AttemptWrite, CommandCheck, EndedEntry, StateWrite};
use super::task_commands::TaskCommandEntry;

/// The worker that writes, its error policy and the time.
pub(super) struct WriteContext<'a> {
    pub(super) node: &'a NodeId,
    pub(super) policy: &'a dyn ErrorPolicy,
    pub(super) now: InputTime,
}

/// The result of a command.
struct CommandDecision {
    outcome: CommandOutcome,
    why: Option<String>,
}

impl CommandDecision {
    const DONE: CommandDecision = CommandDecision { outcome: CommandOutcome::Done, why: None };

    fn refused(why: &impl ToString) -> CommandDecision {
        CommandDecision { outcome: CommandOutcome::Refused, why: Some(why.to_string()) }
    }

    fn expired(why: &str) -> CommandDecision {
        CommandDecision { outcome: CommandOutcome::Expired, why: Some(why.to_owned()) }
    }

    fn malformed(why: &str) -> CommandDecision {
        CommandDecision { outcome: CommandOutcome::Malformed, why: Some(why.to_owned()) }
    }
}

impl ClaimedTask {
    /// Builds the write that is needed now. `None` if nothing has to be written.
    pub(super) fn draft(
        &self,
        task: &TaskId,
        epoch: RequestId,
        writer: &WriteContext<'_>,
    ) -> Option<PendingWrite> {
        let mut record = self.record.clone();
        let mut release = self.release;
        let is_as_stored = matches!(release, Some(ReleaseReason::SetAside | ReleaseReason::WriteRefused));
        let decision = match (self.handler, release) {
            // The stored state cannot be read or replaced. The task is released as it is, because
            // another worker may be of a newer version that can read it.
            (HandlerState::None, _) if is_as_stored => None,
            (HandlerState::None, _) => self.write_when_stopped(&mut record, &mut release, writer),
            (HandlerState::Running | HandlerState::Stopping { .. }, _) => {
                self.write_while_running(&mut record, writer)
            }
        };
        // A running handler keeps its claim in every case: a release would let another worker start
        // the task while it runs. Only the sabotage rule of the tests breaks this.
        let after = match self.handler {
            HandlerState::Stopping { .. }
                if release.is_some() && is_broken(SabotageRule::StopBeforeRelease) =>
            {
                AfterWrite::Release
            }
            HandlerState::Running | HandlerState::Stopping { .. } => AfterWrite::Keep,
            HandlerState::None if record.state.is_terminal() && !self.record.state.is_terminal() => {
                AfterWrite::End
            }
            HandlerState::None if release.is_some() => AfterWrite::Release,
            HandlerState::None => AfterWrite::Keep,
        };
        let attempts = self.attempt_write(&record, after, writer);
        let has_attempts = self.handler == HandlerState::None && !is_as_stored;
        if has_attempts {
            self.note_attempts(&mut record, &attempts, after, writer);
        }
        // Most events change nothing that is stored, so most calls end here.
        let is_changed = record != self.record;
        if !is_changed && decision.is_none() && after == AfterWrite::Keep && attempts == AttemptWrite::Keep {
            return None;
        }
        let acknowledges = self.command.as_ref().zip(decision).map(|(entry, decision)| HandledCommand {
            modified: entry.modified,
            id: entry.id.clone(),
            outcome: decision.outcome,
            why: decision.why,
        });
        let command = match &acknowledges {
            Some(acknowledged) => CommandCheck::Acknowledge {
                modified: acknowledged.modified,
                id: acknowledged.id.clone(),
                result: self.result(acknowledged, record.state.kind(), writer).encode(),
            },
            // A command that arrived unseen must not be deleted with the task without a reply. The
            // write then fails, and the worker reads the command with the failed write.
            None if after == AfterWrite::End => CommandCheck::Absent,
            None => CommandCheck::Any,
        };
        // The handler is asked only once the command is acknowledged: a checkpoint request that is
        // repeated after a lost reply would be one request too many.
        let requests_checkpoint =
            acknowledges.as_ref().is_some_and(|ack| ack.outcome == CommandOutcome::Done)
                && self.handler == HandlerState::Running
                && matches!(
                    &self.command,
                    Some(TaskCommandEntry { message: Ok(TaskMessage::Checkpoint { blob: None }), .. })
                );
        let save = StateWrite {
            epoch,
            task: task.clone(),
            created: self.created,
            token: self.token,
            state_seen: self.state_seen,
            state: is_changed.then(|| record.encode()),
            command,
            attempts,
            after,
            entry: self.entry(&record, after),
        };
        let (has_outcome, checkpoint_requests) =
            (self.handler == HandlerState::None, self.checkpoint_requests.len());
        Some(PendingWrite {
            save,
            record,
            has_outcome,
            checkpoint_requests,
            acknowledges,
            requests_checkpoint,
            has_attempts,
            release,
            is_ambiguous: false,
        })
    }

    fn result(
        &self,
        acknowledged: &HandledCommand,
        to: TaskState,
        writer: &WriteContext<'_>,
    ) -> ResultRecord {
        let result = ResultRecord::new(writer.node.clone(), acknowledged.outcome, writer.now.wall);
        let result = result.step(self.record.state.kind(), to);
        match &acknowledged.why {
            Some(why) => result.why(why.clone()),
            None => result,
        }
    }

    /// What happens to the attempt records. The record of this claim is stored while its handler
    /// runs or is about to run. After an outcome none is stored.
    fn attempt_write(
        &self,
        record: &StateRecord,
        after: AfterWrite,
        writer: &WriteContext<'_>,
    ) -> AttemptWrite {
        let is_wanted = match self.handler {
            HandlerState::Running | HandlerState::Stopping { .. } => return AttemptWrite::Keep,
            HandlerState::None => after == AfterWrite::Keep && record.state == TaskStatus::Runnable,
        };
        match (self.is_attempt_open, is_wanted) {
            (true, true) | (false, false) => AttemptWrite::Keep,
            // The end of a task deletes all its keys, the attempt records among them.
            (true, false) if after == AfterWrite::End => AttemptWrite::Keep,
            // A release is no outcome: lost claims before it still count towards the quarantine.
            (true, false) if record.state == TaskStatus::Runnable => {
                AttemptWrite::Close { claim: claim_of(&self.nonce) }
            }
            (true, false) => AttemptWrite::Clear,
            (false, true) => {
                let (node, started) = (writer.node.clone(), writer.now.wall);
                let attempt = AttemptRecord { node, started, unknown: UnknownFields::new() }.encode();
                AttemptWrite::Open { claim: claim_of(&self.nonce), attempt }
            }
        }
    }

    /// Moves the attempts that end with this write to the state: lost ones first, then that of this
    /// claim. At the end of the task the submitted record is kept as well.
    fn note_attempts(
        &self,
        record: &mut StateRecord,
        attempts: &AttemptWrite,
        after: AfterWrite,
        writer: &WriteContext<'_>,
    ) {
        if after == AfterWrite::End {
            record.keep_task(&self.submitted);
        }
        if *attempts == AttemptWrite::Clear || after == AfterWrite::End {
            // When a lost claim ended is unknown. It had ended when the next claim was sent.
            let next = self.lost.iter().skip(1).map(|attempt| attempt.started).chain([self.began]);
            for (lost, ended) in self.lost.iter().zip(next) {
                let (node, started) = (lost.node.clone(), lost.started);
                record.note_attempt(Attempt { node, started, ended, end: AttemptEnd::Lost });
            }
        }
        if self.has_run {
            let (node, started, ended) = (writer.node.clone(), self.began, writer.now.wall);
            record.note_attempt(Attempt { node, started, ended, end: self.attempt_end(record.state) });
        }
    }

    /// The key that stays of an ended task besides its state.
    fn entry(&self, record: &StateRecord, after: AfterWrite) -> Option<EndedEntry> {
        (after == AfterWrite::End).then(|| EndedEntry { at: record.updated_at, props: self.props.clone() })
    }

    /// How the attempt of this claim ended.
    fn attempt_end(&self, state: TaskStatus) -> AttemptEnd {
        match (&self.outcome, state) {
            (_, TaskStatus::Killed) => AttemptEnd::Killed,
            (Some(HandlerEnd::Fault(_) | HandlerEnd::FaultDecided { .. }), _)
            | (_, TaskStatus::Failed | TaskStatus::Fault) => AttemptEnd::Failed,
            (_, TaskStatus::Completed) => AttemptEnd::Completed,
            (_, TaskStatus::Sleeping { .. }) => AttemptEnd::Sleeping,
            (_, TaskStatus::Paused) => AttemptEnd::Paused,
            (_, TaskStatus::Runnable) => AttemptEnd::Released,
        }
    }

    /// While the handler runs: its checkpoint, and commands that it need not stop for.
    fn write_while_running(
        &self,
        record: &mut StateRecord,
        writer: &WriteContext<'_>,
    ) -> Option<CommandDecision> {
        self.keep_checkpoint(record, writer);
        let entry = self.command.as_ref()?;
        if let Some(why) = self.expiry(entry) {
            return Some(CommandDecision::expired(why));
        }
        let message = match &entry.message {
            Ok(message) => message,
            Err(why) => return Some(CommandDecision::malformed(why)),
        };
        if let Err(illegal) = transition(record.state, message) {
            return Some(CommandDecision::refused(&illegal));
        }
        match message {
            TaskMessage::Run | TaskMessage::Checkpoint { .. } => {
                Some(apply_command(record, message.clone(), writer))
            }
            TaskMessage::Sleep { .. }
            | TaskMessage::Pause
            | TaskMessage::Kill { .. }
            | TaskMessage::Error { .. }
            | TaskMessage::Complete
            | TaskMessage::Release => None,
        }
    }

    /// When no handler runs: applies the outcome, the pending command and the error policy.
    fn write_when_stopped(
        &self,
        record: &mut StateRecord,
        release: &mut Option<ReleaseReason>,
        writer: &WriteContext<'_>,
    ) -> Option<CommandDecision> {
        let (at, by) = (writer.now.wall, writer.node);
        self.keep_checkpoint(record, writer);
        let entry = self.command.as_ref();
        let expired = entry.and_then(|entry| self.expiry(entry));
        let message = entry.filter(|_| expired.is_none()).map(|entry| &entry.message);
        // A kill takes precedence over the outcome. Otherwise a task that fails at that moment
        // would be retried although its kill was acknowledged.
        if !matches!(message, Some(Ok(TaskMessage::Kill { .. }))) {
            if let Some(why) = &self.quarantine {
                // If this is refused, another process has written the state since, and its state is
                // kept.
                let _ = record.quarantine(why, at, by);
            }
            let applied = match &self.outcome {
                Some(HandlerEnd::Completed) => record.apply(TaskMessage::Complete, at, by),
                Some(HandlerEnd::Fault(why)) => record.fail(why.clone(), at, by, writer.policy),
                Some(HandlerEnd::FaultDecided { message, decision }) => {
                    record.fail(message.clone(), at, by, &|_: &StateRecord, _| decision.clone())
                }
                Some(HandlerEnd::Sleep { until }) => {
                    record.apply(TaskMessage::Sleep { until: *until }, at, by)
                }
                Some(HandlerEnd::Pause) => record.apply(TaskMessage::Pause, at, by),
                Some(HandlerEnd::Release | HandlerEnd::Aborted) => {
                    release.get_or_insert(ReleaseReason::Handler);
                    Ok(Applied::Same)
                }
                None => Ok(Applied::Same),
            };
            // If the stored state does not allow the outcome, another process has written it since.
            // Its state is kept and the outcome is dropped.
            let _ = applied;
        }
        let decision = message.map(|message| match message {
            Err(why) => CommandDecision::malformed(why),
            // The handler completed the task before the command to complete it was read, so the
            // command has its effect.
            Ok(TaskMessage::Complete) if record.state == TaskStatus::Completed => CommandDecision::DONE,
            Ok(_) if record.state.is_terminal() => {
                CommandDecision::refused(&format!("the task has {}", ended_text(record.state.kind())))
            }
            Ok(message) => {
                let decision = apply_command(record, message.clone(), writer);
                if *message == TaskMessage::Release && decision.outcome == CommandOutcome::Done {
                    release.get_or_insert(ReleaseReason::Command);
                }
                decision
            }
        });
        let decision = decision.or_else(|| expired.map(CommandDecision::expired));
        // A fault does not outlive the write: the policy turns it into sleep or failure.
        let _ = record.settle(at, by, writer.policy);
        // It is due already, and would only be parked to be woken at once. A reply to a command is
        // written first, because its sender expects to see the sleep.
        if let TaskStatus::Sleeping { until } = record.state
            && until <= at
            && decision.is_none()
        {
            let _ = record.apply(TaskMessage::Run, at, by);
        }
        decision
    }

    fn keep_checkpoint(&self, record: &mut StateRecord, writer: &WriteContext<'_>) {
        if let Some(blob) = self.checkpoint.clone() {
            let message = TaskMessage::Checkpoint { blob: Some(blob) };
            let _ = record.apply(message, writer.now.wall, writer.node);
        }
    }
}

/// Applies a command, if the transition table allows it.
fn apply_command(
    record: &mut StateRecord,
    message: TaskMessage,
    writer: &WriteContext<'_>,
) -> CommandDecision {
    let (at, by) = (writer.now.wall, writer.node);
    let applied = match message {
        TaskMessage::Error { message } => record.fail(message, at, by, writer.policy),
        message => record.apply(message, at, by),
    };
    match applied {
        Ok(_) => CommandDecision::DONE,
        Err(illegal) => CommandDecision::refused(&illegal),
    }
}

fn ended_text(state: TaskState) -> &'static str {
    match state {
        TaskState::Completed => "completed before",
        TaskState::Failed => "failed before",
        TaskState::Killed => "been killed before",
        TaskState::Runnable | TaskState::Sleeping | TaskState::Fault | TaskState::Paused => "moved on",
    }
}
