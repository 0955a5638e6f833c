//! Wanting to lead: how long to wait, with which priority, and how it can end.

use std::cmp::Reverse;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backoff::Backoff;
use tenure_core::id::InvalidName;
use tenure_core::layout::{PriorityClass, QueueKey};
use tenure_core::queue::{LockMode, Transferred};
use tenure_core::record::{CandidateRecord, RECORD_BYTES_MAX, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::time::Instant;

use super::{Candidate, Election, Term};
use crate::clock::wall_time;
use crate::hold::{LossReason, Lost, Subject};
use crate::identity::{Identity, described};
use crate::queue::{AcquireOptions, QueueError, QueueHold, WaitPolicy};
use crate::retry::Attempts;
use crate::session::InvalidTtl;
use crate::store::{KeyValue, StoreError};

/// A campaign that is about to begin.
#[derive(Clone)]
#[must_use = "nobody is a candidate before this is awaited"]
pub struct Campaign {
    pub(super) election: Election,
    record: CandidateRecord,
    ttl: Option<Duration>,
    wait_policy: WaitPolicy,
    former: Option<(QueueKey, Token)>,
    pub(super) leads_again: bool,
}

/// Why we do not lead.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CampaignError {
    /// No election has such a name. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The value is too large for others to read. Nothing was sent.
    #[error("a candidate's record of {bytes} bytes, at most {RECORD_BYTES_MAX} are read")]
    ValueTooLarge {
        /// How large it would be.
        bytes: usize,
    },
    /// No lease can have the requested TTL. Nothing was sent.
    #[error(transparent)]
    InvalidTtl(#[from] InvalidTtl),
    /// Another candidate leads; only after [`Campaign::try_once`].
    #[error("{subject} is led by {}", described(by.as_ref()))]
    Held {
        /// What was requested, such as `election 'scheduler'`.
        subject: Arc<str>,
        /// The leader, with its candidate name as the node and without a program; none if the store does not show it any more, or its record is
        /// unreadable.
        by: Option<Identity>,
    },
    /// The wait of [`Campaign::wait_up_to`] is over.
    #[error("timed out after {after:?} waiting for {subject} (led by {})", described(by.as_ref()))]
    Timeout {
        /// What was requested, such as `election 'scheduler'`.
        subject: Arc<str>,
        /// How long it waited.
        after: Duration,
        /// The leader shortly before the wait was over, at most 250 ms. None if the store did not reply by then, or the record is unreadable.
        by: Option<Identity>,
    },
    /// The lease was lost before a term began: nothing was led. Campaign again.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store did not reply in time. What it may still apply is undone in the background.
    #[error("the store did not reply within {after:?}")]
    Unavailable {
        /// How long it waited.
        after: Duration,
    },
    /// The store refuses the candidate for good.
    #[error("the store refuses the candidate")]
    Store(#[source] StoreError),
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
}

impl CampaignError {
    /// Whether the same campaign may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            CampaignError::Held { .. }
            | CampaignError::Timeout { .. }
            | CampaignError::Lost(_)
            | CampaignError::Unavailable { .. } => true,
            CampaignError::Store(error) => error.is_retryable(),
            CampaignError::InvalidName(_)
            | CampaignError::ValueTooLarge { .. }
            | CampaignError::InvalidTtl(_)
            | CampaignError::Closed => false,
        }
    }
}

impl From<QueueError> for CampaignError {
    fn from(error: QueueError) -> CampaignError {
        match error {
            QueueError::Held { subject, by } => {
                CampaignError::Held { subject: subject.to_string().into(), by }
            }
            QueueError::Timeout { subject, after, by } => {
                CampaignError::Timeout { subject: subject.to_string().into(), after, by }
            }
            QueueError::Lost(lost) => CampaignError::Lost(lost),
            QueueError::Closed => CampaignError::Closed,
            QueueError::Unavailable { after } => CampaignError::Unavailable { after },
            QueueError::Store(error) => CampaignError::Store(error),
            QueueError::InvalidTtl(invalid) => CampaignError::InvalidTtl(invalid),
            QueueError::PermitsDiffer { .. } => unreachable!("candidates have no permits"),
        }
    }
}

impl Campaign {
    pub(super) fn new(election: Election, value: String) -> Campaign {
        let candidate = election.elections.candidate.to_string();
        let Identity { host, pid, user, .. } = (*election.elections.identity).clone();
        let record = CandidateRecord { candidate, value, host, pid, user, ..CandidateRecord::default() };
        Campaign {
            election,
            record,
            ttl: None,
            wait_policy: WaitPolicy::Endless,
            former: None,
            leads_again: true,
        }
    }

    /// The value that all observers read.
    pub(crate) fn value(mut self, value: String) -> Campaign {
        self.record.value = value;
        self
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
        self.wait_policy = WaitPolicy::up_to(wait);
        self
    }

    /// Does not wait: [`CampaignError::Held`] if another candidate leads.
    pub fn try_once(mut self) -> Campaign {
        self.wait_policy = WaitPolicy::Try;
        self
    }

    /// Takes over the term that this program had before it was restarted, if its lease has not ended yet.
    ///
    /// The former place ([`Term::place`], [`Hold::token`](crate::hold::Hold::token)) goes in the same step in which the new one becomes the first, so there is no
    /// moment without a leader and nobody else comes between. The term is a new one with a larger token: should the former process be alive after
    /// all, it is told, and its writes are refused. If the former place is gone, this is a campaign like any other.
    pub fn resume(mut self, place: QueueKey, token: Token) -> Campaign {
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
            return Err(CampaignError::ValueTooLarge { bytes: value.len() });
        }
        let deadline = match self.wait_policy {
            WaitPolicy::UpTo(wait) => Some((Instant::now() + wait, wait)),
            WaitPolicy::Endless | WaitPolicy::Try => None,
        };
        loop {
            let wait_policy = match deadline {
                Some((deadline, _)) => WaitPolicy::UpTo(deadline.duration_since(Instant::now())),
                None => self.wait_policy,
            };
            let queue = self.election.queue.clone();
            let subject = Subject { kind: "election", name: self.election.name.shared_str() };
            let options = AcquireOptions {
                subject: subject.clone(),
                queue,
                mode: LockMode::Exclusive,
                class: if self.record.priority > 0 {
                    PriorityClass::Preferred
                } else {
                    PriorityClass::Ordinary
                },
                value: value.clone(),
                ttl: self.ttl,
                wait: wait_policy,
                former: self.former,
            };
            let held = match (self.election.elections.queues.acquire(options).await, deadline) {
                // The whole wait, with the terms that were handed over during it.
                (Err(QueueError::Timeout { subject, by, .. }), Some((_, after))) => {
                    return Err(QueueError::Timeout { subject, after, by }.into());
                }
                (held, _) => held?,
            };
            let yielding = self.yields(&held);
            let yields = match deadline {
                Some((deadline, within)) => tokio::time::timeout_at(deadline, yielding)
                    .await
                    .unwrap_or(Err(CampaignError::Unavailable { after: within }))?,
                None => yielding.await?,
            };
            match (yields, self.wait_policy) {
                (Yields::No, _) => {
                    held.record_term();
                    return Ok(Term::new(self.election, held, self.record));
                }
                (Yields::To(by), WaitPolicy::Try) => return Err(QueueError::Held { subject, by }.into()),
                (Yields::To(_), WaitPolicy::Endless | WaitPolicy::UpTo(_)) => self.former = None,
            }
        }
    }

    /// Before a turn is told: hands it to the highest priority that waits, the oldest of equals, if that is above our own.
    async fn yields(&self, held: &QueueHold) -> Result<Yields, CampaignError> {
        // It was our turn before.
        if self.former.is_some() {
            return Ok(Yields::No);
        }
        // Who came when it was already our turn has no better right; so what was seen then is enough.
        // Only those above 0 stand where they are seen, so whoever is below it has to look at all.
        let mut seen = held.priority_waiters().filter(|_| self.record.priority >= 0);
        loop {
            let heir = match seen.take() {
                Some(queue) => self.highest_behind(queue, held.token()),
                None => match held.run(self.look()).await {
                    Ok(queue) => self.highest_behind(&queue.map_err(CampaignError::Store)?, held.token()),
                    Err(lost) => return end_of_turn(lost).map_or(Ok(Yields::To(None)), Err),
                },
            };
            let Some(heir) = heir else { return Ok(Yields::No) };
            match held.hand_over((heir.place, heir.token)).await {
                Ok(Ok(Transferred::Done)) => return Ok(Yields::To(Some(heir.record.identity()))),
                Ok(Ok(Transferred::HolderGone)) => return Ok(Yields::To(None)),
                Ok(Ok(Transferred::HeirGone)) => {}
                Ok(Err(error)) => return Err(CampaignError::Store(error)),
                Err(lost) => return end_of_turn(lost).map_or(Ok(Yields::To(None)), Err),
            }
        }
    }

    /// Who stands in line, asked for as often as it takes.
    async fn look(&self) -> Result<Vec<KeyValue>, StoreError> {
        let mut attempts = Attempts::new(&self.election.elections.clock, Backoff::REQUEST);
        loop {
            match self.election.line().await {
                Ok(queue) => return Ok(queue),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => attempts.wait("read of the candidates", &error).await,
            }
        }
    }

    /// The candidate behind us with the highest priority, if that is above our own.
    fn highest_behind(&self, queue: &[KeyValue], token: Token) -> Option<Candidate> {
        let own = self.record.priority;
        // Most say nothing of a priority, and a line is long: what is certainly not above us is not read as a whole.
        let may_be_above = |pair: &&KeyValue| {
            pair.created > token.0
                && CandidateRecord::priority_of(&pair.value).is_none_or(|other| other > own)
        };
        queue
            .iter()
            .filter(may_be_above)
            .filter_map(|pair| self.election.candidate_of(pair))
            .filter(|candidate| candidate.record.priority > own)
            .max_by_key(|candidate| (candidate.record.priority, Reverse(candidate.token)))
    }
}

/// Whether somebody else leads instead.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Yields {
    /// This candidate, if it is known.
    To(Option<Identity>),
    No,
}

/// Why a campaign ends whose turn was lost before it was reported: nothing was led. None if the candidate enters again.
fn end_of_turn(lost: Lost) -> Option<CampaignError> {
    match lost.reason {
        LossReason::Closed => Some(CampaignError::Closed),
        // Another client deleted the key.
        LossReason::Deleted | LossReason::Released => None,
        _ => Some(CampaignError::Lost(lost)),
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Term, CampaignError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
