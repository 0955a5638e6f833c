//! Campaigns: the value, the priority, how long to wait, and why no term began.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::id::InvalidName;
use tenure_core::layout::{PriorityClass, QueueKey};
use tenure_core::queue::{LockMode, Transferred};
use tenure_core::record::{CandidateRecord, RECORD_BYTES_MAX, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::time::Instant;

use super::{Candidate, Election, ElectionQueue, ResumeToken, Term};
use crate::clock::wall_time;
use crate::error::{ErrorClass, classified};
use crate::hold::{LossReason, Lost, Subject};
use crate::identity::{Identity, described};
use crate::queue::{AcquireOptions, QueueError, QueueHold, WaitPolicy};
use crate::session::InvalidTtl;
use crate::store::{KeyValue, StoreError};
use crate::tenure::request;

/// A candidacy that is about to begin. Awaiting it returns a [`Term`].
///
/// ```
/// use std::time::Duration;
/// use tenure::{CampaignError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("scheduler");
/// let term = election.campaign().value("10.0.0.7:80").priority(5).timeout(Duration::from_secs(60)).await?;
/// assert!(matches!(election.campaign().try_now().await, Err(CampaignError::Held { .. })));
/// term.resign().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// Dropping the future deletes the candidate's key in the background.
///
/// # Errors
///
/// [`CampaignError`]; a wrong name is reported when it is awaited.
#[derive(Clone)]
#[must_use = "nothing is a candidate before this is awaited"]
pub struct Campaign {
    pub(super) queue: Result<ElectionQueue, InvalidName>,
    record: CandidateRecord,
    ttl: Option<Duration>,
    wait_policy: WaitPolicy,
    former: Option<(QueueKey, Token)>,
    pub(super) leads_again: bool,
}

request!(Campaign => Result<Term, CampaignError>);

/// Why no term began.
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
    /// Another candidate leads; only after [`Campaign::try_now`].
    #[error("{subject} is led by {}", described(by.as_ref()))]
    Held {
        /// What was requested, such as `election 'scheduler'`.
        subject: Arc<str>,
        /// The leader, with its candidate name as the node and without a program; none if the store does not show it any more, or its record is
        /// unreadable.
        by: Option<Identity>,
    },
    /// The wait of [`Campaign::timeout`] is over.
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
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            CampaignError::InvalidName(_)
            | CampaignError::ValueTooLarge { .. }
            | CampaignError::InvalidTtl(_) => ErrorClass::Invalid,
            CampaignError::Held { .. } => ErrorClass::Conflict,
            CampaignError::Timeout { .. } => ErrorClass::Timeout,
            CampaignError::Lost(lost) => lost.into(),
            CampaignError::Unavailable { .. } => ErrorClass::Unavailable,
            CampaignError::Store(error) => error.into(),
            CampaignError::Closed => ErrorClass::Closed,
        }
    }
}

classified!(CampaignError);

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
    pub(super) fn new(election: &Election) -> Campaign {
        let candidate = election.elections.candidate.to_string();
        let Identity { host, pid, user, .. } = (*election.elections.identity).clone();
        Campaign {
            queue: election.queue(),
            record: CandidateRecord { candidate, host, pid, user, ..CandidateRecord::default() },
            ttl: None,
            wait_policy: WaitPolicy::Endless,
            former: None,
            leads_again: true,
        }
    }

    /// The value that all observers read, such as an address; empty otherwise.
    pub fn value(mut self, value: impl Into<String>) -> Campaign {
        self.record.value = value.into();
        self
    }

    /// Leads before candidates of a lower priority; 0 otherwise. A present leader stays.
    pub fn priority(mut self, priority: i32) -> Campaign {
        self.record.priority = priority;
        self
    }

    /// With a lease of this TTL; that of the session otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Campaign {
        self.ttl = Some(ttl);
        self
    }

    /// Waits at most this long, then fails with [`CampaignError::Timeout`]. Zero is [`Campaign::try_now`].
    pub fn timeout(mut self, timeout: Duration) -> Campaign {
        self.wait_policy = WaitPolicy::up_to(timeout);
        self
    }

    /// Does not wait: [`CampaignError::Held`] if another candidate leads.
    pub fn try_now(mut self) -> Campaign {
        self.wait_policy = WaitPolicy::Try;
        self
    }

    /// Takes over the term that this program had before it was restarted, if its lease has not expired yet.
    ///
    /// One transaction deletes the former key and makes the new one the first, so there is no moment without a leader and no other candidate
    /// leads in between. The term is a new one with a larger token: should the former process be alive after all, it is notified, and its
    /// fenced writes are refused. If the former key is deleted, this is a campaign like any other.
    pub fn resume(mut self, former: &ResumeToken) -> Campaign {
        self.former = Some((former.key, former.token));
        self
    }

    /// For [`Campaign::lead`]: does not campaign again after a loss or a request to step down.
    pub fn one_term(mut self) -> Campaign {
        self.leads_again = false;
        self
    }

    pub(super) async fn send(mut self) -> Result<Term, CampaignError> {
        let election = self.queue.clone()?;
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
            let queue = election.prefix.clone();
            let subject = Subject { kind: "election", name: election.name.shared_str() };
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
                on_queued: None,
            };
            let held = match (election.elections.queues.acquire(options).await, deadline) {
                // The whole wait, with the terms that were handed over during it.
                (Err(QueueError::Timeout { subject, by, .. }), Some((_, after))) => {
                    return Err(QueueError::Timeout { subject, after, by }.into());
                }
                (held, _) => held?,
            };
            let yielding = self.yields(&election, &held);
            let yields = match deadline {
                Some((deadline, within)) => tokio::time::timeout_at(deadline, yielding)
                    .await
                    .unwrap_or(Err(CampaignError::Unavailable { after: within }))?,
                None => yielding.await?,
            };
            match (yields, self.wait_policy) {
                (PriorityCheck::No, _) => {
                    held.record_term();
                    return Ok(Term::new(election, held, self.record));
                }
                (PriorityCheck::To(by), WaitPolicy::Try) => {
                    return Err(QueueError::Held { subject, by }.into());
                }
                (PriorityCheck::To(_), WaitPolicy::Endless | WaitPolicy::UpTo(_)) => self.former = None,
            }
        }
    }

    /// Before a term begins: transfers to the waiting candidate of the highest priority, the oldest of equals, if that is above the own one.
    async fn yields(
        &self,
        election: &ElectionQueue,
        held: &QueueHold,
    ) -> Result<PriorityCheck, CampaignError> {
        // A resumed term led before: a higher priority does not depose it.
        if self.former.is_some() {
            return Ok(PriorityCheck::No);
        }
        // A candidate that enters after this one became the oldest has no better right, so the keys that were read then are enough. They are
        // only those above 0: a candidate below 0 has to read all.
        let mut seen = held.priority_waiters().filter(|_| self.record.priority >= 0);
        loop {
            let heir = match seen.take() {
                Some(queue) => self.highest_behind(election, queue, held.token()),
                None => match held.run(election.read_candidates()).await {
                    Ok(queue) => {
                        self.highest_behind(election, &queue.map_err(CampaignError::Store)?, held.token())
                    }
                    Err(lost) => return end_of_turn(lost).map_or(Ok(PriorityCheck::To(None)), Err),
                },
            };
            let Some(heir) = heir else { return Ok(PriorityCheck::No) };
            match held.hand_over((heir.place, heir.token)).await {
                Ok(Ok(Transferred::Done)) => return Ok(PriorityCheck::To(Some(heir.record.identity()))),
                Ok(Ok(Transferred::HolderGone)) => return Ok(PriorityCheck::To(None)),
                Ok(Ok(Transferred::HeirGone)) => {}
                Ok(Err(error)) => return Err(CampaignError::Store(error)),
                Err(lost) => return end_of_turn(lost).map_or(Ok(PriorityCheck::To(None)), Err),
            }
        }
    }

    /// The younger candidate with the highest priority, if that is above the own one.
    fn highest_behind(
        &self,
        election: &ElectionQueue,
        queue: &[KeyValue],
        token: Token,
    ) -> Option<Candidate> {
        let own = self.record.priority;
        // Most records contain no priority, and a queue may be long: a record that is certainly not above the own one is not decoded.
        let may_be_above = |pair: &&KeyValue| {
            pair.created > token.0
                && CandidateRecord::priority_of(&pair.value).is_none_or(|other| other > own)
        };
        queue
            .iter()
            .filter(may_be_above)
            .filter_map(|pair| election.candidate_of(pair))
            .filter(|candidate| candidate.record.priority > own)
            .max_by_key(|candidate| (candidate.record.priority, Reverse(candidate.token)))
    }
}

/// Whether another candidate leads instead.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PriorityCheck {
    /// This candidate, if it is known.
    To(Option<Identity>),
    No,
}

/// Why a campaign ends that lost its hold before a term began. None if the candidate enters again.
fn end_of_turn(lost: Lost) -> Option<CampaignError> {
    match lost.reason {
        LossReason::Closed => Some(CampaignError::Closed),
        // Another client deleted the key.
        LossReason::Deleted | LossReason::Released => None,
        _ => Some(CampaignError::Lost(lost)),
    }
}
