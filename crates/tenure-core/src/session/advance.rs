//! The next steps of a session: losses, requests for missing leases and keys, release of unneeded
//! leases.

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
    /// Reports the leases that have ended. Every event calls this first, so that no decision relies
    /// on a lost lease.
    pub(super) fn lapse(&mut self, now: Moment) {
        for slot in self.slots.values_mut() {
            let Some((lease, why)) = slot.check(now) else { continue };
            let users = std::mem::take(&mut slot.users);
            for user in &users {
                self.users.remove(user);
            }
            // The event precedes every other event of this call: a holder must stop before it reads
            // of anything newer.
            self.notices.push_back(SessionEvent::Lost { lease, why, users: users.into_iter().collect() });
            for key in &slot.members {
                if let Some(entry) = self.entries.get_mut(key) {
                    entry.location = KeyLocation::Wanted;
                }
            }
            // All members are put again, also those with a put in flight: its lease is lost, and
            // its late reply is ignored.
            slot.wanted = slot.members.clone();
            if why == LossReason::Revoked {
                // The store deleted these keys together with the lease.
                let gone = std::mem::take(&mut slot.leaving);
                self.notices.extend(gone.into_iter().map(|key| SessionEvent::Unregistered { key }));
            }
            if slot.failures.is_some() {
                self.failures.get_or_insert(FailureStreak { since: now, attempts: 0 });
            }
        }
    }

    /// Takes the next steps of every slot.
    pub(super) fn advance(&mut self, now: Moment) {
        let ids: Vec<LeaseSlotId> = self.slots.keys().copied().collect();
        for id in ids {
            self.release_unneeded(id, now);
            self.advance_slot(id, now);
        }
        // A revocation is a request without a slot: the slot may be gone, and its keys may be
        // registered again elsewhere.
        let due: Vec<LeaseId> = self
            .revoking
            .iter()
            .filter(|(_, revoking_lease)| revoking_lease.wants_revoke(now))
            .map(|(&id, _)| id)
            .collect();
        for lease in due {
            let epoch = RequestId(self.count());
            if let Some(revoking_lease) = self.revoking.get_mut(&lease) {
                revoking_lease.sent(epoch);
                self.actions.push_back(SessionOutput::Revoke { epoch, lease });
            }
        }
        self.recover(now);
        if self.is_closing && self.slots.is_empty() && self.revoking.is_empty() {
            self.is_closing = false;
            self.notices.push_back(SessionEvent::Closed);
        }
    }

    /// Releases the leases that a slot no longer needs, and removes an empty slot.
    fn release_unneeded(&mut self, id: LeaseSlotId, now: Moment) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let ttl = slot.ttl();
        let released = slot.take_unneeded_leases();
        // The remaining deletes happen with the revocation of the last lease.
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

    /// Revokes a lease, and with it the keys under it.
    pub(super) fn end_lease(&mut self, lease: LeaseId, ttl: Duration, keys: Vec<Bytes>, now: Moment) {
        let retry = LeaseSlot::rescue(ttl, self.plan.retry);
        self.revoking.entry(lease).or_insert_with(|| RevokingLease::new(ttl, keys, retry, now));
    }

    /// Removes a key from its slot. If it may be stored, it is deleted.
    pub(super) fn drop_key(&mut self, id: LeaseSlotId, key: &Bytes) {
        let mut is_stored = false;
        for (&other, slot) in &mut self.slots {
            // The key may also be stored under a former slot, from which it was moving when it was
            // unregistered.
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

    /// Records and reports a failure.
    pub(super) fn fails(&mut self, id: LeaseSlotId, what: SessionOperation, next: Duration, now: Moment) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let attempts = slot.fails(now);
        let lease = slot.lease();
        let whole = self.failures.get_or_insert(FailureStreak { since: now, attempts: 0 });
        // Ten leases that fail together are one outage, logged once.
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

    /// Reports the end of the failures.
    fn recover(&mut self, now: Moment) {
        let Some(failures) = self.failures else { return };
        self.slots.values_mut().for_each(|slot| slot.heal(now));
        if self.slots.values().any(|slot| slot.failures.is_some()) {
            return;
        }
        self.failures = None;
        // Without a lease no recovery is reported: the failing keys were unregistered.
        if self.leases().next().is_some() {
            let after = now.since(failures.since);
            self.notices.push_back(SessionEvent::Recovered { attempts: failures.attempts, after });
        }
    }

    /// Requests what one slot needs next.
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
        // A renewal is independent of puts and deletes: a slow put must not end the lease.
        if let Some(lease) = slot.wants_renewal(now) {
            let epoch = request();
            slot.renewing = Some(epoch);
            self.actions.push_back(SessionOutput::Renew { slot: id, epoch, lease });
        }
        // One put at a time. Two puts of one key may be applied in either order, and the older
        // value would stay.
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
            // A key under any own lease may be replaced: it is an earlier put of this session,
            // applied late or left by a lost lease.
            let revoking = self.revoking.keys().copied();
            let own_leases = self.slots.values().flat_map(LeaseSlot::own_leases).chain(revoking).collect();
            self.actions.push_back(SessionOutput::Put { slot: id, epoch, lease, own_leases, entries });
        }
        let Some(slot) = self.slots.get_mut(&id) else { return };
        // After the put: a key that moved here is not deleted before it is stored under the new
        // lease.
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
