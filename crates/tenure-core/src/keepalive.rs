//! When a lease or a TTL key is renewed, and until when it is certainly valid.
//!
//! Session leases and TTL elections share this machine. It keeps one promise: validity ends locally
//! before the store can end it.
//!
//! Intuition: the store counts the TTL from the moment at which a renewal *arrives*, which is after
//! it was *sent*. A holder that counts from the send time, and ends a margin early, is always
//! first, whatever the network does to the reply. A reply that arrives after validity ended revives
//! nothing: other processes may have acted on the loss already.
//!
//! ```text
//! sent ───────────── renew_every ──────┐                            valid_until          the store's end
//!  │◄──────────────────────────────── ttl - margin ────────────────────►│◄──── margin ────►│ at the earliest
//! ```
//!
//! **Invariant** (G1): `valid_until` is never later than `sent_at + ttl - margin` of some request
//! that was acknowledged.
//!
//! **Invariant** (G1): once ended, it stays ended. What follows is a new lease with a new
//! `KeepAlive`.

use std::time::Duration;

use thiserror::Error;

use crate::loss::LossReason;
use crate::sabotage::{SabotageRule, is_broken};
use crate::time::Moment;

/// The shortest margin. It must cover what a loaded machine lets a task wait. Halved, a stalled
/// scheduler uses it up; doubled, TTLs below four seconds are refused.
const MARGIN_MIN: Duration = Duration::from_millis(500);

/// The margin as a part of the TTL, for long TTLs: covers clocks that run at slightly different
/// rates.
const MARGIN_PART: u32 = 20;

/// How a TTL is divided: when to renew, how long to wait for a reply, how early validity ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    ttl: Duration,
    margin: Duration,
    renew_every: Duration,
    patience: Duration,
}

/// A TTL under which a single lost reply would end validity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "a TTL of {ttl:?} is too short: renewing every {renew_every:?}, one retry of {patience:?} and a margin of {margin:?} \
     need {needed:?}"
)]
pub struct TtlTooShort {
    /// The TTL.
    pub ttl: Duration,
    /// The time between two renewals.
    pub renew_every: Duration,
    /// How long one renewal may take.
    pub patience: Duration,
    /// How long before the TTL validity ends.
    pub margin: Duration,
    /// The sum of the three.
    pub needed: Duration,
}

impl Timing {
    /// The default division: renews every third of the TTL, waits a quarter of it for a reply, ends
    /// `max(500 ms, 5 %)` early.
    pub fn new(ttl: Duration) -> Result<Timing, TtlTooShort> {
        Timing { ttl, margin: Timing::margin_of(ttl), renew_every: ttl / 3, patience: ttl / 4 }.check()
    }

    /// The default margin of a TTL.
    pub fn margin_of(ttl: Duration) -> Duration {
        if is_broken(SabotageRule::Margin) {
            return Duration::ZERO;
        }
        MARGIN_MIN.max(ttl / MARGIN_PART)
    }

    /// The division of TTL elections: renews every quarter of the TTL, waits a quarter of it for a
    /// reply, and ends this margin early, or `max(500 ms, 5 %)` without one. With an explicit
    /// margin a TTL may be far below a second.
    pub fn quarterly(ttl: Duration, margin: Option<Duration>) -> Result<Timing, TtlTooShort> {
        let margin = margin.unwrap_or(MARGIN_MIN.max(ttl / MARGIN_PART));
        Timing { ttl, margin, renew_every: ttl / 4, patience: ttl / 4 }.check()
    }

    /// With another margin.
    pub fn with_margin(self, margin: Duration) -> Result<Timing, TtlTooShort> {
        Timing { margin, ..self }.check()
    }

    /// With another time between renewals.
    pub fn with_renew_every(self, renew_every: Duration) -> Result<Timing, TtlTooShort> {
        Timing { renew_every, ..self }.check()
    }

    /// The TTL that is requested.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long before the TTL validity ends.
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// How long to wait for the reply to one renewal before it is sent to another endpoint.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// The same division of the TTL that was granted, which may be longer than the requested one.
    fn of(self, granted: Duration) -> Timing {
        if granted <= self.ttl {
            return self;
        }
        Timing { ttl: granted, margin: self.margin.max(granted / MARGIN_PART), ..self }
    }

    fn check(self) -> Result<Timing, TtlTooShort> {
        let Timing { ttl, margin, renew_every, patience } = self;
        let needed = renew_every + patience + margin;
        if needed > ttl || renew_every.is_zero() {
            return Err(TtlTooShort { ttl, renew_every, patience, margin, needed });
        }
        Ok(self)
    }
}

/// The validity of one lease or TTL key, and when it is renewed next.
#[derive(Clone, Debug)]
pub struct KeepAlive {
    timing: Timing,
    valid_until: Moment,
    renew_at: Moment,
    /// When the oldest renewal without a reply was sent.
    unanswered_since: Option<Moment>,
    /// Since when renewals fail.
    failing_since: Option<Moment>,
    /// Whether the last poll has seen that the reply takes longer than `patience`.
    is_overdue: bool,
    end: Option<LossReason>,
}

/// What the driver must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepAliveOutput {
    /// Send a renewal now. `handle_renewed`, `handle_failed` or `handle_gone` takes its reply.
    Renew,
    /// Validity has ended.
    Stop(LossReason),
}

/// Whether it is valid, and whether renewals succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepAliveState {
    /// Valid, and renewals succeed.
    Healthy,
    /// Valid, but renewals fail or have no reply.
    Suspect {
        /// Since when.
        since: Moment,
    },
    /// Not valid any more.
    Ended(LossReason),
}

impl KeepAlive {
    /// Begins with a grant that was requested at `sent_at`. Ended from the start if its time has
    /// already passed.
    pub fn begin(timing: Timing, sent_at: Moment, granted: Duration, now: Moment) -> KeepAlive {
        let timing = timing.of(granted);
        let mut hold = KeepAlive {
            timing,
            valid_until: sent_at + granted.saturating_sub(timing.margin),
            renew_at: sent_at + timing.renew_every,
            unanswered_since: None,
            failing_since: None,
            is_overdue: false,
            end: None,
        };
        hold.lapse(now);
        hold
    }

    /// A renewal that was sent at `sent_at` was acknowledged.
    pub fn handle_renewed(&mut self, sent_at: Moment, granted: Duration, now: Moment) {
        // Before the reply counts: one that arrives after the deadline must not revive what holders
        // have stopped relying on.
        self.lapse(now);
        if self.end.is_some() {
            return;
        }
        let sent_at = if is_broken(SabotageRule::ValidityFromSending) { now } else { sent_at };
        let valid_until = sent_at + granted.saturating_sub(self.timing.margin);
        // Replies may overtake each other: that of an earlier renewal must not shorten what a later
        // one proved.
        self.valid_until = self.valid_until.max(valid_until);
        self.renew_at = sent_at + self.timing.renew_every;
        self.unanswered_since = None;
        self.failing_since = None;
        self.is_overdue = false;
        // The reply may have taken so long that even the new deadline has passed.
        self.lapse(now);
    }

    /// A renewal failed, or its reply was lost. The next one is sent after `wait`, at the latest
    /// when validity ends.
    pub fn handle_failed(&mut self, wait: Duration, now: Moment) {
        self.lapse(now);
        self.failing_since.get_or_insert(self.unanswered_since.unwrap_or(now));
        self.unanswered_since = None;
        self.is_overdue = false;
        self.renew_at = (now + wait).min(self.valid_until);
    }

    /// The store is reachable again: renews now instead of after the backoff.
    pub fn renew_now(&mut self, now: Moment) {
        if self.failing_since.is_some() {
            self.renew_at = self.renew_at.min(now);
        }
    }

    /// The store reported that the lease or key does not exist any more.
    pub fn handle_gone(&mut self) {
        self.end.get_or_insert(LossReason::Revoked);
    }

    /// The next output; none if there is nothing to do before [`KeepAlive::next_wake`].
    pub fn poll_output(&mut self, now: Moment) -> Option<KeepAliveOutput> {
        self.lapse(now);
        if let Some(end) = self.end {
            return Some(KeepAliveOutput::Stop(end));
        }
        if self.unanswered_since.is_none() && now >= self.renew_at {
            self.unanswered_since = Some(now);
            return Some(KeepAliveOutput::Renew);
        }
        self.is_overdue = self.unanswered_since.is_some_and(|since| now.since(since) >= self.timing.patience);
        None
    }

    /// When to poll again if nothing else happens. Never later than the deadline, also while a
    /// renewal hangs: first when `patience` is over, because the state is suspect from then on, and
    /// last when validity ends.
    pub fn next_wake(&self) -> Moment {
        match self.unanswered_since {
            Some(since) if !self.is_overdue => (since + self.timing.patience).min(self.valid_until),
            Some(_) => self.valid_until,
            None => self.renew_at.min(self.valid_until),
        }
    }

    /// Whether it is valid.
    pub fn is_valid(&self, now: Moment) -> bool {
        self.end.is_none() && now < self.valid_until
    }

    /// How long it is valid if nothing is renewed.
    pub fn remaining(&self, now: Moment) -> Duration {
        if self.end.is_some() { Duration::ZERO } else { self.valid_until.remaining(now) }
    }

    /// When validity ends if nothing is renewed.
    pub fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// Its state by the clock, whether or not it was polled since.
    pub fn state(&self, now: Moment) -> KeepAliveState {
        if let Some(end) = self.end {
            return KeepAliveState::Ended(end);
        }
        if now >= self.valid_until {
            return KeepAliveState::Ended(LossReason::Lapsed);
        }
        let unanswered = self.unanswered_since.filter(|&since| now.since(since) >= self.timing.patience);
        match self.failing_since.or(unanswered) {
            Some(since) => KeepAliveState::Suspect { since },
            None => KeepAliveState::Healthy,
        }
    }

    fn lapse(&mut self, now: Moment) {
        if self.end.is_none() && now >= self.valid_until {
            self.end = Some(LossReason::Lapsed);
        }
    }
}

#[cfg(test)]
mod tests;
