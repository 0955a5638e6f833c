//! One turn in a line: standing, waiting, and how that can end.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::hold::TtlTooShort;
use tenure_core::layout::{Place, Rank};
use tenure_core::line::Mode;
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::handover::Outcome;
use super::held::{Arrival, Held};
use super::{Desk, Seat, SeatEnd, SeatState};
use crate::session::{LendError, LoanEnd};
use crate::store::{Invalid, StoreError};

/// How long the store may take to answer one who does not want to wait: long enough for an election of etcd.
const STORE_WITHIN: Duration = Duration::from_secs(10);

/// How long a refused try waits for its place to be gone, so that nobody sees it afterwards. It leaves in the background anyway.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// How long to wait for those who are before us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Endless,
    UpTo(Duration),
    /// Decide on the first complete reply of the store.
    None,
}

impl Patience {
    /// A bounded wait. A wait of zero is a try: it decides on the store's complete reply, however long that takes to arrive.
    pub(crate) fn up_to(wait: Duration) -> Patience {
        if wait.is_zero() { Patience::None } else { Patience::UpTo(wait) }
    }
}

/// What somebody wants who stands in line.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) line: Bytes,
    pub(crate) mode: Mode,
    pub(crate) rank: Rank,
    /// What others see.
    pub(crate) value: Bytes,
    pub(crate) ttl: Option<Duration>,
    pub(crate) patience: Patience,
    /// A place, and since when it is there, whose turn we take over if it is still there: our own, from before a restart.
    pub(crate) former: Option<(Place, Token)>,
}

/// Why nothing is held.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StandError {
    /// Somebody else holds, and we did not want to wait (any longer).
    #[error("somebody else holds it")]
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
    /// Other callers hold or wait with a different number of permits. All callers of a name must use the same.
    #[error("requested one of {requested} permits, but the name is in use with {in_use} permits")]
    PermitsDiffer {
        /// The number that was requested.
        requested: NonZeroU32,
        /// The number that is in use.
        in_use: NonZeroU32,
    },
    /// The store will never let us stand in this line.
    #[error("the store refuses a place in the line")]
    Store(#[source] StoreError),
    /// The TTL cannot be held. Nothing was sent.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// No store would grant this TTL. Nothing was sent.
    #[error("such a lease cannot be had: {0}")]
    Invalid(Invalid),
}

impl From<LendError> for StandError {
    fn from(error: LendError) -> StandError {
        match error {
            LendError::NotYet { within } => StandError::Unavailable { within },
            LendError::Store(error) => StandError::Store(error),
            LendError::Closed => StandError::Closed,
            LendError::Ttl(error) => StandError::Ttl(error),
            LendError::Invalid(invalid) => StandError::Invalid(invalid),
        }
    }
}

impl Desk {
    /// Stands in a line until it holds, or does not want to any longer.
    ///
    /// Dropping the future leaves the line in the background.
    pub(crate) async fn hold(&self, wish: Wish) -> Result<Held, StandError> {
        let (deadline, within) = match wish.patience {
            Patience::Endless => (None, Duration::MAX),
            Patience::UpTo(wait) => (Some(Instant::now() + wait), wait),
            Patience::None => (Some(Instant::now() + STORE_WITHIN), STORE_WITHIN),
        };
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.duration_since(Instant::now()));
            let loan = self.loan(wish.ttl, left).await?;
            let seat = self.stand(wish.line.clone(), (wish.mode, wish.rank), wish.value.clone(), loan);
            match turn(seat, &wish, deadline, within).await {
                Turn::Decided(answer) => return answer,
                // The lease was gone before we stood on it: no turn is lost.
                Turn::NeverStood => {}
            }
        }
    }
}

async fn turn(seat: Seat, wish: &Wish, deadline: Option<Instant>, within: Duration) -> Turn {
    let stands = |state: &SeatState| !matches!(state, SeatState::Entering);
    let (mut has_stood, mut arrival) = (false, Arrival::AtOnce);
    let deciding = async {
        let first = seat.wait_for(stands).await;
        has_stood = !matches!(first, Some(SeatState::Over(_)));
        if matches!(first, Some(SeatState::Waits)) {
            arrival = Arrival::AfterOthers;
        }
        let is_next = match (wish.former, first) {
            // In a box, as everything here that is rare: every lock would have to carry it along.
            (Some(former), Some(SeatState::Waits)) => Box::pin(take_over(&seat, former)).await,
            (Some(_) | None, _) => false,
        };
        let is_decided = |state: &SeatState| match state {
            SeatState::Holds { .. } | SeatState::Over(_) => true,
            SeatState::Waits => wish.patience == Patience::None && !is_next,
            SeatState::Entering => false,
        };
        seat.wait_for(is_decided).await
    };
    let decided = match deadline {
        Some(deadline) => Box::pin(timeout_at(deadline, deciding)).await,
        None => Ok(deciding.await),
    };
    Turn::Decided(match decided {
        Ok(Some(SeatState::Holds { place, token, others, .. })) => {
            Ok(Held::new(seat, (place, token), others, arrival))
        }
        Ok(Some(SeatState::Waits)) => {
            seat.leave();
            let is_over = |state: &SeatState| matches!(state, SeatState::Over(_));
            // Who is not gone by then goes in the background.
            let _ = Box::pin(timeout(LEAVE_WITHIN, seat.wait_for(is_over))).await;
            Err(StandError::Held)
        }
        Ok(Some(SeatState::Over(SeatEnd::Refused(error)))) => Err(StandError::Store(error)),
        Ok(Some(SeatState::Over(SeatEnd::PermitsDiffer { requested, in_use }))) => {
            Err(StandError::PermitsDiffer { requested, in_use })
        }
        Ok(Some(SeatState::Over(SeatEnd::Lease(LoanEnd::Closed)))) => Err(StandError::Closed),
        Ok(Some(SeatState::Over(SeatEnd::Lease(_)))) if !has_stood => return Turn::NeverStood,
        Ok(Some(SeatState::Over(SeatEnd::Lease(end)))) => Err(StandError::SessionLost(end)),
        Ok(Some(SeatState::Over(SeatEnd::Deleted | SeatEnd::Left { .. }) | SeatState::Entering) | None) => {
            Err(StandError::Closed)
        }
        Err(_) => match seat.state() {
            SeatState::Entering => Err(StandError::Unavailable { within }),
            // It came to hold in the moment in which the wait ended.
            SeatState::Holds { place, token, others, .. } => {
                Ok(Held::new(seat, (place, token), others, Arrival::AfterOthers))
            }
            SeatState::Waits | SeatState::Over(_) => Err(StandError::Held),
        },
    })
}

/// Takes over the turn of a former place, with everybody between passed over. False if it is not there any more.
async fn take_over(seat: &Seat, former: (Place, Token)) -> bool {
    // A place that is on its way to a new one just waits its turn.
    let Some(own) = seat.stands_at() else { return false };
    let is_over = |state: &SeatState| matches!(state, SeatState::Over(_));
    let settled = tokio::select! {
        biased;
        _ = seat.wait_for(is_over) => return false,
        settled = async { seat.handover(former, own).settle().await } => settled,
    };
    match settled {
        Ok(Outcome::Done) => true,
        Ok(Outcome::HolderGone | Outcome::HeirGone) => false,
        Err(error) => {
            debug!(%error, "former place was not taken over");
            false
        }
    }
}

/// What came of standing in line once.
enum Turn {
    Decided(Result<Held, StandError>),
    NeverStood,
}
