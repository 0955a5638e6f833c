//! Leader election on a storage with three operations: insert if absent, swap if equal, delete if equal, each with a TTL.
//!
//! Intuition: the stored value carries a random nonce, so a swap of the value for itself proves ownership without a read.
//! The same request renews the TTL and settles an insert with a lost reply. It can be repeated at any time: a second swap
//! of a value for itself changes nothing but the TTL. [`keepalive`](crate::keepalive) decides how long a reply proves validity.
//!
//! ```text
//! Inserting ── yes ──────────────► Leading ─ release ─► Stopping ── work has ended ──► Leaving ── deleted ──► Over
//!     │                              ▲  │                   └── it has not: the key expires ─────────────────► ▲
//!     └── lost ──► Settling ── yes ──┘  └── lapsed, or another value is stored ──────────────────────────────────┤
//!                      └── lost again: delete ───────────► Leaving                                              │
//!     no ───────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! **Invariant** (G1): it leads only between an acknowledged insert or swap and `sent_at + ttl - margin` of the last acknowledged one.
//!
//! **Invariant** (G2): a release deletes the key only after the work has ended. Otherwise the key expires by itself.
//!
//! **Invariant** (G4): what may be stored is deleted, or its TTL has passed, before a release ends. It deletes nothing after it saw another value.

mod messages;

use std::time::Duration;

use crate::backoff::{Backoff, BackoffState, Growth, Jitter};
use crate::keepalive::{KeepAlive, KeepAliveOutput, KeepAliveState};
use crate::loss::LossReason;
use crate::time::Moment;

pub use messages::{
    FencingSupport, StorageReply, StorageRequest, TtlConfig, TtlEnd, TtlReleaseOutcome, TtlStatus,
};

/// How many initial backoffs fit into a TTL. With 40, three failures cost less than a fifth of it; halved, two fifths, and a short outage ends the term.
const FIRST_WAIT_PART: u32 = 40;

/// The longest backoff, as a part of the TTL. Several attempts fit into the validity that is left when a renewal is due; doubled, only two do.
const LONGEST_WAIT_PART: u32 = 8;

/// One campaign on a TTL storage, and the term that follows it.
#[derive(Clone, Debug)]
pub struct TtlElection {
    config: TtlConfig,
    phase: TtlPhase,
    backoff: BackoffState,
    /// When the last insert or swap was sent, with or without a reply. The stored value expires at the latest one TTL after this.
    touched_at: Moment,
    /// Whether the insert may still be in flight.
    insert_is_open: bool,
    is_released: bool,
}

#[derive(Clone, Debug)]
enum TtlPhase {
    Inserting { sent_at: Option<Moment> },
    Settling { sent_at: Option<Moment> },
    Leading(TtlHeld),
    Stopping { until: Moment },
    Leaving(TtlDelete),
    Over(TtlEnd),
}

#[derive(Clone, Debug)]
struct TtlHeld {
    keepalive: KeepAlive,
    /// A swap that was sent before this had to settle the insert: its refusal is older than the term.
    began_at: Moment,
    swap_sent_at: Option<Moment>,
    token: TokenState,
}

#[derive(Clone, Copy, Debug)]
enum TokenState {
    Wanted { at: Moment },
    Asked { at: Moment },
    Known,
}

#[derive(Clone, Copy, Debug)]
struct TtlDelete {
    end: TtlEnd,
    sent_at: Option<Moment>,
    next_at: Moment,
    /// Whether the storage has confirmed that this value is not stored.
    is_done: bool,
    /// Whether the value may have been stored after the delete that is in flight.
    is_stale: bool,
    /// Whether an earlier delete may have been applied: then a refusal does not prove that the key was lost before.
    is_unsure: bool,
}

impl TtlElection {
    /// A campaign that has sent nothing yet.
    pub fn new(config: TtlConfig, now: Moment) -> TtlElection {
        let ttl = config.timing.ttl();
        let retry = Backoff {
            growth: Growth::Exponential,
            initial: ttl / FIRST_WAIT_PART,
            cap: ttl / LONGEST_WAIT_PART,
            jitter: Jitter::Full,
            healthy_after: ttl,
        };
        TtlElection {
            config,
            phase: TtlPhase::Inserting { sent_at: None },
            backoff: BackoffState::new(retry),
            touched_at: now,
            insert_is_open: false,
            is_released: false,
        }
    }

    /// The next request; none if there is nothing to send before [`TtlElection::next_wake`].
    pub fn poll_request(&mut self, now: Moment) -> Option<StorageRequest> {
        self.handle_time(now);
        let request = match &mut self.phase {
            TtlPhase::Inserting { sent_at: sent_at @ None } => {
                *sent_at = Some(now);
                self.insert_is_open = true;
                StorageRequest::Insert
            }
            TtlPhase::Settling { sent_at: sent_at @ None } => {
                *sent_at = Some(now);
                StorageRequest::Swap
            }
            TtlPhase::Leading(holding) => holding.poll_request(now)?,
            TtlPhase::Leaving(deleting) if deleting.is_due(now) => {
                deleting.sent_at = Some(now);
                return Some(StorageRequest::Delete);
            }
            TtlPhase::Inserting { .. } | TtlPhase::Settling { .. } => return None,
            TtlPhase::Stopping { .. } | TtlPhase::Leaving(_) | TtlPhase::Over(_) => return None,
        };
        if matches!(request, StorageRequest::Insert | StorageRequest::Swap) {
            self.touched_at = now;
        }
        Some(request)
    }

    /// The reply to the request that was sent at `sent_at`. `jitter` is random, in `0.0..=1.0`.
    pub fn handle_reply(
        &mut self,
        request: StorageRequest,
        sent_at: Moment,
        reply: StorageReply,
        jitter: f64,
        now: Moment,
    ) {
        // Time first: a reply that arrives after a deadline finds the state that the deadline led to.
        self.handle_time(now);
        match request {
            StorageRequest::Insert => self.handle_inserted(sent_at, reply, now),
            StorageRequest::Swap => self.handle_swapped(sent_at, reply, jitter, now),
            StorageRequest::Token => self.handle_token(reply, jitter, now),
            StorageRequest::Delete => self.handle_deleted(sent_at, reply, jitter, now),
        }
        self.handle_time(now);
    }

    /// Ends validity now. The stored value is deleted once the work has stopped.
    pub fn release(&mut self, now: Moment) {
        self.handle_time(now);
        // A request in flight decides what has to be deleted.
        self.is_released = true;
        if let TtlPhase::Leading(holding) = &self.phase {
            // Work that outlives the validity can only be fenced by the token, so the key is not kept for it any longer.
            let until = holding.keepalive.valid_until().min(now + self.config.stop_within);
            self.phase = TtlPhase::Stopping { until };
        }
    }

    /// The work of the leader has ended, so the key may be deleted.
    pub fn handle_stopped(&mut self, now: Moment) {
        self.handle_time(now);
        if let TtlPhase::Stopping { .. } = self.phase {
            self.delete(TtlEnd::Released(TtlReleaseOutcome::Nothing), now);
        }
    }

    /// When to poll again if nothing else happens; none when nothing is left to do.
    pub fn next_wake(&self) -> Option<Moment> {
        let patience = self.config.timing.patience();
        match &self.phase {
            TtlPhase::Inserting { sent_at } | TtlPhase::Settling { sent_at } => {
                Some(sent_at.map_or(self.touched_at, |sent_at| sent_at + patience))
            }
            TtlPhase::Leading(holding) => Some(holding.next_wake(patience)),
            TtlPhase::Stopping { until } => Some(*until),
            TtlPhase::Leaving(deleting) => Some(deleting.next_wake(patience).min(self.gone_at())),
            TtlPhase::Over(_) => None,
        }
    }

    /// Its status by the clock, whether or not it was polled since.
    pub fn status(&self, now: Moment) -> TtlStatus {
        match &self.phase {
            TtlPhase::Inserting { .. } | TtlPhase::Settling { .. } => TtlStatus::Acquiring,
            TtlPhase::Leading(holding) if !holding.keepalive.is_valid(now) => TtlStatus::Over(TtlEnd::Lapsed),
            TtlPhase::Leading(TtlHeld { token: TokenState::Known, .. }) => TtlStatus::Leading,
            TtlPhase::Leading(_) => TtlStatus::Acquiring,
            TtlPhase::Stopping { .. } => TtlStatus::Stopping,
            TtlPhase::Leaving(deleting) => TtlStatus::Leaving(deleting.end),
            TtlPhase::Over(end) => TtlStatus::Over(*end),
        }
    }

    /// Whether it leads.
    pub fn is_valid(&self, now: Moment) -> bool {
        self.status(now) == TtlStatus::Leading
    }

    /// How long it leads if nothing is renewed.
    pub fn remaining(&self, now: Moment) -> Duration {
        match &self.phase {
            TtlPhase::Leading(holding) if self.is_valid(now) => holding.keepalive.remaining(now),
            _ => Duration::ZERO,
        }
    }

    /// How many requests in a row have failed.
    pub fn failures(&self) -> u32 {
        self.backoff.failures()
    }

    fn handle_inserted(&mut self, sent_at: Moment, reply: StorageReply, now: Moment) {
        if reply != StorageReply::Unknown {
            self.insert_is_open = false;
        }
        match (&mut self.phase, reply) {
            (TtlPhase::Inserting { .. } | TtlPhase::Settling { .. }, StorageReply::Yes) => {
                self.begin(sent_at, now);
            }
            (TtlPhase::Inserting { .. }, StorageReply::No) => self.phase = TtlPhase::Over(TtlEnd::Held),
            (TtlPhase::Inserting { .. } | TtlPhase::Settling { .. }, StorageReply::NotApplied) => {
                self.phase = TtlPhase::Over(TtlEnd::NotAcquired);
            }
            // The reply that was taken for lost: the swap that was sent instead is not needed any more.
            (TtlPhase::Settling { .. }, StorageReply::No) => self.phase = TtlPhase::Over(TtlEnd::Held),
            (TtlPhase::Inserting { .. }, StorageReply::Unknown) => {
                self.insert_is_open = false;
                self.settle_insert(now);
            }
            (TtlPhase::Settling { .. }, StorageReply::Unknown) => self.insert_is_open = false,
            // The insert may have been applied after the delete that had to undo it: delete again.
            (TtlPhase::Leaving(deleting), StorageReply::Yes | StorageReply::Unknown) => {
                self.insert_is_open = false;
                deleting.is_done = false;
                deleting.is_stale = deleting.sent_at.is_some();
                deleting.next_at = now;
            }
            (TtlPhase::Leaving(_), StorageReply::No | StorageReply::NotApplied) => self.end_deletion(),
            (TtlPhase::Leading(_) | TtlPhase::Stopping { .. } | TtlPhase::Over(_), _) => {}
        }
    }

    /// The insert is ambiguous: a swap settles it, or a delete undoes it after a release.
    fn settle_insert(&mut self, now: Moment) {
        if self.is_released {
            self.delete(TtlEnd::Released(TtlReleaseOutcome::Nothing), now);
        } else {
            self.phase = TtlPhase::Settling { sent_at: None };
        }
    }

    fn handle_swapped(&mut self, sent_at: Moment, reply: StorageReply, jitter: f64, now: Moment) {
        match (&mut self.phase, reply) {
            (TtlPhase::Settling { .. }, StorageReply::Yes) => self.begin(sent_at, now),
            // An insert in flight may still be applied after this refusal, and must be undone then.
            (TtlPhase::Settling { .. }, StorageReply::No) if !self.insert_is_open => {
                self.phase = TtlPhase::Over(TtlEnd::NotAcquired);
            }
            (
                TtlPhase::Settling { .. },
                StorageReply::No | StorageReply::NotApplied | StorageReply::Unknown,
            ) => {
                self.delete(TtlEnd::NotAcquired, now);
            }
            (TtlPhase::Leading(holding), StorageReply::Yes) => {
                holding.swap_sent_at = None;
                holding.keepalive.handle_renewed(sent_at, self.config.timing.ttl(), now);
                self.backoff.reset();
            }
            // The swap that had to settle the insert arrived before the insert: the term proves that the insert was applied later.
            (TtlPhase::Leading(holding), StorageReply::No) if sent_at <= holding.began_at => {}
            (TtlPhase::Leading(holding), StorageReply::No) => {
                holding.keepalive.handle_gone();
                self.phase = TtlPhase::Over(TtlEnd::Replaced);
            }
            (TtlPhase::Leading(holding), StorageReply::NotApplied | StorageReply::Unknown) => {
                // Otherwise a newer one is in flight, and its reply decides.
                if holding.swap_sent_at == Some(sent_at) {
                    holding.fail(&mut self.backoff, jitter, now);
                }
            }
            (
                TtlPhase::Inserting { .. }
                | TtlPhase::Stopping { .. }
                | TtlPhase::Leaving(_)
                | TtlPhase::Over(_),
                _,
            ) => {}
        }
    }

    fn handle_token(&mut self, reply: StorageReply, jitter: f64, now: Moment) {
        let TtlPhase::Leading(holding) = &mut self.phase else { return };
        match reply {
            StorageReply::Yes => holding.token = TokenState::Known,
            StorageReply::No => self.phase = TtlPhase::Over(TtlEnd::Replaced),
            StorageReply::NotApplied | StorageReply::Unknown => {
                let wait = self.backoff.after_failure(now, jitter, Some(holding.keepalive.remaining(now)));
                holding.token = TokenState::Wanted { at: now + wait };
            }
        }
    }

    fn handle_deleted(&mut self, sent_at: Moment, reply: StorageReply, jitter: f64, now: Moment) {
        let TtlPhase::Leaving(deleting) = &mut self.phase else { return };
        if deleting.sent_at != Some(sent_at) {
            return;
        }
        deleting.sent_at = None;
        if std::mem::take(&mut deleting.is_stale) {
            return;
        }
        match reply {
            StorageReply::Yes => deleting.is_done = true,
            StorageReply::No => {
                deleting.is_done = true;
                if deleting.end == TtlEnd::Released(TtlReleaseOutcome::Nothing) && !deleting.is_unsure {
                    deleting.end = TtlEnd::Released(TtlReleaseOutcome::Gone);
                }
            }
            StorageReply::NotApplied | StorageReply::Unknown => {
                let wait = self.backoff.after_failure(now, jitter, None);
                deleting.next_at = now + wait;
                deleting.is_unsure |= reply == StorageReply::Unknown;
            }
        }
        self.end_deletion();
    }

    /// Ends when the value is certainly not stored, and no request in flight can store it.
    fn end_deletion(&mut self) {
        if let TtlPhase::Leaving(TtlDelete { is_done: true, end, .. }) = self.phase
            && !self.insert_is_open
        {
            self.phase = TtlPhase::Over(end);
        }
    }

    fn begin(&mut self, sent_at: Moment, now: Moment) {
        let keepalive = KeepAlive::begin(self.config.timing, sent_at, self.config.timing.ttl(), now);
        self.insert_is_open = false;
        self.backoff.reset();
        if self.is_released {
            self.delete(TtlEnd::Released(TtlReleaseOutcome::Nothing), now);
        } else if !keepalive.is_valid(now) {
            // The reply came too late for a term. Deleted at once, so that other candidates need not wait for the TTL.
            self.delete(TtlEnd::Lapsed, now);
        } else {
            let token = match self.config.fencing {
                FencingSupport::Token => TokenState::Wanted { at: now },
                FencingSupport::None => TokenState::Known,
            };
            self.phase = TtlPhase::Leading(TtlHeld { keepalive, began_at: now, swap_sent_at: None, token });
        }
    }

    fn delete(&mut self, end: TtlEnd, now: Moment) {
        self.backoff.reset();
        self.phase = TtlPhase::Leaving(TtlDelete {
            end,
            sent_at: None,
            next_at: now,
            is_done: false,
            is_stale: false,
            is_unsure: false,
        });
    }

    /// When this value has expired in any case, whichever requests were lost.
    fn gone_at(&self) -> Moment {
        self.touched_at + self.config.timing.ttl()
    }

    /// Applies the deadlines that have passed.
    fn handle_time(&mut self, now: Moment) {
        let patience = self.config.timing.patience();
        let gone_at = self.gone_at();
        let is_late = |sent_at: &Option<Moment>| sent_at.is_some_and(|sent_at| now >= sent_at + patience);
        match &mut self.phase {
            TtlPhase::Inserting { sent_at } if is_late(sent_at) => self.settle_insert(now),
            TtlPhase::Settling { sent_at } if is_late(sent_at) => self.delete(TtlEnd::NotAcquired, now),
            TtlPhase::Leading(holding) => match holding.handle_time(patience, now) {
                None => {}
                // The term was not reported yet, so no work runs: other candidates need not wait for the TTL.
                Some(LossReason::Lapsed) if !holding.has_token() => self.delete(TtlEnd::Lapsed, now),
                Some(LossReason::Lapsed) => self.phase = TtlPhase::Over(TtlEnd::Lapsed),
                // The storage refused a swap.
                Some(
                    LossReason::Revoked
                    | LossReason::Deleted
                    | LossReason::Replaced
                    | LossReason::MembershipLost
                    | LossReason::Released
                    | LossReason::Closed,
                ) => self.phase = TtlPhase::Over(TtlEnd::Replaced),
            },
            TtlPhase::Stopping { until } if now >= *until => {
                self.phase = TtlPhase::Over(TtlEnd::Released(TtlReleaseOutcome::StillRunning));
            }
            TtlPhase::Leaving(deleting) if now >= gone_at => {
                let end = if deleting.is_done { deleting.end } else { deleting.end.unconfirmed() };
                self.phase = TtlPhase::Over(end);
            }
            TtlPhase::Leaving(deleting) if is_late(&deleting.sent_at) => {
                // A delete without a reply may have been applied: it is repeated, and a later refusal proves nothing.
                deleting.sent_at = None;
                deleting.is_stale = false;
                deleting.is_unsure = true;
                deleting.next_at = now;
            }
            TtlPhase::Inserting { .. } | TtlPhase::Settling { .. } | TtlPhase::Stopping { .. } => {}
            TtlPhase::Leaving(_) | TtlPhase::Over(_) => {}
        }
    }
}

impl TtlHeld {
    fn poll_request(&mut self, now: Moment) -> Option<StorageRequest> {
        if let TokenState::Wanted { at } = self.token
            && now >= at
        {
            self.token = TokenState::Asked { at: now };
            return Some(StorageRequest::Token);
        }
        match self.keepalive.poll_output(now) {
            Some(KeepAliveOutput::Renew) => {
                self.swap_sent_at = Some(now);
                Some(StorageRequest::Swap)
            }
            Some(KeepAliveOutput::Stop(_)) | None => None,
        }
    }

    fn has_token(&self) -> bool {
        matches!(self.token, TokenState::Known)
    }

    fn fail(&mut self, backoff: &mut BackoffState, jitter: f64, now: Moment) {
        let wait = backoff.after_failure(now, jitter, Some(self.keepalive.remaining(now)));
        self.swap_sent_at = None;
        self.keepalive.handle_failed(wait, now);
    }

    /// Repeats requests without a reply in time, and returns why validity has ended.
    fn handle_time(&mut self, patience: Duration, now: Moment) -> Option<LossReason> {
        if let KeepAliveState::Ended(end) = self.keepalive.state(now) {
            return Some(end);
        }
        if self.swap_sent_at.is_some_and(|sent_at| now >= sent_at + patience) {
            self.swap_sent_at = None;
            self.keepalive.handle_failed(Duration::ZERO, now);
        }
        if let TokenState::Asked { at } = self.token
            && now >= at + patience
        {
            self.token = TokenState::Wanted { at: now };
        }
        None
    }

    fn next_wake(&self, patience: Duration) -> Moment {
        let token = match self.token {
            TokenState::Wanted { at } => Some(at),
            TokenState::Asked { at } => Some(at + patience),
            TokenState::Known => None,
        };
        let swap = self.swap_sent_at.map(|sent_at| sent_at + patience);
        token.into_iter().chain(swap).fold(self.keepalive.next_wake(), Moment::min)
    }
}

impl TtlDelete {
    fn is_due(&self, now: Moment) -> bool {
        !self.is_done && self.sent_at.is_none() && now >= self.next_at
    }

    fn next_wake(&self, patience: Duration) -> Moment {
        match self.sent_at {
            Some(sent_at) => sent_at + patience,
            None if self.is_done => Moment::after_origin(Duration::MAX),
            None => self.next_at,
        }
    }
}

#[cfg(test)]
mod tests;
