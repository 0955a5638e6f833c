//! The steps that a session takes by itself: noticing losses, asking for what is missing, giving up what nobody needs.

use std::time::Duration;

use bytes::Bytes;

use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::revision::RequestId;
use crate::time::Moment;

use super::lease_slot::{FailureStreak, LeaseSlot, SlotPhase};
use super::registered_key::KeyLocation;
use super::revoking::RevokingLease;
use super::{KeyPut, LeaseSlotId, Session, SessionEvent, SessionOperation, SessionOutput};

impl Session {
    /// Notices and tells which leases are over. Comes before everything else, so that nothing is believed that is over.
    pub(super) fn lapse(&mut self, now: Moment) {
        for slot in self.slots.values_mut() {
            let Some((lease, why)) = slot.check(now) else { continue };
            let users = std::mem::take(&mut slot.users);
            for user in &users {
                self.users.remove(user);
            }
            self.notices.push_back(SessionEvent::Lost { lease, why, users: users.into_iter().collect() });
            for key in &slot.members {
                if let Some(entry) = self.entries.get_mut(key) {
                    entry.location = KeyLocation::Wanted;
                }
            }
            slot.wanted = slot.members.clone();
            if why == LossReason::Revoked {
                // What was to be deleted died with the lease.
                let gone = std::mem::take(&mut slot.leaving);
                self.notices.extend(gone.into_iter().map(|key| SessionEvent::Unregistered { key }));
            }
            if slot.failures.is_some() {
                self.failures.get_or_insert(FailureStreak { since: now, attempts: 0 });
            }
        }
    }

    /// Lets every slot take its next steps.
    pub(super) fn advance(&mut self, now: Moment) {
        let ids: Vec<LeaseSlotId> = self.slots.keys().copied().collect();
        for id in ids {
            self.release_unneeded(id, now);
            self.advance_slot(id, now);
        }
        let due: Vec<LeaseId> = self
            .revoking
            .iter()
            .filter(|(_, revoking_lease)| revoking_lease.wants_revoke(now))
            .map(|(&id, _)| id)
            .collect();
        for lease in due {
            let epoch = RequestId(self.count());
            if let Some(revoking_lease) = self.revoking.get_mut(&lease) {
                revoking_lease.asked(epoch);
                self.actions.push_back(SessionOutput::Revoke { epoch, lease });
            }
        }
        self.recover(now);
        if self.is_closing && self.slots.is_empty() && self.revoking.is_empty() {
            self.is_closing = false;
            self.notices.push_back(SessionEvent::Closed);
        }
    }

    /// Ends the leases that a slot does not need any more, and the slot itself when nothing is left of it.
    fn release_unneeded(&mut self, id: LeaseSlotId, now: Moment) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let ttl = slot.ttl();
        let released = slot.take_unneeded_leases();
        // What is left to delete goes with the last lease.
        let is_last = slot.is_done();
        let mut keys: Vec<Bytes> =
            if is_last { std::mem::take(&mut slot.leaving).into_iter().collect() } else { Vec::new() };
        if is_last {
            self.slots.remove(&id);
        }
        for lease in released.into_iter().rev() {
            self.end_lease(lease, ttl, std::mem::take(&mut keys), now);
        }
        self.notices.extend(keys.into_iter().map(|key| SessionEvent::Unregistered { key }));
    }

    /// Ends a lease that nobody needs, with everything that hangs on it.
    pub(super) fn end_lease(&mut self, lease: LeaseId, ttl: Duration, keys: Vec<Bytes>, now: Moment) {
        let retry = LeaseSlot::rescue(ttl, self.plan.retry);
        self.revoking.entry(lease).or_insert_with(|| RevokingLease::new(ttl, keys, retry, now));
    }

    /// Takes a key out of its slot; what may be in the store has to be deleted there.
    pub(super) fn drop_key(&mut self, id: LeaseSlotId, key: &Bytes) {
        let mut is_stored = false;
        for (&other, slot) in &mut self.slots {
            let was_here = slot.moving.remove(key) || other == id;
            if was_here && slot.may_have_stored() {
                slot.leaving.insert(key.clone());
                is_stored = true;
            }
            if other == id {
                slot.members.remove(key);
                slot.wanted.remove(key);
            }
        }
        if !is_stored {
            self.notices.push_back(SessionEvent::Unregistered { key: key.clone() });
        }
    }

    /// Notes and tells a failure.
    pub(super) fn fails(&mut self, id: LeaseSlotId, what: SessionOperation, next: Duration, now: Moment) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let attempts = slot.fails(now);
        let lease = slot.lease();
        let whole = self.failures.get_or_insert(FailureStreak { since: now, attempts: 0 });
        // Ten leases that fail together are one trouble, told once.
        let is_news = attempts > whole.attempts;
        whole.attempts = whole.attempts.max(attempts);
        self.notices.push_back(SessionEvent::Failing {
            what,
            lease,
            attempt: attempts,
            next,
            is_worth_logging: is_news && attempts.is_power_of_two(),
        });
    }

    /// Notices and tells that trouble is over.
    fn recover(&mut self, now: Moment) {
        let Some(failures) = self.failures else { return };
        self.slots.values_mut().for_each(|slot| slot.heal(now));
        if self.slots.values().any(|slot| slot.failures.is_some()) {
            return;
        }
        self.failures = None;
        // Without a lease nothing has recovered: what was in trouble is not wanted any more.
        if self.leases().next().is_some() {
            let after = now.since(failures.since);
            self.notices.push_back(SessionEvent::Recovered { attempts: failures.attempts, after });
        }
    }

    /// Asks for what one slot needs next.
    pub(super) fn advance_slot(&mut self, id: LeaseSlotId, now: Moment) {
        let mut counter = self.counter;
        let mut request = || {
            counter += 1;
            RequestId(counter)
        };
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if let Some(ttl) = slot.wants_grant(now) {
            let epoch = request();
            slot.phase = SlotPhase::Requesting { epoch };
            self.actions.push_back(SessionOutput::Grant { slot: id, epoch, ttl });
        }
        if let Some(lease) = slot.wants_renewal(now) {
            let epoch = request();
            slot.renewing = Some(epoch);
            self.actions.push_back(SessionOutput::Renew { slot: id, epoch, lease });
        }
        if let Some(lease) = slot.wants_put(now) {
            let epoch = request();
            slot.putting = Some((epoch, lease));
            let entries = std::mem::take(&mut slot.wanted)
                .into_iter()
                .filter_map(|key| {
                    let entry = self.entries.get_mut(&key)?;
                    entry.location = KeyLocation::Putting;
                    Some(KeyPut {
                        value: entry.value.clone(),
                        mode: entry.put_mode(),
                        registration: entry.registration,
                        key,
                    })
                })
                .collect();
            let revoking = self.revoking.keys().copied();
            let own_leases = self.slots.values().flat_map(LeaseSlot::own_leases).chain(revoking).collect();
            self.actions.push_back(SessionOutput::Put { slot: id, epoch, lease, own_leases, entries });
        }
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if slot.wants_delete(now) {
            let epoch = request();
            slot.deleting = Some(epoch);
            let keys = slot.leaving.iter().cloned().collect();
            let own_leases = slot.own_leases().collect();
            self.actions.push_back(SessionOutput::Delete { slot: id, epoch, own_leases, keys });
        }
        self.counter = counter;
    }
}
