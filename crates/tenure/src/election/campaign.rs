//! Wanting to lead: how long to wait, with which priority, and how it can end.

use std::cmp::Reverse;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::layout::{Place, Rank};
use tenure_core::line::Mode;
use tenure_core::record::{CandidateRecord, RECORD_BYTES_MAX, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::time::Instant;
use tracing::debug;

use super::{Candidate, Election, Term};
use crate::clock::{BootClock, Clock, wall_time};
use crate::dice;
use crate::identity::Identity;
use crate::line::{Held, Lost, Outcome, Patience, StandError, Wish};
use crate::session::LoanEnd;
use crate::store::{KeyValue, StoreError};

/// Rests between looks at the other candidates; our lease ends the trying.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(1),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// A campaign that is about to begin.
#[derive(Clone)]
#[must_use = "nobody is a candidate before this is awaited"]
pub struct Campaign {
    pub(super) election: Election,
    record: CandidateRecord,
    ttl: Option<Duration>,
    patience: Patience,
    former: Option<(Place, Token)>,
    pub(super) leads_again: bool,
}

/// Why we do not lead.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CampaignError {
    /// The value is too large for others to read. Nothing was sent.
    #[error("a candidate's record of {bytes} bytes, at most {RECORD_BYTES_MAX} are read")]
    TooLarge {
        /// How large it would be.
        bytes: usize,
    },
    /// It was not our turn.
    #[error(transparent)]
    NotElected(#[from] StandError),
}

impl Campaign {
    pub(super) fn new(election: Election, value: String) -> Campaign {
        let candidate = election.elections.candidate.to_string();
        let Identity { host, pid, user, .. } = (*election.elections.identity).clone();
        let record = CandidateRecord { candidate, value, host, pid, user, ..CandidateRecord::default() };
        Campaign { election, record, ttl: None, patience: Patience::Endless, former: None, leads_again: true }
    }

    /// Leads before candidates of a lower priority, whoever came first; 0 otherwise. Whoever leads already is not deposed.
    pub fn priority(mut self, priority: i32) -> Campaign {
        self.record.priority = priority;
        self
    }

    /// With a lease of its own length; the session's otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Campaign {
        self.ttl = Some(ttl);
        self
    }

    /// Waits this long for its turn. A wait of zero is [`Campaign::try_once`].
    pub fn wait_up_to(mut self, wait: Duration) -> Campaign {
        self.patience = Patience::up_to(wait);
        self
    }

    /// Does not wait: [`StandError::Held`] if somebody else leads.
    pub fn try_once(mut self) -> Campaign {
        self.patience = Patience::None;
        self
    }

    /// Takes over the term that this program had before it was restarted, if its lease has not ended yet.
    ///
    /// The former place ([`Term::place`], [`Term::token`]) goes in the same step in which the new one becomes the first, so there is no
    /// moment without a leader and nobody else comes between. The term is a new one with a larger token: should the former process be alive after
    /// all, it is told, and its writes are refused. If the former place is gone, this is a campaign like any other.
    pub fn resume(mut self, place: Place, token: Token) -> Campaign {
        self.former = Some((place, token));
        self
    }

    /// For [`Campaign::lead`]: does not campaign again after a loss, or after it was asked to go.
    pub fn once(mut self) -> Campaign {
        self.leads_again = false;
        self
    }

    pub(super) async fn run(mut self) -> Result<Term, CampaignError> {
        self.record.queued = wall_time();
        let value = self.record.encode();
        if value.len() > RECORD_BYTES_MAX {
            return Err(CampaignError::TooLarge { bytes: value.len() });
        }
        let deadline = match self.patience {
            Patience::UpTo(wait) => Some((Instant::now() + wait, wait)),
            Patience::Endless | Patience::None => None,
        };
        loop {
            let patience = match deadline {
                Some((deadline, _)) => Patience::UpTo(deadline.duration_since(Instant::now())),
                None => self.patience,
            };
            let line = self.election.line.clone();
            let wish = Wish {
                line,
                mode: Mode::Exclusive,
                rank: if self.record.priority > 0 { Rank::Preferred } else { Rank::Ordinary },
                value: value.clone(),
                ttl: self.ttl,
                patience,
                former: self.former,
            };
            let held = self.election.elections.desk.hold(wish).await?;
            let yielding = self.yields(&held);
            let yields = match deadline {
                Some((deadline, within)) => tokio::time::timeout_at(deadline, yielding)
                    .await
                    .unwrap_or(Err(StandError::Unavailable { within }))?,
                None => yielding.await?,
            };
            match (yields, self.patience) {
                (Yields::No, _) => {
                    held.record_term();
                    return Ok(Term::new(self.election, held, self.record));
                }
                (Yields::Yes, Patience::None) => return Err(StandError::Held.into()),
                (Yields::Yes, Patience::Endless | Patience::UpTo(_)) => self.former = None,
            }
        }
    }

    /// Before a turn is told: hands it to the highest priority that waits, the oldest of equals, if that is above our own.
    async fn yields(&self, held: &Held) -> Result<Yields, StandError> {
        // It was our turn before.
        if self.former.is_some() {
            return Ok(Yields::No);
        }
        // Who came when it was already our turn has no better right; so what was seen then is enough.
        // Only those above 0 stand where they are seen, so whoever is below it has to look at all.
        let mut seen = held.others().filter(|_| self.record.priority >= 0);
        loop {
            let heir = match seen.take() {
                Some(line) => self.highest_behind(line, held.token()),
                None => match held.run(self.look()).await {
                    Ok(line) => self.highest_behind(&line.map_err(StandError::Store)?, held.token()),
                    Err(lost) => return turn_lost(lost),
                },
            };
            let Some(heir) = heir else { return Ok(Yields::No) };
            match held.hand_over((heir.place, heir.token)).await {
                Ok(Ok(Outcome::Done | Outcome::HolderGone)) => return Ok(Yields::Yes),
                Ok(Ok(Outcome::HeirGone)) => {}
                Ok(Err(error)) => return Err(StandError::Store(error)),
                Err(lost) => return turn_lost(lost),
            }
        }
    }

    /// Who stands in line, asked for as often as it takes.
    async fn look(&self) -> Result<Vec<KeyValue>, StoreError> {
        let mut backoff = Backoff::new(RETRY);
        loop {
            match self.election.line().await {
                Ok(line) => return Ok(line),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => debug!(%error, "line was not looked at yet"),
            }
            tokio::time::sleep(backoff.after_failure(BootClock.now(), dice::throw(), None)).await;
        }
    }

    /// The candidate behind us with the highest priority, if that is above our own.
    fn highest_behind(&self, line: &[KeyValue], token: Token) -> Option<Candidate> {
        let own = self.record.priority;
        // Most say nothing of a priority, and a line is long: what is certainly not above us is not read as a whole.
        let may_be_above = |pair: &&KeyValue| {
            pair.created > token.0
                && CandidateRecord::priority_of(&pair.value).is_none_or(|other| other > own)
        };
        line.iter()
            .filter(may_be_above)
            .filter_map(|pair| self.election.candidate_of(pair))
            .filter(|candidate| candidate.record.priority > own)
            .max_by_key(|candidate| (candidate.record.priority, Reverse(candidate.token)))
    }
}

/// Whether somebody else leads instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Yields {
    Yes,
    No,
}

/// A turn that was lost before it was told: nothing was led.
fn turn_lost(lost: Lost) -> Result<Yields, StandError> {
    match lost {
        Lost::Lapsed => Err(StandError::SessionLost(LoanEnd::Lapsed)),
        Lost::LeaseGone => Err(StandError::SessionLost(LoanEnd::Gone)),
        Lost::Closed => Err(StandError::Closed),
        // Somebody took our place away: we stand in line again.
        Lost::Broken | Lost::GivenUp => Ok(Yields::Yes),
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Term, CampaignError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
