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

use lease_slot::{Slot, Trouble};
use registered_key::{Entry, News, Sight};
use revoking::Ending;

pub use config::Plan;
pub use messages::{Action, KeyOutcome, KeyPut, LeaseLookup, Lent, Notice, Standing, Try, Unreleased};
pub use registered_key::Mode;
pub use request::{DeleteReply, DeleteRequest, PutEach, PutProgress, PutReply, PutRequest, largest_put};

/// One lease of the session, through all its incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseSlotId(u64);

/// Which `register` of a key is meant; a later one of the same key has a larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wish(u64);

/// Which `lend` is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseUserId(u64);

/// A session's decisions.
#[derive(Clone, Debug)]
pub struct Session {
    plan: Plan,
    slots: BTreeMap<LeaseSlotId, Slot>,
    entries: BTreeMap<Bytes, Entry>,
    /// Where each loan is, waiting or lent.
    loans: BTreeMap<LeaseUserId, LeaseSlotId>,
    /// Leases that nobody needs any more.
    endings: BTreeMap<LeaseId, Ending>,
    counter: u64,
    incarnation: u64,
    /// What the worst slot suffers, from the first failure until all is well.
    trouble: Option<Trouble>,
    is_closing: bool,
    actions: VecDeque<Action>,
    notices: VecDeque<Notice>,
}

impl Session {
    /// A session that holds nothing yet.
    pub fn new(plan: Plan) -> Result<Session, TtlTooShort> {
        Timing::new(plan.ttl)?;
        Ok(Session {
            plan,
            slots: BTreeMap::new(),
            entries: BTreeMap::new(),
            loans: BTreeMap::new(),
            endings: BTreeMap::new(),
            counter: 0,
            incarnation: 0,
            trouble: None,
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
        mode: Mode,
        now: Moment,
    ) -> Result<Wish, TtlTooShort> {
        let ttl = ttl.unwrap_or(self.plan.ttl);
        let timing = Timing::new(ttl)?;
        self.lapse(now);
        let wish = Wish(self.count());
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
        self.entries.insert(key.clone(), Entry::new(value, mode, slot, wish));
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
        Ok(wish)
    }

    /// Does not want a key registered any more. False if it was not.
    pub fn unregister(&mut self, key: &Bytes, now: Moment) -> bool {
        self.lapse(now);
        let Some(entry) = self.entries.remove(key) else { return false };
        self.drop_key(entry.slot, key);
        self.advance(now);
        true
    }

    /// Lends a lease to one who puts keys under it. [`Session::lent`] says which, at once if a lease is held, and otherwise when
    /// [`Notice::Lent`] has come. The lease is kept until it is lost or the loan is given back.
    pub fn lend(&mut self, ttl: Option<Duration>, now: Moment) -> Result<LeaseUserId, TtlTooShort> {
        let ttl = ttl.unwrap_or(self.plan.ttl);
        let timing = Timing::new(ttl)?;
        self.lapse(now);
        let loan = LeaseUserId(self.count());
        let id = self.slot_for(timing, ttl);
        self.loans.insert(loan, id);
        if let Some(slot) = self.slots.get_mut(&id) {
            let place = if slot.lease().is_some() { &mut slot.loans } else { &mut slot.borrowers };
            place.insert(loan);
        }
        self.advance(now);
        Ok(loan)
    }

    /// The lease that a loan has; none if it waits for one or has ended.
    pub fn lent(&self, loan: LeaseUserId) -> Option<Lent> {
        let slot = self.slots.get(self.loans.get(&loan)?)?;
        let holding = slot.holding().filter(|_| slot.loans.contains(&loan))?;
        Some(Lent {
            loan,
            lease: holding.lease,
            incarnation: holding.incarnation,
            ttl: holding.ttl,
            valid_until: holding.hold.valid_until(),
        })
    }

    /// A loan is not needed any more, or not waited for. Nothing of it may be under way.
    pub fn give_back(&mut self, loan: LeaseUserId, now: Moment) {
        self.lapse(now);
        let Some(id) = self.loans.remove(&loan) else { return };
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.loans.remove(&loan);
            slot.borrowers.remove(&loan);
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
                self.notices.extend(never_stored.into_iter().map(|key| Notice::Unregistered { key }));
            }
            slot.abandon();
            self.notices.extend(slot.loans.iter().map(|&loan| Notice::Recalled { loan }));
        }
        drop(entries);
        let slots = &self.slots;
        self.loans.retain(|loan, id| slots.get(id).is_some_and(|slot| slot.loans.contains(loan)));
        self.advance(now);
    }

    /// A key was deleted in the store, at this revision.
    pub fn handle_key_deleted(&mut self, key: &Bytes, revision: Revision, now: Moment) {
        self.lapse(now);
        self.see(key, revision, Sight::Gone, now);
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
        let current = self.slots.get(&entry.slot).and_then(Slot::lease);
        let sight = match lease.filter(|lease| self.is_ours(*lease)) {
            None => Sight::Theirs,
            own if own == current && *value == entry.value => Sight::Ours,
            Some(_) => Sight::Stale,
        };
        self.see(key, revision, sight, now);
    }

    fn see(&mut self, key: &Bytes, revision: Revision, sight: Sight, now: Moment) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let news = entry.see(revision, sight);
        let slot = entry.slot;
        if matches!(news, News::Missing | News::Stale)
            && let Some(slot) = self.slots.get_mut(&slot)
        {
            slot.wanted.insert(key.clone());
        }
        match news {
            News::None => return,
            News::Missing => self.notices.push_back(Notice::Missing { key: key.clone() }),
            News::Taken => self.notices.push_back(Notice::Taken { key: key.clone() }),
            News::Stale => {}
        }
        // Only this slot has something to do: ten thousand keys that vanish together are seen one by one.
        self.advance_slot(slot, now);
    }

    /// The store answers again: whoever waits may try at once.
    pub fn handle_store_back(&mut self, now: Moment) {
        self.lapse(now);
        for slot in self.slots.values_mut() {
            slot.wake(now);
        }
        for ending in self.endings.values_mut() {
            ending.wake();
        }
        self.advance(now);
    }

    /// Somebody was told by the store that a lease does not exist any more.
    pub fn handle_lease_gone(&mut self, lease: LeaseId, now: Moment) {
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
    pub fn has_news(&self) -> bool {
        !self.actions.is_empty() || !self.notices.is_empty()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// When to call [`Session::handle_time`] if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        let endings = self.endings.values().filter_map(Ending::next_wake);
        self.slots.values().filter_map(Slot::next_wake).chain(endings).min()
    }

    /// How the session stands: as its weakest lease does.
    pub fn standing(&self, now: Moment) -> Standing {
        self.slots.values().map(|slot| slot.standing(now)).max().unwrap_or(Standing::Idle)
    }

    /// How long every lease is certainly valid.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.slots.values().map(|slot| slot.remaining(now)).min().unwrap_or(Duration::ZERO)
    }

    /// Until when a lease may be relied upon, if nothing is renewed; none if it is not held.
    pub fn valid_until(&self, lease: LeaseId) -> Option<Moment> {
        let holdings = self.slots.values().filter_map(Slot::holding);
        holdings.filter(|holding| holding.lease == lease).map(|holding| holding.hold.valid_until()).next()
    }

    /// Since when something fails: requests, or the keeping of a lease; none if all is well.
    pub fn failing_since(&self) -> Option<Moment> {
        self.trouble.map(|trouble| trouble.since)
    }

    /// Whether something waits that the store's return would let go on.
    pub fn is_waiting(&self) -> bool {
        self.slots.values().any(Slot::is_waiting)
            || self.endings.values().any(|ending| ending.next_wake().is_some())
    }

    /// Which incarnation this is: grows when a lease replaces one that was lost, and when the session starts again.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The leases that are held now, oldest slot first.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.slots.values().filter_map(Slot::lease)
    }

    /// The keys that are wanted.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.entries.keys()
    }

    /// The wish that a key is wanted by.
    pub fn wish(&self, key: &Bytes) -> Option<Wish> {
        self.entries.get(key).map(|entry| entry.wish)
    }

    /// Whether everything that is wanted is stored, and nothing else is.
    pub fn is_settled(&self) -> bool {
        self.endings.is_empty() && self.slots.values().all(Slot::is_settled)
    }

    /// What would be left in the store if nothing more were done from now on.
    pub fn remains(&self, now: Moment) -> Unreleased {
        let mut remains = Unreleased::default();
        for slot in self.slots.values() {
            remains.leases += slot.ours().count() + usize::from(slot.is_asking_at_all());
            remains.keys += slot.leaving.len() + slot.members.len();
            remains.loans += slot.loans.len();
            remains.within = remains.within.max(slot.ttl());
        }
        for ending in self.endings.values() {
            remains.leases += 1;
            remains.keys += ending.keys.len();
            remains.within = remains.within.max(ending.remaining(now));
        }
        remains
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn is_ours(&self, lease: LeaseId) -> bool {
        self.endings.contains_key(&lease)
            || self.slots.values().any(|slot| slot.ours().any(|own| own == lease))
    }

    /// A slot of this TTL with room, or a new one.
    fn slot_for(&mut self, timing: Timing, ttl: Duration) -> LeaseSlotId {
        let room = self.plan.keys_per_lease;
        let found = self.slots.iter().find(|(_, slot)| slot.accepts(ttl) && slot.load() < room);
        if let Some((&id, _)) = found {
            return id;
        }
        let id = LeaseSlotId(self.count());
        self.slots.insert(id, Slot::new(timing, self.plan.retry));
        id
    }
}

#[cfg(test)]
mod tests;
