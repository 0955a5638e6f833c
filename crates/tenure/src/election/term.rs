//! A term of leadership.

use std::fmt;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::fence::Fence;
use tenure_core::layout::Place;
use tenure_core::record::{CandidateRecord, RECORD_BYTES_MAX, Record};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use thiserror::Error;
use tracing::debug;

use super::rewrite::{RewriteError, Seen, rewrite};
use super::{Ask, Candidate, Dismissal, Election};
use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::line::{Held, Lost, Outcome, ReleaseError, SeatState};
use crate::store::{LeaseId, StoreError};

/// Rests between tries to tell another value; the end of the term ends the trying.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(1),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// How long to wait for a store that did not answer a question: it is somebody's wish, not ours, so there is no hurry.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Leadership, until it is given up, dropped or lost.
#[must_use = "a term that is dropped is resigned"]
pub struct Term {
    election: Election,
    held: Held,
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
    #[error("leadership was lost: {0}")]
    Lost(Lost),
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
    #[error("leadership was lost: {0}")]
    Lost(Lost),
    /// The store cannot be asked any more, so nobody knows. The term is over.
    #[error("the store failed during the handover")]
    Store(#[source] StoreError),
}

impl Term {
    pub(super) fn new(election: Election, held: Held, record: CandidateRecord) -> Term {
        let seen = Mutex::new(Seen { record, modified: held.token().0, is_stored: true });
        Term { election, held, seen }
    }

    /// The election.
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// What to show to whatever is protected: larger than that of every earlier leader.
    pub fn token(&self) -> Token {
        self.held.token()
    }

    /// Where it stands in line; with the token, what [`Campaign::resume`](super::Campaign::resume) needs after a restart.
    pub fn place(&self) -> Place {
        self.held.place()
    }

    /// Guards writes inside the store: they happen only while this term lasts.
    pub fn fence(&self) -> Fence {
        self.held.fence()
    }

    /// The lease that leadership hangs on.
    pub fn lease(&self) -> LeaseId {
        self.held.loan().lease()
    }

    /// The TTL that the store granted.
    pub fn ttl(&self) -> Duration {
        self.held.loan().ttl()
    }

    /// What everybody is told, as far as we know.
    pub fn value(&self) -> String {
        self.newest().record.value
    }

    /// Whether leadership may be relied upon. Once false, always false.
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// How long it is certainly valid, if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Until when it is certainly valid, if nothing is renewed, on the session's clock.
    pub fn valid_until(&self) -> Moment {
        self.held.loan().valid_until()
    }

    /// When the last request was sent that the store has acknowledged, on the session's clock: nobody else can lead before this and the TTL.
    pub fn acknowledged(&self) -> Moment {
        self.held.loan().acknowledged()
    }

    /// Waits for an acknowledgement that was sent after `before`, and says when. Never comes once leadership is lost.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn acknowledged_after(&self, before: Moment) -> Moment {
        self.held.loan().acknowledged_after(before).await
    }

    /// Waits until leadership is lost, and says why. Comes on time, even while calls to the store hang.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn lost(&self) -> Lost {
        self.held.lost().await
    }

    /// Runs a future, and drops it the moment leadership cannot be proven any more.
    ///
    /// It is never polled while the term is not valid, also not once after a suspend. Blocking code inside it cannot be stopped.
    ///
    /// # Cancellation
    ///
    /// Drops the future too; the term goes on.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        self.held.run(work).await
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
        self.rewrite(|record| record.value.clone_from(&value)).await
    }

    /// Waits until somebody asks us to go, and says what they ask. As long as the wish stands, it comes at once.
    ///
    /// Obey with [`Term::resign`] or [`Term::transfer_to`], or [`Term::decline`]. Never comes once the term is lost.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost.
    pub async fn asked(&self) -> Ask {
        let mut news = self.held.news();
        loop {
            news.mark_unchanged();
            if let Some(ask) = self.newest().record.asked.as_ref().and_then(Ask::of) {
                return ask;
            }
            if news.changed().await.is_err() {
                // The desk is gone, and nobody is left to ask.
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
        self.rewrite(|record| record.asked = None).await
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
        if let Some(lost) = self.held.end() {
            return Err(TransferError::Lost(lost));
        }
        match self.held.hand_over((heir.place, heir.token)).await {
            Ok(Ok(Outcome::Done)) => Ok(()),
            Ok(Ok(Outcome::HeirGone)) => Err(TransferError::HeirGone(Box::new(self))),
            Ok(Ok(Outcome::HolderGone)) => Err(TransferError::Lost(Lost::Broken)),
            Ok(Err(error)) => Err(TransferError::Store(error)),
            Err(lost) => Err(TransferError::Lost(lost)),
        }
    }

    /// The same as [`Term::resign`], for a term that others may look at.
    pub(super) async fn step_down(&self) -> Result<(), ReleaseError> {
        self.held.release().await
    }

    /// The same as [`Term::obey`], for a term that others may look at: they are told before the store is.
    pub(super) async fn go(&self, dismissal: &Dismissal) -> Result<(), ReleaseError> {
        match dismissal.heir {
            Some(heir) => {
                self.held.withdraw();
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
    async fn hand_over(&self, heir: (Place, Token)) -> Result<(), ReleaseError> {
        match self.held.hand_over(heir).await {
            Ok(Ok(Outcome::Done)) => Ok(()),
            Ok(Ok(Outcome::HeirGone | Outcome::HolderGone) | Err(_)) => self.step_down().await,
            Err(lost) => Err(ReleaseError::Lost(lost)),
        }
    }

    async fn rewrite(&self, change: impl Fn(&mut CandidateRecord)) -> Result<(), ProclaimError> {
        match self.held.run(self.rewritten(&change)).await {
            Ok(Ok(Some(seen))) => {
                self.learn(seen);
                Ok(())
            }
            Ok(Ok(None)) => Err(ProclaimError::Lost(Lost::Broken)),
            Ok(Err(error)) => Err(ProclaimError::Store(error)),
            Err(lost) => Err(ProclaimError::Lost(lost)),
        }
    }

    /// Changes our record, as often as it takes.
    async fn rewritten(&self, change: impl Fn(&mut CandidateRecord)) -> Result<Option<Seen>, StoreError> {
        let (key, token) = (self.held.fence().key, self.token());
        let mut backoff = Backoff::new(RETRY);
        let newest = self.newest();
        let mut seen = Some(newest.clone());
        loop {
            let own = Some(&newest.record);
            match rewrite(self.election.store(), &key, token, seen.take(), own, &change).await {
                Ok(done) => return Ok(done),
                Err(RewriteError::Store(error))
                    if error.is_fatal() || matches!(error, StoreError::Invalid(_)) =>
                {
                    return Err(error);
                }
                Err(RewriteError::Store(error)) => debug!(%error, "record was not changed yet"),
                Err(RewriteError::Unreadable(_)) => {
                    unreachable!("what cannot be read is replaced by our own")
                }
            }
            tokio::time::sleep(backoff.after_failure(BootClock.now(), dice::throw(), None)).await;
        }
    }

    /// The newest that is known of our record: what we put, or what was seen since.
    fn newest(&self) -> Seen {
        let touched = match &*self.held.news().borrow() {
            SeatState::Holds { touched, .. } => touched.clone(),
            SeatState::Entering | SeatState::Waits | SeatState::Over(_) => None,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = touched.filter(|pair| pair.modified > seen.modified) {
            // What cannot be read says nothing; the revision does.
            if let Ok(record) = CandidateRecord::decode(&pair.value) {
                *seen = Seen { record, modified: pair.modified, is_stored: true };
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

/// Whom somebody wants to lead instead.
enum Heir {
    Anybody,
    Named((Place, Token)),
    Gone,
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({}, {}, {:?} left)", self.election.name(), self.token(), self.remaining())
    }
}
