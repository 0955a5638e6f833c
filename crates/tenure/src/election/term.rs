//! A term of leadership.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tenure_core::id::ElectionName;
use tenure_core::layout::QueueKey;
use tenure_core::queue::{
    CandidateChange, CandidateUpdate, Rewrite, RewriteError, RewriteLimit, Rewritten, Transferred,
};
use tenure_core::record::{CandidateRecord, RECORD_BYTES_MAX, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tracing::debug;

use super::step_down::StoredStepDown;
use super::{Candidate, ElectionQueue, StepDownRequest};
use crate::error::{ErrorClass, classified};
use crate::hold::{Hold, LossReason, Lost, ReleaseError};
use crate::queue::{QueueHold, WaiterStatus};
use crate::retry;
use crate::store::{Revision, StoreError};

/// How long to wait after the store failed to show the chosen candidate. Another process requested the transfer, so there is no hurry.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Leadership, until it is resigned, dropped or lost. Its methods are those of [`Hold`] and [`Validity`](crate::Validity) too.
#[must_use = "a term that is dropped is resigned"]
pub struct Term {
    /// Shared with [`Campaign::lead`](super::Campaign::lead), which releases a term that its work has dropped or kept.
    shared: Arc<TermShared>,
}

/// Identifies a term, so that a restarted program can take it over. Opaque; written as text or as a JSON string.
///
/// ```
/// use tenure::Tenure;
/// use tenure::election::ResumeToken;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let term = tenure.election("scheduler").campaign().await?;
/// let written = term.resume_token().to_string();
/// let read: ResumeToken = written.parse().expect("it was written by this version");
/// assert_eq!(read, term.resume_token());
/// # term.resign().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeToken {
    pub(super) key: QueueKey,
    pub(super) token: Token,
}

/// A text that is no [`ResumeToken`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0:?} does not identify a term")]
pub struct InvalidResumeToken(String);

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.token)
    }
}

impl FromStr for ResumeToken {
    type Err = InvalidResumeToken;

    fn from_str(text: &str) -> Result<ResumeToken, InvalidResumeToken> {
        let parse = || {
            let (key, token) = text.split_once(' ')?;
            Some(ResumeToken { key: QueueKey::parse(key)?, token: Token(Revision(token.parse().ok()?)) })
        };
        parse().ok_or_else(|| InvalidResumeToken(text.to_owned()))
    }
}

impl Serialize for ResumeToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResumeToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ResumeToken, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

struct TermShared {
    election: ElectionQueue,
    hold: QueueHold,
    /// The newest known version of the own record.
    newest: Mutex<CandidateVersion>,
}

/// Why a change of the candidate record was not stored.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The value is too large for others to read. Nothing was sent.
    #[error("a candidate's record of {bytes} bytes, at most {RECORD_BYTES_MAX} are read")]
    ValueTooLarge {
        /// How large it would be.
        bytes: usize,
    },
    /// This process does not lead any more.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store refuses the change for good.
    #[error("the store refuses the value")]
    Store(#[source] StoreError),
}

impl AnnounceError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            AnnounceError::ValueTooLarge { .. } => ErrorClass::Invalid,
            AnnounceError::Lost(lost) => lost.into(),
            AnnounceError::Store(error) => error.into(),
        }
    }
}

classified!(AnnounceError);

/// Why leadership was not transferred.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// It does not wait to lead any more. This process still leads.
    #[error("the chosen process is not a candidate any more")]
    NotACandidate(Box<Term>),
    /// This process does not lead any more, and did not transfer.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store failed for good, so the outcome is unknown. The term is over.
    #[error("the store failed during the transfer")]
    Ambiguous(#[source] StoreError),
}

impl TransferError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            TransferError::NotACandidate(_) => ErrorClass::Conflict,
            TransferError::Lost(lost) => lost.into(),
            TransferError::Ambiguous(_) => ErrorClass::Ambiguous,
        }
    }
}

classified!(TransferError);

impl Term {
    pub(super) fn new(election: ElectionQueue, hold: QueueHold, record: CandidateRecord) -> Term {
        election.elections.terms.record(&election.prefix, hold.hold());
        let newest = Mutex::new(CandidateVersion { record, modified: hold.token().0 });
        Term { shared: Arc::new(TermShared { election, hold, newest }) }
    }

    /// The same term for the work of [`Campaign::lead`](super::Campaign::lead).
    pub(super) fn share(&self) -> Term {
        Term { shared: self.shared.clone() }
    }

    /// The name of the election.
    pub fn name(&self) -> &ElectionName {
        &self.shared.election.name
    }

    /// What [`Campaign::resume`](super::Campaign::resume) needs after a restart of this program.
    pub fn resume_token(&self) -> ResumeToken {
        ResumeToken { key: self.shared.hold.key(), token: self.token() }
    }

    /// The value that observers read, as far as this process knows.
    pub fn value(&self) -> String {
        self.shared.newest().record.value
    }

    /// Announces another value to all observers, with the same token. Retries until it is stored or the term is over.
    ///
    /// # Errors
    ///
    /// [`AnnounceError`]; the value stays as it was.
    ///
    /// # Cancellation
    ///
    /// It may have been stored or not.
    pub async fn announce(&self, value: impl Into<String>) -> Result<(), AnnounceError> {
        let value = value.into();
        let record = CandidateRecord { value: value.clone(), ..self.shared.newest().record };
        let bytes = record.encode().len();
        if bytes > RECORD_BYTES_MAX {
            return Err(AnnounceError::ValueTooLarge { bytes });
        }
        self.shared.rewrite(CandidateChange::Value(value)).await
    }

    /// Waits until another process requests to resign, or to transfer leadership to a candidate that waits. As long as the request is stored,
    /// each call returns it. A request that names no waiting candidate is deleted.
    ///
    /// Stop the work, then [`Term::accept`], [`Term::resign`] or [`Term::transfer`]; or [`Term::decline`]. Never returns once the term is lost.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost.
    pub async fn step_down_requested(&self) -> StepDownRequest {
        loop {
            let stored = self.shared.stored_request().await;
            match self.shared.resolve(&stored).await {
                Ok(Some(request)) => return request,
                // The candidate does not wait any more: the sender learns from the deletion that nothing comes of it.
                Ok(None) => match self.shared.rewrite(CandidateChange::Request(None)).await {
                    Ok(()) => continue,
                    Err(error) => debug!(%error, "step-down request not deleted"),
                },
                Err(error) => debug!(%error, "requested candidate not read"),
            }
            // The end of the term ends the retries.
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Steps down as requested: transfers leadership, or resigns if no candidate was chosen or it does not wait any more. Stop the work
    /// before.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`]. The term is over in any case.
    ///
    /// # Cancellation
    ///
    /// The term is over, with or without a transfer.
    pub async fn accept(self, request: &StepDownRequest) -> Result<(), ReleaseError> {
        self.step_down(request).await
    }

    /// Keeps leading, and deletes the request.
    ///
    /// # Errors
    ///
    /// [`AnnounceError`]; the request may stay stored.
    ///
    /// # Cancellation
    ///
    /// The request may have been deleted or not.
    pub async fn decline(&self, _request: StepDownRequest) -> Result<(), AnnounceError> {
        self.shared.rewrite(CandidateChange::Request(None)).await
    }

    /// Releases leadership, and waits until the store has confirmed it. Stop the work before.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`]. The term is over in any case.
    ///
    /// # Cancellation
    ///
    /// The release continues in the background.
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.release().await
    }

    /// Transfers leadership to a candidate that waits, in one transaction: there is no moment without a leader. Stop the work before.
    ///
    /// Candidates that are older than the chosen one are overtaken, and enter the queue again behind it.
    ///
    /// # Errors
    ///
    /// [`TransferError`]; only after [`TransferError::NotACandidate`] this process still leads.
    ///
    /// # Cancellation
    ///
    /// The term is over, with or without a transfer.
    pub async fn transfer(self, to: &Candidate) -> Result<(), TransferError> {
        self.check()?;
        match self.shared.hold.hand_over((to.place, to.token)).await {
            Ok(Ok(Transferred::Done)) => Ok(()),
            Ok(Ok(Transferred::HeirGone)) => Err(TransferError::NotACandidate(Box::new(self))),
            Ok(Ok(Transferred::HolderGone)) => Err(TransferError::Lost(self.lost_by(LossReason::Deleted))),
            Ok(Err(error)) => Err(TransferError::Ambiguous(error)),
            Err(lost) => Err(TransferError::Lost(lost)),
        }
    }

    /// The same as [`Term::resign`], for a term that is shared.
    pub(super) async fn release(&self) -> Result<(), ReleaseError> {
        self.shared.hold.release().await
    }

    /// The same as [`Term::accept`], for a term that is shared.
    pub(super) async fn step_down(&self, request: &StepDownRequest) -> Result<(), ReleaseError> {
        let hold = &self.shared.hold;
        let Some(to) = &request.transfer_to else { return self.release().await };
        // Holders of views must see the end before the store can name the next leader.
        hold.withdraw();
        match hold.hand_over((to.place, to.token)).await {
            Ok(Ok(Transferred::Done)) => Ok(()),
            Ok(Ok(Transferred::HeirGone | Transferred::HolderGone) | Err(_)) => self.release().await,
            Err(lost) => Err(ReleaseError::Lost(lost)),
        }
    }
}

impl TermShared {
    /// Waits for a request in the own record.
    async fn stored_request(&self) -> StoredStepDown {
        let mut changes = self.hold.changes();
        loop {
            // Marked before the read, so that a change after it wakes this.
            changes.mark_unchanged();
            if let Some(request) = self.newest().record.asked.as_ref().and_then(StoredStepDown::of) {
                return request;
            }
            if changes.changed().await.is_err() {
                // The driver has ended, so the record cannot change any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reads the chosen candidate; none if it does not wait any more.
    async fn resolve(&self, stored: &StoredStepDown) -> Result<Option<StepDownRequest>, StoreError> {
        match stored {
            StoredStepDown::Resign { by } => Ok(Some(StepDownRequest { by: by.clone(), transfer_to: None })),
            StoredStepDown::Transfer { to, .. } if *to == self.hold.key() => Ok(None),
            StoredStepDown::Transfer { to, by } => {
                let candidate = self.election.candidate(*to).await?;
                Ok(candidate
                    .map(|candidate| StepDownRequest { by: by.clone(), transfer_to: Some(candidate) }))
            }
        }
    }

    /// Changes the own record. The end of the lease ends the retries.
    async fn rewrite(&self, change: CandidateChange) -> Result<(), AnnounceError> {
        let (key, token) = (self.hold.fence().key, self.hold.token());
        let newest = self.newest();
        let value = newest.record.encode();
        let update = CandidateUpdate { change, own: Some(newest.record) };
        let rewrite =
            Rewrite::new(key, token, update, RewriteLimit::UntilApplied).known(&value, newest.modified);
        let rewritten = match rewrite {
            Ok(mut rewrite) => {
                let clock = &self.election.elections.clock;
                let run = retry::run("candidate record", self.election.store(), clock, &mut rewrite);
                self.hold.run(run).await.map_err(AnnounceError::Lost)?
            }
            Err(result) => result,
        };
        match rewritten {
            Ok(Rewritten::Stored(value, modified)) => {
                // A record that was just encoded can be decoded.
                if let Ok(record) = CandidateRecord::decode(&value) {
                    self.learn(CandidateVersion { record, modified });
                }
                Ok(())
            }
            Ok(Rewritten::Gone) => Err(AnnounceError::Lost(self.hold.lost_by(LossReason::Deleted))),
            Ok(Rewritten::Contended) => unreachable!("an owner's rewrite has no bound"),
            Err(RewriteError::Store(error)) => Err(AnnounceError::Store(error)),
            Err(RewriteError::Unreadable(_)) => unreachable!("the owner replaces what cannot be read"),
        }
    }

    /// The newest known version of the own record: the one of the last put, or one that was watched since.
    fn newest(&self) -> CandidateVersion {
        let changed = match &*self.hold.changes().borrow() {
            WaiterStatus::Holding { changed, .. } => changed.clone(),
            WaiterStatus::Entering | WaiterStatus::Waiting | WaiterStatus::Ended(_) => None,
        };
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = changed.filter(|pair| pair.modified > newest.modified) {
            // A record that cannot be read is ignored: the next rewrite replaces it.
            if let Ok(record) = CandidateRecord::decode(&pair.value) {
                *newest = CandidateVersion { record, modified: pair.modified };
            }
        }
        newest.clone()
    }

    fn learn(&self, newer: CandidateVersion) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newer.modified > newest.modified {
            *newest = newer;
        }
    }
}

/// A candidate's record, and the revision of its last put.
#[derive(Clone, Debug)]
struct CandidateVersion {
    record: CandidateRecord,
    modified: Revision,
}

impl Deref for Term {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.shared.hold
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({}, {}, {:?} left)", self.name(), self.token(), self.remaining())
    }
}
