//! Asking for a lock: how long to wait, on which terms, and how it can end.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tenure_core::hold::TtlTooShort;
use tenure_core::name::BadName;
use tenure_core::record::{HolderRecord, Record, WallTime};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::Guard;
use crate::line::{Desk, Seat, SeatEnd, SeatState};
use crate::session::{LendError, LoanEnd};
use crate::store::{Invalid, StoreError};

/// How long the store may take to answer one who does not want to wait: long enough for an election of etcd.
const STORE_WITHIN: Duration = Duration::from_secs(10);

/// How long a refused try waits for its place to be gone, so that nobody sees it afterwards. It leaves in the background anyway.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A lock that is about to be asked for.
#[must_use = "nothing is locked before this is awaited"]
pub struct Acquire {
    desk: Desk,
    holder: HolderRecord,
    line: Result<Bytes, BadName>,
    ttl: Option<Duration>,
    patience: Patience,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Endless,
    UpTo(Duration),
    None,
}

/// Why a lock is not held.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// No lock has such a name. Nothing was sent.
    #[error(transparent)]
    Name(#[from] BadName),
    /// Somebody else holds it, and we did not want to wait (any longer).
    #[error("somebody else holds the lock")]
    Held,
    /// The lease was lost while we waited; nothing was held. Ask again for another turn.
    #[error("the session's lease was lost while waiting: {0}")]
    SessionLost(LoanEnd),
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
    /// The store did not answer in time. Whatever it may still do is undone in the background.
    #[error("the store did not answer within {within:?}")]
    Unavailable {
        /// How long was waited.
        within: Duration,
    },
    /// The store will never let us stand in this line.
    #[error("the store refuses the lock")]
    Store(#[source] StoreError),
    /// The TTL cannot be held. Nothing was sent.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// No store would grant this TTL. Nothing was sent.
    #[error("such a lease cannot be had: {0}")]
    Invalid(Invalid),
}

impl From<LendError> for LockError {
    fn from(error: LendError) -> LockError {
        match error {
            LendError::NotYet { within } => LockError::Unavailable { within },
            LendError::Store(error) => LockError::Store(error),
            LendError::Closed => LockError::Closed,
            LendError::Ttl(error) => LockError::Ttl(error),
            LendError::Invalid(invalid) => LockError::Invalid(invalid),
        }
    }
}

impl Acquire {
    pub(super) fn new(desk: Desk, holder: HolderRecord, line: Result<Bytes, BadName>) -> Acquire {
        Acquire { desk, holder, line, ttl: None, patience: Patience::Endless }
    }

    /// With a lease of its own length; the session's otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Acquire {
        self.ttl = Some(ttl);
        self
    }

    /// Waits this long for those who hold it or wait before us.
    pub fn wait_up_to(mut self, wait: Duration) -> Acquire {
        self.patience = Patience::UpTo(wait);
        self
    }

    /// Does not wait: [`LockError::Held`] if somebody else holds it.
    pub fn try_once(mut self) -> Acquire {
        self.patience = Patience::None;
        self
    }

    /// Why it is locked, for those who look.
    pub fn reason(mut self, reason: impl Into<String>) -> Acquire {
        self.holder.reason = reason.into();
        self
    }

    async fn ask(mut self) -> Result<Guard, LockError> {
        let line = self.line.clone()?;
        let (deadline, within) = match self.patience {
            Patience::Endless => (None, Duration::MAX),
            Patience::UpTo(wait) => (Some(Instant::now() + wait), wait),
            Patience::None => (Some(Instant::now() + STORE_WITHIN), STORE_WITHIN),
        };
        self.holder.since = wall_time();
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.duration_since(Instant::now()));
            let loan = self.desk.loan(self.ttl, left).await?;
            let seat = self.desk.stand(line.clone(), self.holder.mode, self.holder.encode(), loan);
            match self.wait(seat, deadline, within).await {
                Turn::Decided(answer) => return answer,
                // The lease was gone before we stood on it: no turn is lost.
                Turn::NeverStood => {}
            }
        }
    }

    async fn wait(&self, seat: Seat, deadline: Option<Instant>, within: Duration) -> Turn {
        let stands = |state: &SeatState| !matches!(state, SeatState::Entering);
        let is_decided = |state: &SeatState| match state {
            SeatState::Holds { .. } | SeatState::Over(_) => true,
            SeatState::Waits => self.patience == Patience::None,
            SeatState::Entering => false,
        };
        let mut has_stood = false;
        let deciding = async {
            let first = seat.wait_for(stands).await;
            has_stood = !matches!(first, Some(SeatState::Over(_)));
            seat.wait_for(is_decided).await
        };
        let decided = match deadline {
            Some(deadline) => timeout_at(deadline, deciding).await,
            None => Ok(deciding.await),
        };
        Turn::Decided(match decided {
            Ok(Some(SeatState::Holds { place, token, .. })) => Ok(Guard::new(seat, place, token)),
            Ok(Some(SeatState::Waits)) => {
                seat.leave();
                let is_over = |state: &SeatState| matches!(state, SeatState::Over(_));
                // Who is not gone by then goes in the background.
                let _ = tokio::time::timeout(LEAVE_WITHIN, seat.wait_for(is_over)).await;
                Err(LockError::Held)
            }
            Ok(Some(SeatState::Over(SeatEnd::Refused(error)))) => Err(LockError::Store(error)),
            Ok(Some(SeatState::Over(SeatEnd::Lease(LoanEnd::Closed)))) => Err(LockError::Closed),
            Ok(Some(SeatState::Over(SeatEnd::Lease(_)))) if !has_stood => return Turn::NeverStood,
            Ok(Some(SeatState::Over(SeatEnd::Lease(end)))) => Err(LockError::SessionLost(end)),
            Ok(
                Some(SeatState::Over(SeatEnd::Deleted | SeatEnd::Left { .. }) | SeatState::Entering) | None,
            ) => Err(LockError::Closed),
            Err(_) => match seat.state() {
                SeatState::Entering => Err(LockError::Unavailable { within }),
                SeatState::Waits | SeatState::Holds { .. } | SeatState::Over(_) => Err(LockError::Held),
            },
        })
    }
}

/// What came of standing in line once.
enum Turn {
    Decided(Result<Guard, LockError>),
    NeverStood,
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

/// The time on the wall, for people.
fn wall_time() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
