//! From an offer that is taken to a claim that is answered. What waits while two requests are under way goes out together.
//!
//! **Invariant**: a claim whose answer says "ours" is held, or given back; it is never forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::backoff::BackoffState;
use crate::id::{ClaimId, TaskId};
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::record::{OwnerRecord, Record, UnknownFields};
use crate::revision::{RequestId, Revision};
use crate::task::AttemptRecord;
use crate::time::Moment;

use super::config::{CLAIM_REQUESTS, CLAIMS_PER_REQUEST, LOOK_AGAIN, RETRY};
use super::input::{ClaimReply, InputTime, WonClaim};
use super::output::{ClaimRequest, WorkerOutput};
use super::probes::ClaimProbes;
use super::timers::Timer;
use super::{WorkerMachine, WorkerPhase};

/// Claims that are under way.
#[derive(Clone, Debug)]
pub(super) struct InFlightClaims {
    requested: BTreeMap<TaskId, SentClaim>,
    /// Claims that may have been done, and have to be asked again.
    to_repeat: BTreeSet<TaskId>,
    in_flight: BTreeMap<RequestId, SentClaims>,
    /// Requests from before the session was lost.
    late: BTreeMap<RequestId, SentClaims>,
    /// How long requests take, the slow ones among the last.
    latency: Duration,
    /// Leases that ended while requests were under way.
    over: BTreeSet<LeaseId>,
    blocked_until: Moment,
    backoff: BackoffState,
    nonces: ClaimNonces,
    pub(super) probes: ClaimProbes,
}

/// What tells claims from one another: those of this life by the throw of the dice they begin with.
#[derive(Clone, Debug)]
struct ClaimNonces {
    life: String,
    counter: u64,
}

/// Claims that travel together.
#[derive(Clone, Debug)]
struct SentClaims {
    sent_at: Moment,
    /// Each with the nonce of its claim.
    tasks: Vec<(TaskId, String)>,
}

/// A claim that was asked for.
#[derive(Clone, Debug)]
struct SentClaim {
    seen: Moment,
    created: Revision,
    nonce: String,
    owner: bytes::Bytes,
    attempt: bytes::Bytes,
    has_props: bool,
    is_ambiguous: bool,
}

impl InFlightClaims {
    pub(super) fn new(seed: u64) -> InFlightClaims {
        InFlightClaims {
            requested: BTreeMap::new(),
            to_repeat: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            late: BTreeMap::new(),
            latency: Duration::ZERO,
            over: BTreeSet::new(),
            blocked_until: Moment::ORIGIN,
            backoff: BackoffState::new(RETRY),
            nonces: ClaimNonces { life: format!("{seed:016x}-"), counter: 0 },
            probes: ClaimProbes::default(),
        }
    }

    /// Whether a task is asked for.
    pub(super) fn contains(&self, task: &TaskId) -> bool {
        self.requested.contains_key(task)
    }

    /// Whether this process has asked for the claim, in whatever session.
    pub(super) fn is_of_this_process(&self, nonce: &str) -> bool {
        nonce.starts_with(&self.nonces.life)
    }

    /// How many tasks are asked for.
    pub(super) fn len(&self) -> usize {
        self.requested.len()
    }

    /// How long a claim takes to be answered: as long as the slow ones of late, or as the one that is not answered yet.
    pub(super) fn slowness(&self, now: Moment) -> Duration {
        let oldest = self.in_flight.values().next();
        oldest.map_or(Duration::ZERO, |request| now.since(request.sent_at)).max(self.latency)
    }

    /// A lease is over: no claim under it is ours, even if the store says so later.
    pub(super) fn note_over(&mut self, lease: LeaseId) {
        if !self.in_flight.is_empty() || !self.to_repeat.is_empty() {
            self.over.insert(lease);
        }
    }
}

impl ClaimNonces {
    fn next(&mut self) -> String {
        self.counter += 1;
        format!("{}{:x}", self.life, self.counter)
    }
}

impl WorkerMachine {
    /// Sends claims, if any are wanted and may be sent.
    pub(super) fn send_claims(&mut self, now: InputTime) {
        while self.claims.in_flight.len() < CLAIM_REQUESTS
            && self.incarnation.is_some()
            && self.phase != WorkerPhase::Leaving
            && self.claims.blocked_until <= now.at
        {
            let mut batch = self.take_ambiguous();
            if self.may_claim() {
                self.take_claimable(&mut batch, now);
            }
            if batch.is_empty() {
                return;
            }
            let epoch = self.next_epoch();
            self.stats.claims_sent += batch.len() as u64;
            let tasks = batch.iter().map(|ask| (ask.task.clone(), ask.nonce.clone())).collect();
            self.claims.in_flight.insert(epoch, SentClaims { sent_at: now.at, tasks });
            self.outputs.push_back(WorkerOutput::Claim { epoch, claims: batch });
        }
    }

    /// Claims whose answers were lost are asked again as they were.
    fn take_ambiguous(&mut self) -> Vec<ClaimRequest> {
        let mut batch = Vec::new();
        while batch.len() < CLAIMS_PER_REQUEST
            && let Some(task) = self.claims.to_repeat.pop_first()
        {
            if let Some(requested) = self.claims.requested.get(&task) {
                let SentClaim { created, nonce, owner, attempt, has_props, .. } = requested.clone();
                batch.push(ClaimRequest { task, created, nonce, owner, attempt, has_props, is_again: true });
            }
        }
        batch
    }

    pub(super) fn request_claim(
        &mut self,
        task: TaskId,
        seen: Moment,
        created: Revision,
        now: InputTime,
    ) -> ClaimRequest {
        if let Some(card) = self.board.get(&task) {
            self.balance.take(&task, card, now.at);
            self.update_own_load(now);
        }
        let nonce = self.claims.nonces.next();
        let incarnation = self.incarnation.map_or(0, |token| token.0.0.unsigned_abs());
        let (node, unknown) = (self.config.node.clone(), UnknownFields::new());
        let attempt = AttemptRecord { node: node.clone(), started: now.wall, unknown: unknown.clone() };
        let attempt = attempt.encode();
        let owner = OwnerRecord { node, incarnation, nonce: nonce.clone(), unknown }.encode();
        let has_props = self.board.has_props(&task);
        let ask = ClaimRequest { task, created, nonce, owner, attempt, has_props, is_again: false };
        let ClaimRequest { task, nonce, owner, attempt, .. } = ask.clone();
        let requested = SentClaim { seen, created, nonce, owner, attempt, has_props, is_ambiguous: false };
        self.claims.requested.insert(task, requested);
        ask
    }

    pub(super) fn handle_claims(&mut self, epoch: RequestId, replies: Vec<ClaimReply>, now: InputTime) {
        if let Some(SentClaims { tasks, .. }) = self.claims.late.remove(&epoch) {
            for ((task, nonce), reply) in tasks.into_iter().zip(replies) {
                if let ClaimReply::Won(won) = reply {
                    self.release_claim(task, won.token, claim_of(&nonce));
                }
            }
            return;
        }
        let Some(SentClaims { sent_at, tasks }) = self.claims.in_flight.remove(&epoch) else { return };
        self.claims.latency = now.at.since(sent_at).max(self.claims.latency * 3 / 4);
        assert!(tasks.len() == replies.len(), "a request with claims has an answer for each of them");
        let mut went_well = true;
        for ((task, _), reply) in tasks.into_iter().zip(replies) {
            went_well &= self.handle_claim(task, reply, now);
        }
        if went_well {
            self.claims.backoff.after_success(now.at);
        } else {
            self.claims.blocked_until = now.at + self.claims.backoff.after_failure(now.at, now.jitter, None);
            self.timers.set(Timer::Claims, self.claims.blocked_until);
        }
        if self.claims.in_flight.is_empty() && self.claims.to_repeat.is_empty() {
            self.claims.over.clear();
        }
    }

    /// Handles the answer to one claim; says whether the store works.
    fn handle_claim(&mut self, task: TaskId, reply: ClaimReply, now: InputTime) -> bool {
        let Some(requested) = self.claims.requested.get_mut(&task) else { return true };
        let went_well = !matches!(reply, ClaimReply::NotDone | ClaimReply::Ambiguous | ClaimReply::LeaseLost);
        match reply {
            ClaimReply::Ambiguous => {
                requested.is_ambiguous = true;
                self.claims.to_repeat.insert(task);
                return went_well;
            }
            ClaimReply::NotDone if requested.is_ambiguous => {
                self.claims.to_repeat.insert(task);
                return went_well;
            }
            _ => {}
        }
        let Some(requested) = self.claims.requested.remove(&task) else { return true };
        match &reply {
            ClaimReply::Won(_) => self.claims.probes.won(&task),
            ClaimReply::Taken | ClaimReply::TaskGone => self.claims.probes.lost(&task),
            ClaimReply::LeaseLost | ClaimReply::NotDone | ClaimReply::Ambiguous => {
                self.claims.probes.forget(&task);
            }
        }
        if !matches!(&reply, ClaimReply::Won(won) if !self.claims.over.contains(&won.lease)) {
            self.claim_failed(&task);
        }
        match reply {
            ClaimReply::Won(won) if self.claims.over.contains(&won.lease) => {
                self.release_claim(task.clone(), won.token, claim_of(&requested.nonce));
                self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
                self.reconsider(task, requested.seen, now.at + LOOK_AGAIN);
            }
            ClaimReply::Won(won) => {
                self.stats.won += 1;
                self.claim_won(&task, requested.created, requested.nonce, *won, now);
            }
            ClaimReply::Taken | ClaimReply::TaskGone => {
                self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
                self.reconsider(task, requested.seen, now.at + LOOK_AGAIN);
            }
            ClaimReply::LeaseLost | ClaimReply::NotDone => {
                self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
                self.reconsider(task, requested.seen, requested.seen);
            }
            ClaimReply::Ambiguous => unreachable!("it stays asked for"),
        }
        went_well
    }

    /// The session was lost: whatever is still answered is not ours.
    pub(super) fn forget_claims(&mut self) {
        self.claims.late.append(&mut self.claims.in_flight);
        self.claims.to_repeat.clear();
        self.claims.probes.forget_all();
        self.claims.over.clear();
        for (task, requested) in std::mem::take(&mut self.claims.requested) {
            self.claim_failed(&task);
            self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
            self.reconsider(task, requested.seen, requested.seen);
        }
    }

    /// A task that was asked for did not become ours.
    fn claim_failed(&mut self, task: &TaskId) {
        self.balance.part(task);
        self.balance.see(task);
    }

    /// Whether a claim may still be answered.
    pub(super) fn is_claiming(&self) -> bool {
        !self.claims.requested.is_empty()
    }

    /// Whether the board already shows that a claim is over, which was answered late.
    pub(super) fn is_past(&self, task: &TaskId, created: Revision, won: &WonClaim) -> Option<LossReason> {
        if self.board.whole_at().is_none_or(|whole_at| whole_at < won.token.0) {
            return None;
        }
        match self.board.get(task) {
            Some(card) if card.created == created => {
                let is_there = card.owner.as_ref().is_some_and(|owner| owner.token == won.token);
                (!is_there).then_some(LossReason::Replaced)
            }
            Some(_) | None => Some(LossReason::Deleted),
        }
    }
}

/// The name of a claim of this process.
pub(super) fn claim_of(nonce: &str) -> ClaimId {
    ClaimId::parse(nonce).expect("nonces of this process are hexadecimal digits")
}
