//! One lease of a session, through all its incarnations: what it needs next.
//!
//! **Invariant**: `wanted` and `members` only name keys whose entry is in this slot; `leaving` names none of them.
//!
//! **Invariant**: an answer whose epoch is not the one noted here is ignored; losing the lease forgets them all.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use crate::backoff::{Backoff, Growth, Jitter, Retry};
use crate::error::StoreError;
use crate::hold::{Action as HoldAction, End, Hold, Standing as HoldStanding, Terms};
use crate::lease::{Grant, LeaseId, Renewal};
use crate::revision::Epoch;
use crate::time::Moment;

use super::Standing;

/// The first wait of a rescue: about one round trip, so that a broken connection costs nothing but itself.
const RESCUE_FIRST: Duration = Duration::from_millis(50);

/// The longest wait of a rescue; a quarter of the TTL if that is shorter.
const RESCUE_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub phase: Phase,
    /// The keys that belong here.
    pub members: BTreeSet<Bytes>,
    /// Those of them that are to be put.
    pub wanted: BTreeSet<Bytes>,
    /// Keys that do not belong here any more and may be in the store.
    pub leaving: BTreeSet<Bytes>,
    pub renewing: Option<Epoch>,
    pub putting: Option<(Epoch, LeaseId)>,
    pub deleting: Option<Epoch>,
    terms: Terms,
    /// Leases that are lost to us and perhaps not yet to the store: revoked when every key has moved.
    lapsed: Vec<LeaseId>,
    was_held: bool,
    /// Before asking for a new lease again.
    regrant: Backoff,
    /// Before renewing, putting or deleting again.
    rescue: Backoff,
    paused_until: Option<Moment>,
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// No lease, and none is being asked for.
    Empty { until: Option<Moment> },
    /// A lease was asked for.
    Asking { epoch: Epoch },
    /// A lease is held.
    Holding { lease: LeaseId, hold: Hold },
    /// The lease is being revoked.
    Revoking { epoch: Epoch, lease: LeaseId },
}

impl Slot {
    pub(super) fn new(terms: Terms, retry: Retry) -> Slot {
        let cap = RESCUE_MAX.min(terms.ttl() / 4).max(RESCUE_FIRST);
        let rescue = Retry {
            growth: Growth::Exponential,
            initial: RESCUE_FIRST,
            cap,
            jitter: Jitter::Full,
            healthy_after: retry.healthy_after,
        };
        Slot {
            phase: Phase::Empty { until: None },
            members: BTreeSet::new(),
            wanted: BTreeSet::new(),
            leaving: BTreeSet::new(),
            renewing: None,
            putting: None,
            deleting: None,
            terms,
            lapsed: Vec::new(),
            was_held: false,
            regrant: Backoff::new(retry),
            rescue: Backoff::new(rescue),
            paused_until: None,
        }
    }

    /// Whether keys with this TTL may be added.
    pub(super) fn accepts(&self, ttl: Duration) -> bool {
        self.terms.ttl() == ttl && !matches!(self.phase, Phase::Revoking { .. })
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        match self.phase {
            Phase::Holding { lease, .. } => Some(lease),
            Phase::Empty { .. } | Phase::Asking { .. } | Phase::Revoking { .. } => None,
        }
    }

    /// All leases whose keys are ours.
    pub(super) fn ours(&self) -> impl Iterator<Item = LeaseId> {
        let current = match self.phase {
            Phase::Holding { lease, .. } | Phase::Revoking { lease, .. } => Some(lease),
            Phase::Empty { .. } | Phase::Asking { .. } => None,
        };
        current.into_iter().chain(self.lapsed.iter().copied())
    }

    /// Whether something of ours may be in the store.
    pub(super) fn may_have_stored(&self) -> bool {
        self.lease().is_some()
    }

    /// Nothing is wanted here any more.
    pub(super) fn abandon(&mut self) {
        self.members.clear();
        self.wanted.clear();
        self.leaving.clear();
    }

    pub(super) fn is_asking(&self, question: Epoch) -> bool {
        matches!(self.phase, Phase::Asking { epoch } if epoch == question)
    }

    /// Takes a grant; false if it came too late to be of use.
    pub(super) fn hold(&mut self, grant: Grant, now: Moment) -> bool {
        let hold = Hold::begin(self.terms, grant.asked_at, grant.ttl, now);
        if !hold.is_valid(now) {
            return false;
        }
        self.phase = Phase::Holding { lease: grant.id, hold };
        self.was_held = true;
        self.paused_until = None;
        true
    }

    /// Waits before asking for a lease again; says how often it failed and how long it waits.
    pub(super) fn wait(&mut self, jitter: f64, now: Moment) -> (u32, Duration) {
        let delay = self.regrant.after_failure(now, jitter, None);
        self.phase = Phase::Empty { until: Some(now + delay) };
        (self.regrant.failures(), delay)
    }

    /// Waits before putting, deleting or revoking again.
    pub(super) fn pause(&mut self, jitter: f64, now: Moment) {
        let delay = self.rescue.after_failure(now, jitter, None);
        self.paused_until = Some(now + delay);
    }

    /// Stops waiting.
    pub(super) fn wake(&mut self, now: Moment) {
        self.paused_until = None;
        if let Phase::Empty { until } = &mut self.phase {
            *until = None;
        }
        if let Phase::Holding { hold, .. } = &mut self.phase {
            hold.hurry(now);
        }
    }

    pub(super) fn renewed(
        &mut self,
        epoch: Epoch,
        answer: &Result<Renewal, StoreError>,
        jitter: f64,
        now: Moment,
    ) -> Option<(u32, Duration)> {
        if self.renewing != Some(epoch) {
            return None;
        }
        self.renewing = None;
        let Phase::Holding { hold, .. } = &mut self.phase else { return None };
        match answer {
            Ok(Renewal::Renewed { ttl, asked_at }) => {
                self.rescue.reset();
                hold.handle_renewed(*asked_at, *ttl, now);
                None
            }
            Ok(Renewal::Gone) | Err(StoreError::LeaseNotFound) => {
                hold.handle_gone();
                None
            }
            Err(_) => {
                let delay = self.rescue.after_failure(now, jitter, Some(hold.remaining(now)));
                hold.handle_failed(delay, now);
                Some((self.rescue.failures(), delay))
            }
        }
    }

    pub(super) fn answered_put(&mut self, question: Epoch) -> Option<LeaseId> {
        let (_, lease) = self.putting.filter(|(epoch, _)| *epoch == question)?;
        self.putting = None;
        Some(lease)
    }

    pub(super) fn answered_delete(&mut self, question: Epoch) -> bool {
        let is_current = self.deleting == Some(question);
        if is_current {
            self.deleting = None;
        }
        is_current
    }

    /// The answer to a revocation. What cannot be revoked ends by itself.
    pub(super) fn revoked(&mut self, question: Epoch) -> bool {
        let is_current = matches!(self.phase, Phase::Revoking { epoch, .. } if epoch == question);
        if is_current {
            self.phase = Phase::Empty { until: None };
        }
        is_current
    }

    /// The store does not know this lease any more.
    pub(super) fn gone(&mut self, lost: LeaseId) {
        if let Phase::Holding { lease, hold } = &mut self.phase
            && *lease == lost
        {
            hold.handle_gone();
        }
    }

    /// Notices that the lease is over; says which and why, once.
    pub(super) fn check(&mut self, now: Moment) -> Option<(LeaseId, End)> {
        if !self.is_paused(now) {
            self.paused_until = None;
        }
        let Phase::Holding { lease, hold } = &self.phase else { return None };
        let HoldStanding::Over(end) = hold.standing(now) else { return None };
        let lease = *lease;
        if end == End::Lapsed {
            self.lapsed.push(lease);
        }
        self.phase = Phase::Empty { until: None };
        self.renewing = None;
        self.putting = None;
        self.deleting = None;
        self.paused_until = None;
        Some((lease, end))
    }

    pub(super) fn wants_grant(&self, now: Moment) -> Option<Duration> {
        let Phase::Empty { until } = self.phase else { return None };
        (!self.members.is_empty() && until.is_none_or(|until| until <= now)).then(|| self.terms.ttl())
    }

    pub(super) fn wants_renewal(&mut self, now: Moment) -> Option<LeaseId> {
        let Phase::Holding { lease, hold } = &mut self.phase else { return None };
        if self.renewing.is_some() || hold.poll_action(now) != Some(HoldAction::Renew) {
            return None;
        }
        Some(*lease)
    }

    pub(super) fn wants_put(&self, now: Moment) -> Option<LeaseId> {
        let idle = self.putting.is_none() && self.deleting.is_none();
        self.lease().filter(|_| idle && !self.wanted.is_empty() && !self.is_paused(now))
    }

    pub(super) fn wants_delete(&self, now: Moment) -> bool {
        let idle = self.putting.is_none() && self.deleting.is_none();
        // With the last key the lease goes too, and takes what is left with it.
        let is_last = self.members.is_empty();
        self.lease().is_some() && idle && !is_last && !self.leaving.is_empty() && !self.is_paused(now)
    }

    pub(super) fn wants_revoke(&self) -> Option<LeaseId> {
        let idle = self.putting.is_none() && self.deleting.is_none();
        self.lease().filter(|_| idle && self.members.is_empty())
    }

    /// Leases that are lost to us and that no key of ours needs any more.
    pub(super) fn outgrown(&mut self) -> Vec<LeaseId> {
        let all_stored = self.wanted.is_empty() && self.putting.is_none();
        let needs_none = self.members.is_empty();
        if needs_none || (self.lease().is_some() && all_stored) {
            std::mem::take(&mut self.lapsed)
        } else {
            Vec::new()
        }
    }

    /// Nothing is held, nothing is wanted, nothing is under way.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Empty { .. }) && self.members.is_empty() && self.lapsed.is_empty()
    }

    pub(super) fn is_settled(&self) -> bool {
        let idle = self.putting.is_none() && self.deleting.is_none();
        self.lease().is_some() && idle && self.wanted.is_empty() && self.leaving.is_empty()
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let own = match &self.phase {
            Phase::Empty { until } => until.filter(|_| !self.members.is_empty()),
            Phase::Asking { .. } | Phase::Revoking { .. } => None,
            Phase::Holding { hold, .. } => Some(hold.next_wake()),
        };
        own.into_iter().chain(self.paused_until).min()
    }

    pub(super) fn standing(&self, now: Moment) -> Standing {
        match &self.phase {
            Phase::Holding { hold, .. } => match hold.standing(now) {
                HoldStanding::Sound => Standing::Live,
                HoldStanding::Suspect { since } => Standing::Suspect { since },
                HoldStanding::Over(_) => Standing::Lost,
            },
            Phase::Empty { .. } | Phase::Asking { .. } if self.was_held => Standing::Lost,
            Phase::Empty { .. } | Phase::Asking { .. } | Phase::Revoking { .. } => Standing::Idle,
        }
    }

    pub(super) fn remaining(&self, now: Moment) -> Duration {
        match &self.phase {
            Phase::Holding { hold, .. } => hold.remaining(now),
            Phase::Empty { .. } | Phase::Asking { .. } | Phase::Revoking { .. } => Duration::ZERO,
        }
    }

    fn is_paused(&self, now: Moment) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }
}
