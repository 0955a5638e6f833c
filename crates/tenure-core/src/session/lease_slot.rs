//! One lease of a session, through all its incarnations: its state and its next request.
//!
//! **Invariant**: `wanted` and `members` only contain keys registered in this slot; `leaving` and
//! `moving` contain none of them.
//!
//! **Invariant**: only the reply to the request stored here is handled; losing the lease
//! clears all of them.
//!
//! **Invariant**: a lease is not released while it has users, or while a key that moves to another
//! lease is still under it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use crate::backoff::{Backoff, BackoffState, Growth, Jitter};
use crate::error::StoreError;
use crate::keepalive::{KeepAlive, KeepAliveOutput, KeepAliveState, Timing};
use crate::lease::{Grant, LeaseId, Renewal};
use crate::loss::LossReason;
use crate::revision::RequestId;
use crate::time::Moment;

use super::{LeaseUserId, SessionStatus};

/// The first backoff after a failed renewal: about one round trip, so that one broken connection
/// costs no validity.
const RESCUE_FIRST: Duration = Duration::from_millis(50);

/// The longest backoff between renewals; a quarter of the TTL if that is shorter.
const RESCUE_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(super) struct LeaseSlot {
    pub phase: SlotPhase,
    /// The keys registered in this slot.
    pub members: BTreeSet<Bytes>,
    /// The members that must be put.
    pub wanted: BTreeSet<Bytes>,
    /// Keys no longer registered here that may be in the store.
    pub leaving: BTreeSet<Bytes>,
    /// Keys registered in another slot by now and not yet stored there.
    pub moving: BTreeSet<Bytes>,
    /// The users of the held lease.
    pub users: BTreeSet<LeaseUserId>,
    /// The users that wait for a lease.
    pub waiting_users: BTreeSet<LeaseUserId>,
    pub renewing: Option<RequestId>,
    pub putting: Option<(RequestId, LeaseId)>,
    pub deleting: Option<RequestId>,
    timing: Timing,
    /// Leases that are lost here and may still exist in the store: revoked when every key has
    /// moved.
    former: Vec<LeaseId>,
    /// The cause of the last loss, until the next lease.
    lost: Option<LossReason>,
    pub was_held: bool,
    /// The failures in a row of this slot.
    pub failures: Option<FailureStreak>,
    /// Between requests for a new lease.
    regrant: BackoffState,
    /// Between renewals.
    rescue: BackoffState,
    /// Between puts or deletes.
    rewrite: BackoffState,
    paused_until: Option<Moment>,
}

/// Failures in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailureStreak {
    pub since: Moment,
    pub attempts: u32,
}

#[derive(Clone, Debug)]
pub(super) enum SlotPhase {
    /// No lease, and no grant in flight.
    Empty { until: Option<Moment> },
    /// A grant is in flight.
    Requesting { epoch: RequestId },
    /// A lease is held.
    Held(HeldLease),
}

/// The lease of a slot.
#[derive(Clone, Debug)]
pub(super) struct HeldLease {
    pub lease: LeaseId,
    pub hold: KeepAlive,
    pub ttl: Duration,
    pub incarnation: u64,
}

impl LeaseSlot {
    pub(super) fn new(timing: Timing, retry: Backoff) -> LeaseSlot {
        let rescue = LeaseSlot::rescue(timing.ttl(), retry);
        LeaseSlot {
            phase: SlotPhase::Empty { until: None },
            members: BTreeSet::new(),
            wanted: BTreeSet::new(),
            leaving: BTreeSet::new(),
            moving: BTreeSet::new(),
            users: BTreeSet::new(),
            waiting_users: BTreeSet::new(),
            renewing: None,
            putting: None,
            deleting: None,
            timing,
            former: Vec::new(),
            lost: None,
            was_held: false,
            failures: None,
            regrant: BackoffState::new(retry),
            rescue: BackoffState::new(rescue),
            rewrite: BackoffState::new(rescue),
            paused_until: None,
        }
    }

    /// The backoff while a lease may still be valid.
    pub(super) fn rescue(ttl: Duration, retry: Backoff) -> Backoff {
        Backoff {
            growth: Growth::Exponential,
            initial: RESCUE_FIRST,
            cap: RESCUE_MAX.min(ttl / 4).max(RESCUE_FIRST),
            jitter: Jitter::Full,
            healthy_after: retry.healthy_after,
        }
    }

    /// Whether keys and users with this TTL may be added.
    pub(super) fn accepts(&self, ttl: Duration) -> bool {
        self.timing.ttl() == ttl
    }

    /// How many keys and users share the lease.
    pub(super) fn load(&self) -> usize {
        self.members.len() + self.users.len() + self.waiting_users.len()
    }

    pub(super) fn held_lease(&self) -> Option<&HeldLease> {
        match &self.phase {
            SlotPhase::Held(held_lease) => Some(held_lease),
            SlotPhase::Empty { .. } | SlotPhase::Requesting { .. } => None,
        }
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        self.held_lease().map(|held_lease| held_lease.lease)
    }

    pub(super) fn is_grant_in_flight(&self) -> bool {
        matches!(self.phase, SlotPhase::Requesting { .. })
    }

    pub(super) fn ttl(&self) -> Duration {
        self.held_lease().map_or(self.timing.ttl(), |held_lease| held_lease.ttl)
    }

    /// All leases under which a key is this session's.
    pub(super) fn own_leases(&self) -> impl Iterator<Item = LeaseId> {
        self.lease().into_iter().chain(self.former.iter().copied())
    }

    /// Whether keys of this slot may be in the store.
    pub(super) fn may_have_stored(&self) -> bool {
        self.own_leases().next().is_some()
    }

    /// Clears the members. Those that may be stored are deleted next.
    pub(super) fn clear_members(&mut self) {
        let members = std::mem::take(&mut self.members);
        self.wanted.clear();
        self.waiting_users.clear();
        if self.may_have_stored() {
            self.leaving.extend(members);
            self.leaving.append(&mut self.moving);
        }
    }

    pub(super) fn is_granting(&self, request: RequestId) -> bool {
        matches!(self.phase, SlotPhase::Requesting { epoch } if epoch == request)
    }

    /// Whether a key or a user needs a lease here.
    pub(super) fn needs_lease(&self) -> bool {
        self.load() > 0
    }

    /// Takes a granted lease. Returns `false` if the reply came too late for the lease to be valid.
    pub(super) fn hold(&mut self, grant: Grant, incarnation: u64, now: Moment) -> bool {
        let hold = KeepAlive::begin(self.timing, grant.asked_at, grant.ttl, now);
        if !hold.is_valid(now) {
            return false;
        }
        self.phase = SlotPhase::Held(HeldLease { lease: grant.id, hold, ttl: grant.ttl, incarnation });
        self.was_held = true;
        self.lost = None;
        self.paused_until = None;
        self.regrant.after_success(now);
        true
    }

    /// Counts a failure. Returns the number of failures since the slot last worked.
    pub(super) fn fails(&mut self, now: Moment) -> u32 {
        let failures = self.failures.get_or_insert(FailureStreak { since: now, attempts: 0 });
        failures.attempts = failures.attempts.saturating_add(1);
        failures.attempts
    }

    /// Backs off before the next grant. Returns the delay.
    pub(super) fn wait(&mut self, jitter: f64, now: Moment) -> Duration {
        let delay = self.regrant.after_failure(now, jitter, None);
        self.phase = SlotPhase::Empty { until: Some(now + delay) };
        delay
    }

    /// Backs off before the next put or delete. Returns the delay.
    pub(super) fn pause(&mut self, jitter: f64, now: Moment) -> Duration {
        let delay = self.rewrite.after_failure(now, jitter, None);
        self.paused_until = Some(now + delay);
        delay
    }

    /// Resets the backoff of puts and deletes.
    pub(super) fn writes_well(&mut self) {
        self.rewrite.reset();
    }

    /// Ends all backoffs.
    pub(super) fn wake(&mut self, now: Moment) {
        self.paused_until = None;
        if let SlotPhase::Empty { until } = &mut self.phase {
            *until = None;
        }
        // The store is reachable: a renewal after a full backoff could come too late for the lease.
        if let SlotPhase::Held(held_lease) = &mut self.phase {
            held_lease.hold.renew_now(now);
        }
    }

    /// Whether requests have failed, so that one may wait for a backoff.
    pub(super) fn is_waiting(&self) -> bool {
        self.failures.is_some()
    }

    /// Handles the reply to a renewal.
    pub(super) fn renewed(
        &mut self,
        epoch: RequestId,
        answer: &Result<Renewal, StoreError>,
        jitter: f64,
        now: Moment,
    ) -> RenewalOutcome {
        if self.renewing != Some(epoch) {
            return RenewalOutcome::Late;
        }
        self.renewing = None;
        let SlotPhase::Held(HeldLease { hold, lease, .. }) = &mut self.phase else {
            return RenewalOutcome::Late;
        };
        match answer {
            Ok(Renewal::Renewed { ttl, asked_at }) => {
                let remained = hold.remaining(now);
                self.rescue.reset();
                hold.handle_renewed(*asked_at, *ttl, now);
                RenewalOutcome::Well { lease: *lease, remained }
            }
            Ok(Renewal::Gone) | Err(StoreError::LeaseNotFound) => {
                hold.handle_gone();
                RenewalOutcome::Late
            }
            Err(_) => {
                let next = self.rescue.after_failure(now, jitter, Some(hold.remaining(now)));
                hold.handle_failed(next, now);
                RenewalOutcome::Failed { next }
            }
        }
    }

    pub(super) fn answered_put(&mut self, request: RequestId) -> Option<LeaseId> {
        let (_, lease) = self.putting.filter(|(epoch, _)| *epoch == request)?;
        self.putting = None;
        Some(lease)
    }

    pub(super) fn answered_delete(&mut self, request: RequestId) -> bool {
        let is_current = self.deleting == Some(request);
        if is_current {
            self.deleting = None;
        }
        is_current
    }

    /// Records that the store does not have this lease any more.
    pub(super) fn handle_lease_not_found(&mut self, lost: LeaseId) {
        if let SlotPhase::Held(held_lease) = &mut self.phase
            && held_lease.lease == lost
        {
            held_lease.hold.handle_gone();
        }
    }

    /// Returns the lease that has ended since the last call, with the cause.
    pub(super) fn check(&mut self, now: Moment) -> Option<(LeaseId, LossReason)> {
        if !self.is_paused(now) {
            self.paused_until = None;
        }
        let held_lease = self.held_lease()?;
        let KeepAliveState::Ended(end) = held_lease.hold.state(now) else { return None };
        let lease = held_lease.lease;
        // Also a lease that the store no longer has: its keys may still be in the store for a
        // moment, and they are this session's.
        self.former.push(lease);
        self.lost = Some(end);
        self.phase = SlotPhase::Empty { until: None };
        // Requests in flight belong to the lost lease. Clearing their ids makes their late replies
        // count for nothing.
        self.renewing = None;
        self.putting = None;
        self.deleting = None;
        self.paused_until = None;
        if self.needs_lease() {
            self.failures.get_or_insert(FailureStreak { since: now, attempts: 0 });
        }
        Some((lease, end))
    }

    pub(super) fn wants_grant(&self, now: Moment) -> Option<Duration> {
        let SlotPhase::Empty { until } = self.phase else { return None };
        (self.needs_lease() && until.is_none_or(|until| until <= now)).then(|| self.timing.ttl())
    }

    pub(super) fn wants_renewal(&mut self, now: Moment) -> Option<LeaseId> {
        let SlotPhase::Held(HeldLease { lease, hold, .. }) = &mut self.phase else { return None };
        let is_due = hold.poll_output(now) == Some(KeepAliveOutput::Renew);
        (is_due && self.renewing.is_none()).then_some(*lease)
    }

    pub(super) fn wants_put(&self, now: Moment) -> Option<LeaseId> {
        self.lease().filter(|_| self.is_idle() && !self.wanted.is_empty() && !self.is_paused(now))
    }

    pub(super) fn wants_delete(&self, now: Moment) -> bool {
        // If this was the last key, the lease is revoked, and the store deletes the remaining keys
        // with it.
        let is_kept = self.needs_lease() || !self.moving.is_empty();
        self.lease().is_some()
            && self.is_idle()
            && is_kept
            && !self.leaving.is_empty()
            && !self.is_paused(now)
    }

    /// Takes the leases that are no longer needed. The caller revokes them.
    pub(super) fn take_unneeded_leases(&mut self) -> Vec<LeaseId> {
        // A put or delete in flight may still use the lease. Its reply calls this again.
        if !self.is_idle() {
            return Vec::new();
        }
        let mut released = Vec::new();
        if !self.needs_lease() && self.moving.is_empty() {
            released.append(&mut self.former);
            if let Some(lease) = self.lease() {
                self.phase = SlotPhase::Empty { until: None };
                self.renewing = None;
                self.was_held = false;
                released.push(lease);
            }
        // All keys are stored under the new lease and nothing waits for deletion: the lost leases
        // protect nothing any more.
        } else if self.lease().is_some() && self.wanted.is_empty() && self.leaving.is_empty() {
            released.append(&mut self.former);
        }
        released
    }

    /// Whether the slot has no lease, no key, no user and no request in flight.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.phase, SlotPhase::Empty { .. })
            && !self.needs_lease()
            && self.moving.is_empty()
            && self.former.is_empty()
    }

    pub(super) fn is_settled(&self) -> bool {
        let is_quiet = self.wanted.is_empty() && self.leaving.is_empty() && self.moving.is_empty();
        self.lease().is_some() && self.is_idle() && is_quiet && self.waiting_users.is_empty()
    }

    /// Clears the failures when the slot works again.
    pub(super) fn heal(&mut self, now: Moment) {
        let is_sound =
            self.held_lease().is_some_and(|held_lease| held_lease.hold.state(now) == KeepAliveState::Healthy);
        if is_sound && self.is_settled() {
            self.failures = None;
        }
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let own = match &self.phase {
            SlotPhase::Empty { until } => until.filter(|_| self.needs_lease()),
            SlotPhase::Requesting { .. } => None,
            SlotPhase::Held(held_lease) => Some(held_lease.hold.next_wake()),
        };
        own.into_iter().chain(self.paused_until).min()
    }

    pub(super) fn status(&self, now: Moment) -> SessionStatus {
        match &self.phase {
            SlotPhase::Held(held_lease) => match held_lease.hold.state(now) {
                KeepAliveState::Healthy => SessionStatus::Live,
                KeepAliveState::Suspect { since } => SessionStatus::Suspect { since },
                KeepAliveState::Ended(why) => SessionStatus::Lost { why: Some(why) },
            },
            SlotPhase::Empty { .. } | SlotPhase::Requesting { .. } => {
                let is_missed = self.needs_lease() && (self.lost.is_some() || self.failures.is_some());
                if is_missed { SessionStatus::Lost { why: self.lost } } else { SessionStatus::Idle }
            }
        }
    }

    pub(super) fn remaining(&self, now: Moment) -> Duration {
        self.held_lease().map_or(Duration::ZERO, |held_lease| held_lease.hold.remaining(now))
    }

    fn is_idle(&self) -> bool {
        self.putting.is_none() && self.deleting.is_none()
    }

    fn is_paused(&self, now: Moment) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }
}

/// The outcome of a renewal.
pub(super) enum RenewalOutcome {
    /// The lease was renewed.
    Well { lease: LeaseId, remained: Duration },
    /// The renewal is retried.
    Failed { next: Duration },
    /// The reply is late, or the lease has ended.
    Late,
}
