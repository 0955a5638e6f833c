//! What has to be written about a task, decided from all that is known about it at this moment.
//!
//! Intuition: instead of remembering what was intended, look. The stored state, how the handler ended, the command that waits and the wish to
//! release say together what the next state is; if that is the stored one and nobody waits for an answer, there is nothing to write.
//!
//! **Invariant**: while a handler runs nothing is written that parks, releases or ends its task.
//!
//! **Invariant**: a kill that is known wins over whatever the handler returned.
//!
//! **Invariant**: whoever ends a task has answered the command that waits for it, or knows that there is none.

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

/// By whom and when.
pub(super) struct WriteContext<'a> {
    pub(super) node: &'a NodeId,
    pub(super) policy: &'a dyn ErrorPolicy,
    pub(super) now: InputTime,
}

/// What comes of a command.
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
    /// What has to be written now; none if nothing has.
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
            // What is stored cannot be read or replaced: it goes to somebody else as it is.
            (HandlerState::None, _) if is_as_stored => None,
            (HandlerState::None, _) => self.settle(&mut record, &mut release, writer),
            (HandlerState::Running | HandlerState::Stopping { .. }, _) => self.beside(&mut record, writer),
        };
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
        let is_changed = record != self.record;
        if !is_changed && decision.is_none() && after == AfterWrite::Keep && attempts == AttemptWrite::Keep {
            return None;
        }
        let acknowledges = self.command.as_ref().zip(decision).map(|(mail, decision)| HandledCommand {
            modified: mail.modified,
            id: mail.id.clone(),
            outcome: decision.outcome,
            why: decision.why,
        });
        let command = match &acknowledges {
            Some(acknowledged) => CommandCheck::Acknowledge {
                modified: acknowledged.modified,
                id: acknowledged.id.clone(),
                result: self.result(acknowledged, record.state.kind(), writer).encode(),
            },
            None if after == AfterWrite::End => CommandCheck::Absent,
            None => CommandCheck::Any,
        };
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

    /// What becomes of the attempt records: this claim's is stored while its handler runs or is about to, and none is after an outcome.
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
            // The end of a task deletes all its parts, so there is nothing else to delete.
            (true, false) if after == AfterWrite::End => AttemptWrite::Keep,
            // A release says nothing about the claims before it, so those that were lost go on to count.
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

    /// Keeps the attempts that end with this write in the state: lost ones before this claim's own. With the end of the task also what was
    /// submitted.
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

    /// What is kept of the task beside its state, if it ends.
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

    /// While the handler runs: its progress, and commands that it does not have to stop for.
    fn beside(&self, record: &mut StateRecord, writer: &WriteContext<'_>) -> Option<CommandDecision> {
        self.keep_progress(record, writer);
        let mail = self.command.as_ref()?;
        if let Some(why) = self.why_expired(mail) {
            return Some(CommandDecision::expired(why));
        }
        let message = match &mail.message {
            Ok(message) => message,
            Err(why) => return Some(CommandDecision::malformed(why)),
        };
        if let Err(illegal) = transition(record.state, message) {
            return Some(CommandDecision::refused(&illegal));
        }
        match message {
            TaskMessage::Run | TaskMessage::Checkpoint { .. } => Some(obey(record, message.clone(), writer)),
            TaskMessage::Sleep { .. }
            | TaskMessage::Pause
            | TaskMessage::Kill { .. }
            | TaskMessage::Error { .. }
            | TaskMessage::Complete
            | TaskMessage::Release => None,
        }
    }

    /// When no handler runs: everything that has come together.
    fn settle(
        &self,
        record: &mut StateRecord,
        release: &mut Option<ReleaseReason>,
        writer: &WriteContext<'_>,
    ) -> Option<CommandDecision> {
        let (at, by) = (writer.now.wall, writer.node);
        self.keep_progress(record, writer);
        let mail = self.command.as_ref();
        let expired = mail.and_then(|mail| self.why_expired(mail));
        let message = mail.filter(|_| expired.is_none()).map(|mail| &mail.message);
        if !matches!(message, Some(Ok(TaskMessage::Kill { .. }))) {
            if let Some(why) = &self.quarantine {
                // A state that takes no error was written by another process since, and it stands.
                let _ = record.quarantine(why, at, by);
            }
            let told = match &self.outcome {
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
            // What the stored state does not take is dropped: somebody else has written it since, and it stands.
            let _ = told;
        }
        let decision = message.map(|message| match message {
            Err(why) => CommandDecision::malformed(why),
            Ok(TaskMessage::Complete) if record.state == TaskStatus::Completed => CommandDecision::DONE,
            Ok(_) if record.state.is_terminal() => {
                CommandDecision::refused(&format!("the task has {}", past(record.state.kind())))
            }
            Ok(message) => {
                let decision = obey(record, message.clone(), writer);
                if *message == TaskMessage::Release && decision.outcome == CommandOutcome::Done {
                    release.get_or_insert(ReleaseReason::Command);
                }
                decision
            }
        });
        let decision = decision.or_else(|| expired.map(CommandDecision::expired));
        let _ = record.settle(at, by, writer.policy);
        if let TaskStatus::Sleeping { until } = record.state
            && until <= at
            && decision.is_none()
        {
            let _ = record.apply(TaskMessage::Run, at, by);
        }
        decision
    }

    fn keep_progress(&self, record: &mut StateRecord, writer: &WriteContext<'_>) {
        if let Some(blob) = self.checkpoint.clone() {
            let message = TaskMessage::Checkpoint { blob: Some(blob) };
            let _ = record.apply(message, writer.now.wall, writer.node);
        }
    }
}

/// Does what a command says, if the table allows it.
fn obey(record: &mut StateRecord, message: TaskMessage, writer: &WriteContext<'_>) -> CommandDecision {
    let (at, by) = (writer.now.wall, writer.node);
    let obeyed = match message {
        TaskMessage::Error { message } => record.fail(message, at, by, writer.policy),
        message => record.apply(message, at, by),
    };
    match obeyed {
        Ok(_) => CommandDecision::DONE,
        Err(illegal) => CommandDecision::refused(&illegal),
    }
}

fn past(state: TaskState) -> &'static str {
    match state {
        TaskState::Completed => "completed before",
        TaskState::Failed => "failed before",
        TaskState::Killed => "been killed before",
        TaskState::Runnable | TaskState::Sleeping | TaskState::Fault | TaskState::Paused => "moved on",
    }
}
