//! Claims, from the request to the reply. Tasks that become claimable while two requests are in
//! flight go out together in the next one.
//!
//! **Invariant**: a claim that the store has confirmed is held or released; it is never forgotten.

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

use super::config::{CLAIM_REQUESTS, CLAIMS_PER_REQUEST, RECONSIDER_AFTER, RETRY};
use super::input::{ClaimReply, InputTime, WonClaim};
use super::output::{ClaimRequest, WorkerOutput};
use super::probes::ClaimProbes;
use super::timers::Timer;
use super::{WorkerMachine, WorkerPhase};

/// The claims that have no final reply yet.
#[derive(Clone, Debug)]
pub(super) struct InFlightClaims {
    requested: BTreeMap<TaskId, SentClaim>,
    /// Claims with an ambiguous reply, which have to be sent again.
    to_repeat: BTreeSet<TaskId>,
    in_flight: BTreeMap<RequestId, SentClaims>,
    /// Requests that were sent before the session was lost.
    late: BTreeMap<RequestId, SentClaims>,
    /// How long a claim request takes: the slowest of the recent ones, which decays by a quarter
    /// with each reply.
    latency: Duration,
    /// Leases that ended while requests were in flight.
    lost_leases: BTreeSet<LeaseId>,
    blocked_until: Moment,
    backoff: BackoffState,
    nonces: ClaimNonces,
    pub(super) probes: ClaimProbes,
}

/// Creates the nonces of claims. All nonces of this process share a random prefix.
#[derive(Clone, Debug)]
struct ClaimNonces {
    prefix: String,
    counter: u64,
}

/// The claims of one request.
#[derive(Clone, Debug)]
struct SentClaims {
    sent_at: Moment,
    /// Each with the nonce of its claim.
    tasks: Vec<(TaskId, String)>,
}

/// A claim without a final reply.
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
            lost_leases: BTreeSet::new(),
            blocked_until: Moment::ORIGIN,
            backoff: BackoffState::new(RETRY),
            nonces: ClaimNonces { prefix: format!("{seed:016x}-"), counter: 0 },
            probes: ClaimProbes::default(),
        }
    }

    /// Whether a claim of this task has no final reply yet.
    pub(super) fn contains(&self, task: &TaskId) -> bool {
        self.requested.contains_key(task)
    }

    /// Whether this process has sent the claim with this nonce, in any of its sessions.
    pub(super) fn is_of_this_process(&self, nonce: &str) -> bool {
        nonce.starts_with(&self.nonces.prefix)
    }

    /// How many tasks have a claim without a final reply.
    pub(super) fn len(&self) -> usize {
        self.requested.len()
    }

    /// How long a claim takes at present: as long as the slowest recent request, or as the oldest
    /// one in flight if that is longer already.
    pub(super) fn slowness(&self, now: Moment) -> Duration {
        let oldest = self.in_flight.values().next();
        oldest.map_or(Duration::ZERO, |request| now.since(request.sent_at)).max(self.latency)
    }

    /// A lease has ended: a claim under it is void, even if its reply confirms it later.
    pub(super) fn note_lease_lost(&mut self, lease: LeaseId) {
        // With nothing in flight no reply can arrive for this lease, so the set stays empty.
        if !self.in_flight.is_empty() || !self.to_repeat.is_empty() {
            self.lost_leases.insert(lease);
        }
    }
}

impl ClaimNonces {
    fn next(&mut self) -> String {
        self.counter += 1;
        format!("{}{:x}", self.prefix, self.counter)
    }
}

impl WorkerMachine {
    /// Sends claims, as far as there are claimable tasks and free requests.
    pub(super) fn send_claims(&mut self, now: InputTime) {
        // At most two requests at a time, and none during the backoff. A worker that leaves must
        // not send a claim: its key would outlive the member key.
        while self.claims.in_flight.len() < CLAIM_REQUESTS
            && self.incarnation.is_some()
            && self.phase != WorkerPhase::Leaving
            && self.claims.blocked_until <= now.at
        {
            // Ambiguous claims come first and are repeated even when nothing may be claimed: each
            // may be stored already, and only its reply decides whether this worker owns the task.
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

    /// The claims with an ambiguous reply, unchanged: the same nonce finds its own owner key if the
    /// first request was applied.
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
        // The task counts as owned from now on, before the reply. Otherwise the balancer would
        // allow a whole request of claims at the load of one task.
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
        // The board knows from its feed whether there are props. A claim of a task without props
        // needs no read for them.
        let has_props = self.board.has_props(&task);
        let ask = ClaimRequest { task, created, nonce, owner, attempt, has_props, is_again: false };
        let ClaimRequest { task, nonce, owner, attempt, .. } = ask.clone();
        let requested = SentClaim { seen, created, nonce, owner, attempt, has_props, is_ambiguous: false };
        self.claims.requested.insert(task, requested);
        ask
    }

    pub(super) fn handle_claims(&mut self, epoch: RequestId, replies: Vec<ClaimReply>, now: InputTime) {
        // Replies to requests of a lost session. The claim may be stored under a lease that still
        // lives, so it is deleted, and no handler is ever started for it.
        if let Some(SentClaims { tasks, .. }) = self.claims.late.remove(&epoch) {
            for ((task, nonce), reply) in tasks.into_iter().zip(replies) {
                if let ClaimReply::Won(won) = reply {
                    self.release_claim(task, won.token, claim_of(&nonce));
                }
            }
            return;
        }
        let Some(SentClaims { sent_at, tasks }) = self.claims.in_flight.remove(&epoch) else { return };
        // A slow request counts immediately and is forgotten slowly, so that one fast reply does
        // not make the worker race its peers on a slow store.
        self.claims.latency = now.at.since(sent_at).max(self.claims.latency * 3 / 4);
        assert!(tasks.len() == replies.len(), "a request with claims has an answer for each of them");
        let mut went_well = true;
        for ((task, _), reply) in tasks.into_iter().zip(replies) {
            went_well &= self.handle_claim(task, reply, now);
        }
        if went_well {
            self.claims.backoff.after_success(now.at);
        // One failed claim pauses all claims: the cause is the store or the session, not the task.
        } else {
            self.claims.blocked_until = now.at + self.claims.backoff.after_failure(now.at, now.jitter, None);
            self.timers.set(Timer::Claims, self.claims.blocked_until);
        }
        // Without requests in flight no late confirmation can name these leases any more.
        if self.claims.in_flight.is_empty() && self.claims.to_repeat.is_empty() {
            self.claims.lost_leases.clear();
        }
    }

    /// Handles the reply to one claim. Returns whether the store and the session work.
    fn handle_claim(&mut self, task: TaskId, reply: ClaimReply, now: InputTime) -> bool {
        let Some(requested) = self.claims.requested.get_mut(&task) else { return true };
        let went_well = !matches!(reply, ClaimReply::NotDone | ClaimReply::Ambiguous | ClaimReply::LeaseLost);
        match reply {
            // It may be applied, so the task stays reserved and the same claim is repeated.
            ClaimReply::Ambiguous => {
                requested.is_ambiguous = true;
                self.claims.to_repeat.insert(task);
                return went_well;
            }
            // A repeated claim that was not applied does not decide about the first one.
            ClaimReply::NotDone if requested.is_ambiguous => {
                self.claims.to_repeat.insert(task);
                return went_well;
            }
            _ => {}
        }
        // From here on the reply is final.
        let Some(requested) = self.claims.requested.remove(&task) else { return true };
        match &reply {
            ClaimReply::Won(_) => self.claims.probes.won(&task),
            ClaimReply::Taken | ClaimReply::TaskGone => self.claims.probes.lost(&task),
            ClaimReply::LeaseLost | ClaimReply::NotDone | ClaimReply::Ambiguous => {
                self.claims.probes.forget(&task);
            }
        }
        // Undo the reservation before the match below reconsiders the task, so that the balancer
        // sees the true load.
        if !matches!(&reply, ClaimReply::Won(won) if !self.claims.lost_leases.contains(&won.lease)) {
            self.claim_failed(&task);
        }
        match reply {
            // The lease ended between the request and its reply. Its keys may still be in the store
            // for a moment, so the claim is released and not held.
            ClaimReply::Won(won) if self.claims.lost_leases.contains(&won.lease) => {
                self.release_claim(task.clone(), won.token, claim_of(&requested.nonce));
                self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
                self.reconsider(task, requested.seen, now.at + RECONSIDER_AFTER);
            }
            ClaimReply::Won(won) => {
                self.stats.won += 1;
                self.claim_won(&task, requested.created, requested.nonce, *won, now);
            }
            // The board will show the winner or the deletion soon. Until then the task is not
            // considered, or this worker would claim it again in vain.
            ClaimReply::Taken | ClaimReply::TaskGone => {
                self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
                self.reconsider(task, requested.seen, now.at + RECONSIDER_AFTER);
            }
            // Nothing was stored, so the task is still claimable under its old rank; the backoff
            // delays the next request.
            ClaimReply::LeaseLost | ClaimReply::NotDone => {
                self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
                self.reconsider(task, requested.seen, requested.seen);
            }
            ClaimReply::Ambiguous => unreachable!("it stays asked for"),
        }
        went_well
    }

    /// The session was lost. Claims in flight are void, whatever their replies are.
    pub(super) fn forget_claims(&mut self) {
        self.claims.late.append(&mut self.claims.in_flight);
        self.claims.to_repeat.clear();
        self.claims.probes.forget_all();
        self.claims.lost_leases.clear();
        for (task, requested) in std::mem::take(&mut self.claims.requested) {
            self.claim_failed(&task);
            self.outputs.push_back(WorkerOutput::EndClaim { nonce: requested.nonce });
            self.reconsider(task, requested.seen, requested.seen);
        }
    }

    /// A claim has failed: the task does not count as owned any more.
    fn claim_failed(&mut self, task: &TaskId) {
        self.balance.part(task);
        self.balance.see(task);
    }

    /// Whether any claim has no final reply yet.
    pub(super) fn is_claiming(&self) -> bool {
        !self.claims.requested.is_empty()
    }

    /// The reason why a claim that was just confirmed has ended already, as the board shows. `None`
    /// if it is valid.
    pub(super) fn is_past(&self, task: &TaskId, created: Revision, won: &WonClaim) -> Option<LossReason> {
        // Only a board that is newer than the claim proves that the claim is gone. An older one
        // just does not show it yet.
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

/// The id of a claim of this process.
pub(super) fn claim_of(nonce: &str) -> ClaimId {
    ClaimId::parse(nonce).expect("nonces of this process are hexadecimal digits")
}
