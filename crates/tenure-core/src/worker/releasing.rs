//! The begin and the end of a claim.

use crate::id::TaskId;
use crate::loss::LossReason;
use crate::record::Record;
use crate::revision::{Revision, Token};
use crate::task::{AttemptRecord, StateRecord, TaskState, TaskStatus};

use super::claimed_task::{ClaimedTask, HandlerState, WriteState};
use super::claiming::claim_of;
use super::config::{LOST_CLAIMS_WITHIN, SET_ASIDE_FOR};
use super::event::{ReleaseReason, WorkerEvent};
use super::input::{InputTime, WonClaim};
use super::output::WorkerOutput;
use super::task_commands::TaskCommandEntry;
use super::timers::Timer;
use super::{WorkerMachine, WorkerPhase};

/// How many workers the reason of a quarantine names, the newest ones: they show whether it was
/// always the same host.
const NODES_NAMED_MAX: usize = 5;

/// How a claim ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClaimEnd {
    Released,
    Ended(TaskState),
    Lost,
}

impl WorkerMachine {
    /// A claim was won.
    pub(super) fn claim_won(
        &mut self,
        task: &TaskId,
        created: Revision,
        nonce: String,
        won: WonClaim,
        now: InputTime,
    ) {
        let loss = self.is_past(task, created, &won);
        let (record, unreadable) = match won.state.as_ref().map(|pair| StateRecord::decode(&pair.value)) {
            None => (StateRecord::default(), None),
            Some(Ok(record)) => (record, None),
            Some(Err(bad)) => {
                (StateRecord::default(), Some(format!("its state cannot be read: {}", bad.reason())))
            }
        };
        let submitted = self.board.get(task).and_then(|card| card.record.clone().ok()).unwrap_or_default();
        let command = won.command.as_ref().map(|pair| TaskCommandEntry::read(pair, now.wall));
        let lost = self.lost_claims(task, &nonce);
        let quarantine =
            (record.state == TaskStatus::Runnable).then(|| self.too_many_lost(&lost, now)).flatten();
        let mut held = ClaimedTask {
            nonce,
            token: won.token,
            lease: won.lease,
            created,
            submitted,
            props: won.props,
            record,
            state_seen: won.state.map_or(Revision::ZERO, |pair| pair.modified),
            command,
            command_known: won.revision,
            handler: HandlerState::None,
            outcome: None,
            release: None,
            is_stop_commanded: false,
            loss,
            checkpoint: None,
            checkpoint_requests: Vec::new(),
            write: WriteState::Idle,
            backoff: ClaimedTask::new_backoff(),
            sleeps_until: None,
            lost,
            quarantine,
            is_attempt_open: true,
            began: now.wall,
            has_run: false,
        };
        // The feed may have shown a newer command than the one that the claim has read.
        if let Some(entry) = self.task_commands.get(task) {
            held.see_command(Some(entry.clone()), entry.modified);
        }
        self.events.push_back(WorkerEvent::Claimed { task: task.clone(), token: held.token });
        if let Some(why) = unreadable.or_else(|| unfit(&held)) {
            // An ended task stays postponed until it is written again. An unreadable one is tried
            // again, because its state has no feed.
            let until = (!held.record.state.is_terminal()).then(|| now.at + SET_ASIDE_FOR);
            self.claim_queue.postpone(task, until);
            self.events.push_back(WorkerEvent::SetAside { task: task.clone(), why });
            held.release = Some(ReleaseReason::SetAside);
        } else {
            // The claim was sent before the drain or shutdown began and confirmed after it.
            held.release = match self.phase {
                WorkerPhase::Working => None,
                WorkerPhase::Draining => Some(ReleaseReason::Drain),
                WorkerPhase::Ending { .. } | WorkerPhase::Leaving | WorkerPhase::Finished => {
                    Some(ReleaseReason::Shutdown)
                }
            };
        }
        // It was reserved when it was requested, but it is leaving already.
        if held.release.is_some() || held.loss.is_some() {
            self.balance.part(task);
        }
        if let Some(why) = held.loss {
            self.events.push_back(WorkerEvent::Lost { task: task.clone(), token: held.token, why });
        }
        self.by_lease.entry(held.lease).or_default().insert(task.clone());
        self.held.insert(task.clone(), Box::new(held));
        self.advance(task, now);
    }

    /// The claims of a task that ended without an outcome: their attempt records are still stored
    /// although this process owns the task now.
    fn lost_claims(&self, task: &TaskId, nonce: &str) -> Vec<AttemptRecord> {
        let others = self.board.attempts_of(task).filter(|(claim, _)| claim.as_str() != nonce);
        // A record of this process is about to be deleted: its claim was released or lost while the
        // process lived on.
        let others = others.filter(|(claim, _)| !self.claims.is_of_this_process(claim.as_str()));
        let mut lost: Vec<AttemptRecord> = others.filter_map(|(_, attempt)| attempt.cloned()).collect();
        lost.sort_by_key(|attempt| attempt.started);
        lost
    }

    /// Why a task with these lost claims is not run again. `None` if it is run.
    fn too_many_lost(&self, lost: &[AttemptRecord], now: InputTime) -> Option<String> {
        let max = self.config.lost_claims_max?;
        let within = u64::try_from(LOST_CLAIMS_WITHIN.as_millis()).unwrap_or(u64::MAX);
        let is_recent = |attempt: &&AttemptRecord| attempt.started.0.saturating_add(within) >= now.wall.0;
        let recent: Vec<&AttemptRecord> = lost.iter().filter(is_recent).collect();
        if recent.len() < max {
            return None;
        }
        let nodes: Vec<&str> = recent.iter().map(|attempt| attempt.node.as_str()).collect();
        let nodes = nodes[nodes.len().saturating_sub(NODES_NAMED_MAX)..].join(", ");
        Some(format!(
            "quarantined: {} claims in a row ended without an outcome, last on {nodes}",
            recent.len()
        ))
    }

    /// A claim is lost: its handler has to stop, and nothing is written any more.
    pub(super) fn lose(&mut self, task: &TaskId, why: LossReason, now: InputTime) {
        let Some(held) = self.held.get_mut(task) else { return };
        if held.loss.is_none() {
            held.loss = Some(why);
            // The write that releases the claim was applied and its reply is missing: another
            // worker has claimed the task since.
            if held.is_ending_claim() && why == LossReason::Replaced {
                let why = held.release.unwrap_or(ReleaseReason::Handler);
                let release = why.release(self.peers.peers() > 0);
                self.balance.cooldowns.note(task, self.config.cooldown, release, now.at);
            }
            // A pending write must not be repeated: its condition on the claim can never hold
            // again.
            held.write = WriteState::Idle;
            let (token, checkpoint_requests) = (held.token, std::mem::take(&mut held.checkpoint_requests));
            if !checkpoint_requests.is_empty() {
                let result = Err("the claim is over".to_owned());
                self.outputs.push_back(WorkerOutput::CheckpointReply {
                    task: task.clone(),
                    token,
                    checkpoint_requests,
                    result,
                });
            }
            self.events.push_back(WorkerEvent::Lost { task: task.clone(), token, why });
            self.timers.clear(&Timer::Retry(task.clone()));
            self.balance.part(task);
        }
        self.advance(task, now);
    }

    /// The board shows that a claim has ended. If this worker is just releasing it, the reply to
    /// that write reports it.
    pub(super) fn claim_vanished(&mut self, task: &TaskId, token: Token, now: InputTime) {
        let held = self.held.get(task).filter(|held| held.token == token);
        if held.is_some_and(|held| !held.is_ending_claim()) {
            self.lose(task, LossReason::Replaced, now);
        }
    }

    /// The board shows that a task was deleted. If this worker is just ending it, the reply to that
    /// write reports it.
    pub(super) fn task_deleted(&mut self, task: &TaskId, created: Revision, now: InputTime) {
        let held = self.held.get(task).filter(|held| held.created == created);
        if held.is_some_and(|held| !held.is_ending_claim()) {
            self.lose(task, LossReason::Deleted, now);
        }
    }

    /// A claim has ended and its handler does not run: forgets the task.
    pub(super) fn end_claim(&mut self, task: &TaskId, held: &ClaimedTask, how: ClaimEnd, now: InputTime) {
        if let Some(until) = held.sleeps_until {
            self.sleepers.remove(&(until, task.clone()));
        }
        if let Some(tasks) = self.by_lease.get_mut(&held.lease) {
            tasks.remove(task);
            if tasks.is_empty() {
                self.by_lease.remove(&held.lease);
            }
        }
        self.slots.forget(task);
        self.balance.part(task);
        self.balance.see(task);
        self.timers.clear(&Timer::Stop(task.clone()));
        self.timers.clear(&Timer::Retry(task.clone()));
        self.outputs.push_back(WorkerOutput::EndClaim { nonce: held.nonce.clone() });
        let is_shown = || self.board.owner_of(task).is_some_and(|owner| owner.token == held.token);
        let is_left_behind = match held.loss {
            // The transaction that deletes a task deletes its owner key as well. A foreign program
            // may not have done so, and the orphaned owner key would block the next task of this
            // id.
            Some(LossReason::Deleted) => is_shown(),
            // The lease of the claim may be another than that of the member key, and may be renewed
            // for as long as the process lives. Without this the task would stay owned.
            Some(LossReason::MembershipLost) => true,
            // A stored attempt record would count as one of a killed worker, but this worker lives.
            Some(
                LossReason::Lapsed
                | LossReason::Revoked
                | LossReason::Replaced
                | LossReason::Released
                | LossReason::Closed,
            ) => held.is_attempt_open,
            None => false,
        };
        if is_left_behind {
            self.release_claim(task.clone(), held.token, claim_of(&held.nonce));
        }
        // Last, when the machine holds nothing of the claim any more: the task may be claimed again
        // at once.
        self.command_task_gone(task, how, now);
        self.reconsider(task.clone(), now.at, now.at);
    }
}

/// Why a task cannot be run although its records can be read.
fn unfit(held: &ClaimedTask) -> Option<String> {
    if held.record.state.is_terminal() {
        return Some(format!("it has ended before: it is {}", held.record.state));
    }
    let props = held.props.as_ref()?;
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(props).is_ok();
    (!is_json).then(|| "its props are not JSON".to_owned())
}
