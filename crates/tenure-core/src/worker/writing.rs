//! The results of writes about a task.
//!
//! A write that was certainly not applied is decided again, because other facts may hold by now. An
//! ambiguous write is repeated unchanged, and is identified by what it finds in the store.

use crate::id::TaskId;
use crate::kv::KeyValue;
use crate::loss::LossReason;
use crate::record::Record;
use crate::revision::{RequestId, Revision};
use crate::task::StateRecord;

use super::WorkerMachine;
use super::claimed_task::{ClaimedTask, HandlerState, PendingWrite, WriteState};
use super::config::SET_ASIDE_FOR;
use super::event::{ReleaseReason, WorkerEvent};
use super::input::{InputTime, StateWriteReply};
use super::output::{AfterWrite, AttemptWrite, CommandCheck, WorkerOutput};
use super::releasing::ClaimEnd;
use super::task_commands::TaskCommandEntry;
use super::timers::Timer;

impl WorkerMachine {
    pub(super) fn handle_state_written(
        &mut self,
        task: &TaskId,
        epoch: RequestId,
        reply: StateWriteReply,
        now: InputTime,
    ) {
        let Some(held) = self.held.get_mut(task) else { return };
        let WriteState::InFlight(requested) = &held.write else { return };
        // A reply to an earlier write of the task, which was superseded.
        if requested.save.epoch != epoch {
            return;
        }
        let WriteState::InFlight(draft) = std::mem::replace(&mut held.write, WriteState::Idle) else {
            return;
        };
        match reply {
            StateWriteReply::Applied { revision } => {
                // Only a write that was conditional on the command proves that there is no newer
                // one.
                if draft.acknowledges.is_some() {
                    held.command_known = held.command_known.max(revision);
                }
                self.state_written(task, *draft, revision, now);
            }
            StateWriteReply::NotOwner { state } => {
                // A write that ends the claim finds no owner key when its first attempt was
                // applied. The stored state distinguishes that from a lost claim.
                if draft.is_ambiguous
                    && draft.save.after != AfterWrite::Keep
                    && draft.was_stored(state.as_deref())
                {
                    return self.state_written(task, *draft, Revision::ZERO, now);
                }
                self.lose(task, LossReason::Replaced, now);
            }
            StateWriteReply::Changed { state, command, revision } => {
                // Its conditions fail because its first attempt was applied.
                if draft.is_ambiguous && draft.was_done(state.as_ref(), command.as_ref()) {
                    held.see_command(
                        command.as_ref().map(|pair| TaskCommandEntry::read(pair, now.wall)),
                        revision,
                    );
                    let stored = state.map_or(Revision::ZERO, |pair| pair.modified);
                    return self.state_written(task, *draft, stored, now);
                }
                self.adopt(task, state, command.as_ref(), revision, now);
            }
            StateWriteReply::TaskGone => self.lose(task, LossReason::Deleted, now),
            StateWriteReply::NotDone | StateWriteReply::Ambiguous => {
                // Once ambiguous, always ambiguous: a repetition that was not applied proves
                // nothing about the first attempt.
                let mut draft = draft;
                draft.is_ambiguous |= reply == StateWriteReply::Ambiguous;
                held.write = WriteState::Backoff(draft);
                let at = now.at + held.backoff.after_failure(now.at, now.jitter, None);
                self.timers.set(Timer::Retry(task.clone()), at);
            }
            StateWriteReply::Refused(why) => self.write_refused(task, &draft, why, now),
        }
    }

    /// Repeats a write after its backoff, or decides again what to write.
    pub(super) fn retry_due(&mut self, task: &TaskId, now: InputTime) {
        let epoch = self.next_epoch();
        let Some(held) = self.held.get_mut(task) else { return };
        let WriteState::Backoff(mut draft) = std::mem::replace(&mut held.write, WriteState::Idle) else {
            return;
        };
        // Unchanged, because only the same bytes identify the first attempt. A write that was not
        // applied is dropped instead, and `advance` decides again.
        if draft.is_ambiguous {
            draft.save.epoch = epoch;
            self.outputs.push_back(WorkerOutput::WriteState(Box::new(draft.save.clone())));
            held.write = WriteState::InFlight(draft);
        }
        self.advance(task, now);
    }

    /// A write was applied. Its state is stored since `stored`.
    fn state_written(&mut self, task: &TaskId, draft: PendingWrite, stored: Revision, now: InputTime) {
        let Some(held) = self.held.get_mut(task) else { return };
        held.backoff.after_success(now.at);
        let from = held.record.state.kind();
        let to = draft.record.state.kind();
        if draft.save.state.is_some() {
            held.state_seen = stored;
        }
        held.record = draft.record;
        if draft.has_outcome {
            held.outcome = None;
        }
        if draft.has_attempts {
            held.has_run = false;
        }
        match &draft.save.attempts {
            AttemptWrite::Keep => {}
            AttemptWrite::Clear => {
                held.is_attempt_open = false;
                held.lost.clear();
            }
            AttemptWrite::Close { .. } => held.is_attempt_open = false,
            AttemptWrite::Open { .. } => held.is_attempt_open = true,
        }
        // Requests that arrived while the write was in flight wait for the next one.
        let checkpoint_requests: Vec<u64> = held
            .checkpoint_requests
            .drain(..draft.checkpoint_requests.min(held.checkpoint_requests.len()))
            .collect();
        if held.checkpoint_requests.is_empty() {
            held.checkpoint = None;
        }
        let (token, reason) = (held.token, held.record.reason.clone());
        if let Some(done) = draft.acknowledges {
            // A newer command may have arrived meanwhile. It stays.
            held.command.take_if(|entry| entry.modified == done.modified);
            let (task, id) = (task.clone(), done.id);
            self.events.push_back(WorkerEvent::CommandHandled {
                task,
                id,
                outcome: done.outcome,
                why: done.why,
            });
        }
        if draft.requests_checkpoint && held.handler == HandlerState::Running {
            self.outputs.push_back(WorkerOutput::RequestCheckpoint { task: task.clone(), token });
        }
        if !checkpoint_requests.is_empty() {
            let task = task.clone();
            self.outputs.push_back(WorkerOutput::CheckpointReply {
                task,
                token,
                checkpoint_requests,
                result: Ok(()),
            });
        }
        if from != to && draft.save.after != AfterWrite::End {
            self.events.push_back(WorkerEvent::StateChanged { task: task.clone(), from, to });
        }
        match draft.save.after {
            AfterWrite::Keep => self.advance(task, now),
            AfterWrite::Release => {
                let why = draft.release.unwrap_or(ReleaseReason::Handler);
                self.events.push_back(WorkerEvent::Released { task: task.clone(), why });
                // An unreadable task is postponed by another rule, and must be tried again by any
                // worker that can read it.
                if why != ReleaseReason::SetAside {
                    let had_peers = self.peers.peers() > 0;
                    let release = why.release(had_peers);
                    self.balance.cooldowns.note(task, self.config.cooldown, release, now.at);
                }
                self.claim_ended(task, ClaimEnd::Released, now);
            }
            AfterWrite::End => {
                self.events.push_back(WorkerEvent::Ended { task: task.clone(), state: to, reason });
                self.claim_ended(task, ClaimEnd::Ended(to), now);
            }
        }
    }

    fn claim_ended(&mut self, task: &TaskId, how: ClaimEnd, now: InputTime) {
        if let Some(held) = self.held.remove(task) {
            self.end_claim(task, &held, how, now);
        }
    }

    /// The stored state is not the one that was known. It replaces the known one, and the next step
    /// is decided again.
    fn adopt(
        &mut self,
        task: &TaskId,
        state: Option<KeyValue>,
        command: Option<&KeyValue>,
        revision: Revision,
        now: InputTime,
    ) {
        let Some(held) = self.held.get_mut(task) else { return };
        held.see_command(command.map(|pair| TaskCommandEntry::read(pair, now.wall)), revision);
        let seen = state.as_ref().map_or(Revision::ZERO, |pair| pair.modified);
        if seen != held.state_seen {
            held.state_seen = seen;
            let read = state.map(|pair| StateRecord::decode(&pair.value));
            let why = match read.unwrap_or_else(|| Ok(StateRecord::default())) {
                Ok(record) if record.state.is_terminal() => {
                    Some(format!("another process has ended it: it is {}", record.state))
                }
                Ok(record) => {
                    held.record = record;
                    None
                }
                Err(bad) => Some(format!("its state cannot be read: {}", bad.reason())),
            };
            if let Some(why) = why {
                held.release = Some(ReleaseReason::SetAside);
                self.claim_queue.postpone(task, Some(now.at + SET_ASIDE_FOR));
                self.events.push_back(WorkerEvent::SetAside { task: task.clone(), why });
            }
        }
        self.advance(task, now);
    }

    /// The store refuses this write for good. The checkpoint is dropped; without a checkpoint, the
    /// task is released as it is stored.
    fn write_refused(&mut self, task: &TaskId, draft: &PendingWrite, why: String, now: InputTime) {
        let Some(held) = self.held.get_mut(task) else { return };
        self.events.push_back(WorkerEvent::WriteRefused { task: task.clone(), why: why.clone() });
        if draft.checkpoint_requests > 0 {
            let checkpoint_requests: Vec<u64> = held
                .checkpoint_requests
                .drain(..draft.checkpoint_requests.min(held.checkpoint_requests.len()))
                .collect();
            if held.checkpoint_requests.is_empty() {
                held.checkpoint = None;
            }
            let (task, token) = (task.clone(), held.token);
            self.outputs.push_back(WorkerOutput::CheckpointReply {
                task,
                token,
                checkpoint_requests,
                result: Err(why),
            });
        } else {
            held.release = Some(ReleaseReason::WriteRefused);
        }
        self.advance(task, now);
    }
}

impl ClaimedTask {
    /// Whether a write is in flight that ends this worker's claim.
    pub(super) fn is_ending_claim(&self) -> bool {
        match &self.write {
            WriteState::Idle => false,
            WriteState::InFlight(draft) => draft.save.after != AfterWrite::Keep,
            WriteState::Backoff(draft) => draft.is_ambiguous && draft.save.after != AfterWrite::Keep,
        }
    }
}

impl PendingWrite {
    /// Whether this is the state that the write stores.
    fn was_stored(&self, state: Option<&[u8]>) -> bool {
        self.save.state.as_deref().is_none_or(|written| Some(written) == state)
    }

    /// Whether a write that keeps the claim was applied, judged by the state and command that are
    /// stored now.
    fn was_done(&self, state: Option<&KeyValue>, command: Option<&KeyValue>) -> bool {
        let has_reply = match &self.save.command {
            CommandCheck::Any | CommandCheck::Absent => true,
            CommandCheck::Acknowledge { modified, .. } => {
                command.is_none_or(|pair| pair.modified != *modified)
            }
        };
        self.save.after == AfterWrite::Keep
            && has_reply
            && match &self.save.state {
                Some(selector) => state.is_some_and(|pair| pair.value == *selector),
                None => state.map_or(Revision::ZERO, |pair| pair.modified) == self.save.state_seen,
            }
    }
}
