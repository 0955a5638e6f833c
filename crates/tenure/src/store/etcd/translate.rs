//! Translates between the types of the contract and those of etcd.
//!
//! The traps are in the ranges: to etcd an empty end means one key, an end of one zero byte means "to the last key", and a
//! bound of 0 means no bound. So an empty selection is sent as a range from a key to itself.

use std::mem::take;

use bytes::Bytes;
use tenure_etcd as etcd;

use crate::store::{
    Change, Comparison, Condition, Field, Get, KeyValue, LeaseChoice, LeaseId, Op, OpReply, Page, Revision,
    Selection, SortOrder, StoreError, Txn, TxnReply, ValueMode,
};

/// To etcd, the end that means "to the last key", and the first key there can be.
const ZERO: Bytes = Bytes::from_static(&[0]);

/// The store's id, from the cluster's.
pub(super) fn store_id(cluster: u64) -> String {
    format!("etcd-{cluster:016x}")
}

/// First key and end of a selection.
pub(super) struct Span {
    pub(super) key: Bytes,
    pub(super) range_end: Bytes,
    /// Nothing can be selected.
    pub(super) is_empty: bool,
}

/// A selection as etcd names it. The selection was checked, so its first key is not empty unless it means everything.
pub(super) fn span(select: &Selection) -> Span {
    let first = select.first().clone();
    match select {
        Selection::Key(_) => Span { key: first, range_end: Bytes::new(), is_empty: false },
        Selection::Range(from, to) if to <= from => {
            Span { range_end: first.clone(), key: first, is_empty: true }
        }
        Selection::Prefix(_) | Selection::Range(..) | Selection::From(_) => Span {
            key: if first.is_empty() { ZERO } else { first },
            range_end: select.end().unwrap_or(ZERO),
            is_empty: false,
        },
    }
}

/// A read of nothing: only its revision and its place in the order of things matter.
pub(super) fn nothing() -> etcd::Range {
    etcd::Range { key: ZERO, count_only: true, ..etcd::Range::default() }
}

pub(super) fn range(get: &Get) -> etcd::Range {
    let mut span = span(&get.select);
    if get.created_max.is_some_and(|bound| bound <= Revision::ZERO) {
        // Nothing was created before the first revision, and 0 would mean "no bound".
        span.range_end = span.key.clone();
    }
    etcd::Range {
        key: span.key,
        range_end: span.range_end,
        limit: get.limit.map_or(0, i64::from),
        revision: get.at.map_or(0, |at| at.0),
        order: match get.order {
            SortOrder::Key => etcd::RangeOrder::Key,
            SortOrder::Created => etcd::RangeOrder::CreateAscending,
            SortOrder::CreatedDescending => etcd::RangeOrder::CreateDescending,
        },
        serializable: false,
        // etcd 3.7 omits the lease in replies without values, and the contract does not: values are removed here.
        keys_only: false,
        count_only: false,
        max_create_revision: get.created_max.map_or(0, |bound| bound.0),
    }
}

/// A page; the revision is the transaction's where the reply itself has none.
pub(super) fn page(reply: etcd::RangeReply, values: ValueMode, revision: Revision) -> Page {
    let kept = |kv: etcd::KeyValue| match values {
        ValueMode::Whole => pair(kv),
        ValueMode::Omitted => pair(etcd::KeyValue { value: Bytes::new(), ..kv }),
    };
    Page {
        pairs: reply.kvs.into_iter().map(kept).collect(),
        more: reply.more,
        revision: if reply.revision == 0 { revision } else { Revision(reply.revision) },
    }
}

pub(super) fn pair(kv: etcd::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key,
        value: kv.value,
        created: Revision(kv.create_revision),
        modified: Revision(kv.mod_revision),
        version: kv.version,
        lease: LeaseId::new(kv.lease),
    }
}

/// A transaction with one operation and no conditions.
pub(super) enum Lone {
    Put(etcd::Put),
    Delete(etcd::Delete),
}

/// Takes the only put or delete out of a transaction without conditions: the server applies it with less work than a transaction.
pub(super) fn lone(txn: &mut Txn) -> Option<Lone> {
    match (&txn.when[..], &mut txn.then[..], &txn.otherwise[..]) {
        ([], [Op::Put { key, value, lease }], []) => Some(Lone::Put(put(take(key), take(value), *lease))),
        ([], [Op::Delete(select)], []) => Some(Lone::Delete(delete(select))),
        _ => None,
    }
}

/// Keys and values are shared, not copied: the caller may have to send the transaction again in another form.
pub(super) fn txn(txn: &Txn) -> etcd::Txn {
    etcd::Txn {
        when: txn.when.iter().map(compare).collect(),
        then: txn.then.iter().map(op).collect(),
        otherwise: txn.otherwise.iter().map(op).collect(),
    }
}

fn compare(condition: &Condition) -> etcd::Compare {
    etcd::Compare {
        key: condition.key.clone(),
        relation: match condition.is {
            Comparison::Equal => etcd::Relation::Equal,
            Comparison::NotEqual => etcd::Relation::NotEqual,
            Comparison::Less => etcd::Relation::Less,
            Comparison::Greater => etcd::Relation::Greater,
        },
        target: match &condition.field {
            Field::Version(version) => etcd::CompareValue::Version(*version),
            Field::Created(revision) => etcd::CompareValue::CreateRevision(revision.0),
            Field::Modified(revision) => etcd::CompareValue::ModRevision(revision.0),
            Field::Lease(lease) => etcd::CompareValue::Lease(lease.map_or(0, LeaseId::get)),
            Field::Value(value) => etcd::CompareValue::Value(value.clone()),
        },
    }
}

fn put(key: Bytes, value: Bytes, lease: LeaseChoice) -> etcd::Put {
    etcd::Put {
        key,
        value,
        lease: match lease {
            LeaseChoice::Attach(id) => id.get(),
            LeaseChoice::Detach | LeaseChoice::Keep => 0,
        },
        keep_lease: lease == LeaseChoice::Keep,
        with_previous: false,
    }
}

fn delete(select: &Selection) -> etcd::Delete {
    let span = span(select);
    etcd::Delete { key: span.key, range_end: span.range_end, with_previous: false }
}

pub(super) fn op(op: &Op) -> etcd::Op {
    match op {
        Op::Put { key, value, lease } => etcd::Op::Put(put(key.clone(), value.clone(), *lease)),
        Op::Delete(select) => etcd::Op::Delete(delete(select)),
        Op::Get(get) => etcd::Op::Range(range(get)),
    }
}

/// Translates the reply to one transaction, alone or nested; `revision` is the whole request's.
pub(super) fn txn_reply(
    reply: etcd::TxnReply,
    asked: &Txn,
    revision: Revision,
) -> Result<TxnReply, StoreError> {
    let etcd::TxnReply { succeeded, replies, .. } = reply;
    let results = op_replies(replies, if succeeded { &asked.then } else { &asked.otherwise }, revision)?;
    Ok(TxnReply { succeeded, revision, results })
}

/// Translates the replies to operations. Values are removed from gets without values.
pub(super) fn op_replies(
    replies: impl IntoIterator<Item = etcd::OpReply>,
    asked: &[Op],
    revision: Revision,
) -> Result<Vec<OpReply>, StoreError> {
    let mut results = Vec::with_capacity(asked.len());
    for (n, reply) in replies.into_iter().enumerate() {
        let values = match asked.get(n) {
            Some(Op::Get(get)) => get.values,
            Some(Op::Put { .. } | Op::Delete(_)) | None => ValueMode::Whole,
        };
        results.push(op_reply(reply, values, revision)?);
    }
    Ok(results)
}

fn op_reply(reply: etcd::OpReply, values: ValueMode, revision: Revision) -> Result<OpReply, StoreError> {
    match reply {
        etcd::OpReply::Put { .. } => Ok(OpReply::Put),
        etcd::OpReply::Delete { deleted, .. } => self::deleted(deleted),
        etcd::OpReply::Range(range) => Ok(OpReply::Get(page(range, values, revision))),
        etcd::OpReply::Txn(_) => {
            Err(StoreError::Corrupt("the reply to an operation is that of a transaction".to_owned()))
        }
    }
}

/// Translates the reply to a delete.
pub(super) fn deleted(count: i64) -> Result<OpReply, StoreError> {
    match u64::try_from(count) {
        Ok(count) => Ok(OpReply::Delete { count }),
        Err(_) => Err(StoreError::Corrupt(format!("{count} keys were deleted"))),
    }
}

pub(super) fn change(event: etcd::WatchEvent) -> Change {
    match event {
        etcd::WatchEvent::Put { kv, prev } => Change::Put { pair: pair(kv), previous: prev.map(pair) },
        etcd::WatchEvent::Delete { key, revision, prev } => {
            Change::Delete { key, revision: Revision(revision), previous: prev.map(pair) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(select: &Selection) -> (Bytes, Bytes, bool) {
        let span = span(select);
        (span.key, span.range_end, span.is_empty)
    }

    #[test]
    fn empty_selection_stays_empty() {
        let key = Bytes::from_static(b"k");
        for to in [&b""[..], b"\0", b"a", b"k"] {
            let select = Selection::Range(key.clone(), Bytes::copy_from_slice(to));
            assert_eq!(ends(&select), (key.clone(), key.clone(), true), "{to:?}");
        }
        let none = range(&Get::new(Selection::everything()).created_max(Revision::ZERO));
        assert_eq!(none.key, none.range_end);
    }

    #[test]
    fn open_ranges_end_after_the_last_key() {
        assert_eq!(ends(&Selection::everything()), (ZERO, ZERO, false));
        assert_eq!(ends(&Selection::From("k".into())), ("k".into(), ZERO, false));
        assert_eq!(ends(&Selection::prefix("k/")), ("k/".into(), "k0".into(), false));
        assert_eq!(ends(&Selection::key("k")), ("k".into(), Bytes::new(), false));
    }
}
