//! Requests to a leader to resign or to transfer leadership, from any process.
//!
//! The request is written into the leader's own key, which the leader watches: a client that may write there could delete the key as well,
//! so the request is the polite way. A leader that does not react keeps leading.

use std::time::Duration;

use futures_util::StreamExt;
use tenure_core::id::InvalidName;
use tenure_core::layout::{Key, QueueKey};
use tenure_core::queue::{CandidateChange, CandidateUpdate, Rewrite, RewriteError, RewriteLimit, Rewritten};
use tenure_core::record::{InvalidRecord, StepDownRecord};
use thiserror::Error;

use super::observe::Observer;
use super::{Candidate, ElectionQueue, Leader};
use crate::error::{ErrorClass, classified};
use crate::retry;
use crate::store::{Cause, StoreError};
use crate::tenure::request;

/// How long a request is retried. More would only make the caller wait, which can send it again.
const EFFORT: RewriteLimit = RewriteLimit::Bounded { conflicts_max: 16, lost_max: 2 };

/// A request to step down, as the leader receives it from [`Term::step_down_requested`](super::Term::step_down_requested).
#[derive(Clone, PartialEq, Debug)]
pub struct StepDownRequest {
    /// The name of the process that sent it; empty if it has none.
    pub by: String,
    /// The candidate to which leadership shall be transferred; none if the leader shall resign.
    pub transfer_to: Option<Candidate>,
}

/// A stored request, before its candidate is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StoredStepDown {
    Resign { by: String },
    Transfer { to: QueueKey, by: String },
}

impl StoredStepDown {
    /// Reads a stored request; none if it names a key that no candidate can have.
    pub(super) fn of(record: &StepDownRecord) -> Option<StoredStepDown> {
        let by = record.by.clone();
        match &record.heir {
            None => Some(StoredStepDown::Resign { by }),
            Some(key) => QueueKey::parse(key).map(|to| StoredStepDown::Transfer { to, by }),
        }
    }
}

/// The outcome of a request to step down.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum StepDownOutcome {
    /// The leader does not lead any more.
    SteppedDown {
        /// The leader of the moment after it; none if the election had no leader then.
        next: Option<Box<Leader>>,
    },
    /// The leader keeps leading and has deleted the request: it declined, or the candidate does not wait any more.
    Declined,
    /// The request is stored, and [`StepDown::no_reply`] does not wait for the outcome.
    Requested,
}

/// Why a request to step down has no outcome.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepDownError {
    /// No election has such a name. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The election has no leader, or the leader of [`StepDown::of`] does not lead any more.
    #[error("the election has no such leader")]
    NoLeader,
    /// No candidate with this name waits.
    #[error("no candidate is called {name:?}")]
    NoSuchCandidate {
        /// The name.
        name: String,
    },
    /// The leader did not react in time. The request stays stored: the leader may still step down.
    #[error("the leader did not react within {after:?}")]
    Timeout {
        /// How long the caller waited.
        after: Duration,
    },
    /// The leader's key holds no record of a candidate, and was not changed.
    #[error("the leader's key cannot be read")]
    Unreadable(#[source] InvalidRecord),
    /// The store failed, and the request may be stored. Sending it again does no harm.
    #[error("the request was not stored")]
    Store(#[from] StoreError),
}

impl StepDownError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            StepDownError::InvalidName(_) => ErrorClass::Invalid,
            StepDownError::NoLeader | StepDownError::NoSuchCandidate { .. } => ErrorClass::Conflict,
            StepDownError::Timeout { .. } => ErrorClass::Timeout,
            StepDownError::Unreadable(_) => ErrorClass::Fatal,
            StepDownError::Store(error) => error.into(),
        }
    }
}

classified!(StepDownError);

/// A request to step down that is about to be sent. Awaiting it returns the [`StepDownOutcome`].
///
/// ```
/// use tenure::Tenure;
/// use tenure::election::StepDownOutcome;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("scheduler");
/// let term = election.campaign().await?;
/// let resigning = async {
///     let request = term.step_down_requested().await;
///     term.accept(&request).await
/// };
/// let (outcome, resigned) = tokio::join!(async { election.request_resign().await }, resigning);
/// assert_eq!(outcome?, StepDownOutcome::SteppedDown { next: None });
/// resigned?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// The request may be stored, and the leader may step down.
///
/// # Errors
///
/// [`StepDownError`]; a wrong name is reported when it is awaited.
#[must_use = "nothing is requested before this is awaited"]
pub struct StepDown {
    queue: Result<ElectionQueue, InvalidName>,
    leader: Option<Leader>,
    to: TransferTo,
    timeout: Option<Duration>,
    waits: bool,
}

/// The candidate that shall lead instead.
enum TransferTo {
    /// The one that the queue decides.
    Next,
    Named(String),
    Candidate(QueueKey),
}

request!(StepDown => Result<StepDownOutcome, StepDownError>);

impl StepDown {
    fn new(queue: Result<ElectionQueue, InvalidName>, to: TransferTo) -> StepDown {
        StepDown { queue, leader: None, to, timeout: None, waits: true }
    }

    pub(super) fn resign(queue: Result<ElectionQueue, InvalidName>) -> StepDown {
        StepDown::new(queue, TransferTo::Next)
    }

    pub(super) fn transfer(queue: Result<ElectionQueue, InvalidName>, candidate: String) -> StepDown {
        StepDown::new(queue, TransferTo::Named(candidate))
    }

    /// Only if this leader still leads; the present one otherwise.
    pub fn of(mut self, leader: &Leader) -> StepDown {
        self.leader = Some(leader.clone());
        self
    }

    /// Requests a transfer to this candidate, whatever its name is.
    pub fn to(mut self, candidate: &Candidate) -> StepDown {
        self.to = TransferTo::Candidate(candidate.place);
        self
    }

    /// Waits at most this long for the leader to react, then fails with [`StepDownError::Timeout`].
    pub fn timeout(mut self, timeout: Duration) -> StepDown {
        self.timeout = Some(timeout);
        self
    }

    /// Returns [`StepDownOutcome::Requested`] as soon as the request is stored.
    pub fn no_reply(mut self) -> StepDown {
        self.waits = false;
        self
    }

    async fn send(self) -> Result<StepDownOutcome, StepDownError> {
        let StepDown { queue, leader, to, timeout, waits } = self;
        let queue = queue?;
        let requesting = async {
            let leader = queue.request_step_down(leader, to).await?;
            if waits { Ok(queue.outcome(&leader).await?) } else { Ok(StepDownOutcome::Requested) }
        };
        match timeout {
            Some(after) => match tokio::time::timeout(after, requesting).await {
                Ok(outcome) => outcome,
                Err(_) => Err(StepDownError::Timeout { after }),
            },
            None => requesting.await,
        }
    }
}

impl ElectionQueue {
    /// Stores a request, and returns the leader that received it.
    async fn request_step_down(
        &self,
        leader: Option<Leader>,
        to: TransferTo,
    ) -> Result<Leader, StepDownError> {
        let (leader, to) = match (leader, to) {
            (Some(leader), TransferTo::Next) => (leader, None),
            (Some(leader), TransferTo::Candidate(key)) => (leader, Some(key)),
            (leader, to) => {
                // One listing, so that the leader and the candidate are of one revision.
                let snapshot = self.snapshot().await?;
                let key = match to {
                    TransferTo::Next => None,
                    TransferTo::Candidate(key) => Some(key),
                    TransferTo::Named(name) => {
                        let mut candidates = snapshot.candidates.iter();
                        let candidate = candidates.find(|candidate| candidate.record.candidate == name);
                        Some(candidate.ok_or(StepDownError::NoSuchCandidate { name })?.place)
                    }
                };
                (leader.or(snapshot.leader).ok_or(StepDownError::NoLeader)?, key)
            }
        };
        let key = self.elections.layout.encode(&Key::Candidate(self.name.clone(), leader.place));
        let by = self.elections.candidate.to_string();
        let heir = to.map(|key| key.to_string());
        let request = StepDownRecord { by, heir, ..StepDownRecord::default() };
        let update = CandidateUpdate { change: CandidateChange::Request(Some(request)), own: None };
        // The rewrite is conditional on the leader's create revision: a later holder of the key never receives it.
        let mut rewrite = Rewrite::new(key, leader.token, update, EFFORT);
        match retry::run("step-down request", self.store(), &self.elections.clock, &mut rewrite).await {
            Ok(Rewritten::Stored(..)) => Ok(leader),
            Ok(Rewritten::Gone) => Err(StepDownError::NoLeader),
            Ok(Rewritten::Contended) => Err(StepDownError::Store(StoreError::Unavailable(Cause::new(
                "other clients changed the leader's record in each attempt",
            )))),
            Err(RewriteError::Store(error)) => Err(StepDownError::Store(error)),
            Err(RewriteError::Unreadable(error)) => Err(StepDownError::Unreadable(error)),
        }
    }

    /// Waits until a leader that received a request has reacted. A leader that ignores requests never does.
    async fn outcome(&self, leader: &Leader) -> Result<StepDownOutcome, StoreError> {
        let mut observer = Observer::of_requests(self);
        while let Some(observation) = observer.next().await {
            match observation?.leader {
                Some(now) if now.token != leader.token => {
                    return Ok(StepDownOutcome::SteppedDown { next: Some(Box::new(now)) });
                }
                // The leader has deleted the request without stepping down.
                Some(now) if now.record.asked.is_none() => return Ok(StepDownOutcome::Declined),
                Some(_) => {}
                None => return Ok(StepDownOutcome::SteppedDown { next: None }),
            }
        }
        Err(StoreError::Closed)
    }
}
