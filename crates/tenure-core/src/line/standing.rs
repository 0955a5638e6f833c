//! One place of ours: where it stands between the wish and the store.

use std::time::Duration;

use crate::backoff::{Backoff, Growth, Jitter, Retry};
use crate::layout::Place;
use crate::revision::{Epoch, Token};
use crate::time::Moment;

use super::{Before, EnterGuard, Mode};

/// Rests between tries. The first is about a round trip, because whoever waits for a lock waits for this too; the cap bounds how late a
/// place leaves a store that is back.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(2),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// A ticket's place and how far it has come.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub place: Place,
    pub mode: Mode,
    pub stage: Stage,
    /// Whether somebody still wants to hold.
    pub is_wanted: bool,
    /// Whether its end was told.
    pub was_told: bool,
    /// Whether a snapshot showed that it has to wait. For shareable modes alone.
    pub was_shown: bool,
    /// Whether a request to leave was sent of which nobody knows what came.
    pub may_have_left: bool,
    /// The guard of the newest enter whose reply was lost: it may have put the place, or may still do so until the guard changes.
    pub unsettled: Option<EnterGuard>,
    /// A place before it that was seen to hold while this one stood here.
    pub holder: Option<Place>,
    backoff: Backoff,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Asked to be put.
    Entering { epoch: Epoch, guard: EnterGuard },
    /// Not there, as far as we know; asks again then.
    Resting { until: Moment },
    /// There, behind somebody.
    Waiting { token: Token, before: Option<Place>, look: Look },
    /// There, and nobody before it.
    Holding { token: Token, look: Look },
    /// Asked to be deleted, or about to ask again.
    Leaving { token: Option<Token>, next: Next },
}

/// When something is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It was.
    Asked { epoch: Epoch },
    /// Then.
    At(Moment),
}

/// Whether the place and the one before it have to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// Nothing has happened since the last time.
    Idle,
    /// From then on, as soon as its turn has come.
    NeededAt(Moment),
    /// It was asked for; `again` if something has happened since.
    Asked { epoch: Epoch, again: bool },
}

impl Standing {
    pub(super) fn new(place: Place, mode: Mode, stage: Stage) -> Standing {
        Standing {
            place,
            mode,
            stage,
            is_wanted: true,
            was_told: false,
            was_shown: false,
            may_have_left: false,
            unsettled: None,
            holder: None,
            backoff: Backoff::new(RETRY),
        }
    }

    /// A place without an owner, whose lost enter has to be settled.
    pub(super) fn ownerless(place: Place, unsettled: EnterGuard, now: Moment) -> Standing {
        let stage = Stage::Leaving { token: None, next: Next::At(now) };
        Standing {
            is_wanted: false,
            was_told: true,
            unsettled: Some(unsettled),
            ..Standing::new(place, Mode::Exclusive, stage)
        }
    }

    pub(super) fn token(&self) -> Option<Token> {
        match self.stage {
            Stage::Waiting { token, .. } | Stage::Holding { token, .. } => Some(token),
            Stage::Leaving { token, .. } => token,
            Stage::Entering { .. } | Stage::Resting { .. } => None,
        }
    }

    /// Whether some request that was taken for lost may have put the place.
    pub(super) fn may_be_there(&self) -> bool {
        self.unsettled.is_some()
    }

    /// When to try again after a failure.
    pub(super) fn rest(&mut self, jitter: f64, now: Moment) -> Moment {
        now + self.backoff.after_failure(now, jitter, None)
    }

    pub(super) fn went_well(&mut self) {
        self.backoff.reset();
    }

    /// The nearest place before it, as far as it was seen.
    pub(super) fn before(&self) -> Option<Place> {
        match self.stage {
            Stage::Waiting { before, .. } => before,
            Stage::Entering { .. }
            | Stage::Resting { .. }
            | Stage::Holding { .. }
            | Stage::Leaving { .. } => None,
        }
    }

    /// What is known of who is before it.
    pub(super) fn known_before(&self) -> Before {
        match (self.stage, self.before()) {
            (Stage::Holding { .. }, _) => Before::Nobody,
            (_, None) => Before::Unknown,
            (_, Some(before)) if self.holder == Some(before) => Before::Holder(before),
            (_, Some(before)) => Before::Nearest(before),
        }
    }

    /// The same stage, in which what was read of the place may be old.
    pub(super) fn looking_again(&self, now: Moment) -> Stage {
        let mut stage = self.stage;
        if let Stage::Waiting { look, .. } | Stage::Holding { look, .. } = &mut stage {
            *look = match *look {
                Look::Idle => Look::NeededAt(now),
                Look::NeededAt(at) => Look::NeededAt(at.min(now)),
                Look::Asked { epoch, .. } => Look::Asked { epoch, again: true },
            };
        }
        stage
    }

    /// When a look is due.
    pub(super) fn look_at(&self) -> Option<Moment> {
        match self.stage {
            Stage::Waiting { look: Look::NeededAt(at), .. }
            | Stage::Holding { look: Look::NeededAt(at), .. } => Some(at),
            Stage::Waiting { .. }
            | Stage::Holding { .. }
            | Stage::Entering { .. }
            | Stage::Resting { .. }
            | Stage::Leaving { .. } => None,
        }
    }

    /// When something other than a look is due.
    pub(super) fn due_at(&self) -> Option<Moment> {
        match self.stage {
            Stage::Resting { until } | Stage::Leaving { next: Next::At(until), .. } => Some(until),
            Stage::Entering { .. }
            | Stage::Waiting { .. }
            | Stage::Holding { .. }
            | Stage::Leaving { next: Next::Asked { .. }, .. } => None,
        }
    }
}
