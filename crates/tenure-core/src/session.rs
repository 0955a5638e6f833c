//! State machine of a session: keeps leases renewed and registered keys in the store.
//!
//! The machine receives the keys to register. It requests leases, renews them, puts the keys under
//! them, and puts a key again when another client deletes it. When a lease is lost, the machine
//! requests another and puts the keys under that one. It revokes the old lease last, so that
//! watchers see no delete of a key that stayed registered.
//!
//! Locks and claims put keys under a lease of the session themselves: they are *lease users*. A
//! lease user is bound to one lease and ends with it, so that its keys never move to another lease
//! unnoticed.
//!
//! Intuition: the registered keys and the stored keys are two sets, and the machine only works on
//! their difference. A key is this session's exactly if it is under one of its leases: no other
//! client knows their ids. So no put and no delete of the session can hit a key of another client.
//!
//! ```text
//!         register, request_lease          granted            lost
//!   (none) ──────────────► slot: Requesting ──────► Held ──────────────► Requesting …
//!                                                    │ no key and no user needs it
//!                                                    └──────► RevokingLease ──► (none)
//! ```
//!
//! **Invariant**: a key is put only under a lease that is valid at that moment.
//!
//! **Invariant**: a key that was unregistered is never put again.
//!
//! **Invariant**: at most one put or delete is in flight for each slot, so a late reply cannot
//! overtake a newer request.
//!
//! **Invariant**: a slot deletes only keys under its own leases, so a key that moved to another
//! slot is not deleted by the old one.
//!
//! **Invariant**: a lease is not revoked while it has users.
//!
//! **Invariant**: losses are reported before all other events of the same call.

mod advance;
mod config;
mod lease_slot;
mod messages;
mod registered_key;
mod replies;
mod request;
mod revoking;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::keepalive::{Timing, TtlTooShort};
use crate::lease::LeaseId;
use crate::revision::Revision;
use crate::time::Moment;

use lease_slot::{FailureStreak, LeaseSlot};
use registered_key::{KeyChange, KeyObservation, RegisteredKey};
use revoking::RevokingLease;

pub use config::SessionConfig;
pub use messages::{
    KeyOutcome, KeyPut, LeaseInfo, LeaseLookup, SessionEvent, SessionOperation, SessionOutput, SessionStatus,
    Unreleased,
};
pub use registered_key::PutMode;
pub use request::{DeleteReply, DeleteRequest, PutEach, PutProgress, PutReply, PutRequest, largest_put};

/// One lease of the session, through all its incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseSlotId(u64);

/// Identifies one call of `register`. A later call for the same key has a larger id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegistrationId(u64);

/// Which `request_lease` is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseUserId(u64);

/// The state machine of a session.
#[derive(Clone, Debug)]
pub struct Session {
    plan: SessionConfig,
    slots: BTreeMap<LeaseSlotId, LeaseSlot>,
    entries: BTreeMap<Bytes, RegisteredKey>,
    /// The slot of each lease user, waiting or served.
    users: BTreeMap<LeaseUserId, LeaseSlotId>,
    /// Leases that neither a key nor a user needs any more.
    revoking: BTreeMap<LeaseId, RevokingLease>,
    counter: u64,
    incarnation: u64,
    /// The failures of the worst slot, since the first one; none when all slots work.
    failures: Option<FailureStreak>,
    is_closing: bool,
    actions: VecDeque<SessionOutput>,
    notices: VecDeque<SessionEvent>,
}

impl Session {
    /// Creates a session without keys and leases.
    pub fn new(plan: SessionConfig) -> Result<Session, TtlTooShort> {
        Timing::new(plan.ttl)?;
        Ok(Session {
            plan,
            slots: BTreeMap::new(),
            entries: BTreeMap::new(),
            users: BTreeMap::new(),
            revoking: BTreeMap::new(),
            counter: 0,
            incarnation: 0,
            failures: None,
            is_closing: false,
            actions: VecDeque::new(),
            notices: VecDeque::new(),
        })
    }

    /// Registers a key: the session keeps it in the store from now on.
    pub fn register(
        &mut self,
        key: Bytes,
        value: Bytes,
        ttl: Option<Duration>,
        mode: PutMode,
        now: Moment,
    ) -> Result<RegistrationId, TtlTooShort> {
        let ttl = ttl.unwrap_or(self.plan.ttl);
        let timing = Timing::new(ttl)?;
        self.lapse(now);
        let registration = RegistrationId(self.count());
        let before = self.entries.get(&key).map(|entry| entry.slot);
        let slot = match before {
            // The key stays in its slot if the TTL fits. Otherwise it moves, and is put under the
            // other slot's lease.
            Some(before) if self.slots.get(&before).is_some_and(|slot| slot.accepts(ttl)) => before,
            _ => self.slot_for(timing, ttl),
        };
        for (&id, other) in self.slots.iter_mut().filter(|(id, _)| **id != slot) {
            // Nearly always the key is new. Then the lookup in each slot's thousands of keys is
            // skipped.
            let is_member = before == Some(id) && other.members.remove(&key);
            if is_member {
                other.wanted.remove(&key);
            }
            let was_leaving = other.leaving.remove(&key);
            // A put of the other slot may be applied after this. The old lease is kept until the
            // key is stored under the new one, so that watchers see no delete.
            if (is_member || was_leaving) && other.may_have_stored() {
                other.moving.insert(key.clone());
            }
        }
        self.entries.insert(key.clone(), RegisteredKey::new(value, mode, slot, registration));
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.members.insert(key.clone());
            slot.leaving.remove(&key);
            slot.moving.remove(&key);
            slot.wanted.insert(key);
        }
        match before {
            // A new key changes its own slot only. Registering ten thousand keys must not advance
            // all slots each time.
            None => self.advance_slot(slot, now),
            Some(_) => self.advance(now),
        }
        Ok(registration)
    }

    /// Unregisters a key. Returns `false` if it was not registered.
    pub fn unregister(&mut self, key: &Bytes, now: Moment) -> bool {
        self.lapse(now);
        let Some(entry) = self.entries.remove(key) else { return false };
        self.drop_key(entry.slot, key);
        self.advance(now);
        true
    }

    /// Requests a lease for keys that the caller puts itself.
    ///
    /// [`Session::lease_info`] returns the lease: immediately if one is held, otherwise after
    /// [`SessionEvent::LeaseReady`]. The session keeps the lease until it is lost or
    /// [`Session::release_lease`] is called.
    pub fn request_lease(&mut self, ttl: Option<Duration>, now: Moment) -> Result<LeaseUserId, TtlTooShort> {
        let ttl = ttl.unwrap_or(self.plan.ttl);
        let timing = Timing::new(ttl)?;
        self.lapse(now);
        let user = LeaseUserId(self.count());
        let id = self.slot_for(timing, ttl);
        self.users.insert(user, id);
        if let Some(slot) = self.slots.get_mut(&id) {
            let location = if slot.lease().is_some() { &mut slot.users } else { &mut slot.waiting_users };
            location.insert(user);
        }
        self.advance(now);
        Ok(user)
    }

    /// The lease of a user; none if the user still waits for one, or its lease has ended.
    pub fn lease_info(&self, user: LeaseUserId) -> Option<LeaseInfo> {
        let slot = self.slots.get(self.users.get(&user)?)?;
        let held_lease = slot.held_lease().filter(|_| slot.users.contains(&user))?;
        Some(LeaseInfo {
            user,
            lease: held_lease.lease,
            incarnation: held_lease.incarnation,
            ttl: held_lease.ttl,
            valid_until: held_lease.hold.valid_until(),
        })
    }

    /// Ends the use of a lease, or the wait for one. No request under the lease may be in flight.
    pub fn release_lease(&mut self, user: LeaseUserId, now: Moment) {
        self.lapse(now);
        let Some(id) = self.users.remove(&user) else { return };
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.users.remove(&user);
            slot.waiting_users.remove(&user);
        }
        self.advance(now);
    }

    /// Unregisters all keys and ends all leases. A lease with users is revoked when the last user
    /// has released it.
    pub fn close(&mut self, now: Moment) {
        self.lapse(now);
        self.is_closing = true;
        let entries = std::mem::take(&mut self.entries);
        for slot in self.slots.values_mut() {
            // Without a lease that may hold keys there is no delete to wait for.
            if !slot.may_have_stored() {
                let never_stored = std::mem::take(&mut slot.members);
                self.notices.extend(never_stored.into_iter().map(|key| SessionEvent::Unregistered { key }));
            }
            slot.clear_members();
            self.notices.extend(slot.users.iter().map(|&user| SessionEvent::ReleaseRequested { user }));
        }
        drop(entries);
        let slots = &self.slots;
        self.users.retain(|user, id| slots.get(id).is_some_and(|slot| slot.users.contains(user)));
        self.advance(now);
    }

    /// Reports a key deleted in the store, at this revision.
    pub fn handle_key_deleted(&mut self, key: &Bytes, revision: Revision, now: Moment) {
        self.lapse(now);
        self.observe(key, revision, KeyObservation::Deleted, now);
    }

    /// Reports a key put in the store, at this revision, with this value and under this lease.
    pub fn handle_key_put(
        &mut self,
        key: &Bytes,
        value: &Bytes,
        lease: Option<LeaseId>,
        revision: Revision,
        now: Moment,
    ) {
        self.lapse(now);
        let Some(entry) = self.entries.get(key) else { return };
        let current = self.slots.get(&entry.slot).and_then(LeaseSlot::lease);
        // The value alone proves nothing: another client may put the same value. The lease does,
        // because its id is known to this session only.
        let observation = match lease.filter(|lease| self.is_own_lease(*lease)) {
            None => KeyObservation::Foreign,
            own if own == current && *value == entry.value => KeyObservation::Current,
            Some(_) => KeyObservation::Outdated,
        };
        self.observe(key, revision, observation, now);
    }

    fn observe(&mut self, key: &Bytes, revision: Revision, observation: KeyObservation, now: Moment) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let news = entry.observe(revision, observation);
        let slot = entry.slot;
        if matches!(news, KeyChange::Missing | KeyChange::Outdated)
            && let Some(slot) = self.slots.get_mut(&slot)
        {
            slot.wanted.insert(key.clone());
        }
        match news {
            KeyChange::None => return,
            KeyChange::Missing => self.notices.push_back(SessionEvent::Missing { key: key.clone() }),
            KeyChange::Taken => self.notices.push_back(SessionEvent::Taken { key: key.clone() }),
            KeyChange::Outdated => {}
        }
        // Only this slot has a next step. Ten thousand keys deleted together arrive one by one.
        self.advance_slot(slot, now);
    }

    /// Reports that the store is reachable again: all backoffs end.
    pub fn handle_store_reachable(&mut self, now: Moment) {
        self.lapse(now);
        for slot in self.slots.values_mut() {
            slot.wake(now);
        }
        for revoking_lease in self.revoking.values_mut() {
            revoking_lease.wake();
        }
        self.advance(now);
    }

    /// Reports that the store replied "lease not found" to a request under this lease.
    pub fn handle_lease_not_found(&mut self, lease: LeaseId, now: Moment) {
        for slot in self.slots.values_mut() {
            slot.handle_lease_not_found(lease);
        }
        self.lapse(now);
        self.advance(now);
    }

    /// Advances to the current time.
    pub fn handle_time(&mut self, now: Moment) {
        self.lapse(now);
        self.advance(now);
    }

    /// Whether an output or an event is queued.
    pub fn has_output(&self) -> bool {
        !self.actions.is_empty() || !self.notices.is_empty()
    }

    /// The next request for the driver.
    pub fn poll_output(&mut self) -> Option<SessionOutput> {
        self.actions.pop_front()
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.notices.pop_front()
    }

    /// When to call [`Session::handle_time`] if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        let revoking = self.revoking.values().filter_map(RevokingLease::next_wake);
        self.slots.values().filter_map(LeaseSlot::next_wake).chain(revoking).min()
    }

    /// The status of the session: that of its worst lease.
    pub fn status(&self, now: Moment) -> SessionStatus {
        self.slots.values().map(|slot| slot.status(now)).max().unwrap_or(SessionStatus::Idle)
    }

    /// How long all leases are valid, at least.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.slots.values().map(|slot| slot.remaining(now)).min().unwrap_or(Duration::ZERO)
    }

    /// When the validity of a lease ends if it is not renewed; none if the session does not hold
    /// it.
    pub fn valid_until(&self, lease: LeaseId) -> Option<Moment> {
        let held_leases = self.slots.values().filter_map(LeaseSlot::held_lease);
        held_leases
            .filter(|held_lease| held_lease.lease == lease)
            .map(|held_lease| held_lease.hold.valid_until())
            .next()
    }

    /// When the present failures began: of requests, or of keeping a lease; none if there are none.
    pub fn failing_since(&self) -> Option<Moment> {
        self.failures.map(|failures| failures.since)
    }

    /// Whether a request waits for a backoff that ends when the store is reachable again.
    pub fn is_waiting(&self) -> bool {
        self.slots.values().any(LeaseSlot::is_waiting)
            || self.revoking.values().any(|revoking_lease| revoking_lease.next_wake().is_some())
    }

    /// The current incarnation. It grows when a new lease replaces a lost one, and when the session
    /// starts again.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The leases that are held now, oldest slot first.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.slots.values().filter_map(LeaseSlot::lease)
    }

    /// The registered keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.entries.keys()
    }

    /// The newest registration of a key; none if it is not registered.
    pub fn registration(&self, key: &Bytes) -> Option<RegistrationId> {
        self.entries.get(key).map(|entry| entry.registration)
    }

    /// Whether all registered keys are stored, and no other key is.
    pub fn is_settled(&self) -> bool {
        self.revoking.is_empty() && self.slots.values().all(LeaseSlot::is_settled)
    }

    /// What the session would leave in the store if it stopped now.
    pub fn unreleased(&self, now: Moment) -> Unreleased {
        let mut unreleased = Unreleased::default();
        for slot in self.slots.values() {
            unreleased.leases += slot.own_leases().count() + usize::from(slot.is_grant_in_flight());
            unreleased.keys += slot.leaving.len() + slot.members.len();
            unreleased.users += slot.users.len();
            unreleased.within = unreleased.within.max(slot.ttl());
        }
        for revoking_lease in self.revoking.values() {
            unreleased.leases += 1;
            unreleased.keys += revoking_lease.keys.len();
            unreleased.within = unreleased.within.max(revoking_lease.remaining(now));
        }
        unreleased
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn is_own_lease(&self, lease: LeaseId) -> bool {
        self.revoking.contains_key(&lease)
            || self.slots.values().any(|slot| slot.own_leases().any(|own| own == lease))
    }

    /// Returns a slot of this TTL with room for one more key or user, or creates one.
    fn slot_for(&mut self, timing: Timing, ttl: Duration) -> LeaseSlotId {
        let room = self.plan.keys_per_lease;
        let found = self.slots.iter().find(|(_, slot)| slot.accepts(ttl) && slot.load() < room);
        if let Some((&id, _)) = found {
            return id;
        }
        let id = LeaseSlotId(self.count());
        self.slots.insert(id, LeaseSlot::new(timing, self.plan.retry));
        id
    }
}

#[cfg(test)]
mod tests;
