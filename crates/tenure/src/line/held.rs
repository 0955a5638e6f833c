//! A place that holds, until it is given up or lost: what locks and terms of leadership have in common.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tenure_core::fence::Fence;
use tenure_core::layout::Place;
use tenure_core::revision::Token;
use thiserror::Error;

use super::ask::Others;
use super::{Outcome, Seat, SeatEnd, SeatState};
use crate::news;
use crate::session::{Loan, LoanEnd};
use crate::store::{KeyValue, StoreError};

/// How long a release waits for the store before it goes on in the background.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// A place that holds. Dropping it leaves the line.
pub(crate) struct Held {
    seat: Seat,
    place: Place,
    token: Token,
    others: Others,
    arrival: Arrival,
    /// Set when it is on its way out: whoever shares it must not rely on it any more.
    is_given_up: AtomicBool,
}

/// How it came to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// Nobody was before it.
    AtOnce,
    /// Somebody was, and others may have come behind it meanwhile.
    AfterOthers,
}

/// Why something is not held any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Lost {
    /// The lease was not renewed in time: the store may let somebody else hold any moment.
    #[error("its lease was not renewed in time")]
    Lapsed,
    /// The store has ended the lease: somebody revoked it, or its time was over.
    #[error("the store has ended its lease")]
    LeaseGone,
    /// Somebody deleted our place in the line.
    #[error("somebody else has taken its place away")]
    Broken,
    /// The session was closed.
    #[error("its session was closed")]
    Closed,
    /// Its holder gave it up.
    #[error("its holder gave it up")]
    GivenUp,
}

impl From<LoanEnd> for Lost {
    fn from(end: LoanEnd) -> Lost {
        match end {
            LoanEnd::Lapsed => Lost::Lapsed,
            LoanEnd::Gone => Lost::LeaseGone,
            LoanEnd::Closed => Lost::Closed,
        }
    }
}

/// Why giving up cannot say that it was held until then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before. Nothing of anybody else's was released.
    #[error("it was lost before: {0}")]
    Lost(Lost),
    /// The store did not answer. The release goes on in the background, and the lock ends by itself within the TTL.
    #[error(
        "the store did not answer; the lock is released in the background, or ends by itself within {ttl:?}"
    )]
    NotYet {
        /// The lease's TTL.
        ttl: Duration,
    },
}

impl Held {
    pub(super) fn new(seat: Seat, (place, token): (Place, Token), others: Others, arrival: Arrival) -> Held {
        Held { seat, place, token, others, arrival, is_given_up: AtomicBool::new(false) }
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The preferred of the line at the revision at which it was our turn, if they are known.
    pub(crate) fn others(&self) -> Option<&[KeyValue]> {
        self.others.as_deref()
    }

    /// Records in the background that a term began: the queue key contains this from now on.
    pub(crate) fn record_term(&self) {
        self.seat.shared.record_term(self.seat.slot, self.seat.ticket, self.arrival);
    }

    /// The key of our place, and since when it is there.
    pub(crate) fn fence(&self) -> Fence {
        Fence { key: self.seat.key(self.place), token: self.token }
    }

    /// Hands the turn to another place of the line. Only the end of the lease ends the asking: that our place is gone may be our own doing.
    pub(crate) async fn hand_over(&self, heir: (Place, Token)) -> Result<Result<Outcome, StoreError>, Lost> {
        let handover = self.seat.handover((self.place, self.token), heir);
        tokio::select! {
            biased;
            outcome = handover.settle() => Ok(outcome),
            end = self.loan().lost() => Err(end.into()),
        }
    }

    /// What somebody else has put in our place, now and whenever that happens.
    pub(crate) fn news(&self) -> news::Receiver<SeatState> {
        self.seat.news()
    }

    /// Whether it may be relied upon. Once false, always false.
    pub(crate) fn is_valid(&self) -> bool {
        self.end().is_none()
    }

    /// How long it is certainly valid, if nothing is renewed.
    pub(crate) fn remaining(&self) -> Duration {
        if self.is_valid() { self.loan().remaining() } else { Duration::ZERO }
    }

    /// Waits until it is lost, and says why. Comes on time, even while calls to the store hang.
    pub(crate) async fn lost(&self) -> Lost {
        let is_over = |state: &SeatState| matches!(state, SeatState::Over(_));
        tokio::select! {
            biased;
            end = self.loan().lost() => end.into(),
            over = self.seat.wait_for(is_over) => match over {
                Some(SeatState::Over(end)) => lost_by(&end),
                Some(_) | None => Lost::Closed,
            },
        }
    }

    /// Runs a future and drops it the moment it is lost. It is never polled after that, also not once after a suspend.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        std::future::poll_fn(move |context| {
            if let Some(end) = self.end() {
                return Poll::Ready(Err(end));
            }
            if let Poll::Ready(end) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(end));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// From now on nobody can rely on it; the place is still there.
    pub(crate) fn withdraw(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Gives the place up, and waits until it is gone. It cannot be relied upon from the first poll on.
    pub(crate) async fn release(&self) -> Result<(), ReleaseError> {
        if let Some(end) = self.lost_by() {
            return Err(ReleaseError::Lost(end));
        }
        let ttl = self.loan().ttl();
        self.withdraw();
        self.seat.leave_at_once();
        let is_over = |state: &SeatState| matches!(state, SeatState::Over(_));
        match tokio::time::timeout(RELEASE_WITHIN, self.seat.wait_for(is_over)).await {
            Ok(Some(SeatState::Over(SeatEnd::Left { was_there: true }))) => Ok(()),
            // A lease that ended while we waited for the answer says more than that the place is gone.
            Ok(Some(SeatState::Over(end))) => {
                Err(ReleaseError::Lost(self.loan().end().map_or_else(|| lost_by(&end), Lost::from)))
            }
            Ok(Some(_) | None) => Err(ReleaseError::Lost(Lost::Closed)),
            Err(_) => Err(ReleaseError::NotYet { ttl }),
        }
    }

    /// Why it is lost; none if it is not.
    pub(crate) fn end(&self) -> Option<Lost> {
        let given_up = || self.is_given_up.load(Ordering::Acquire).then_some(Lost::GivenUp);
        self.lost_by().or_else(given_up)
    }

    /// Why it is lost, other than by its holder's will.
    fn lost_by(&self) -> Option<Lost> {
        if let Some(end) = self.loan().end() {
            return Some(end.into());
        }
        self.seat.end().map(|end| lost_by(&end))
    }

    pub(crate) fn loan(&self) -> &Loan {
        self.seat.loan()
    }
}

fn lost_by(end: &SeatEnd) -> Lost {
    match end {
        SeatEnd::Lease(end) => (*end).into(),
        SeatEnd::Deleted | SeatEnd::Left { .. } | SeatEnd::Refused(_) | SeatEnd::PermitsDiffer { .. } => {
            Lost::Broken
        }
    }
}
