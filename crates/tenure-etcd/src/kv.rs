//! Keys and values: ranges, transactions, compaction.
//!
//! The types of this crate's interface. They are converted from the protocol messages by moving, so
//! that no type of the protocol library appears in a signature.

mod debug;
mod wire;

use bytes::Bytes;

use crate::call::{Call, CallKind};
use crate::classify::RequestSize;
use crate::client::Client;
use crate::error::{Error, Invalid};
use crate::message::kv as message;

/// One key with its value and its place in history.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty in replies to requests for keys only.
    pub value: Bytes,
    /// The revision at which the key was last created.
    pub create_revision: i64,
    /// The revision of the last change.
    pub mod_revision: i64,
    /// Changes since the creation, beginning with 1.
    pub version: i64,
    /// The lease it is attached to; 0 for none.
    pub lease: i64,
}

/// A read of one key or of `[key, range_end)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The key, or the first one.
    pub key: Bytes,
    /// The end, not included; empty for one key, a single zero byte for "to the end".
    pub range_end: Bytes,
    /// At most so many keys; 0 for all.
    pub limit: i64,
    /// As of this revision; 0 for now.
    pub revision: i64,
    /// The order of the reply.
    pub order: RangeOrder,
    /// Accept the state of any one member, which may lag.
    pub serializable: bool,
    /// Leave the values out.
    pub keys_only: bool,
    /// Only count.
    pub count_only: bool,
    /// Leave out keys created after this revision; 0 for no bound.
    pub max_create_revision: i64,
}

/// The order of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RangeOrder {
    /// By key.
    #[default]
    Key,
    /// By create revision, oldest first.
    CreateAscending,
    /// By create revision, newest first.
    CreateDescending,
}

/// What a range found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// The store's revision when it was read.
    pub revision: i64,
    /// The keys.
    pub kvs: Vec<KeyValue>,
    /// More keys exist beyond the limit.
    pub more: bool,
    /// Keys in the range, whatever the limit.
    pub count: i64,
}

/// A write of one key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The lease to attach it to; 0 for none.
    pub lease: i64,
    /// Keep the key's current lease. The key must exist.
    pub keep_lease: bool,
    /// Whether the reply contains the pair as it was before.
    pub with_previous: bool,
}

/// A removal of one key or of `[key, range_end)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// The key, or the first one.
    pub key: Bytes,
    /// The end, as in [`Range`].
    pub range_end: Bytes,
    /// Whether the reply contains the pairs as they were before.
    pub with_previous: bool,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key that is compared.
    pub key: Bytes,
    /// How it must compare.
    pub relation: Relation,
    /// With what.
    pub target: CompareValue,
}

/// How two values must compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The same.
    Equal,
    /// Not the same.
    NotEqual,
    /// Greater than the target.
    Greater,
    /// Less than the target.
    Less,
}

/// What a condition compares. For a missing key all numbers are 0, and no value compares.
#[derive(Clone, PartialEq, Eq)]
pub enum CompareValue {
    /// Changes since creation.
    Version(i64),
    /// The revision of creation.
    CreateRevision(i64),
    /// The revision of the last change.
    ModRevision(i64),
    /// The value.
    Value(Bytes),
    /// The lease.
    Lease(i64),
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read.
    Range(Range),
    /// Write.
    Put(Put),
    /// Remove.
    Delete(Delete),
    /// A transaction inside the transaction, with conditions of its own.
    Txn(Txn),
}

/// Conditions, and what to do when all or not all of them hold. All of it happens at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold, on the state before any step.
    pub when: Vec<Compare>,
    /// If they do.
    pub then: Vec<Op>,
    /// If they do not.
    pub otherwise: Vec<Op>,
}

/// What one step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpReply {
    /// What was found.
    Range(RangeReply),
    /// It was written.
    Put {
        /// What was there before, if requested.
        previous: Option<KeyValue>,
    },
    /// It was removed.
    Delete {
        /// How many keys.
        deleted: i64,
        /// What was there before, if requested.
        previous: Vec<KeyValue>,
    },
    /// The inner transaction's outcome.
    Txn(TxnReply),
}

/// What a removal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteReply {
    /// The store's revision after it.
    pub revision: i64,
    /// How many keys.
    pub deleted: i64,
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnReply {
    /// Whether the conditions held.
    pub succeeded: bool,
    /// The store's revision after it; 0 for inner transactions.
    pub revision: i64,
    /// One for each step.
    pub replies: Vec<OpReply>,
}

impl Txn {
    /// The longest path of lists, as the server counts it: nested lists add to the list that
    /// contains them, neighbours do not add up.
    #[must_use]
    pub fn op_count(&self) -> usize {
        let longest = self.when.len().max(self.then.len()).max(self.otherwise.len());
        let nested = self.then.iter().chain(&self.otherwise).map(|op| match op {
            Op::Txn(txn) => txn.op_count(),
            Op::Range(_) | Op::Put(_) | Op::Delete(_) => 0,
        });
        longest + nested.max().unwrap_or(0)
    }

    fn writes(&self) -> bool {
        self.then.iter().chain(&self.otherwise).any(|op| match op {
            Op::Range(_) => false,
            Op::Put(_) | Op::Delete(_) => true,
            Op::Txn(txn) => txn.writes(),
        })
    }
}

impl Client {
    /// Reads keys; linearizable unless the range requests otherwise. Repeated on other members
    /// until the deadline.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] and [`Error::FutureRevision`] for a revision that is not there,
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn range(&self, range: Range) -> Result<RangeReply, Error> {
        let kind = if range.serializable { CallKind::LocalRead } else { CallKind::Read };
        let call = Call {
            path: "/etcdserverpb.KV/Range",
            kind,
            message: message::RangeRequest::from(range),
            size: RequestSize::default(),
        };
        self.endpoints().call::<_, message::RangeResponse>(call).await.map(Into::into)
    }

    /// Runs a transaction: all of it or nothing, at one revision.
    ///
    /// A transaction that only reads is repeated like a read; one that may write is sent once.
    ///
    /// # Errors
    ///
    /// [`Error::Ambiguous`] when the reply was lost: the transaction may have been applied.
    ///
    /// # Cancellation
    ///
    /// Dropping the future does not take the request back: a transaction that writes may still be applied.
    pub async fn txn(&self, txn: Txn) -> Result<TxnReply, Error> {
        let ops = txn.op_count();
        let limit = self.endpoints().config.txn_ops_max;
        if ops > limit {
            return Err(Invalid::TooManyOps { count: ops, limit }.into());
        }
        let call = Call {
            path: "/etcdserverpb.KV/Txn",
            kind: if txn.writes() { CallKind::Write } else { CallKind::Read },
            message: message::TxnRequest::from(txn),
            size: RequestSize { ops, ..RequestSize::default() },
        };
        let answer: message::TxnResponse = self.endpoints().call(call).await?;
        TxnReply::try_from(answer)
    }

    /// Writes one key and returns the revision of the write.
    ///
    /// # Errors
    ///
    /// As for [`Client::txn`].
    ///
    /// # Cancellation
    ///
    /// The put may still be applied.
    pub async fn put(&self, put: Put) -> Result<i64, Error> {
        let call = Call {
            path: "/etcdserverpb.KV/Put",
            kind: CallKind::Write,
            message: message::PutRequest::from(put),
            size: RequestSize::default(),
        };
        let answer: message::PutResponse = self.endpoints().call(call).await?;
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    /// Deletes keys; returns how many, and at which revision.
    ///
    /// # Errors
    ///
    /// As for [`Client::txn`].
    ///
    /// # Cancellation
    ///
    /// The removal may still happen.
    pub async fn delete(&self, delete: Delete) -> Result<DeleteReply, Error> {
        let call = Call {
            path: "/etcdserverpb.KV/DeleteRange",
            kind: CallKind::Write,
            message: message::DeleteRangeRequest::from(delete),
            size: RequestSize::default(),
        };
        let answer: message::DeleteRangeResponse = self.endpoints().call(call).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        Ok(DeleteReply { revision, deleted: answer.deleted })
    }

    /// Compacts all history before this revision.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] when that is compacted already, [`Error::FutureRevision`] when it has
    /// not happened.
    ///
    /// # Cancellation
    ///
    /// The compaction may still happen.
    pub async fn compact(&self, revision: i64) -> Result<(), Error> {
        let call = Call {
            path: "/etcdserverpb.KV/Compact",
            kind: CallKind::Write,
            message: message::CompactionRequest { revision, physical: false },
            size: RequestSize::default(),
        };
        self.endpoints().call::<_, message::CompactionResponse>(call).await.map(drop)
    }
}
