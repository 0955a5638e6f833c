//! Until when the holds of one lease are valid: one cell, shared by all of them.

use tenure_core::loss::LossReason;
use tenure_core::time::Moment;

use crate::ordered_watch;

/// The validity of a lease, shared by its holds and by the driver that renews it. A renewal updates it once for a thousand holds.
///
/// **Invariant**: once it has an end, neither that nor `valid_until` changes. So no hold becomes valid again.
pub(crate) struct LeaseCell {
    state: ordered_watch::OrderedSender<LeaseState>,
    /// Notified when it has an end. Thousands of handlers wait for that, and each would be woken by every renewal otherwise.
    over: ordered_watch::OrderedSender<()>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseState {
    pub(crate) valid_until: Moment,
    pub(crate) end: Option<LossReason>,
}

impl LeaseCell {
    pub(crate) fn new(valid_until: Moment) -> LeaseCell {
        let state = ordered_watch::OrderedSender::new(LeaseState { valid_until, end: None });
        LeaseCell { state, over: ordered_watch::OrderedSender::new(()) }
    }

    /// The lease was renewed.
    pub(crate) fn extend(&self, valid_until: Moment) {
        self.state.send_if_modified(|state| {
            let is_longer = state.end.is_none() && state.valid_until < valid_until;
            if is_longer {
                state.valid_until = valid_until;
            }
            is_longer
        });
    }

    /// Whether it has an end.
    pub(crate) fn has_end(&self) -> bool {
        self.state.borrow().end.is_some()
    }

    /// Ends all holds of the lease. Only the first reason counts: each of a thousand holds may report the same loss.
    pub(crate) fn end(&self, reason: LossReason) {
        self.end_if(reason, |state| state.end.is_none());
    }

    /// The state now. The first call after the deadline ends it for all holds, whether or not the driver's task was scheduled.
    pub(crate) fn state(&self, now: Moment) -> LeaseState {
        let state = *self.state.borrow();
        if state.end.is_some() || now < state.valid_until {
            return state;
        }
        // A renewal may have been noted between the two reads: then it was acknowledged in time.
        self.end_if(LossReason::Lapsed, |state| state.end.is_none() && now >= state.valid_until);
        *self.state.borrow()
    }

    /// Notified by [`LeaseCell::end`], and by the first read after the deadline.
    pub(crate) fn over(&self) -> ordered_watch::OrderedReceiver<()> {
        self.over.subscribe()
    }

    /// Notified by each renewal, and by the end.
    pub(crate) fn changes(&self) -> ordered_watch::OrderedReceiver<LeaseState> {
        self.state.subscribe()
    }

    fn end_if(&self, reason: LossReason, is_over: impl FnOnce(&LeaseState) -> bool) {
        let has_ended = self.state.send_if_modified(|state| {
            let has_ended = is_over(state);
            if has_ended {
                state.end = Some(reason);
            }
            has_ended
        });
        if has_ended {
            self.over.send_replace(());
        }
    }
}
