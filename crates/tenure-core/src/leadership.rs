//! Leading on a storage that knows three things: insert if absent, swap if equal, delete if equal, each with a TTL.
//!
//! Intuition: what is stored carries a nonce that nobody else has, so "is it mine?" can be asked of any storage without a read:
//! swap the value for itself. The same question renews, and it settles an insert whose answer was lost. It may be asked again
//! at any time, because a second swap of a value for itself changes nothing but the TTL. How long the answer may be believed
//! is the arithmetic of [`keepalive`].
//!
//! ```text
//! Inserting ── yes ──────────────► Leading ── leave ──► Stopping ── work has ended ──► Leaving ── deleted ──► Over
//!     │                              ▲  │                   └── it has not: it lapses ──────────────────────►  ▲
//!     └── lost ──► Settling ── yes ──┘  └── lapsed, or the value is not ours ────────────────────────────────────┤
//!                      └── lost again: give back ────────► Leaving                                              │
//!     no ───────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! **Invariant**: nobody leads before a yes that was asked for at `sent`, nor from `sent + ttl - margin` of the last yes on.
//!
//! **Invariant**: what may be stored is deleted, or its TTL is over, before the machine is over by its own wish; but nothing is
//! deleted while the work may go on, and nothing after the value was seen not to be ours.

mod words;

use std::time::Duration;

use crate::backoff::{Backoff, Growth, Jitter, Retry};
use crate::keepalive::{self, Hold};
use crate::loss::LossReason;
use crate::time::Moment;

pub use words::{Answer, Ask, End, FencingSupport, Left, Plan, Standing};

/// How many first waits fit into a TTL: with 40, three failures in a row cost less than a fifth of the TTL.
const FIRST_WAIT_PART: u32 = 40;

/// The longest wait between two tries, as a part of the TTL: several tries fit into what validity is left after a renewal was due.
const LONGEST_WAIT_PART: u32 = 8;

/// One leadership, from asking for it to its end.
#[derive(Clone, Debug)]
pub struct Leadership {
    plan: Plan,
    phase: Phase,
    backoff: Backoff,
    /// When an insert or a swap was last sent, answered or not: what is stored ends this plus the TTL later at the latest.
    touched_at: Moment,
    /// Whether the insert may still be under way.
    insert_is_open: bool,
    /// Whether nobody wants it any more.
    is_unwanted: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    Inserting { asked_at: Option<Moment> },
    Settling { asked_at: Option<Moment> },
    Leading(Holding),
    Stopping { until: Moment },
    Leaving(Deleting),
    Over(End),
}

#[derive(Clone, Debug)]
struct Holding {
    hold: Hold,
    /// A swap that was asked before this was to settle the insert, and its no is older news.
    began_at: Moment,
    swap_asked_at: Option<Moment>,
    token: Token,
}

#[derive(Clone, Copy, Debug)]
enum Token {
    Wanted { at: Moment },
    Asked { at: Moment },
    Known,
}

#[derive(Clone, Copy, Debug)]
struct Deleting {
    end: End,
    asked_at: Option<Moment>,
    next_at: Moment,
    /// Whether the storage has said that our value is not there.
    is_done: bool,
    /// Whether the value may have come after the deletion that is under way.
    is_stale: bool,
    /// Whether an earlier deletion may have been applied: then a no does not say that somebody else was faster.
    is_unsure: bool,
}

impl Leadership {
    /// Nothing has been asked yet.
    pub fn new(plan: Plan, now: Moment) -> Leadership {
        let ttl = plan.terms.ttl();
        let retry = Retry {
            growth: Growth::Exponential,
            initial: ttl / FIRST_WAIT_PART,
            cap: ttl / LONGEST_WAIT_PART,
            jitter: Jitter::Full,
            healthy_after: ttl,
        };
        Leadership {
            plan,
            phase: Phase::Inserting { asked_at: None },
            backoff: Backoff::new(retry),
            touched_at: now,
            insert_is_open: false,
            is_unwanted: false,
        }
    }

    /// What to ask now; none if there is nothing to ask before [`Leadership::next_wake`].
    pub fn poll_ask(&mut self, now: Moment) -> Option<Ask> {
        self.handle_time(now);
        let ask = match &mut self.phase {
            Phase::Inserting { asked_at: asked_at @ None } => {
                *asked_at = Some(now);
                self.insert_is_open = true;
                Ask::Insert
            }
            Phase::Settling { asked_at: asked_at @ None } => {
                *asked_at = Some(now);
                Ask::Swap
            }
            Phase::Leading(holding) => holding.poll_ask(now)?,
            Phase::Leaving(deleting) if deleting.is_due(now) => {
                deleting.asked_at = Some(now);
                return Some(Ask::Delete);
            }
            Phase::Inserting { .. } | Phase::Settling { .. } => return None,
            Phase::Stopping { .. } | Phase::Leaving(_) | Phase::Over(_) => return None,
        };
        if matches!(ask, Ask::Insert | Ask::Swap) {
            self.touched_at = now;
        }
        Some(ask)
    }

    /// An answer, to what was asked at `asked_at`. `jitter` is a throw in `0.0..=1.0`.
    pub fn handle_answer(&mut self, ask: Ask, asked_at: Moment, answer: Answer, jitter: f64, now: Moment) {
        self.handle_time(now);
        match ask {
            Ask::Insert => self.handle_inserted(asked_at, answer, now),
            Ask::Swap => self.handle_swapped(asked_at, answer, jitter, now),
            Ask::Token => self.handle_token(answer, jitter, now),
            Ask::Delete => self.handle_deleted(asked_at, answer, jitter, now),
        }
        self.handle_time(now);
    }

    /// Nobody wants it any more: permission ends now, and what is stored is given back once the work has stopped.
    pub fn leave(&mut self, now: Moment) {
        self.handle_time(now);
        self.is_unwanted = true;
        if let Phase::Leading(holding) = &self.phase {
            let until = holding.hold.valid_until().min(now + self.plan.stop_within);
            self.phase = Phase::Stopping { until };
        }
    }

    /// The work has ended, so the key may be given back.
    pub fn handle_stopped(&mut self, now: Moment) {
        self.handle_time(now);
        if let Phase::Stopping { .. } = self.phase {
            self.delete(End::Left(Left::Nothing), now);
        }
    }

    /// When to poll again if nothing else happens; none when it is over.
    pub fn next_wake(&self) -> Option<Moment> {
        let patience = self.plan.terms.patience();
        match &self.phase {
            Phase::Inserting { asked_at } | Phase::Settling { asked_at } => {
                Some(asked_at.map_or(self.touched_at, |asked_at| asked_at + patience))
            }
            Phase::Leading(holding) => Some(holding.next_wake(patience)),
            Phase::Stopping { until } => Some(*until),
            Phase::Leaving(deleting) => Some(deleting.next_wake(patience).min(self.gone_at())),
            Phase::Over(_) => None,
        }
    }

    /// Where it stands.
    pub fn standing(&self, now: Moment) -> Standing {
        match &self.phase {
            Phase::Inserting { .. } | Phase::Settling { .. } => Standing::Acquiring,
            Phase::Leading(holding) if !holding.hold.is_valid(now) => Standing::Over(End::Lapsed),
            Phase::Leading(Holding { token: Token::Known, .. }) => Standing::Leading,
            Phase::Leading(_) => Standing::Acquiring,
            Phase::Stopping { .. } => Standing::Stopping,
            Phase::Leaving(deleting) => Standing::Leaving(deleting.end),
            Phase::Over(end) => Standing::Over(*end),
        }
    }

    /// Whether the leader may act.
    pub fn is_valid(&self, now: Moment) -> bool {
        self.standing(now) == Standing::Leading
    }

    /// How long the leader may act, if nothing is renewed.
    pub fn remaining(&self, now: Moment) -> Duration {
        match &self.phase {
            Phase::Leading(holding) if self.is_valid(now) => holding.hold.remaining(now),
            _ => Duration::ZERO,
        }
    }

    /// How many questions in a row have failed.
    pub fn failures(&self) -> u32 {
        self.backoff.failures()
    }

    fn handle_inserted(&mut self, asked_at: Moment, answer: Answer, now: Moment) {
        if answer != Answer::Unknown {
            self.insert_is_open = false;
        }
        match (&mut self.phase, answer) {
            (Phase::Inserting { .. } | Phase::Settling { .. }, Answer::Yes) => self.begin(asked_at, now),
            (Phase::Inserting { .. }, Answer::No) => self.phase = Phase::Over(End::Held),
            (Phase::Inserting { .. } | Phase::Settling { .. }, Answer::NotApplied) => {
                self.phase = Phase::Over(End::NotTaken);
            }
            // The answer that was thought lost: the swap that was asked instead is not needed any more.
            (Phase::Settling { .. }, Answer::No) => self.phase = Phase::Over(End::Held),
            (Phase::Inserting { .. }, Answer::Unknown) => {
                self.insert_is_open = false;
                self.unsettled(now);
            }
            (Phase::Settling { .. }, Answer::Unknown) => self.insert_is_open = false,
            // It came after what was to undo it: undo it again.
            (Phase::Leaving(deleting), Answer::Yes | Answer::Unknown) => {
                self.insert_is_open = false;
                deleting.is_done = false;
                deleting.is_stale = deleting.asked_at.is_some();
                deleting.next_at = now;
            }
            (Phase::Leaving(_), Answer::No | Answer::NotApplied) => self.end_deletion(),
            (Phase::Leading(_) | Phase::Stopping { .. } | Phase::Over(_), _) => {}
        }
    }

    /// Whether the insert was applied is not known: ask, or undo it if nobody wants it any more.
    fn unsettled(&mut self, now: Moment) {
        if self.is_unwanted {
            self.delete(End::Left(Left::Nothing), now);
        } else {
            self.phase = Phase::Settling { asked_at: None };
        }
    }

    fn handle_swapped(&mut self, asked_at: Moment, answer: Answer, jitter: f64, now: Moment) {
        match (&mut self.phase, answer) {
            (Phase::Settling { .. }, Answer::Yes) => self.begin(asked_at, now),
            // As long as the insert is under way it may yet be applied, and then it must be undone.
            (Phase::Settling { .. }, Answer::No) if !self.insert_is_open => {
                self.phase = Phase::Over(End::NotTaken);
            }
            (Phase::Settling { .. }, Answer::No | Answer::NotApplied | Answer::Unknown) => {
                self.delete(End::NotTaken, now);
            }
            (Phase::Leading(holding), Answer::Yes) => {
                holding.swap_asked_at = None;
                holding.hold.handle_renewed(asked_at, self.plan.terms.ttl(), now);
                self.backoff.reset();
            }
            (Phase::Leading(holding), Answer::No) if asked_at <= holding.began_at => {}
            (Phase::Leading(holding), Answer::No) => {
                holding.hold.handle_gone();
                self.phase = Phase::Over(End::Taken);
            }
            (Phase::Leading(holding), Answer::NotApplied | Answer::Unknown) => {
                // A newer one is under way, and will tell.
                if holding.swap_asked_at == Some(asked_at) {
                    holding.fail(&mut self.backoff, jitter, now);
                }
            }
            (Phase::Inserting { .. } | Phase::Stopping { .. } | Phase::Leaving(_) | Phase::Over(_), _) => {}
        }
    }

    fn handle_token(&mut self, answer: Answer, jitter: f64, now: Moment) {
        let Phase::Leading(holding) = &mut self.phase else { return };
        match answer {
            Answer::Yes => holding.token = Token::Known,
            Answer::No => self.phase = Phase::Over(End::Taken),
            Answer::NotApplied | Answer::Unknown => {
                let wait = self.backoff.after_failure(now, jitter, Some(holding.hold.remaining(now)));
                holding.token = Token::Wanted { at: now + wait };
            }
        }
    }

    fn handle_deleted(&mut self, asked_at: Moment, answer: Answer, jitter: f64, now: Moment) {
        let Phase::Leaving(deleting) = &mut self.phase else { return };
        if deleting.asked_at != Some(asked_at) {
            return;
        }
        deleting.asked_at = None;
        if std::mem::take(&mut deleting.is_stale) {
            return;
        }
        match answer {
            Answer::Yes => deleting.is_done = true,
            Answer::No => {
                deleting.is_done = true;
                if deleting.end == End::Left(Left::Nothing) && !deleting.is_unsure {
                    deleting.end = End::Left(Left::Gone);
                }
            }
            Answer::NotApplied | Answer::Unknown => {
                let wait = self.backoff.after_failure(now, jitter, None);
                deleting.next_at = now + wait;
                deleting.is_unsure |= answer == Answer::Unknown;
            }
        }
        self.end_deletion();
    }

    /// Over when the value is certainly not there, and cannot come any more.
    fn end_deletion(&mut self) {
        if let Phase::Leaving(Deleting { is_done: true, end, .. }) = self.phase
            && !self.insert_is_open
        {
            self.phase = Phase::Over(end);
        }
    }

    fn begin(&mut self, asked_at: Moment, now: Moment) {
        let hold = Hold::begin(self.plan.terms, asked_at, self.plan.terms.ttl(), now);
        self.insert_is_open = false;
        self.backoff.reset();
        if self.is_unwanted {
            self.delete(End::Left(Left::Nothing), now);
        } else if !hold.is_valid(now) {
            // The answer came so late that nobody may act on it; others need not wait for the TTL.
            self.delete(End::Lapsed, now);
        } else {
            let token = match self.plan.fencing {
                FencingSupport::Token => Token::Wanted { at: now },
                FencingSupport::None => Token::Known,
            };
            self.phase = Phase::Leading(Holding { hold, began_at: now, swap_asked_at: None, token });
        }
    }

    fn delete(&mut self, end: End, now: Moment) {
        self.backoff.reset();
        self.phase = Phase::Leaving(Deleting {
            end,
            asked_at: None,
            next_at: now,
            is_done: false,
            is_stale: false,
            is_unsure: false,
        });
    }

    /// When nothing of ours can be in the storage any more, whatever was lost on the way.
    fn gone_at(&self) -> Moment {
        self.touched_at + self.plan.terms.ttl()
    }

    /// What time alone decides.
    fn handle_time(&mut self, now: Moment) {
        let patience = self.plan.terms.patience();
        let gone_at = self.gone_at();
        let is_late = |asked_at: &Option<Moment>| asked_at.is_some_and(|asked_at| now >= asked_at + patience);
        match &mut self.phase {
            Phase::Inserting { asked_at } if is_late(asked_at) => self.unsettled(now),
            Phase::Settling { asked_at } if is_late(asked_at) => self.delete(End::NotTaken, now),
            Phase::Leading(holding) => match holding.handle_time(patience, now) {
                None => {}
                // Nobody has begun to act yet: others need not wait for the TTL.
                Some(LossReason::Lapsed) if !holding.has_token() => self.delete(End::Lapsed, now),
                Some(LossReason::Lapsed) => self.phase = Phase::Over(End::Lapsed),
                // The storage answered no.
                Some(
                    LossReason::Revoked
                    | LossReason::Deleted
                    | LossReason::Replaced
                    | LossReason::MembershipLost
                    | LossReason::Released
                    | LossReason::Closed,
                ) => self.phase = Phase::Over(End::Taken),
            },
            Phase::Stopping { until } if now >= *until => {
                self.phase = Phase::Over(End::Left(Left::StillRunning));
            }
            Phase::Leaving(deleting) if now >= gone_at => {
                let end = if deleting.is_done { deleting.end } else { deleting.end.unconfirmed() };
                self.phase = Phase::Over(end);
            }
            Phase::Leaving(deleting) if is_late(&deleting.asked_at) => {
                deleting.asked_at = None;
                deleting.is_stale = false;
                deleting.is_unsure = true;
                deleting.next_at = now;
            }
            Phase::Inserting { .. } | Phase::Settling { .. } | Phase::Stopping { .. } => {}
            Phase::Leaving(_) | Phase::Over(_) => {}
        }
    }
}

impl Holding {
    fn poll_ask(&mut self, now: Moment) -> Option<Ask> {
        if let Token::Wanted { at } = self.token
            && now >= at
        {
            self.token = Token::Asked { at: now };
            return Some(Ask::Token);
        }
        match self.hold.poll_action(now) {
            Some(keepalive::Action::Renew) => {
                self.swap_asked_at = Some(now);
                Some(Ask::Swap)
            }
            Some(keepalive::Action::Stop(_)) | None => None,
        }
    }

    fn has_token(&self) -> bool {
        matches!(self.token, Token::Known)
    }

    fn fail(&mut self, backoff: &mut Backoff, jitter: f64, now: Moment) {
        let wait = backoff.after_failure(now, jitter, Some(self.hold.remaining(now)));
        self.swap_asked_at = None;
        self.hold.handle_failed(wait, now);
    }

    /// Asks again for what was not answered in time, and says when it is over.
    fn handle_time(&mut self, patience: Duration, now: Moment) -> Option<LossReason> {
        if let keepalive::Standing::Over(end) = self.hold.standing(now) {
            return Some(end);
        }
        if self.swap_asked_at.is_some_and(|asked_at| now >= asked_at + patience) {
            self.swap_asked_at = None;
            self.hold.handle_failed(Duration::ZERO, now);
        }
        if let Token::Asked { at } = self.token
            && now >= at + patience
        {
            self.token = Token::Wanted { at: now };
        }
        None
    }

    fn next_wake(&self, patience: Duration) -> Moment {
        let token = match self.token {
            Token::Wanted { at } => Some(at),
            Token::Asked { at } => Some(at + patience),
            Token::Known => None,
        };
        let swap = self.swap_asked_at.map(|asked_at| asked_at + patience);
        token.into_iter().chain(swap).fold(self.hold.next_wake(), Moment::min)
    }
}

impl Deleting {
    fn is_due(&self, now: Moment) -> bool {
        !self.is_done && self.asked_at.is_none() && now >= self.next_at
    }

    fn next_wake(&self, patience: Duration) -> Moment {
        match self.asked_at {
            Some(asked_at) => asked_at + patience,
            None if self.is_done => Moment::after_origin(Duration::MAX),
            None => self.next_at,
        }
    }
}

#[cfg(test)]
mod tests;
