//! Replies to the requests of a session.
//!
//! Each reply first advances the clock: a reply that arrives after the end of a lease must find the
//! lease lost.

use std::time::Duration;

use bytes::Bytes;

use crate::error::StoreError;
use crate::lease::{Grant, LeaseId, Renewal};
use crate::revision::{RequestId, Revision};
use crate::time::Moment;

use super::lease_slot::RenewalOutcome;
use super::registered_key::KeyLocation;
use super::{
    KeyOutcome, LeaseLookup, LeaseSlotId, LeaseUserId, PutMode, RegistrationId, Session, SessionEvent,
    SessionOperation,
};

impl Session {
    /// Handles the reply to [`SessionOutput::Grant`](super::SessionOutput::Grant).
    pub fn handle_granted(
        &mut self,
        id: LeaseSlotId,
        epoch: RequestId,
        answer: &Result<Grant, StoreError>,
        jitter: f64,
        now: Moment,
    ) {
        self.lapse(now);
        let others_hold = self.slots.iter().any(|(&other, slot)| other != id && slot.lease().is_some());
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.is_granting(epoch)) else {
            // The slot no longer waits for this grant. The lease exists, so it is revoked.
            if let Ok(grant) = answer {
                self.end_lease(grant.id, grant.ttl, Vec::new(), now);
            }
            return self.advance(now);
        };
        match answer {
            Ok(grant) => {
                // A further lease beside held ones is growth. Any other grant starts a new
                // incarnation.
                let is_growth = others_hold && !slot.was_held;
                let incarnation = self.incarnation + u64::from(!is_growth);
                if slot.needs_lease() && slot.hold(*grant, incarnation, now) {
                    self.incarnation = incarnation;
                    self.notices.push_back(SessionEvent::Granted { lease: grant.id, incarnation });
                    // Users are served only now: before the grant there is no lease that they could
                    // put keys under.
                    let waited: Vec<LeaseUserId> = slot.waiting_users.iter().copied().collect();
                    slot.users.append(&mut slot.waiting_users);
                    for user in waited {
                        self.notices.extend(self.lease_info(user).map(SessionEvent::LeaseReady));
                    }
                } else {
                    // The reply came too late for the lease to be valid, or no key and no user
                    // needs it.
                    slot.wait(jitter, now);
                    self.end_lease(grant.id, grant.ttl, Vec::new(), now);
                }
            }
            Err(_) => {
                let next = slot.wait(jitter, now);
                self.fails(id, SessionOperation::Grant, next, now);
            }
        }
        self.advance(now);
    }

    /// Handles a grant with an ambiguous outcome: the lease is not used, but may exist, and is
    /// revoked.
    pub fn handle_ambiguous_grant(&mut self, lease: LeaseId, ttl: Duration, now: Moment) {
        self.lapse(now);
        self.end_lease(lease, ttl, Vec::new(), now);
        self.advance(now);
    }

    /// Handles the reply to [`SessionOutput::Renew`](super::SessionOutput::Renew).
    pub fn handle_renewed(
        &mut self,
        id: LeaseSlotId,
        epoch: RequestId,
        answer: &Result<Renewal, StoreError>,
        jitter: f64,
        now: Moment,
    ) {
        self.lapse(now);
        let Some(slot) = self.slots.get_mut(&id) else { return };
        match slot.renewed(epoch, answer, jitter, now) {
            RenewalOutcome::Well { lease, remained } => {
                self.notices.push_back(SessionEvent::Renewed { lease, remained });
            }
            RenewalOutcome::Failed { next } => self.fails(id, SessionOperation::Renewal, next, now),
            RenewalOutcome::Late => self.lapse(now),
        }
        self.advance(now);
    }

    /// Handles the reply to [`SessionOutput::Put`](super::SessionOutput::Put): the outcome of each
    /// key, and whether the store still has the lease.
    pub fn handle_put(
        &mut self,
        id: LeaseSlotId,
        epoch: RequestId,
        outcomes: Vec<(Bytes, RegistrationId, KeyOutcome)>,
        lease: LeaseLookup,
        jitter: f64,
        now: Moment,
    ) {
        self.lapse(now);
        let Some(slot) = self.slots.get_mut(&id) else { return };
        // The request was dropped if the lease was lost since. Then every key is put again, under
        // another lease.
        let Some(under) = slot.answered_put(epoch) else { return };
        let mut any_failed = false;
        for (key, registration, outcome) in outcomes {
            // The key may have been unregistered or registered again since. This reply is not about
            // that registration.
            if self
                .entries
                .get(&key)
                .is_some_and(|entry| entry.registration == registration && entry.slot == id)
            {
                any_failed |= self.handle_put_of(id, under, key, outcome, lease);
            }
        }
        if lease == LeaseLookup::No {
            self.handle_lease_not_found(under, now);
        } else if any_failed && let Some(slot) = self.slots.get_mut(&id) {
            // All keys of one slot share a backoff. A pause for each key would send a request for
            // each.
            let next = slot.pause(jitter, now);
            self.fails(id, SessionOperation::Put, next, now);
        } else if let Some(slot) = self.slots.get_mut(&id) {
            slot.writes_well();
        }
        self.advance(now);
    }

    /// Handles the outcome of one key. Returns whether it must be retried.
    fn handle_put_of(
        &mut self,
        id: LeaseSlotId,
        under: LeaseId,
        key: Bytes,
        outcome: KeyOutcome,
        lease: LeaseLookup,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        let registration = entry.registration;
        match outcome {
            // A transaction of the batch was applied, but another one found no lease. Then the key
            // is gone with the lease, and is handled as failed below.
            KeyOutcome::Done(revision) if lease == LeaseLookup::Yes => {
                entry.stored(revision);
                match entry.location {
                    KeyLocation::Stored(_) | KeyLocation::Putting => {
                        let ttl = slot.ttl();
                        self.notices.push_back(SessionEvent::Registered {
                            key: key.clone(),
                            registration,
                            lease: under,
                            revision,
                            ttl,
                        });
                    }
                    KeyLocation::Taken(_) => self.notices.push_back(SessionEvent::Taken { key: key.clone() }),
                    KeyLocation::Wanted => drop(slot.wanted.insert(key.clone())),
                }
                self.has_moved(&key);
                false
            }
            // A registration with `Create` ends on a foreign key, also when the session itself put
            // the key before and lost it.
            KeyOutcome::Taken(_) if entry.mode == PutMode::Create => {
                self.refuse(id, key, registration, None);
                false
            }
            // Another client has the key. A newer observation may already show that it was deleted.
            KeyOutcome::Taken(observed) => {
                entry.found_taken(observed);
                if entry.location == KeyLocation::Wanted {
                    slot.wanted.insert(key);
                } else {
                    self.notices.push_back(SessionEvent::Taken { key: key.clone() });
                    self.has_moved(&key);
                }
                false
            }
            KeyOutcome::Refused(why) => {
                self.refuse(id, key, registration, Some(why));
                false
            }
            KeyOutcome::Done(_) | KeyOutcome::Failed => {
                entry.location = KeyLocation::Wanted;
                slot.wanted.insert(key);
                true
            }
        }
    }

    fn refuse(&mut self, id: LeaseSlotId, key: Bytes, registration: RegistrationId, why: Option<StoreError>) {
        self.entries.remove(&key);
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.members.remove(&key);
            slot.wanted.remove(&key);
        }
        for slot in self.slots.values_mut() {
            if slot.moving.remove(&key) {
                slot.leaving.insert(key.clone());
            }
        }
        self.notices.push_back(SessionEvent::Refused { key, registration, why });
    }

    /// Removes a key that moved from the slots that it left.
    fn has_moved(&mut self, key: &Bytes) {
        for slot in self.slots.values_mut() {
            slot.moving.remove(key);
        }
    }

    /// Handles the reply to [`SessionOutput::Delete`](super::SessionOutput::Delete): the outcome of
    /// each key.
    pub fn handle_deleted(
        &mut self,
        id: LeaseSlotId,
        epoch: RequestId,
        outcomes: Vec<(Bytes, KeyOutcome)>,
        jitter: f64,
        now: Moment,
    ) {
        self.lapse(now);
        // A reply after a loss is ignored: the loss dropped the request, and the next delete names
        // the remaining keys again.
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.deleting == Some(epoch)) else { return };
        slot.answered_delete(epoch);
        let mut any_failed = false;
        for (key, outcome) in outcomes {
            match outcome {
                KeyOutcome::Done(_) | KeyOutcome::Taken(_) | KeyOutcome::Refused(_) => {
                    if slot.leaving.remove(&key) {
                        self.notices.push_back(SessionEvent::Unregistered { key });
                    }
                }
                KeyOutcome::Failed => any_failed = true,
            }
        }
        if any_failed {
            let next = slot.pause(jitter, now);
            self.fails(id, SessionOperation::Delete, next, now);
        } else {
            slot.writes_well();
        }
        self.advance(now);
    }

    /// Handles the reply to [`SessionOutput::Revoke`](super::SessionOutput::Revoke). A failed
    /// revocation is retried until the lease has expired.
    pub fn handle_revoked(
        &mut self,
        lease: LeaseId,
        epoch: RequestId,
        answer: &Result<Revision, StoreError>,
        jitter: f64,
        now: Moment,
    ) {
        self.lapse(now);
        let Some(revoking_lease) =
            self.revoking.get_mut(&lease).filter(|revoking_lease| revoking_lease.is_in_flight(epoch))
        else {
            return;
        };
        let is_over = matches!(answer, Ok(_) | Err(StoreError::LeaseNotFound));
        if (is_over || !revoking_lease.failed(jitter, now))
            && let Some(revoking_lease) = self.revoking.remove(&lease)
        {
            self.notices
                .extend(revoking_lease.keys.into_iter().map(|key| SessionEvent::Unregistered { key }));
        }
        self.advance(now);
    }
}
