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
    asked: BTreeMap<TaskId, SentClaim>,
    /// Claims that may have been done, and have to be asked again.
    again: BTreeSet<TaskId>,
    under_way: BTreeMap<RequestId, SentClaims>,
    /// Requests from before the session was lost.
    late: BTreeMap<RequestId, SentClaims>,
    /// How long requests take, the slow ones among the last.
    took: Duration,
    /// Leases that ended while requests were under way.
    over: BTreeSet<LeaseId>,
    rest_until: Moment,
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
    is_doubtful: bool,
}

impl InFlightClaims {
    pub(super) fn new(seed: u64) -> InFlightClaims {
        InFlightClaims {
            asked: BTreeMap::new(),
            again: BTreeSet::new(),
            under_way: BTreeMap::new(),
            late: BTreeMap::new(),
            took: Duration::ZERO,
            over: BTreeSet::new(),
            rest_until: Moment::ORIGIN,
            backoff: BackoffState::new(RETRY),
            nonces: ClaimNonces { life: format!("{seed:016x}-"), counter: 0 },
            probes: ClaimProbes::default(),
        }
    }

    /// Whether a task is asked for.
    pub(super) fn contains(&self, task: &TaskId) -> bool {
        self.asked.contains_key(task)
    }

    /// Whether this process has asked for the claim, in whatever session.
    pub(super) fn is_of_this_life(&self, nonce: &str) -> bool {
        nonce.starts_with(&self.nonces.life)
    }

    /// How many tasks are asked for.
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    /// How long a claim takes to be answered: as long as the slow ones of late, or as the one that is not answered yet.
    pub(super) fn slowness(&self, now: Moment) -> Duration {
        let oldest = self.under_way.values().next();
        oldest.map_or(Duration::ZERO, |request| now.since(request.sent_at)).max(self.took)
    }

    /// A lease is over: no claim under it is ours, even if the store says so later.
    pub(super) fn note_over(&mut self, lease: LeaseId) {
        if !self.under_way.is_empty() || !self.again.is_empty() {
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
        while self.claims.under_way.len() < CLAIM_REQUESTS
            && self.incarnation.is_some()
            && self.standing != WorkerPhase::Leaving
            && self.claims.rest_until <= now.at
        {
            let mut batch = self.take_doubtful();
            if self.may_claim() {
                self.take_offers(&mut batch, now);
            }
            if batch.is_empty() {
                return;
            }
            let epoch = self.next_epoch();
            self.tally.tries += batch.len() as u64;
            let tasks = batch.iter().map(|ask| (ask.task.clone(), ask.nonce.clone())).collect();
            self.claims.under_way.insert(epoch, SentClaims { sent_at: now.at, tasks });
            self.actions.push_back(WorkerOutput::Claim { epoch, claims: batch });
        }
    }

    /// Claims whose answers were lost are asked again as they were.
    fn take_doubtful(&mut self) -> Vec<ClaimRequest> {
        let mut batch = Vec::new();
        while batch.len() < CLAIMS_PER_REQUEST
            && let Some(task) = self.claims.again.pop_first()
        {
            if let Some(asked) = self.claims.asked.get(&task) {
                let SentClaim { created, nonce, owner, attempt, has_props, .. } = asked.clone();
                batch.push(ClaimRequest { task, created, nonce, owner, attempt, has_props, is_again: true });
            }
        }
        batch
    }

    pub(super) fn ask_for(
        &mut self,
        task: TaskId,
        seen: Moment,
        created: Revision,
        now: InputTime,
    ) -> ClaimRequest {
        if let Some(card) = self.board.get(&task) {
            self.scales.take(&task, card, now.at);
            self.weigh_in(now);
        }
        let nonce = self.claims.nonces.next();
        let incarnation = self.incarnation.map_or(0, |token| token.0.0.unsigned_abs());
        let (node, unknown) = (self.settings.node.clone(), UnknownFields::new());
        let attempt = AttemptRecord { node: node.clone(), started: now.wall, unknown: unknown.clone() };
        let attempt = attempt.encode();
        let owner = OwnerRecord { node, incarnation, nonce: nonce.clone(), unknown }.encode();
        let has_props = self.board.has_props(&task);
        let ask = ClaimRequest { task, created, nonce, owner, attempt, has_props, is_again: false };
        let ClaimRequest { task, nonce, owner, attempt, .. } = ask.clone();
        let asked = SentClaim { seen, created, nonce, owner, attempt, has_props, is_doubtful: false };
        self.claims.asked.insert(task, asked);
        ask
    }

    pub(super) fn handle_claims(&mut self, epoch: RequestId, answers: Vec<ClaimReply>, now: InputTime) {
        if let Some(SentClaims { tasks, .. }) = self.claims.late.remove(&epoch) {
            for ((task, nonce), answer) in tasks.into_iter().zip(answers) {
                if let ClaimReply::Ours(won) = answer {
                    self.give_back(task, won.token, claim_of(&nonce));
                }
            }
            return;
        }
        let Some(SentClaims { sent_at, tasks }) = self.claims.under_way.remove(&epoch) else { return };
        self.claims.took = now.at.since(sent_at).max(self.claims.took * 3 / 4);
        assert!(tasks.len() == answers.len(), "a request with claims has an answer for each of them");
        let mut went_well = true;
        for ((task, _), answer) in tasks.into_iter().zip(answers) {
            went_well &= self.handle_claim(task, answer, now);
        }
        if went_well {
            self.claims.backoff.after_success(now.at);
        } else {
            self.claims.rest_until = now.at + self.claims.backoff.after_failure(now.at, now.jitter, None);
            self.timers.set(Timer::Claims, self.claims.rest_until);
        }
        if self.claims.under_way.is_empty() && self.claims.again.is_empty() {
            self.claims.over.clear();
        }
    }

    /// Handles the answer to one claim; says whether the store works.
    fn handle_claim(&mut self, task: TaskId, answer: ClaimReply, now: InputTime) -> bool {
        let Some(asked) = self.claims.asked.get_mut(&task) else { return true };
        let went_well = !matches!(answer, ClaimReply::NotDone | ClaimReply::Unknown | ClaimReply::LeaseOver);
        match answer {
            ClaimReply::Unknown => {
                asked.is_doubtful = true;
                self.claims.again.insert(task);
                return went_well;
            }
            ClaimReply::NotDone if asked.is_doubtful => {
                self.claims.again.insert(task);
                return went_well;
            }
            _ => {}
        }
        let Some(asked) = self.claims.asked.remove(&task) else { return true };
        match &answer {
            ClaimReply::Ours(_) => self.claims.probes.won(&task),
            ClaimReply::Taken | ClaimReply::Gone => self.claims.probes.lost(&task),
            ClaimReply::LeaseOver | ClaimReply::NotDone | ClaimReply::Unknown => {
                self.claims.probes.forget(&task);
            }
        }
        if !matches!(&answer, ClaimReply::Ours(won) if !self.claims.over.contains(&won.lease)) {
            self.not_ours(&task);
        }
        match answer {
            ClaimReply::Ours(won) if self.claims.over.contains(&won.lease) => {
                self.give_back(task.clone(), won.token, claim_of(&asked.nonce));
                self.actions.push_back(WorkerOutput::LetGo { nonce: asked.nonce });
                self.reconsider(task, asked.seen, now.at + LOOK_AGAIN);
            }
            ClaimReply::Ours(won) => {
                self.tally.won += 1;
                self.hold(&task, asked.created, asked.nonce, *won, now);
            }
            ClaimReply::Taken | ClaimReply::Gone => {
                self.actions.push_back(WorkerOutput::LetGo { nonce: asked.nonce });
                self.reconsider(task, asked.seen, now.at + LOOK_AGAIN);
            }
            ClaimReply::LeaseOver | ClaimReply::NotDone => {
                self.actions.push_back(WorkerOutput::LetGo { nonce: asked.nonce });
                self.reconsider(task, asked.seen, asked.seen);
            }
            ClaimReply::Unknown => unreachable!("it stays asked for"),
        }
        went_well
    }

    /// The session was lost: whatever is still answered is not ours.
    pub(super) fn forget_claims(&mut self) {
        self.claims.late.append(&mut self.claims.under_way);
        self.claims.again.clear();
        self.claims.probes.forget_all();
        self.claims.over.clear();
        for (task, asked) in std::mem::take(&mut self.claims.asked) {
            self.not_ours(&task);
            self.actions.push_back(WorkerOutput::LetGo { nonce: asked.nonce });
            self.reconsider(task, asked.seen, asked.seen);
        }
    }

    /// A task that was asked for did not become ours.
    fn not_ours(&mut self, task: &TaskId) {
        self.scales.part(task);
        self.scales.see(task);
    }

    /// Whether a claim may still be answered.
    pub(super) fn is_claiming(&self) -> bool {
        !self.claims.asked.is_empty()
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
