//! One place in a line, as whoever wanted it sees it.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use tenure_core::layout::Place;
use tenure_core::line::{LossReason, Ticket};
use tenure_core::revision::Token;

use super::ask::{self, Others};
use super::desk::Shared;
use super::handover::Handover;
use super::lines::Slot;
use crate::news;
use crate::session::{Loan, LoanEnd};
use crate::store::{KeyValue, StoreError};

/// A place in a line; dropping it leaves the line.
pub(crate) struct Seat {
    pub(super) shared: Arc<Shared>,
    pub(super) line: Bytes,
    pub(super) slot: Slot,
    pub(super) ticket: Ticket,
    pub(super) loan: Loan,
    pub(super) news: news::Receiver<SeatState>,
}

/// How a place stands.
#[derive(Clone, Debug)]
pub(crate) enum SeatState {
    /// On its way into the line.
    Entering,
    /// Behind somebody.
    Waits,
    /// The first.
    Holds {
        /// Where.
        place: Place,
        /// Since when.
        token: Token,
        /// The preferred of the line when the place was seen to be its first, if they are known.
        others: Others,
        /// What somebody has put in its place since, if that happened.
        touched: Option<KeyValue>,
    },
    /// Not in the line any more.
    Over(SeatEnd),
}

/// Why a place is not in the line any more.
#[derive(Clone, Debug)]
pub(crate) enum SeatEnd {
    /// Its lease is over.
    Lease(LoanEnd),
    /// Somebody deleted it while it held.
    Deleted,
    /// The store refused it.
    Refused(StoreError),
    /// Another caller uses a different number of permits.
    PermitsDiffer {
        /// The number that was requested.
        requested: NonZeroU32,
        /// The number that the oldest key of the queue carries.
        in_use: NonZeroU32,
    },
    /// It was asked to leave, and has.
    Left {
        /// Whether it was still there then.
        was_there: bool,
    },
}

impl SeatEnd {
    pub(super) fn of(why: LossReason, loan: Option<LoanEnd>) -> SeatEnd {
        match why {
            LossReason::Lease => SeatEnd::Lease(loan.unwrap_or(LoanEnd::Gone)),
            LossReason::Deleted => SeatEnd::Deleted,
        }
    }
}

impl Seat {
    /// The lease it stands on.
    pub(crate) fn loan(&self) -> &Loan {
        &self.loan
    }

    /// The key of a place in its line.
    pub(crate) fn key(&self, place: Place) -> Bytes {
        ask::key(&self.line, place)
    }

    /// Where its place is, and since when; none if it is not there.
    pub(crate) fn stands_at(&self) -> Option<(Place, Token)> {
        self.shared.stands_at(self.slot, self.ticket)
    }

    /// Why it is not in the line any more; none if it is.
    pub(crate) fn end(&self) -> Option<SeatEnd> {
        match &*self.news.borrow() {
            SeatState::Over(end) => Some(end.clone()),
            SeatState::Entering | SeatState::Waits | SeatState::Holds { .. } => None,
        }
    }

    /// How it stands.
    pub(crate) fn state(&self) -> SeatState {
        self.news.borrow().clone()
    }

    /// How it stands, now and whenever that changes.
    pub(crate) fn news(&self) -> news::Receiver<SeatState> {
        self.news.clone()
    }

    /// Waits until the state is as wanted; `None` if the desk is gone.
    pub(crate) async fn wait_for(&self, is_wanted: impl Fn(&SeatState) -> bool) -> Option<SeatState> {
        self.news().wait_for(|state| is_wanted(state)).await.ok().map(|state| state.clone())
    }

    /// A handover between two places of its line.
    pub(crate) fn handover(&self, holder: (Place, Token), heir: (Place, Token)) -> Handover {
        Handover::new(self.shared.store().clone(), self.line.clone(), holder, heir)
    }

    /// Asks to leave the line. [`SeatState::Over`] tells when it has.
    pub(crate) fn leave(&self) {
        self.shared.leave(self.slot, self.ticket);
    }

    /// The same, without a detour through the desk's task where that is possible; only for who runs in a task.
    pub(crate) fn leave_at_once(&self) {
        self.shared.leave_at_once(self.slot, self.ticket);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Whoever has left has nothing to say to the desk.
        if !matches!(*self.news.borrow(), SeatState::Over(_)) {
            self.leave();
        }
    }
}
