//! A lock that is held.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::layout::Place;
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use thiserror::Error;

use crate::line::{Seat, SeatEnd, SeatState};
use crate::session::{Loan, LoanEnd};
use crate::store::LeaseId;

/// How long a release waits for the store before it goes on in the background.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// A lock that is held, until it is released, dropped or lost.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    seat: Seat,
    place: Place,
    token: Token,
}

/// Why a lock is not held any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LockLost {
    /// The lease was not renewed in time: the store may give the lock to somebody else any moment.
    #[error("the lock's lease was not renewed in time")]
    Lapsed,
    /// The store has ended the lease: somebody revoked it, or its time was over.
    #[error("the store has ended the lock's lease")]
    LeaseGone,
    /// Somebody deleted our place in the line.
    #[error("the lock was broken by somebody else")]
    Broken,
    /// The session was closed.
    #[error("the lock's session was closed")]
    Closed,
}

impl From<LoanEnd> for LockLost {
    fn from(end: LoanEnd) -> LockLost {
        match end {
            LoanEnd::Lapsed => LockLost::Lapsed,
            LoanEnd::Gone => LockLost::LeaseGone,
            LoanEnd::Closed => LockLost::Closed,
        }
    }
}

/// Why a release cannot say that the lock was held until then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before. Nothing of anybody else's was released.
    #[error(transparent)]
    Lost(LockLost),
    /// The store did not answer. The release goes on in the background, and the lock ends by itself within the TTL.
    #[error(
        "the store did not answer; the lock is released in the background, or ends by itself within {ttl:?}"
    )]
    NotYet {
        /// The lease's TTL.
        ttl: Duration,
    },
}

impl Guard {
    pub(super) fn new(seat: Seat, place: Place, token: Token) -> Guard {
        Guard { seat, place, token }
    }

    /// What to show to whatever is protected: larger than that of every earlier holder.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The key of our place in the line.
    pub fn key(&self) -> Bytes {
        self.seat.key(self.place)
    }

    /// The lease that the lock hangs on.
    pub fn lease(&self) -> LeaseId {
        self.loan().lease()
    }

    /// The TTL that the store granted.
    pub fn ttl(&self) -> Duration {
        self.loan().ttl()
    }

    /// Whether the lock may be relied upon. Once false, always false.
    pub fn is_valid(&self) -> bool {
        self.end().is_none()
    }

    /// How long it is certainly valid, if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        if self.is_valid() { self.loan().remaining() } else { Duration::ZERO }
    }

    /// Until when it is certainly valid, if nothing is renewed, on the session's clock.
    pub fn valid_until(&self) -> Moment {
        self.loan().valid_until()
    }

    /// Waits until the lock is lost, and says why. Comes on time, even while calls to the store hang.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn lost(&self) -> LockLost {
        let is_over = |state: &SeatState| matches!(state, SeatState::Over(_));
        tokio::select! {
            biased;
            end = self.loan().lost() => end.into(),
            over = self.seat.wait_for(is_over) => match over {
                Some(SeatState::Over(end)) => lost_by(&end),
                Some(_) | None => LockLost::Closed,
            },
        }
    }

    /// Runs a future, and drops it the moment the lock cannot be proven any more.
    ///
    /// It is never polled while the lock is not valid, also not once after a suspend. Blocking code inside it cannot be stopped.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, LockLost> {
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

    /// Gives the lock back, and waits until the store has taken it. Stop the work before.
    pub async fn release(self) -> Result<(), ReleaseError> {
        if let Some(end) = self.end() {
            return Err(ReleaseError::Lost(end));
        }
        let ttl = self.ttl();
        self.seat.leave();
        let is_over = |state: &SeatState| matches!(state, SeatState::Over(_));
        match tokio::time::timeout(RELEASE_WITHIN, self.seat.wait_for(is_over)).await {
            Ok(Some(SeatState::Over(SeatEnd::Left { was_there: true }))) => Ok(()),
            Ok(Some(SeatState::Over(end))) => Err(ReleaseError::Lost(lost_by(&end))),
            Ok(Some(_) | None) => Err(ReleaseError::Lost(LockLost::Closed)),
            Err(_) => Err(ReleaseError::NotYet { ttl }),
        }
    }

    fn end(&self) -> Option<LockLost> {
        if let Some(end) = self.loan().end() {
            return Some(end.into());
        }
        self.seat.end().map(|end| lost_by(&end))
    }

    fn loan(&self) -> &Loan {
        self.seat.loan()
    }
}

fn lost_by(end: &SeatEnd) -> LockLost {
    match end {
        SeatEnd::Lease(end) => (*end).into(),
        SeatEnd::Deleted | SeatEnd::Left { .. } | SeatEnd::Refused(_) => LockLost::Broken,
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({}, {:?} left)", self.token, self.remaining())
    }
}
