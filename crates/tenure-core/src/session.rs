//! One shared lease for many keys, kept alive and recovered: the decisions of a session.
//!
//! A session is told which keys somebody wants registered. It asks for leases, renews them, puts the keys under them, and puts
//! back what is deleted behind its back. When a lease is lost it asks for another and moves the keys over; the old lease is
//! revoked last, so that watchers see no delete for a key that never stopped being wanted.
//!
//! It also lends its leases to those who put keys themselves, such as locks and claims. A loan is bound to one lease and ends for good
//! with it: what is held under a lease must not quietly come to hang on another.
//!
//! Intuition: *wanted* and *stored* are two sets, and the machine only ever works on their difference. A key is ours exactly if it
//! hangs on one of our leases, whose ids nobody else knows; so no put and no delete of ours can hit a key that is someone else's.
//!
//! ```text
//!           register, lend                    granted                    lost
//!   (nothing) ─────────► Slot: Asking ──────────────────► Holding ──────────────► Asking …
//!                                                            │ nobody needs it any more
//!                                                            └──────────► Ending ──► (nothing)
//! ```
//!
//! **Invariant**: a key is put only under a lease that is valid at that moment.
//!
//! **Invariant**: a key that was unregistered is never put again.
//!
//! **Invariant**: at most one put or delete is under way for each slot, so a late answer cannot overtake a newer request.
//!
//! **Invariant**: a slot deletes only what hangs on its own leases, so a key that moved to another slot is safe from the old one.
//!
//! **Invariant**: a lease is not revoked while it is lent.
//!
//! **Invariant**: losses are told before anything else that was learned at the same moment.

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

/// Which `register` of a key is meant; a later one of the same key has a larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegistrationId(u64);

/// Which `request_lease` is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseUserId(u64);

/// A session's decisions.
#[derive(Clone, Debug)]
pub struct Session {
    plan: SessionConfig,
    slots: BTreeMap<LeaseSlotId, LeaseSlot>,
    entries: BTreeMap<Bytes, RegisteredKey>,
    /// Where each loan is, waiting or lent.
    users: BTreeMap<LeaseUserId, LeaseSlotId>,
    /// Leases that nobody needs any more.
    revoking: BTreeMap<LeaseId, RevokingLease>,
    counter: u64,
    incarnation: u64,
    /// What the worst slot suffers, from the first failure until all is well.
    failures: Option<FailureStreak>,
    is_closing: bool,
    actions: VecDeque<SessionOutput>,
    notices: VecDeque<SessionEvent>,
}

impl Session {
    /// A session that holds nothing yet.
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

    /// Wants a key registered from now on.
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
            // The key stays where it is if its lease fits; otherwise it moves, and is put under the other lease.
            Some(before) if self.slots.get(&before).is_some_and(|slot| slot.accepts(ttl)) => before,
            _ => self.slot_for(timing, ttl),
        };
        for (&id, other) in self.slots.iter_mut().filter(|(id, _)| **id != slot) {
            // Nearly always the key is new, and then nobody has to look for it among thousands.
            let is_member = before == Some(id) && other.members.remove(&key);
            if is_member {
                other.wanted.remove(&key);
            }
            let was_leaving = other.leaving.remove(&key);
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
            // What a new key changes, it changes in its slot alone; ten thousand of them need not look at all slots each.
            None => self.advance_slot(slot, now),
            Some(_) => self.advance(now),
        }
        Ok(registration)
    }

    /// Does not want a key registered any more. False if it was not.
    pub fn unregister(&mut self, key: &Bytes, now: Moment) -> bool {
        self.lapse(now);
        let Some(entry) = self.entries.remove(key) else { return false };
        self.drop_key(entry.slot, key);
        self.advance(now);
        true
    }

    /// Lends a lease to one who puts keys under it. [`Session::lease_info`] says which, at once if a lease is held, and otherwise when
    /// [`SessionEvent::LeaseReady`] has come. The lease is kept until it is lost or the loan is given back.
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

    /// The lease that a loan has; none if it waits for one or has ended.
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

    /// A loan is not needed any more, or not waited for. Nothing of it may be under way.
    pub fn release_lease(&mut self, user: LeaseUserId, now: Moment) {
        self.lapse(now);
        let Some(id) = self.users.remove(&user) else { return };
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.users.remove(&user);
            slot.waiting_users.remove(&user);
        }
        self.advance(now);
    }

    /// Wants nothing registered any more, and no leases. Those that are lent are ended when they are given back.
    pub fn close(&mut self, now: Moment) {
        self.lapse(now);
        self.is_closing = true;
        let entries = std::mem::take(&mut self.entries);
        for slot in self.slots.values_mut() {
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

    /// A key was deleted in the store, at this revision.
    pub fn handle_key_deleted(&mut self, key: &Bytes, revision: Revision, now: Moment) {
        self.lapse(now);
        self.observe(key, revision, KeyObservation::Deleted, now);
    }

    /// A key was put in the store, at this revision, with this value and under this lease.
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
        // Only this slot has something to do: ten thousand keys that vanish together are seen one by one.
        self.advance_slot(slot, now);
    }

    /// The store answers again: whoever waits may try at once.
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

    /// Somebody was told by the store that a lease does not exist any more.
    pub fn handle_lease_not_found(&mut self, lease: LeaseId, now: Moment) {
        for slot in self.slots.values_mut() {
            slot.gone(lease);
        }
        self.lapse(now);
        self.advance(now);
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Moment) {
        self.lapse(now);
        self.advance(now);
    }

    /// Whether there is something to do or to tell.
    pub fn has_output(&self) -> bool {
        !self.actions.is_empty() || !self.notices.is_empty()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<SessionOutput> {
        self.actions.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.notices.pop_front()
    }

    /// When to call [`Session::handle_time`] if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        let revoking = self.revoking.values().filter_map(RevokingLease::next_wake);
        self.slots.values().filter_map(LeaseSlot::next_wake).chain(revoking).min()
    }

    /// How the session stands: as its weakest lease does.
    pub fn status(&self, now: Moment) -> SessionStatus {
        self.slots.values().map(|slot| slot.status(now)).max().unwrap_or(SessionStatus::Idle)
    }

    /// How long every lease is certainly valid.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.slots.values().map(|slot| slot.remaining(now)).min().unwrap_or(Duration::ZERO)
    }

    /// Until when a lease may be relied upon, if nothing is renewed; none if it is not held.
    pub fn valid_until(&self, lease: LeaseId) -> Option<Moment> {
        let held_leases = self.slots.values().filter_map(LeaseSlot::held_lease);
        held_leases
            .filter(|held_lease| held_lease.lease == lease)
            .map(|held_lease| held_lease.hold.valid_until())
            .next()
    }

    /// Since when something fails: requests, or the keeping of a lease; none if all is well.
    pub fn failing_since(&self) -> Option<Moment> {
        self.failures.map(|failures| failures.since)
    }

    /// Whether something waits that the store's return would let go on.
    pub fn is_waiting(&self) -> bool {
        self.slots.values().any(LeaseSlot::is_waiting)
            || self.revoking.values().any(|revoking_lease| revoking_lease.next_wake().is_some())
    }

    /// Which incarnation this is: grows when a lease replaces one that was lost, and when the session starts again.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The leases that are held now, oldest slot first.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.slots.values().filter_map(LeaseSlot::lease)
    }

    /// The keys that are wanted.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.entries.keys()
    }

    /// The wish that a key is wanted by.
    pub fn registration(&self, key: &Bytes) -> Option<RegistrationId> {
        self.entries.get(key).map(|entry| entry.registration)
    }

    /// Whether everything that is wanted is stored, and nothing else is.
    pub fn is_settled(&self) -> bool {
        self.revoking.is_empty() && self.slots.values().all(LeaseSlot::is_settled)
    }

    /// What would be left in the store if nothing more were done from now on.
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

    /// A slot of this TTL with room, or a new one.
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
