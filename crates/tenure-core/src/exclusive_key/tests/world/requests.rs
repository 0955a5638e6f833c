//! The requests of a session and of its key as a store applies them, with the faults of the moment.

use std::time::Duration;

use super::{ExclusiveKeyWorld, KEY, OwnerProcess, StoreFault};
use crate::error::{Cause, StoreError};
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::exclusive_key::ReadKey;
use crate::kv::KeyValue;
use crate::lease::{Grant, LeaseId, Renewal};
use crate::limits::Limits;
use crate::revision::{RequestId, Revision};
use crate::session::{
    DeleteReply, DeleteRequest, LeaseSlotId, PutEach, PutProgress, PutReply, PutRequest, SessionOutput,
};
use crate::time::Moment;
use crate::txn::{Txn, TxnReply};

/// A request that is not yet at the store.
pub(super) enum UnsentStep {
    Session(SessionOutput),
    /// The second half of a put.
    PutEach(LeaseSlotId, RequestId, LeaseId, PutEach),
    Read,
}

/// A reply that is not yet at its process.
pub(super) enum UndeliveredReply {
    Granted(LeaseSlotId, RequestId, LeaseId, Duration, Result<Grant, StoreError>),
    Renewed(LeaseSlotId, RequestId, Result<Renewal, StoreError>),
    Put(LeaseSlotId, RequestId, PutReply),
    Deleted(LeaseSlotId, RequestId, DeleteReply),
    Revoked(LeaseId, RequestId, Result<Revision, StoreError>),
    Read(Result<(Option<KeyValue>, Revision), StoreError>),
}

impl ExclusiveKeyWorld {
    /// One request of a process arrives, or does not. False if there is none.
    pub(in super::super) fn send(&mut self, n: usize, pick: usize) -> bool {
        let requests = &mut self.processes[n].requests;
        if requests.is_empty() {
            return false;
        }
        let request = requests.remove(pick % requests.len());
        match request {
            UnsentStep::Session(action) => self.send_action(n, action),
            UnsentStep::PutEach(slot, epoch, lease, each) => {
                let reply = match self.is_held(n, lease) {
                    true => {
                        let replies = each.txns().iter().map(|txn| self.send_txn(txn)).collect();
                        each.handle(replies)
                    }
                    false => each.not_sent(),
                };
                self.processes[n].replies.push(UndeliveredReply::Put(slot, epoch, reply));
            }
            UnsentStep::Read => self.send_read(n),
        }
        true
    }

    fn send_read(&mut self, n: usize) {
        let mut read = ReadKey::new(KEY.into());
        let StoreRequest::Get(get) = read.request() else { panic!("it reads") };
        let page = match self.fate {
            StoreFault::Works => self.store.get(&get, self.now),
            StoreFault::NotDone | StoreFault::LosesReply | StoreFault::Late => Err(unavailable()),
        };
        match read.handle(page.map(StoreReply::Page)) {
            ExchangeStep::Done(reply) => self.processes[n].replies.push(UndeliveredReply::Read(reply)),
            ExchangeStep::Send | ExchangeStep::Retry(_) => self.processes[n].requests.push(UnsentStep::Read),
        }
    }

    fn send_action(&mut self, n: usize, action: SessionOutput) {
        let (now, is_reached) = (self.now, self.fate != StoreFault::NotDone);
        let reply = match action {
            SessionOutput::Grant { slot, epoch, ttl } => {
                self.counter += 1;
                let id = LeaseId::new(self.counter).unwrap();
                let granted = if is_reached { self.store.grant(id, ttl, now) } else { Ok(ttl) };
                let grant = granted.map(|ttl| Grant { id, ttl, asked_at: now });
                UndeliveredReply::Granted(slot, epoch, id, ttl, self.reply(grant))
            }
            SessionOutput::Renew { slot, epoch, lease } => {
                let renewed = if is_reached { self.store.renew(lease, now) } else { None };
                let renewal = renewed.map_or(Renewal::Gone, |ttl| Renewal::Renewed { ttl, asked_at: now });
                UndeliveredReply::Renewed(slot, epoch, self.reply(Ok(renewal)))
            }
            SessionOutput::Put { slot, epoch, lease, own_leases, entries } => {
                let mut requests = PutRequest::split(lease, own_leases, entries, &Limits::EMBEDDED);
                let request = requests.pop().unwrap();
                assert!(requests.is_empty(), "there is one key");
                if !self.is_held(n, lease) {
                    UndeliveredReply::Put(slot, epoch, request.not_sent())
                } else {
                    let reply = self.send_txn(&request.txn());
                    match request.handle(reply) {
                        PutProgress::Done(reply) => UndeliveredReply::Put(slot, epoch, reply),
                        PutProgress::Each(each) => {
                            let each = UnsentStep::PutEach(slot, epoch, lease, each);
                            return self.processes[n].requests.push(each);
                        }
                    }
                }
            }
            SessionOutput::Delete { slot, epoch, own_leases, keys } => {
                let mut request = DeleteRequest::new(own_leases, keys);
                while let Some(txns) = request.txns() {
                    let replies = txns.iter().map(|txn| self.send_txn(txn)).collect();
                    request.handle(replies);
                }
                UndeliveredReply::Deleted(slot, epoch, request.finish())
            }
            SessionOutput::Revoke { epoch, lease } => {
                let revoked = if is_reached { self.store.revoke(lease, now) } else { Ok(Revision::ZERO) };
                UndeliveredReply::Revoked(lease, epoch, self.reply(revoked))
            }
        };
        self.processes[n].replies.push(reply);
    }

    fn is_held(&self, n: usize, lease: LeaseId) -> bool {
        self.processes[n].session.valid_until(lease).is_some_and(|until| self.now < until)
    }

    fn send_txn(&mut self, txn: &Txn) -> Result<TxnReply, StoreError> {
        match self.fate {
            StoreFault::Works => self.store.apply(txn, self.now),
            StoreFault::NotDone => Err(unavailable()),
            StoreFault::LosesReply => {
                // Its lease may be gone.
                let _ = self.store.apply(txn, self.now);
                Err(ambiguous())
            }
            StoreFault::Late => {
                self.late.push(txn.clone());
                Err(ambiguous())
            }
        }
    }

    fn reply<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match self.fate {
            StoreFault::Works => result,
            StoreFault::NotDone => Err(unavailable()),
            // Requests for leases are not late: the model has no grant that is applied after its
            // reply was lost.
            StoreFault::LosesReply | StoreFault::Late => Err(ambiguous()),
        }
    }
}

impl OwnerProcess {
    pub(super) fn handle(&mut self, reply: UndeliveredReply, now: Moment) {
        match reply {
            UndeliveredReply::Granted(slot, epoch, id, ttl, reply) => {
                let is_doubtful = matches!(reply, Err(StoreError::Ambiguous(_)));
                self.session.handle_granted(slot, epoch, &reply, 0.5, now);
                if is_doubtful {
                    self.session.handle_ambiguous_grant(id, ttl, now);
                }
            }
            UndeliveredReply::Renewed(slot, epoch, reply) => {
                self.session.handle_renewed(slot, epoch, &reply, 0.5, now);
            }
            UndeliveredReply::Put(slot, epoch, reply) => {
                self.session.handle_put(slot, epoch, reply.outcomes, reply.lease, 0.5, now);
            }
            UndeliveredReply::Deleted(slot, epoch, reply) => {
                self.session.handle_deleted(slot, epoch, reply.outcomes, 0.5, now);
            }
            UndeliveredReply::Revoked(lease, epoch, reply) => {
                self.session.handle_revoked(lease, epoch, &reply, 0.5, now);
            }
            UndeliveredReply::Read(reply) => {
                if let Some(key) = &mut self.key {
                    key.handle_read(reply, now);
                }
            }
        }
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable(Cause::new("the request did not arrive"))
}

fn ambiguous() -> StoreError {
    StoreError::Ambiguous(Cause::new("the reply was lost"))
}
