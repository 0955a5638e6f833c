//! Independent transactions in as few requests as possible: transactions inside one transaction.
//!
//! etcd counts operations along a path, so a hundred small transactions fit into one request of 128 operations. What it
//! refuses, it refuses whole: one unknown lease fails the request for all. Then the request is split in halves, until each
//! transaction has its own outcome.

use futures_util::StreamExt;
use futures_util::stream;
use tenure_etcd as etcd;

use crate::store::etcd::{EtcdEngine, translate};
use crate::store::{Engine, Limits, Revision, StoreError, Txn, TxnReply};

/// Requests in flight at once. One leaves the server idle between responses; beyond four nothing was gained.
const IN_FLIGHT: usize = 4;

/// Bytes around one inner transaction on the wire: two tags, two lengths and some room.
const WRAPPING_BYTES: usize = 16;

type BatchOutcome = Result<TxnReply, StoreError>;

/// Transactions with their places in the caller's list.
type TxnGroup = Vec<(usize, Txn)>;

pub(super) async fn run(engine: &EtcdEngine, txns: Vec<Txn>) -> Vec<BatchOutcome> {
    let limits = &engine.info().limits;
    let mut outcomes: Vec<Option<BatchOutcome>> = Vec::new();
    outcomes.resize_with(txns.len(), || None);
    let mut valid = Vec::with_capacity(txns.len());
    for (place, txn) in txns.into_iter().enumerate() {
        match txn.check(limits) {
            Ok(()) => valid.push((place, txn)),
            Err(error) => outcomes[place] = Some(Err(error)),
        }
    }
    let outcomes_by_index = match <[TxnGroup; 1]>::try_from(groups(valid, limits)) {
        // The usual case. A stream over one request would wake its task once more.
        Ok([only]) => vec![send_group(engine, only).await],
        Err(groups) => {
            let requests = groups.into_iter().map(|group| send_group(engine, group));
            stream::iter(requests).buffer_unordered(IN_FLIGHT).collect().await
        }
    };
    for (place, outcome) in outcomes_by_index.into_iter().flatten() {
        outcomes[place] = Some(outcome);
    }
    outcomes.into_iter().map(|outcome| outcome.expect("every transaction is in exactly one group")).collect()
}

/// Cuts the list into groups that one request can carry.
fn groups(txns: TxnGroup, limits: &Limits) -> Vec<TxnGroup> {
    let mut groups = Vec::new();
    let mut open: TxnGroup = Vec::new();
    let (mut longest, mut bytes) = (0, 0);
    for (place, txn) in txns {
        // etcd limits the operations along a path: those of the outer transaction plus the longest list of a nested one.
        let count = txn.when.len().max(txn.then.len()).max(txn.otherwise.len());
        let size = txn.size() + WRAPPING_BYTES;
        let fits = open.len() + 1 + longest.max(count) <= limits.txn_ops_max
            && bytes + size <= limits.request_bytes_max;
        if !fits && !open.is_empty() {
            groups.push(std::mem::take(&mut open));
            (longest, bytes) = (0, 0);
        }
        longest = longest.max(count);
        bytes += size;
        open.push((place, txn));
    }
    if !open.is_empty() {
        groups.push(open);
    }
    groups
}

/// Sends one group, and halves of it where the server refuses the whole.
async fn send_group(engine: &EtcdEngine, group: TxnGroup) -> Vec<(usize, BatchOutcome)> {
    let mut settled = Vec::with_capacity(group.len());
    let mut waiting = vec![group];
    while let Some(mut group) = waiting.pop() {
        if group.len() == 1 {
            // Alone it needs no nesting, and its error is its own.
            for (place, txn) in group {
                settled.push((place, engine.txn(txn).await));
            }
            continue;
        }
        match send(engine, &group).await {
            Ok(replies) => {
                settled.extend(group.iter().zip(replies).map(|((place, _), reply)| (*place, reply)));
            }
            // A definite refusal of the whole request: nothing was applied, so both halves can be sent again.
            Err(error) if is_caused_by_one(&error) => {
                let half = group.split_off(group.len() / 2);
                waiting.push(half);
                waiting.push(group);
            }
            Err(error) => settled.extend(group.iter().map(|(place, _)| (*place, Err(error.clone())))),
        }
    }
    settled
}

async fn send(engine: &EtcdEngine, group: &TxnGroup) -> Result<Vec<BatchOutcome>, StoreError> {
    if is_flat(group, engine.info().limits.txn_ops_max) {
        return send_flat(engine, group).await;
    }
    let then = group.iter().map(|(_, txn)| etcd::Op::Txn(translate::txn(txn))).collect();
    let request = etcd::Txn { then, ..etcd::Txn::default() };
    let reply = engine.client.txn(request).await.map_err(super::error::from)?;
    if reply.replies.len() != group.len() {
        return Err(StoreError::Corrupt(
            "a batch has another number of replies than transactions".to_owned(),
        ));
    }
    let revision = Revision(reply.revision);
    let outcome = |(reply, (_, txn)): (etcd::OpReply, &(usize, Txn))| match reply {
        etcd::OpReply::Txn(inner) => translate::txn_reply(inner, txn, revision),
        etcd::OpReply::Range(_) | etcd::OpReply::Put { .. } | etcd::OpReply::Delete { .. } => {
            Err(StoreError::Corrupt("the reply to a transaction has another type".to_owned()))
        }
    };
    Ok(reply.replies.into_iter().zip(group).map(outcome).collect())
}

/// Whether all transactions of a group are without conditions, and few enough to be merged into one: that costs the server less than
/// nested transactions.
fn is_flat(group: &TxnGroup, ops_max: usize) -> bool {
    let is_bare = |txn: &Txn| txn.when.is_empty() && !txn.then.is_empty();
    group.iter().all(|(_, txn)| is_bare(txn))
        && group.iter().map(|(_, txn)| txn.then.len()).sum::<usize>() <= ops_max
}

async fn send_flat(engine: &EtcdEngine, group: &TxnGroup) -> Result<Vec<BatchOutcome>, StoreError> {
    let then = group.iter().flat_map(|(_, txn)| txn.then.iter().map(translate::op)).collect();
    let request = etcd::Txn { then, ..etcd::Txn::default() };
    let reply = engine.client.txn(request).await.map_err(super::error::from)?;
    let revision = Revision(reply.revision);
    let mut replies = reply.replies.into_iter();
    let outcome = |(_, txn): &(usize, Txn)| {
        let results = translate::op_replies(replies.by_ref().take(txn.then.len()), &txn.then, revision)?;
        if results.len() != txn.then.len() {
            return Err(StoreError::Corrupt("a batch has too few replies".to_owned()));
        }
        Ok(TxnReply { succeeded: true, revision, results })
    };
    Ok(group.iter().map(outcome).collect())
}

/// Whether one transaction can cause this refusal of the whole request. Other errors are the same for every transaction.
fn is_caused_by_one(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Invalid(_)
            | StoreError::LeaseNotFound
            | StoreError::KeyNotFound
            | StoreError::Compacted { .. }
            | StoreError::FutureRevision
            | StoreError::Denied(_)
    )
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Condition, Op};

    fn claim(place: usize) -> (usize, Txn) {
        let key = format!("/{place}");
        (place, Txn::new().when(Condition::absent(key.clone())).then(Op::put(key, "v")))
    }

    fn lens(txns: Vec<(usize, Txn)>) -> Vec<usize> {
        groups(txns, &Limits::EMBEDDED).iter().map(Vec::len).collect()
    }

    #[test]
    fn request_carries_127_claims_and_no_more() {
        assert_eq!(lens((0..300).map(claim).collect()), [127, 127, 46]);
        assert_eq!(lens(Vec::new()), [0; 0]);
    }

    #[test]
    fn transaction_that_fills_a_request_travels_alone() {
        let mut full = Txn::new();
        full.then = (0..128).map(|n| Op::put(format!("/full/{n}"), "v")).collect();
        assert_eq!(lens(vec![claim(0), (1, full), claim(2)]), [1, 1, 1]);
    }

    #[test]
    fn only_unconditional_transactions_share_a_level() {
        let bare = |place: usize| (place, Txn::new().then(Op::put(format!("/{place}"), "v")));
        assert!(is_flat(&(0..128).map(bare).collect(), 128));
        assert!(!is_flat(&(0..129).map(bare).collect(), 128));
        assert!(!is_flat(&vec![bare(0), claim(1)], 128));
        assert!(!is_flat(&vec![bare(0), (1, Txn::new())], 128));
    }

    #[test]
    fn bytes_cut_too() {
        let large = |place: usize| (place, Txn::new().then(Op::put(format!("/{place}"), vec![0; 500_000])));
        assert_eq!(lens((0..5).map(large).collect()), [3, 2]);
    }

    #[test]
    fn every_transaction_is_in_one_group() {
        let places: Vec<usize> = groups((0..1_000).map(claim).collect(), &Limits::EMBEDDED)
            .into_iter()
            .flatten()
            .map(|(p, _)| p)
            .collect();
        assert_eq!(places, (0..1_000).collect::<Vec<_>>());
    }
}
