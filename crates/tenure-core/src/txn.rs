//! Transactions: conditions, operations, and alternative operations, applied atomically.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::error::{InvalidRequest, StoreError};
use crate::kv::{Get, KeyValue, Page, Selection};
use crate::lease::LeaseId;
use crate::limits::Limits;
use crate::revision::Revision;

/// If all conditions hold, `then`; otherwise `otherwise`. Atomic, isolated, linearizable.
///
/// All conditions see the store as it was before the transaction. A `Get` sees the effects of
/// earlier operations of the same transaction. One invalid operation fails the whole transaction,
/// with nothing written. A transaction that changes something makes exactly one revision; one that
/// does not makes none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    /// The conditions. Without any, `then` is applied.
    pub when: Vec<Condition>,
    /// The operations if all conditions hold.
    pub then: Vec<Op>,
    /// The operations if some condition does not hold.
    pub otherwise: Vec<Op>,
}

impl Txn {
    /// A transaction without conditions and operations.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, condition: Condition) -> Txn {
        self.when.push(condition);
        self
    }

    /// Adds an operation for when all conditions hold.
    #[must_use]
    pub fn then(mut self, op: Op) -> Txn {
        self.then.push(op);
        self
    }

    /// Adds an operation for when some condition does not hold.
    #[must_use]
    pub fn otherwise(mut self, op: Op) -> Txn {
        self.otherwise.push(op);
        self
    }

    /// Whether some branch may change the store.
    pub fn may_write(&self) -> bool {
        self.then.iter().chain(&self.otherwise).any(|op| !matches!(op, Op::Get(_)))
    }

    /// The approximate size of the request: keys, values and a few bytes for each operation.
    pub fn size(&self) -> usize {
        let conditions: usize = self.when.iter().map(Condition::size).sum();
        let ops: usize = self.then.iter().chain(&self.otherwise).map(Op::size).sum();
        conditions + ops
    }

    /// Refuses what is invalid whatever is stored. Called before anything is sent or written.
    pub fn check(&self, limits: &Limits) -> Result<(), StoreError> {
        let count = self.when.len().max(self.then.len()).max(self.otherwise.len());
        if count > limits.txn_ops_max {
            return Err(InvalidRequest::TooManyOps { count, max: limits.txn_ops_max }.into());
        }
        if self.when.iter().any(|condition| condition.key.is_empty()) {
            return Err(InvalidRequest::EmptyKey.into());
        }
        for branch in [&self.then, &self.otherwise] {
            for op in branch {
                op.check()?;
            }
            refuse_double_changes(branch)?;
        }
        let bytes = self.size();
        if bytes > limits.request_bytes_max {
            return Err(InvalidRequest::TooLarge { bytes, max: limits.request_bytes_max }.into());
        }
        Ok(())
    }
}

/// The transaction of one operation, without a condition.
impl From<Op> for Txn {
    fn from(op: Op) -> Txn {
        Txn { then: vec![op], ..Txn::default() }
    }
}

/// Two puts of one key, or a put and a delete of it, have no order inside one revision.
fn refuse_double_changes(branch: &[Op]) -> Result<(), StoreError> {
    // A waiter changes one key and reads some, which needs no lookup.
    if branch.iter().filter(|op| !matches!(op, Op::Get(_))).nth(1).is_none() {
        return Ok(());
    }
    let mut puts = BTreeSet::new();
    for op in branch {
        if let Op::Put { key, .. } = op
            && !puts.insert(key)
        {
            return Err(InvalidRequest::DuplicateKey(key.clone()).into());
        }
    }
    for op in branch {
        let Op::Delete(select) = op else { continue };
        let put_and_deleted = match select {
            Selection::Key(key) => puts.get(key).copied(),
            Selection::Prefix(from) | Selection::Range(from, _) | Selection::From(from) => {
                puts.range::<&Bytes, _>(from..).next().copied().filter(|key| select.contains(key))
            }
        };
        if let Some(key) = put_and_deleted {
            return Err(InvalidRequest::DuplicateKey(key.clone()).into());
        }
    }
    Ok(())
}

/// A comparison with stored data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The key to compare.
    pub key: Bytes,
    /// The comparison: *the key's field* `is` *the given one*.
    pub is: Comparison,
    /// The field and its given value.
    pub field: Field,
}

impl Condition {
    /// The key does not exist.
    pub fn absent(key: impl Into<Bytes>) -> Condition {
        Condition { key: key.into(), is: Comparison::Equal, field: Field::Created(Revision::ZERO) }
    }

    /// The key exists.
    pub fn exists(key: impl Into<Bytes>) -> Condition {
        Condition { key: key.into(), is: Comparison::Greater, field: Field::Created(Revision::ZERO) }
    }

    /// The key is of the incarnation that began at this revision.
    pub fn created_at(key: impl Into<Bytes>, revision: Revision) -> Condition {
        Condition { key: key.into(), is: Comparison::Equal, field: Field::Created(revision) }
    }

    /// The key was not put since this revision.
    pub fn modified_at(key: impl Into<Bytes>, revision: Revision) -> Condition {
        Condition { key: key.into(), is: Comparison::Equal, field: Field::Modified(revision) }
    }

    /// The key exists with this value.
    pub fn value_is(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Condition {
        Condition { key: key.into(), is: Comparison::Equal, field: Field::Value(value.into()) }
    }

    /// Whether it holds for the row of the key. A missing key compares as zero, but its value
    /// compares as unequal to everything.
    pub fn holds(&self, pair: Option<&KeyValue>) -> bool {
        let ordering = match &self.field {
            Field::Version(version) => pair.map_or(0, |pair| pair.version).cmp(version),
            Field::Created(revision) => pair.map_or(Revision::ZERO, |pair| pair.created).cmp(revision),
            Field::Modified(revision) => pair.map_or(Revision::ZERO, |pair| pair.modified).cmp(revision),
            Field::Lease(lease) => {
                let id = |lease: Option<LeaseId>| lease.map_or(0, LeaseId::get);
                id(pair.and_then(|pair| pair.lease)).cmp(&id(*lease))
            }
            Field::Value(value) => match pair {
                Some(pair) => pair.value.cmp(value),
                None => return false,
            },
        };
        match self.is {
            Comparison::Equal => ordering.is_eq(),
            Comparison::NotEqual => ordering.is_ne(),
            Comparison::Less => ordering.is_lt(),
            Comparison::Greater => ordering.is_gt(),
        }
    }

    fn size(&self) -> usize {
        let value = match &self.field {
            Field::Value(value) => value.len(),
            Field::Version(_) | Field::Created(_) | Field::Modified(_) | Field::Lease(_) => size_of::<i64>(),
        };
        OP_BYTES + self.key.len() + value
    }
}

/// The kind of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// The key's field is less than the given one.
    Less,
    /// The key's field is greater than the given one.
    Greater,
}

/// The part of a key that is compared.
#[derive(Clone, PartialEq, Eq)]
pub enum Field {
    /// The number of puts since it was created; 0 if it does not exist.
    Version(i64),
    /// Its create revision; [`Revision::ZERO`] if it does not exist.
    Created(Revision),
    /// Its modify revision; [`Revision::ZERO`] if it does not exist.
    Modified(Revision),
    /// Its lease.
    Lease(Option<LeaseId>),
    /// Its value. Never holds for a key that does not exist, not even as "not equal".
    Value(Bytes),
}

/// Values may be secret, so only their size is shown.
impl std::fmt::Debug for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Field::Version(version) => write!(f, "Version({version})"),
            Field::Created(revision) => write!(f, "Created({revision:?})"),
            Field::Modified(revision) => write!(f, "Modified({revision:?})"),
            Field::Lease(lease) => write!(f, "Lease({lease:?})"),
            Field::Value(value) => write!(f, "Value({} bytes)", value.len()),
        }
    }
}

/// The lease of a key after a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LeaseChoice {
    /// None: the key stays until it is deleted, whatever lease it had.
    #[default]
    Detach,
    /// This one, whatever lease the key had.
    Attach(LeaseId),
    /// The one it has. The key must exist.
    Keep,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    /// Put a key. Putting the value it already has is a change too.
    Put {
        /// The key.
        key: Bytes,
        /// Its value.
        value: Bytes,
        /// The lease of the key.
        lease: LeaseChoice,
    },
    /// Delete keys. Deleting a key that does not exist is no change.
    Delete(Selection),
    /// Read keys.
    Get(Get),
}

impl Op {
    /// Put a key that stays until it is deleted.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: LeaseChoice::Detach }
    }

    /// Put a key under a lease.
    pub fn put_leased(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: LeaseId) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: LeaseChoice::Attach(lease) }
    }

    /// Delete one key.
    pub fn delete(key: impl Into<Bytes>) -> Op {
        Op::Delete(Selection::key(key))
    }

    /// Read one key.
    pub fn get(key: impl Into<Bytes>) -> Op {
        Op::Get(Get::key(key))
    }

    fn check(&self) -> Result<(), StoreError> {
        match self {
            Op::Put { key, .. } if key.is_empty() => Err(InvalidRequest::EmptyKey.into()),
            Op::Put { .. } => Ok(()),
            Op::Delete(select) => select.check(),
            Op::Get(get) => get.check(),
        }
    }

    /// The approximate size of this operation on the wire, for splitting lists.
    pub fn size(&self) -> usize {
        let content = match self {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete(select) => selection_size(select),
            Op::Get(get) => selection_size(&get.select),
        };
        OP_BYTES + content
    }
}

/// Values may be secret, so only their size is shown.
impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Op::Put { key, value, lease } => write!(f, "Put({key:?}, {} bytes, {lease:?})", value.len()),
            Op::Delete(select) => write!(f, "Delete({select:?})"),
            Op::Get(get) => write!(f, "{get:?}"),
        }
    }
}

/// Tags, lengths and numbers around each operation on the wire: an upper bound for etcd's encoding,
/// so that a request accepted here is accepted there. Doubled, it would refuse requests that etcd
/// takes.
const OP_BYTES: usize = 32;

fn selection_size(select: &Selection) -> usize {
    select.first().len()
        + match select {
            Selection::Key(_) | Selection::From(_) => 0,
            Selection::Prefix(prefix) => prefix.len(),
            Selection::Range(_, to) => to.len(),
        }
}

/// The reply to a [`Txn`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxnReply {
    /// Whether all conditions held, so that `then` was applied and not `otherwise`.
    pub succeeded: bool,
    /// The store's revision after the transaction.
    pub revision: Revision,
    /// One for each operation of the applied branch.
    pub results: Vec<OpReply>,
}

/// The result of an [`Op`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpReply {
    /// The key was put.
    Put,
    /// The keys were deleted.
    Delete {
        /// The number of keys that existed.
        count: u64,
    },
    /// The keys were read.
    Get(Page),
}

#[cfg(test)]
mod tests;
