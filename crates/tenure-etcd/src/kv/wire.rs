//! Between our types and the wire messages, by moving.

use crate::error::Error;
use crate::kv::{
    Compare, CompareValue, Delete, KeyValue, Op, OpReply, Put, Range, RangeOrder, RangeReply, Relation, Txn,
    TxnReply,
};
use crate::message::kv as message;

impl From<message::KeyValue> for KeyValue {
    fn from(kv: message::KeyValue) -> Self {
        let message::KeyValue { key, create_revision, mod_revision, version, value, lease } = kv;
        Self { key, value, create_revision, mod_revision, version, lease }
    }
}

impl From<Range> for message::RangeRequest {
    fn from(range: Range) -> Self {
        // 1 ascending, 2 descending; target 2 is the create revision.
        let (sort_order, sort_target) = match range.order {
            RangeOrder::Key => (0, 0),
            RangeOrder::CreateAscending => (1, 2),
            RangeOrder::CreateDescending => (2, 2),
        };
        Self {
            key: range.key,
            range_end: range.range_end,
            limit: range.limit,
            revision: range.revision,
            sort_order,
            sort_target,
            serializable: range.serializable,
            keys_only: range.keys_only,
            count_only: range.count_only,
            max_create_revision: range.max_create_revision,
            ..Self::default()
        }
    }
}

impl From<message::RangeResponse> for RangeReply {
    fn from(answer: message::RangeResponse) -> Self {
        Self {
            revision: answer.header.map_or(0, |header| header.revision),
            kvs: answer.kvs.into_iter().map(Into::into).collect(),
            more: answer.more,
            count: answer.count,
        }
    }
}

impl From<Put> for message::PutRequest {
    fn from(put: Put) -> Self {
        Self {
            key: put.key,
            value: put.value,
            lease: put.lease,
            prev_kv: put.with_previous,
            ignore_value: false,
            ignore_lease: put.keep_lease,
        }
    }
}

impl From<Delete> for message::DeleteRangeRequest {
    fn from(delete: Delete) -> Self {
        Self { key: delete.key, range_end: delete.range_end, prev_kv: delete.with_previous }
    }
}

impl From<Compare> for message::Compare {
    fn from(compare: Compare) -> Self {
        let result = match compare.relation {
            Relation::Equal => 0,
            Relation::Greater => 1,
            Relation::Less => 2,
            Relation::NotEqual => 3,
        };
        let (target, union) = match compare.target {
            CompareValue::Version(version) => (0, message::CompareTarget::Version(version)),
            CompareValue::CreateRevision(revision) => (1, message::CompareTarget::CreateRevision(revision)),
            CompareValue::ModRevision(revision) => (2, message::CompareTarget::ModRevision(revision)),
            CompareValue::Value(value) => (3, message::CompareTarget::Value(value)),
            CompareValue::Lease(lease) => (4, message::CompareTarget::Lease(lease)),
        };
        Self { result, target, key: compare.key, target_union: Some(union), ..Self::default() }
    }
}

impl From<Op> for message::RequestOp {
    fn from(op: Op) -> Self {
        let request = match op {
            Op::Range(range) => message::RequestKind::Range(range.into()),
            Op::Put(put) => message::RequestKind::Put(put.into()),
            Op::Delete(delete) => message::RequestKind::DeleteRange(delete.into()),
            Op::Txn(txn) => message::RequestKind::Txn(txn.into()),
        };
        Self { request: Some(request) }
    }
}

impl From<Txn> for message::TxnRequest {
    fn from(txn: Txn) -> Self {
        Self {
            compare: txn.when.into_iter().map(Into::into).collect(),
            success: txn.then.into_iter().map(Into::into).collect(),
            failure: txn.otherwise.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<message::ResponseOp> for OpReply {
    type Error = Error;

    fn try_from(op: message::ResponseOp) -> Result<Self, Error> {
        match op.response {
            Some(message::ResponseKind::Range(range)) => Ok(Self::Range(range.into())),
            Some(message::ResponseKind::Put(put)) => Ok(Self::Put { previous: put.prev_kv.map(Into::into) }),
            Some(message::ResponseKind::DeleteRange(delete)) => Ok(Self::Delete {
                deleted: delete.deleted,
                previous: delete.prev_kvs.into_iter().map(Into::into).collect(),
            }),
            Some(message::ResponseKind::Txn(txn)) => TxnReply::try_from(txn).map(Self::Txn),
            None => Err(Error::Corrupt("a transaction was answered without one of its replies".to_owned())),
        }
    }
}

impl TryFrom<message::TxnResponse> for TxnReply {
    type Error = Error;

    fn try_from(answer: message::TxnResponse) -> Result<Self, Error> {
        Ok(Self {
            succeeded: answer.succeeded,
            revision: answer.header.map_or(0, |header| header.revision),
            replies: answer.responses.into_iter().map(OpReply::try_from).collect::<Result<_, _>>()?,
        })
    }
}
