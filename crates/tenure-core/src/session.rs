//! One shared lease for many keys, kept alive and recovered: the decisions of a session.
//!
//! A session is told which keys somebody wants registered. It asks for leases, renews them, puts the keys under them, and puts
//! back what is deleted behind its back. When a lease is lost it asks for another and moves the keys over; the old lease is
//! revoked last, so that watchers see no delete for a key that never stopped being wanted.
//!
//! Intuition: *wanted* and *stored* are two sets, and the machine only ever works on their difference. A key is ours exactly if it
//! hangs on one of our leases, whose ids nobody else knows; so no put and no delete of ours can hit a key that is someone else's.
//!
//! ```text
//!              register                       granted                    lost
//!   (nothing) ─────────► Slot: Asking ──────────────────► Holding ──────────────► Asking …
//!                                                            │ last key unregistered
//!                                                            └──────────► Revoking ──► (nothing)
//! ```
//!
//! **Invariant**: a key is put only under a lease that is valid at that moment.
//!
//! **Invariant**: a key that was unregistered is never put again.
//!
//! **Invariant**: at most one put and one delete are under way for each slot, so a late answer cannot overtake a newer request.

mod entry;
mod plan;
mod slot;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::error::StoreError;
use crate::hold::{Terms, TtlTooShort};
use crate::lease::{Grant, LeaseId, Renewal};
use crate::revision::{Epoch, Revision};
use crate::time::Moment;

use entry::{Entry, Place};
use slot::{Phase, Slot};

pub use entry::Mode;
pub use plan::Plan;
pub use words::{Action, KeyOutcome, LeaseKnown, Notice, PutEntry, Standing};

/// One lease of the session, through all its incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(u64);

/// Which `register` of a key is meant; a later one of the same key has a larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wish(u64);

/// A session's decisions.
#[derive(Clone, Debug)]
pub struct Session {
    plan: Plan,
    slots: BTreeMap<SlotId, Slot>,
    entries: BTreeMap<Bytes, Entry>,
    counter: u64,
    incarnation: u64,
    is_closing: bool,
    actions: VecDeque<Action>,
    notices: VecDeque<Notice>,
}

impl Session {
    /// A session that holds nothing yet.
    pub fn new(plan: Plan) -> Result<Session, TtlTooShort> {
        Terms::new(plan.ttl)?;
        Ok(Session {
            plan,
            slots: BTreeMap::new(),
            entries: BTreeMap::new(),
            counter: 0,
            incarnation: 0,
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
        let terms = Terms::new(ttl)?;
        let wish = Wish(self.count());
        let slot = match self.entries.get(&key) {
            // The key stays where it is if its lease fits; otherwise it moves, and is put under the other lease.
            Some(entry) if self.slots.get(&entry.slot).is_some_and(|slot| slot.accepts(ttl)) => entry.slot,
            _ => self.slot_for(terms, ttl),
        };
        if let Some(before) = self.entries.get(&key).map(|entry| entry.slot).filter(|&before| before != slot)
        {
            self.leave_slot(before, &key);
        }
        let entry = Entry::new(value, mode, slot, wish);
        self.entries.insert(key.clone(), entry);
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.members.insert(key.clone());
            slot.leaving.remove(&key);
            slot.wanted.insert(key);
        }
        self.advance(now);
        Ok(wish)
    }

    /// Does not want a key registered any more. False if it was not.
    pub fn unregister(&mut self, key: &Bytes, now: Moment) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.leave_slot(entry.slot, key);
        self.advance(now);
        true
    }

    /// Wants nothing registered any more, and no leases.
    pub fn close(&mut self, now: Moment) {
        self.is_closing = true;
        for key in std::mem::take(&mut self.entries).into_keys() {
            self.notices.push_back(Notice::Unregistered { key });
        }
        for slot in self.slots.values_mut() {
            slot.abandon();
        }
        self.advance(now);
    }

    /// The answer to [`Action::Grant`].
    pub fn handle_granted(
        &mut self,
        id: SlotId,
        epoch: Epoch,
        answer: &Result<Grant, StoreError>,
        jitter: f64,
        now: Moment,
    ) {
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.is_asking(epoch)) else {
            // Nobody waits for it any more.
            if let Ok(grant) = answer {
                self.actions.push_back(Action::Discard { lease: grant.id });
            }
            return;
        };
        match answer {
            Ok(grant) => {
                if !slot.members.is_empty() && slot.hold(*grant, now) {
                    self.incarnation += 1;
                    self.notices
                        .push_back(Notice::Granted { lease: grant.id, incarnation: self.incarnation });
                } else {
                    self.actions.push_back(Action::Discard { lease: grant.id });
                    slot.wait(jitter, now);
                }
            }
            Err(_) => {
                let (failures, next) = slot.wait(jitter, now);
                self.notices.push_back(Notice::Failing { failures, next });
            }
        }
        self.advance(now);
    }

    /// The answer to [`Action::Renew`].
    pub fn handle_renewed(
        &mut self,
        id: SlotId,
        epoch: Epoch,
        answer: &Result<Renewal, StoreError>,
        jitter: f64,
        now: Moment,
    ) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if let Some((failures, next)) = slot.renewed(epoch, answer, jitter, now) {
            self.notices.push_back(Notice::Failing { failures, next });
        }
        self.advance(now);
    }

    /// The answer to [`Action::Put`]: what came of each key, and whether the store still knows the lease.
    pub fn handle_put(
        &mut self,
        id: SlotId,
        epoch: Epoch,
        outcomes: Vec<(Bytes, Wish, KeyOutcome)>,
        lease: LeaseKnown,
        jitter: f64,
        now: Moment,
    ) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let Some(under) = slot.answered_put(epoch) else { return };
        if lease == LeaseKnown::No {
            slot.gone(under);
        }
        let mut any_failed = false;
        for (key, wish, outcome) in outcomes {
            // A key that was unregistered or registered anew while this was under way is not in `putting` any more.
            let Some(entry) =
                self.entries.get_mut(&key).filter(|entry| entry.wish == wish && entry.slot == id)
            else {
                continue;
            };
            match outcome {
                KeyOutcome::Done(revision) if lease == LeaseKnown::Yes => {
                    entry.stored(revision);
                    if entry.is_wanted() {
                        slot.wanted.insert(key);
                    } else if entry.tell() {
                        self.notices.push_back(Notice::Registered { key, wish, lease: under, revision });
                    }
                }
                KeyOutcome::Taken(_) if entry.mode == Mode::Create => {
                    self.entries.remove(&key);
                    slot.members.remove(&key);
                    self.notices.push_back(Notice::Refused { key, wish, why: None });
                }
                KeyOutcome::Taken(seen) => {
                    entry.place = Place::Taken(seen);
                    self.notices.push_back(Notice::Taken { key });
                }
                KeyOutcome::Refused(why) => {
                    self.entries.remove(&key);
                    slot.members.remove(&key);
                    self.notices.push_back(Notice::Refused { key, wish, why: Some(why) });
                }
                KeyOutcome::Done(_) | KeyOutcome::Failed => {
                    any_failed |= lease == LeaseKnown::Yes;
                    entry.place = Place::Wanted;
                    slot.wanted.insert(key);
                }
            }
        }
        if any_failed {
            slot.pause(jitter, now);
        }
        self.advance(now);
    }

    /// The answer to [`Action::Delete`]: what came of each key.
    pub fn handle_deleted(
        &mut self,
        id: SlotId,
        epoch: Epoch,
        outcomes: Vec<(Bytes, KeyOutcome)>,
        jitter: f64,
        now: Moment,
    ) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if !slot.answered_delete(epoch) {
            return;
        }
        let mut any_failed = false;
        for (key, outcome) in outcomes {
            match outcome {
                KeyOutcome::Done(_) | KeyOutcome::Taken(_) | KeyOutcome::Refused(_) => {
                    if slot.leaving.remove(&key) {
                        self.notices.push_back(Notice::Unregistered { key });
                    }
                }
                KeyOutcome::Failed => any_failed = true,
            }
        }
        if any_failed {
            slot.pause(jitter, now);
        }
        self.advance(now);
    }

    /// The answer to [`Action::Revoke`]. Whatever it was, the lease is not renewed any more and ends by itself.
    pub fn handle_revoked(&mut self, id: SlotId, epoch: Epoch, now: Moment) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if slot.revoked(epoch) {
            for key in std::mem::take(&mut slot.leaving) {
                self.notices.push_back(Notice::Unregistered { key });
            }
        }
        self.advance(now);
    }

    /// A key was deleted in the store, at this revision.
    pub fn handle_key_deleted(&mut self, key: &Bytes, revision: Revision, now: Moment) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.deleted(revision) {
            if let Some(slot) = self.slots.get_mut(&entry.slot) {
                slot.wanted.insert(key.clone());
            }
            self.notices.push_back(Notice::Missing { key: key.clone() });
            self.advance(now);
        }
    }

    /// A key was put in the store, at this revision and under this lease.
    pub fn handle_key_put(&mut self, key: &Bytes, lease: Option<LeaseId>, revision: Revision) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let is_ours =
            lease.is_some_and(|lease| self.slots.values().any(|slot| slot.ours().any(|own| own == lease)));
        if !is_ours && entry.taken(revision) {
            self.notices.push_back(Notice::Taken { key: key.clone() });
        }
    }

    /// The store answers again: whoever waits may try at once.
    pub fn handle_store_back(&mut self, now: Moment) {
        for slot in self.slots.values_mut() {
            slot.wake(now);
        }
        self.advance(now);
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Moment) {
        self.advance(now);
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
        self.slots.values().filter_map(Slot::next_wake).min()
    }

    /// How the session stands: as its weakest lease does.
    pub fn standing(&self, now: Moment) -> Standing {
        self.slots.values().map(|slot| slot.standing(now)).max().unwrap_or(Standing::Idle)
    }

    /// How long every lease is certainly valid.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.slots.values().map(|slot| slot.remaining(now)).min().unwrap_or(Duration::ZERO)
    }

    /// Which incarnation this is: how many leases were granted so far.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The leases that are held now, oldest slot first.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.slots.values().filter_map(Slot::lease)
    }

    /// The keys that are wanted.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.entries.keys()
    }

    /// The wish that a key is wanted by.
    pub fn wish(&self, key: &Bytes) -> Option<Wish> {
        self.entries.get(key).map(|entry| entry.wish)
    }

    /// Whether everything that is wanted is stored, and nothing else is.
    pub fn is_settled(&self) -> bool {
        self.slots.values().all(Slot::is_settled)
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// A slot of this TTL with room, or a new one.
    fn slot_for(&mut self, terms: Terms, ttl: Duration) -> SlotId {
        let room = self.plan.keys_per_lease;
        let found = self.slots.iter().find(|(_, slot)| slot.accepts(ttl) && slot.members.len() < room);
        if let Some((&id, _)) = found {
            return id;
        }
        let id = SlotId(self.count());
        self.slots.insert(id, Slot::new(terms, self.plan.retry));
        id
    }

    /// Takes a key out of a slot; what may be in the store has to be deleted there.
    fn leave_slot(&mut self, id: SlotId, key: &Bytes) {
        let Some(slot) = self.slots.get_mut(&id) else {
            self.notices.push_back(Notice::Unregistered { key: key.clone() });
            return;
        };
        slot.members.remove(key);
        slot.wanted.remove(key);
        if slot.may_have_stored() {
            slot.leaving.insert(key.clone());
        } else {
            self.notices.push_back(Notice::Unregistered { key: key.clone() });
        }
    }

    /// Lets every slot take its next steps.
    fn advance(&mut self, now: Moment) {
        let ids: Vec<SlotId> = self.slots.keys().copied().collect();
        for id in ids {
            self.advance_slot(id, now);
        }
        if self.is_closing && self.slots.is_empty() {
            self.is_closing = false;
            self.notices.push_back(Notice::Closed);
        }
    }

    fn advance_slot(&mut self, id: SlotId, now: Moment) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if let Some((lease, why)) = slot.check(now) {
            self.notices.push_back(Notice::Lost { lease, why });
            for key in &slot.members {
                if let Some(entry) = self.entries.get_mut(key) {
                    entry.place = Place::Wanted;
                }
            }
            slot.wanted = slot.members.clone();
            // What was to be deleted dies with the lease, or when the lease is revoked.
            for key in std::mem::take(&mut slot.leaving) {
                self.notices.push_back(Notice::Unregistered { key });
            }
        }
        for lease in slot.outgrown() {
            self.actions.push_back(Action::Discard { lease });
        }
        if slot.is_done() {
            self.slots.remove(&id);
            return;
        }
        let ours: Vec<LeaseId> = self.slots.values().flat_map(Slot::ours).collect();
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let mut counter = self.counter;
        let mut question = || {
            counter += 1;
            Epoch(counter)
        };
        if let Some(ttl) = slot.wants_grant(now) {
            let epoch = question();
            slot.phase = Phase::Asking { epoch };
            self.actions.push_back(Action::Grant { slot: id, epoch, ttl });
        }
        if let Some(lease) = slot.wants_renewal(now) {
            let epoch = question();
            slot.renewing = Some(epoch);
            self.actions.push_back(Action::Renew { slot: id, epoch, lease });
        }
        if let Some(lease) = slot.wants_put(now) {
            let epoch = question();
            slot.putting = Some((epoch, lease));
            let entries = std::mem::take(&mut slot.wanted)
                .into_iter()
                .filter_map(|key| {
                    let entry = self.entries.get_mut(&key)?;
                    entry.place = Place::Putting;
                    Some(PutEntry {
                        value: entry.value.clone(),
                        mode: entry.put_mode(),
                        wish: entry.wish,
                        key,
                    })
                })
                .collect();
            self.actions.push_back(Action::Put { slot: id, epoch, lease, ours: ours.clone(), entries });
        }
        if slot.wants_delete(now) {
            let epoch = question();
            slot.deleting = Some(epoch);
            let keys = slot.leaving.iter().cloned().collect();
            self.actions.push_back(Action::Delete { slot: id, epoch, ours, keys });
        }
        if let Some(lease) = slot.wants_revoke() {
            let epoch = question();
            slot.phase = Phase::Revoking { epoch, lease };
            self.actions.push_back(Action::Revoke { slot: id, epoch, lease });
        }
        self.counter = counter;
    }
}

#[cfg(test)]
mod tests;
