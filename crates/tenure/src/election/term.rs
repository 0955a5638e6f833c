//! A term of leadership.

use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::layout::QueueKey;
use tenure_core::queue::{
    CandidateChange, CandidateUpdate, Rewrite, RewriteError, RewriteLimit, Rewritten, Transferred,
};
use tenure_core::record::{CandidateRecord, RECORD_BYTES_MAX, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tracing::debug;

use super::{Ask, Candidate, Dismissal, Election};
use crate::hold::{Hold, LossReason, Lost, ReleaseError};
use crate::queue::{QueueHold, WaiterStatus};
use crate::retry;
use crate::store::{Revision, StoreError};

/// How long to wait for a store that did not answer a question: it is somebody's wish, not ours, so there is no hurry.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Leadership, until it is given up, dropped or lost. Its methods are those of [`Hold`] and [`Validity`](crate::Validity) too.
#[must_use = "a term that is dropped is resigned"]
pub struct Term {
    election: Election,
    hold: QueueHold,
    /// The newest that is known of our own record.
    seen: Mutex<Seen>,
}

/// Why a new value was not told.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ProclaimError {
    /// The value is too large for others to read. Nothing was sent.
    #[error("a candidate's record of {bytes} bytes, at most {RECORD_BYTES_MAX} are read")]
    TooLarge {
        /// How large it would be.
        bytes: usize,
    },
    /// We do not lead any more.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store will never take it.
    #[error("the store refuses the value")]
    Store(#[source] StoreError),
}

/// Why leadership was not handed over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The heir is no candidate any more. We still lead.
    #[error("the heir is not a candidate any more")]
    HeirGone(Box<Term>),
    /// We do not lead any more; nothing was handed over by us.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store cannot be asked any more, so nobody knows. The term is over.
    #[error("the store failed during the handover")]
    Store(#[source] StoreError),
}

impl Term {
    pub(super) fn new(election: Election, hold: QueueHold, record: CandidateRecord) -> Term {
        let seen = Mutex::new(Seen { record, modified: hold.token().0 });
        Term { election, hold, seen }
    }

    /// The election.
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// Where it stands in line; with the token, what [`Campaign::resume`](super::Campaign::resume) needs after a restart.
    pub fn place(&self) -> QueueKey {
        self.hold.key()
    }

    /// What everybody is told, as far as we know.
    pub fn value(&self) -> String {
        self.newest().record.value
    }

    /// Tells everybody another value, with the same token. Asks the store until it is done or the term is over.
    ///
    /// # Cancellation
    ///
    /// It may or may not have been told.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), ProclaimError> {
        let value = value.into();
        let record = CandidateRecord { value: value.clone(), ..self.newest().record };
        let bytes = record.encode().len();
        if bytes > RECORD_BYTES_MAX {
            return Err(ProclaimError::TooLarge { bytes });
        }
        self.rewrite(CandidateChange::Value(value)).await
    }

    /// Waits until somebody asks us to go, and says what they ask. As long as the wish stands, it comes at once.
    ///
    /// Obey with [`Term::resign`] or [`Term::transfer_to`], or [`Term::decline`]. Never comes once the term is lost.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost.
    pub async fn asked(&self) -> Ask {
        let mut news = self.hold.changes();
        loop {
            news.mark_unchanged();
            if let Some(ask) = self.newest().record.asked.as_ref().and_then(Ask::of) {
                return ask;
            }
            if news.changed().await.is_err() {
                // The driver has ended, so the term cannot be changed any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until somebody asks for what can be done: to resign, or to hand over to a candidate who is there. A wish that cannot be obeyed is
    /// taken away.
    ///
    /// Stop the work, then [`Term::obey`]. Never comes once the term is lost.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost.
    pub async fn dismissed(&self) -> Dismissal {
        loop {
            let ask = self.asked().await;
            match self.heir(&ask).await {
                Ok(Heir::Anybody) => return Dismissal { ask, heir: None },
                Ok(Heir::Named(heir)) => return Dismissal { ask, heir: Some(heir) },
                // It cannot be obeyed, so it need not stand there any more.
                Ok(Heir::Gone) => match self.decline().await {
                    Ok(()) => continue,
                    Err(error) => debug!(%error, "wish was not taken away"),
                },
                Err(error) => debug!(%error, "heir was not looked up"),
            }
            // The end of the term ends the trying.
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Goes as it was asked to: hands over, or resigns if the heir is not there any more. Stop the work before.
    ///
    /// # Cancellation
    ///
    /// The term is over, with or without a handover.
    pub async fn obey(self, dismissal: &Dismissal) -> Result<(), ReleaseError> {
        self.go(dismissal).await
    }

    /// Goes on leading although somebody asked us to go, and takes their wish away.
    pub async fn decline(&self) -> Result<(), ProclaimError> {
        self.rewrite(CandidateChange::Request(None)).await
    }

    /// Gives leadership up, and waits until the store has taken it. Stop the work before.
    ///
    /// # Cancellation
    ///
    /// It goes on in the background.
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.step_down().await
    }

    /// Hands leadership to a candidate that waits, in one step: there is no moment without a leader. Stop the work before.
    ///
    /// Candidates that came before the heir are passed over, and stand in line again behind it.
    ///
    /// # Cancellation
    ///
    /// The term is over, with or without a handover.
    pub async fn transfer_to(self, heir: &Candidate) -> Result<(), TransferError> {
        self.check()?;
        match self.hold.hand_over((heir.place, heir.token)).await {
            Ok(Ok(Transferred::Done)) => Ok(()),
            Ok(Ok(Transferred::HeirGone)) => Err(TransferError::HeirGone(Box::new(self))),
            Ok(Ok(Transferred::HolderGone)) => Err(TransferError::Lost(self.lost_by(LossReason::Deleted))),
            Ok(Err(error)) => Err(TransferError::Store(error)),
            Err(lost) => Err(TransferError::Lost(lost)),
        }
    }

    /// The same as [`Term::resign`], for a term that others may look at.
    pub(super) async fn step_down(&self) -> Result<(), ReleaseError> {
        self.hold.release().await
    }

    /// The same as [`Term::obey`], for a term that others may look at: they are told before the store is.
    pub(super) async fn go(&self, dismissal: &Dismissal) -> Result<(), ReleaseError> {
        match dismissal.heir {
            Some(heir) => {
                self.hold.withdraw();
                self.hand_over(heir).await
            }
            None => self.step_down().await,
        }
    }

    /// Who would lead if a wish were obeyed.
    async fn heir(&self, ask: &Ask) -> Result<Heir, StoreError> {
        match ask {
            Ask::Resign { .. } => Ok(Heir::Anybody),
            Ask::Transfer { heir, .. } if *heir == self.place() => Ok(Heir::Gone),
            Ask::Transfer { heir, .. } => {
                let found = self.election.candidate(*heir).await?;
                Ok(found.map_or(Heir::Gone, |heir| Heir::Named((heir.place, heir.token))))
            }
        }
    }

    /// Hands over to a place, or steps down if that is gone.
    async fn hand_over(&self, heir: (QueueKey, Token)) -> Result<(), ReleaseError> {
        match self.hold.hand_over(heir).await {
            Ok(Ok(Transferred::Done)) => Ok(()),
            Ok(Ok(Transferred::HeirGone | Transferred::HolderGone) | Err(_)) => self.step_down().await,
            Err(lost) => Err(ReleaseError::Lost(lost)),
        }
    }

    /// Changes the own record. The end of the lease ends the retries.
    async fn rewrite(&self, change: CandidateChange) -> Result<(), ProclaimError> {
        let (key, token) = (self.hold.fence().key, self.token());
        let newest = self.newest();
        let value = newest.record.encode();
        let update = CandidateUpdate { change, own: Some(newest.record) };
        let rewrite =
            Rewrite::new(key, token, update, RewriteLimit::UntilApplied).known(&value, newest.modified);
        let rewritten = match rewrite {
            Ok(mut rewrite) => {
                let clock = &self.election.elections.clock;
                let run = retry::run("candidate record", self.election.store(), clock, &mut rewrite);
                self.hold.run(run).await.map_err(ProclaimError::Lost)?
            }
            Err(result) => result,
        };
        match rewritten {
            Ok(Rewritten::Stored(value, modified)) => {
                // What was just put can be read.
                if let Ok(record) = CandidateRecord::decode(&value) {
                    self.learn(Seen { record, modified });
                }
                Ok(())
            }
            Ok(Rewritten::Gone) => Err(ProclaimError::Lost(self.lost_by(LossReason::Deleted))),
            Ok(Rewritten::Contended) => unreachable!("an owner's rewrite has no bound"),
            Err(RewriteError::Store(error)) => Err(ProclaimError::Store(error)),
            Err(RewriteError::Unreadable(_)) => unreachable!("the owner replaces what cannot be read"),
        }
    }

    /// The newest that is known of our record: what we put, or what was seen since.
    fn newest(&self) -> Seen {
        let touched = match &*self.hold.changes().borrow() {
            WaiterStatus::Holding { changed, .. } => changed.clone(),
            WaiterStatus::Entering | WaiterStatus::Waiting | WaiterStatus::Ended(_) => None,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = touched.filter(|pair| pair.modified > seen.modified) {
            // What cannot be read says nothing; the revision does.
            if let Ok(record) = CandidateRecord::decode(&pair.value) {
                *seen = Seen { record, modified: pair.modified };
            }
        }
        seen.clone()
    }

    fn learn(&self, newer: Seen) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if newer.modified > seen.modified {
            *seen = newer;
        }
    }
}

/// A candidate's record, and the revision of its last put.
#[derive(Clone, Debug)]
struct Seen {
    record: CandidateRecord,
    modified: Revision,
}

/// Whom somebody wants to lead instead.
enum Heir {
    Anybody,
    Named((QueueKey, Token)),
    Gone,
}

impl Deref for Term {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({}, {}, {:?} left)", self.election.name(), self.token(), self.remaining())
    }
}
