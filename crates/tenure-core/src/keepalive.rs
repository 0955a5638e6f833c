//! Holding something for a bounded time: ask, hold, renew, lapse.
//!
//! Shared leases and TTL leadership are the same arithmetic, so they are this one machine. It knows one promise: *a holder stops
//! believing before the store can stop agreeing.*
//!
//! Intuition: the store counts from when a renewal *reached* it, which is after it was sent. So a holder who counts from the
//! moment of *sending*, and stops a margin early, is always done first, whatever the network does to the answer. An answer that
//! comes after the holder has stopped believing revives nothing: by then others may have been told.
//!
//! ```text
//! sent ───────────── renew_every ──────┐                            valid_until          the store's end
//!  │◄──────────────────────────────── ttl - margin ────────────────────►│◄──── margin ────►│ at the earliest
//! ```
//!
//! **Invariant**: `valid_until` is never later than `asked_at + ttl - margin` of some request that was acknowledged.
//!
//! **Invariant**: once over, it stays over. What comes next is a new hold.

use std::time::Duration;

use thiserror::Error;

use crate::loss::LossReason;
use crate::sabotage::{Rule, is_broken};
use crate::time::Moment;

/// The shortest margin: below half a second a stalled scheduler or a garbage collection eats it.
const MARGIN_MIN: Duration = Duration::from_millis(500);

/// The margin as a part of the TTL, for long TTLs: covers clocks that run at slightly different rates.
const MARGIN_PART: u32 = 20;

/// How the time of a hold is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    ttl: Duration,
    margin: Duration,
    renew_every: Duration,
    patience: Duration,
}

/// Terms under which a single lost answer would end the hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "a TTL of {ttl:?} is too short: renewing every {renew_every:?}, one retry of {patience:?} and a margin of {margin:?} \
     need {needed:?}"
)]
pub struct TtlTooShort {
    /// The TTL.
    pub ttl: Duration,
    /// How often it would be renewed.
    pub renew_every: Duration,
    /// How long one renewal may take.
    pub patience: Duration,
    /// How long before the end belief ends.
    pub margin: Duration,
    /// What all of that takes together.
    pub needed: Duration,
}

impl Terms {
    /// The usual division: renew every third of the TTL, wait a quarter of it for an answer, stop `max(500 ms, 5 %)` early.
    pub fn new(ttl: Duration) -> Result<Terms, TtlTooShort> {
        Terms { ttl, margin: Terms::margin_of(ttl), renew_every: ttl / 3, patience: ttl / 4 }.check()
    }

    /// The usual margin of a TTL.
    pub fn margin_of(ttl: Duration) -> Duration {
        if is_broken(Rule::Margin) {
            return Duration::ZERO;
        }
        MARGIN_MIN.max(ttl / MARGIN_PART)
    }

    /// The division of TTL elections: renew every quarter of the TTL, wait a quarter of it for an answer, and stop this margin
    /// early, or `max(500 ms, 5 %)` if none is given. With a margin of its own a TTL may be far below a second.
    pub fn quarterly(ttl: Duration, margin: Option<Duration>) -> Result<Terms, TtlTooShort> {
        let margin = margin.unwrap_or(MARGIN_MIN.max(ttl / MARGIN_PART));
        Terms { ttl, margin, renew_every: ttl / 4, patience: ttl / 4 }.check()
    }

    /// With another margin.
    pub fn with_margin(self, margin: Duration) -> Result<Terms, TtlTooShort> {
        Terms { margin, ..self }.check()
    }

    /// With another time between renewals.
    pub fn with_renew_every(self, renew_every: Duration) -> Result<Terms, TtlTooShort> {
        Terms { renew_every, ..self }.check()
    }

    /// The TTL that is asked for.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long before the store's end belief ends.
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// How long to wait for the answer to one renewal before asking elsewhere.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// The same division of the TTL that was granted, which may be longer than asked for.
    fn of(self, granted: Duration) -> Terms {
        if granted <= self.ttl {
            return self;
        }
        Terms { ttl: granted, margin: self.margin.max(granted / MARGIN_PART), ..self }
    }

    fn check(self) -> Result<Terms, TtlTooShort> {
        let Terms { ttl, margin, renew_every, patience } = self;
        let needed = renew_every + patience + margin;
        if needed > ttl || renew_every.is_zero() {
            return Err(TtlTooShort { ttl, renew_every, patience, margin, needed });
        }
        Ok(self)
    }
}

/// Something that is held now.
#[derive(Clone, Debug)]
pub struct Hold {
    terms: Terms,
    valid_until: Moment,
    renew_at: Moment,
    /// When the oldest renewal that is not yet answered was asked for.
    asking_since: Option<Moment>,
    /// Since when renewals fail.
    failing_since: Option<Moment>,
    /// Whether it was noticed that the answer takes longer than patience allows.
    is_overdue: bool,
    end: Option<LossReason>,
}

/// What the driver must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Renew now; the answer comes back through `handle_renewed`, `handle_failed` or `handle_gone`.
    Renew,
    /// Stop believing now.
    Stop(LossReason),
}

/// How sure the holder may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Renewals are answered.
    Sound,
    /// Renewals fail or stay unanswered since then; still valid.
    Suspect {
        /// Since when.
        since: Moment,
    },
    /// Not valid any more.
    Over(LossReason),
}

impl Hold {
    /// Begins with a grant that was asked for at `asked_at`. Over from the start if its time has already passed.
    pub fn begin(terms: Terms, asked_at: Moment, granted: Duration, now: Moment) -> Hold {
        let terms = terms.of(granted);
        let mut hold = Hold {
            terms,
            valid_until: asked_at + granted.saturating_sub(terms.margin),
            renew_at: asked_at + terms.renew_every,
            asking_since: None,
            failing_since: None,
            is_overdue: false,
            end: None,
        };
        hold.lapse(now);
        hold
    }

    /// A renewal that was sent at `asked_at` was acknowledged.
    pub fn handle_renewed(&mut self, asked_at: Moment, granted: Duration, now: Moment) {
        self.lapse(now);
        if self.end.is_some() {
            return;
        }
        let asked_at = if is_broken(Rule::ValidityFromSending) { now } else { asked_at };
        let valid_until = asked_at + granted.saturating_sub(self.terms.margin);
        self.valid_until = self.valid_until.max(valid_until);
        self.renew_at = asked_at + self.terms.renew_every;
        self.asking_since = None;
        self.failing_since = None;
        self.is_overdue = false;
        self.lapse(now);
    }

    /// A renewal failed, or its answer was lost; try again after `wait`, which never is later than validity ends.
    pub fn handle_failed(&mut self, wait: Duration, now: Moment) {
        self.lapse(now);
        self.failing_since.get_or_insert(self.asking_since.unwrap_or(now));
        self.asking_since = None;
        self.is_overdue = false;
        self.renew_at = (now + wait).min(self.valid_until);
    }

    /// The store answers again: renew now instead of waiting for the next try.
    pub fn hurry(&mut self, now: Moment) {
        if self.failing_since.is_some() {
            self.renew_at = self.renew_at.min(now);
        }
    }

    /// The store said that it is over, or showed it.
    pub fn handle_gone(&mut self) {
        self.end.get_or_insert(LossReason::Revoked);
    }

    /// What to do now; none if there is nothing to do before [`Hold::next_wake`].
    pub fn poll_action(&mut self, now: Moment) -> Option<Action> {
        self.lapse(now);
        if let Some(end) = self.end {
            return Some(Action::Stop(end));
        }
        if self.asking_since.is_none() && now >= self.renew_at {
            self.asking_since = Some(now);
            return Some(Action::Renew);
        }
        self.is_overdue = self.asking_since.is_some_and(|since| now.since(since) >= self.terms.patience);
        None
    }

    /// When to poll again if nothing else happens. Always comes, even while a renewal hangs: first when patience is over, because
    /// then the holder is suspect, and last when belief ends.
    pub fn next_wake(&self) -> Moment {
        match self.asking_since {
            Some(since) if !self.is_overdue => (since + self.terms.patience).min(self.valid_until),
            Some(_) => self.valid_until,
            None => self.renew_at.min(self.valid_until),
        }
    }

    /// Whether the holder may act.
    pub fn is_valid(&self, now: Moment) -> bool {
        self.end.is_none() && now < self.valid_until
    }

    /// How long the holder may act, if nothing is renewed.
    pub fn remaining(&self, now: Moment) -> Duration {
        if self.end.is_some() { Duration::ZERO } else { self.valid_until.remaining(now) }
    }

    /// When belief ends, if nothing is renewed.
    pub fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// How sure the holder may be.
    pub fn standing(&self, now: Moment) -> Standing {
        if let Some(end) = self.end {
            return Standing::Over(end);
        }
        if now >= self.valid_until {
            return Standing::Over(LossReason::Lapsed);
        }
        let unanswered = self.asking_since.filter(|&since| now.since(since) >= self.terms.patience);
        match self.failing_since.or(unanswered) {
            Some(since) => Standing::Suspect { since },
            None => Standing::Sound,
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
