//! The transactions of a session for its keys, and the meaning of their replies. Grants, renewals
//! and revocations are calls of their own.
//!
//! Keys travel in transactions as large as the store allows. Keys that may overwrite need no
//! condition. The others are put together if all are absent; otherwise the reply shows which exist,
//! and each is put alone, under the condition that it is this session's.
//!
//! **Invariant** (G4): a key of another client is neither replaced nor deleted, unless its
//! registration allows overwriting.

use std::sync::Arc;

use bytes::Bytes;

use super::{KeyOutcome, KeyPut, LeaseLookup, PutMode, RegistrationId};
use crate::error::StoreError;
use crate::kv::KeyValue;
use crate::lease::LeaseId;
use crate::limits::Limits;
use crate::revision::Revision;
use crate::txn::{Comparison, Condition, Field, LeaseChoice, Op, OpReply, Txn, TxnReply};

/// The bytes that a condition or a read adds to a put, besides its key.
const CLAUSE_BYTES: usize = 32;

/// The largest transaction in which this key is ever put. If the store accepts it, it accepts all
/// others.
pub fn largest_put(key: &Bytes, value: &Bytes) -> Txn {
    // The lease id has the same size for every lease.
    let put = Op::Put { key: key.clone(), value: value.clone(), lease: LeaseChoice::Detach };
    Txn { otherwise: vec![Op::get(key.clone())], ..Txn::new() }.when(Condition::absent(key.clone())).then(put)
}

/// The result of a put.
#[derive(Clone, Debug)]
pub struct PutReply {
    /// The outcome of each key.
    pub outcomes: Vec<(Bytes, RegistrationId, KeyOutcome)>,
    /// Whether the store still had the lease.
    pub lease: LeaseLookup,
    /// The last error.
    pub error: Option<StoreError>,
}

impl Default for PutReply {
    fn default() -> PutReply {
        PutReply { outcomes: Vec::new(), lease: LeaseLookup::Yes, error: None }
    }
}

impl PutReply {
    /// Adds the result of another part of the same put.
    pub fn merge(&mut self, part: PutReply) {
        self.outcomes.extend(part.outcomes);
        if part.lease == LeaseLookup::No {
            self.lease = LeaseLookup::No;
        }
        self.error = part.error.or(self.error.take());
    }

    fn of(entries: Vec<KeyPut>, outcome: &KeyOutcome) -> PutReply {
        let outcomes =
            entries.into_iter().map(|entry| (entry.key, entry.registration, outcome.clone())).collect();
        PutReply { outcomes, ..PutReply::default() }
    }
}

/// Keys that are put under a lease in one transaction.
#[derive(Clone, Debug)]
pub struct PutRequest {
    lease: LeaseId,
    /// A key under one of these leases is this session's.
    own_leases: Arc<[LeaseId]>,
    entries: Vec<KeyPut>,
}

/// What follows from the reply to a [`PutRequest`].
#[derive(Clone, Debug)]
pub enum PutProgress {
    /// The reply is complete.
    Done(PutReply),
    /// Some key exists: each is put alone.
    Each(PutEach),
}

impl PutRequest {
    /// Splits entries into requests that the store accepts.
    pub fn split(
        lease: LeaseId,
        own_leases: Vec<LeaseId>,
        mut entries: Vec<KeyPut>,
        limits: &Limits,
    ) -> Vec<PutRequest> {
        let own_leases: Arc<[LeaseId]> = own_leases.into();
        // Keys that may overwrite need no condition. A key with a condition would fail the whole
        // transaction for them.
        entries.sort_by_key(|entry| entry.mode != PutMode::Overwrite);
        let mut groups: Vec<Vec<KeyPut>> = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            // The key travels up to three times: in the put, in its condition and in the read of
            // the other branch.
            let size = CLAUSE_BYTES + entry.value.len() + 3 * (CLAUSE_BYTES + entry.key.len());
            let fits = groups.last().is_some_and(|group| {
                group.len() < limits.txn_ops_max
                    && bytes + size <= limits.request_bytes_max
                    && (group[0].mode == PutMode::Overwrite) == (entry.mode == PutMode::Overwrite)
            });
            if fits && let Some(group) = groups.last_mut() {
                bytes += size;
                group.push(entry);
            } else {
                bytes = size;
                groups.push(vec![entry]);
            }
        }
        groups
            .into_iter()
            .map(|entries| PutRequest { lease, own_leases: own_leases.clone(), entries })
            .collect()
    }

    /// The transaction.
    pub fn txn(&self) -> Txn {
        let mut txn = Txn::new();
        for entry in &self.entries {
            txn.then.push(Op::put_leased(entry.key.clone(), entry.value.clone(), self.lease));
            if entry.mode != PutMode::Overwrite {
                txn.when.push(Condition::absent(entry.key.clone()));
                txn.otherwise.push(Op::get(entry.key.clone()));
            }
        }
        txn
    }

    /// The result if the transaction is not sent, because the lease may have expired.
    pub fn not_sent(self) -> PutReply {
        PutReply::of(self.entries, &KeyOutcome::Failed)
    }

    /// Reads the reply.
    pub fn handle(self, reply: Result<TxnReply, StoreError>) -> PutProgress {
        match reply {
            Ok(reply) if reply.succeeded => {
                PutProgress::Done(PutReply::of(self.entries, &KeyOutcome::Done(reply.revision)))
            }
            Ok(reply) => PutProgress::Each(PutEach::new(self, reply)),
            Err(StoreError::LeaseNotFound) => {
                let reply = PutReply::of(self.entries, &KeyOutcome::Failed);
                PutProgress::Done(PutReply { lease: LeaseLookup::No, ..reply })
            }
            Err(error) => {
                let reply = PutReply::of(self.entries, &refusal(error.clone()));
                PutProgress::Done(PutReply { error: Some(error), ..reply })
            }
        }
    }
}

/// Keys that are put one by one, each under the condition that makes it this session's.
#[derive(Clone, Debug)]
pub struct PutEach {
    entries: Vec<KeyPut>,
    txns: Vec<Txn>,
    /// The outcomes of the keys that another client has.
    reply: PutReply,
}

impl PutEach {
    fn new(request: PutRequest, observed: TxnReply) -> PutEach {
        let PutRequest { lease, own_leases, entries } = request;
        let mut each = PutEach { entries: Vec::new(), txns: Vec::new(), reply: PutReply::default() };
        for (entry, result) in entries.into_iter().zip(observed.results) {
            let condition = match found(result) {
                // The condition repeats what was read: another client may put or delete the key
                // between the two requests.
                None => Condition::absent(entry.key.clone()),
                Some(pair) => match pair.lease.filter(|lease| own_leases.contains(lease)) {
                    Some(own) => is_under(entry.key.clone(), own),
                    None => {
                        let taken = KeyOutcome::Taken(observed.revision);
                        each.reply.outcomes.push((entry.key, entry.registration, taken));
                        continue;
                    }
                },
            };
            let put = Op::put_leased(entry.key.clone(), entry.value.clone(), lease);
            each.txns.push(Txn::new().when(condition).then(put));
            each.entries.push(entry);
        }
        each
    }

    /// The transactions, each with a reply of its own.
    pub fn txns(&self) -> Vec<Txn> {
        self.txns.clone()
    }

    /// The result if they are not sent, because the lease may have expired.
    pub fn not_sent(self) -> PutReply {
        let mut reply = self.reply;
        reply.merge(PutReply::of(self.entries, &KeyOutcome::Failed));
        reply
    }

    /// Reads the replies, in the order of the transactions.
    pub fn handle(self, replies: Vec<Result<TxnReply, StoreError>>) -> PutReply {
        let mut whole = self.reply;
        for (entry, reply) in self.entries.into_iter().zip(replies) {
            let outcome = match reply {
                Ok(reply) if reply.succeeded => KeyOutcome::Done(reply.revision),
                // The key changed between the two requests: the machine retries later.
                Ok(_) => KeyOutcome::Failed,
                Err(StoreError::LeaseNotFound) => {
                    whole.lease = LeaseLookup::No;
                    KeyOutcome::Failed
                }
                Err(error) => {
                    whole.error = Some(error.clone());
                    refusal(error)
                }
            };
            whole.outcomes.push((entry.key, entry.registration, outcome));
        }
        whole
    }
}

/// The result of a delete.
#[derive(Clone, Debug)]
pub struct DeleteReply {
    /// The outcome of each key.
    pub outcomes: Vec<(Bytes, KeyOutcome)>,
    /// The last error.
    pub error: Option<StoreError>,
}

/// Deletes the keys that are under one of this session's leases. A key of another client is left
/// alone, and that is no failure.
#[derive(Clone, Debug)]
pub struct DeleteRequest {
    own_leases: Vec<LeaseId>,
    reply: DeleteReply,
}

impl DeleteRequest {
    /// Deletes these keys if they are under one of these leases.
    pub fn new(own_leases: Vec<LeaseId>, keys: Vec<Bytes>) -> DeleteRequest {
        let outcomes = keys.into_iter().map(|key| (key, KeyOutcome::Done(Revision::ZERO))).collect();
        DeleteRequest { own_leases, reply: DeleteReply { outcomes, error: None } }
    }

    /// The next transactions, each with a reply of its own; none if all were sent.
    ///
    /// Transactions of one batch must not touch the same key, so each lease has its own batch.
    /// Nearly always there is one lease.
    pub fn txns(&self) -> Option<Vec<Txn>> {
        let lease = *self.own_leases.last()?;
        let delete = |(key, _): &(Bytes, KeyOutcome)| {
            Txn::new().when(is_under(key.clone(), lease)).then(Op::delete(key.clone()))
        };
        Some(self.reply.outcomes.iter().map(delete).collect())
    }

    /// Reads the replies to the last transactions.
    pub fn handle(&mut self, replies: Vec<Result<TxnReply, StoreError>>) {
        self.own_leases.pop();
        for ((_, outcome), reply) in self.reply.outcomes.iter_mut().zip(replies) {
            if let Err(error) = reply {
                self.reply.error = Some(error.clone());
                *outcome = refusal(error);
            }
        }
    }

    /// The result.
    pub fn finish(self) -> DeleteReply {
        self.reply
    }
}

/// Maps an error that no retry can mend to a refusal. The machine retries all others.
fn refusal(error: StoreError) -> KeyOutcome {
    match error {
        StoreError::Invalid(_) | StoreError::Denied(_) => KeyOutcome::Refused(error),
        _ => KeyOutcome::Failed,
    }
}

fn found(result: OpReply) -> Option<KeyValue> {
    match result {
        OpReply::Get(mut page) => page.pairs.pop(),
        OpReply::Put | OpReply::Delete { .. } => None,
    }
}

fn is_under(key: Bytes, lease: LeaseId) -> Condition {
    Condition { key, is: Comparison::Equal, field: Field::Lease(Some(lease)) }
}
