//! What a session's machine asks for, as requests to a store.
//!
//! Nothing is decided here but how to say it in few requests: keys travel in transactions as large as the store takes, several at a time,
//! and every put and delete carries the condition under which it is allowed.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tenure_core::session::{KeyOutcome, LeaseKnown, Mode, PutEntry, Wish};

use crate::store::{
    Comparison, Condition, Field, KeyValue, LeaseChoice, LeaseId, Limits, Op, OpReply, Revision, Store,
    StoreError, Txn, TxnReply,
};

/// How many transactions of one put are under way at once; see the same number at the store's handle.
const IN_FLIGHT: usize = 4;

/// What a condition or a read adds to the bytes of a put, beside its key.
const CLAUSE_BYTES: usize = 32;

/// What came of a put.
pub(super) struct Put {
    /// For each key.
    pub outcomes: Vec<(Bytes, Wish, KeyOutcome)>,
    /// Whether the store still knew the lease.
    pub lease: LeaseKnown,
    /// What went wrong last.
    pub error: Option<StoreError>,
}

/// The largest request in which this one key is ever put: what fits into it fits into all.
pub(super) fn largest_put(key: &Bytes, value: &Bytes) -> Txn {
    // A lease of any number takes the same space.
    let put = Op::Put { key: key.clone(), value: value.clone(), lease: LeaseChoice::Detach };
    Txn { otherwise: vec![Op::get(key.clone())], ..Txn::new() }.when(Condition::absent(key.clone())).then(put)
}

/// Puts keys under a lease, each only if its mode allows it.
///
/// `is_held` is asked before each request: a process that was stopped past the end of its lease must not go on writing under it.
pub(super) async fn put(
    store: &Store,
    lease: LeaseId,
    ours: &[LeaseId],
    entries: Vec<PutEntry>,
    is_held: &(impl Fn() -> bool + Sync),
) -> Put {
    let groups = groups(entries, &store.info().limits);
    let parts = groups.into_iter().map(|group| put_group(store, lease, ours, group, is_held));
    let mut whole = Put { outcomes: Vec::new(), lease: LeaseKnown::Yes, error: None };
    let mut parts = stream::iter(parts).buffer_unordered(IN_FLIGHT);
    while let Some(part) = parts.next().await {
        whole.outcomes.extend(part.outcomes);
        if part.lease == LeaseKnown::No {
            whole.lease = LeaseKnown::No;
        }
        whole.error = part.error.or(whole.error);
    }
    whole
}

/// Cuts entries into groups of one mode that fit into one transaction each.
fn groups(mut entries: Vec<PutEntry>, limits: &Limits) -> Vec<Vec<PutEntry>> {
    // Those that may overwrite need no condition; those that may not would fail the others of their transaction.
    entries.sort_by_key(|entry| entry.mode != Mode::Overwrite);
    let mut groups: Vec<Vec<PutEntry>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let size = CLAUSE_BYTES + entry.value.len() + 3 * (CLAUSE_BYTES + entry.key.len());
        let fits = groups.last().is_some_and(|group| {
            group.len() < limits.txn_ops_max
                && bytes + size <= limits.request_bytes_max
                && (group[0].mode == Mode::Overwrite) == (entry.mode == Mode::Overwrite)
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
}

async fn put_group(
    store: &Store,
    lease: LeaseId,
    ours: &[LeaseId],
    group: Vec<PutEntry>,
    is_held: &(impl Fn() -> bool + Sync),
) -> Put {
    if !is_held() {
        return all(group, &KeyOutcome::Failed);
    }
    let mut txn = Txn::new();
    for entry in &group {
        txn.then.push(Op::put_leased(entry.key.clone(), entry.value.clone(), lease));
        if entry.mode != Mode::Overwrite {
            txn.when.push(Condition::absent(entry.key.clone()));
            txn.otherwise.push(Op::get(entry.key.clone()));
        }
    }
    match store.txn(txn).await {
        Ok(reply) if reply.succeeded => all(group, &KeyOutcome::Done(reply.revision)),
        Ok(reply) if is_held() => put_one_by_one(store, lease, ours, group, reply).await,
        Ok(_) => all(group, &KeyOutcome::Failed),
        Err(error) => failed(group, error),
    }
}

/// Some key of the group exists: asks again for each by itself, with the condition under which it is ours.
async fn put_one_by_one(
    store: &Store,
    lease: LeaseId,
    ours: &[LeaseId],
    group: Vec<PutEntry>,
    seen: TxnReply,
) -> Put {
    let seen_at = seen.revision;
    let mut outcomes = Vec::new();
    let mut asked = Vec::new();
    let mut txns = Vec::new();
    for (entry, result) in group.into_iter().zip(seen.results) {
        let condition = match found(result) {
            None => Condition::absent(entry.key.clone()),
            Some(pair) => match pair.lease.filter(|lease| ours.contains(lease)) {
                Some(own) => hangs_on(entry.key.clone(), own),
                None => {
                    outcomes.push((entry.key, entry.wish, KeyOutcome::Taken(seen_at)));
                    continue;
                }
            },
        };
        let put = Op::put_leased(entry.key.clone(), entry.value.clone(), lease);
        txns.push(Txn::new().when(condition).then(put));
        asked.push(entry);
    }
    let mut known = LeaseKnown::Yes;
    let mut trouble = None;
    for (entry, answer) in asked.into_iter().zip(store.batch(txns).await) {
        let outcome = match answer {
            Ok(reply) if reply.succeeded => KeyOutcome::Done(reply.revision),
            // It changed between the two looks: look again later.
            Ok(_) => KeyOutcome::Failed,
            Err(StoreError::LeaseNotFound) => {
                known = LeaseKnown::No;
                KeyOutcome::Failed
            }
            Err(error) => {
                trouble = Some(error.clone());
                refusal(error)
            }
        };
        outcomes.push((entry.key, entry.wish, outcome));
    }
    Put { outcomes, lease: known, error: trouble }
}

fn found(result: OpReply) -> Option<KeyValue> {
    match result {
        OpReply::Get(mut page) => page.pairs.pop(),
        OpReply::Put | OpReply::Delete { .. } => None,
    }
}

fn failed(group: Vec<PutEntry>, error: StoreError) -> Put {
    if matches!(error, StoreError::LeaseNotFound) {
        return Put { lease: LeaseKnown::No, ..all(group, &KeyOutcome::Failed) };
    }
    Put { error: Some(error.clone()), ..all(group, &refusal(error)) }
}

/// What can never be done is refused; everything else is tried again.
fn refusal(error: StoreError) -> KeyOutcome {
    match error {
        StoreError::Invalid(_) | StoreError::Denied(_) => KeyOutcome::Refused(error),
        _ => KeyOutcome::Failed,
    }
}

fn all(group: Vec<PutEntry>, outcome: &KeyOutcome) -> Put {
    let outcomes = group.into_iter().map(|entry| (entry.key, entry.wish, outcome.clone())).collect();
    Put { outcomes, lease: LeaseKnown::Yes, error: None }
}

/// What came of a delete.
pub(super) struct Deleted {
    /// For each key.
    pub outcomes: Vec<(Bytes, KeyOutcome)>,
    /// What went wrong last.
    pub error: Option<StoreError>,
}

/// Deletes keys that hang on one of our leases; a key of somebody else's is left alone, and that is no failure.
pub(super) async fn delete(store: &Store, ours: &[LeaseId], keys: Vec<Bytes>) -> Deleted {
    let mut outcomes: Vec<(Bytes, KeyOutcome)> =
        keys.into_iter().map(|key| (key, KeyOutcome::Done(Revision::ZERO))).collect();
    let mut trouble = None;
    // Transactions of one batch must not touch each other's keys, so each lease has a batch of its own; nearly always there is one.
    for &lease in ours {
        let ask = |(key, _): &(Bytes, KeyOutcome)| {
            Txn::new().when(hangs_on(key.clone(), lease)).then(Op::delete(key.clone()))
        };
        let answers = store.batch(outcomes.iter().map(ask).collect()).await;
        for ((_, outcome), answer) in outcomes.iter_mut().zip(answers) {
            if let Err(error) = answer {
                trouble = Some(error.clone());
                *outcome = refusal(error);
            }
        }
    }
    Deleted { outcomes, error: trouble }
}

fn hangs_on(key: Bytes, lease: LeaseId) -> Condition {
    Condition { key, is: Comparison::Equal, field: Field::Lease(Some(lease)) }
}
