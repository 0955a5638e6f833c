//! Evaluates transactions: the one place that decides conditions, revisions and versions.
//!
//! Both embedded engines run this function over their own [`Rows`], so they cannot disagree; the
//! conformance suite compares it with real etcd.
//!
//! **Invariant**: a failed transaction wrote nothing. Everything that can be refused is checked
//! before the first write, so an engine without rollback is safe too.
//!
//! **Invariant**: a transaction that wrote made exactly one revision, the next one.

use crate::change::Change;
use crate::error::StoreError;
use crate::kv::{Get, KeyValue, Page, Selection, SortOrder, ValueMode};
use crate::limits::Limits;
use crate::revision::Revision;
use crate::txn::{LeaseChoice, Op, OpReply, Txn, TxnReply};

use super::rows::Rows;

/// Applies a transaction to the rows of a store, which must be isolated from all others until it
/// returns.
pub fn evaluate(rows: &mut impl Rows, txn: &Txn, limits: &Limits) -> Result<TxnReply, StoreError> {
    txn.check(limits)?;
    let mut succeeded = true;
    for condition in &txn.when {
        if !condition.holds(rows.current(&condition.key)?.as_ref()) {
            succeeded = false;
            break;
        }
    }
    let branch = if succeeded { &txn.then } else { &txn.otherwise };
    for op in branch {
        refuse_early(rows, op)?;
    }

    let before = rows.revision();
    let mut revision = before;
    let mut results = Vec::with_capacity(branch.len());
    for op in branch {
        results.push(match op {
            Op::Put { key, value, lease } => {
                let previous = rows.current(key)?;
                revision = before.next();
                let pair = KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    created: previous.as_ref().map_or(revision, |previous| previous.created),
                    modified: revision,
                    version: previous.as_ref().map_or(1, |previous| previous.version + 1),
                    lease: match lease {
                        LeaseChoice::Detach => None,
                        LeaseChoice::Attach(lease) => Some(*lease),
                        LeaseChoice::Keep => previous.as_ref().and_then(|previous| previous.lease),
                    },
                };
                rows.write(Change::Put { pair, previous })?;
                OpReply::Put
            }
            Op::Delete(select) => {
                let doomed = match select {
                    Selection::Key(key) => rows.current(key)?.into_iter().collect(),
                    Selection::Prefix(_) | Selection::Range(..) | Selection::From(_) => {
                        rows.select(select, None)?
                    }
                };
                let count = doomed.len() as u64;
                for pair in doomed {
                    revision = before.next();
                    rows.write(Change::Delete { key: pair.key.clone(), revision, previous: Some(pair) })?;
                }
                OpReply::Delete { count }
            }
            Op::Get(get) => OpReply::Get(page(rows, get, revision)?),
        });
    }
    Ok(TxnReply { succeeded, revision, results })
}

/// Reads keys outside of a transaction.
pub fn read(rows: &impl Rows, get: &Get) -> Result<Page, StoreError> {
    get.check()?;
    refuse_unreadable(rows, get)?;
    page(rows, get, rows.revision())
}

/// Refuses an operation of the chosen branch that the stored data does not allow.
fn refuse_early(rows: &impl Rows, op: &Op) -> Result<(), StoreError> {
    match op {
        Op::Put { lease: LeaseChoice::Attach(lease), .. } if !rows.has_lease(*lease)? => {
            Err(StoreError::LeaseNotFound)
        }
        Op::Put { key, lease: LeaseChoice::Keep, .. } if rows.current(key)?.is_none() => {
            Err(StoreError::KeyNotFound)
        }
        Op::Get(get) => refuse_unreadable(rows, get),
        Op::Put { .. } | Op::Delete(_) => Ok(()),
    }
}

fn refuse_unreadable(rows: &impl Rows, get: &Get) -> Result<(), StoreError> {
    match get.at {
        Some(at) if at > rows.revision() => Err(StoreError::FutureRevision),
        Some(at) if at < rows.compacted() => Err(StoreError::Compacted { at: Some(rows.compacted()) }),
        Some(_) | None => Ok(()),
    }
}

/// Reads one page. `revision` is the store's as this operation sees it, changes of its own
/// transaction included.
fn page(rows: &impl Rows, get: &Get, revision: Revision) -> Result<Page, StoreError> {
    // One row more than the limit shows whether there are more. Filters and orders must see all
    // rows first.
    let cut_early = get.order == SortOrder::Key && get.created_max.is_none();
    let limit = get.limit.map(|limit| limit as usize);
    let fetch = if cut_early { limit.map(|limit| limit + 1) } else { None };
    let mut pairs = match get.at {
        Some(at) if at != revision => rows.select_at(&get.select, at, fetch)?,
        Some(_) | None => match &get.select {
            Selection::Key(key) => rows.current(key)?.into_iter().collect(),
            Selection::Prefix(_) | Selection::Range(..) | Selection::From(_) => {
                rows.select(&get.select, fetch)?
            }
        },
    };
    if let Some(max) = get.created_max {
        pairs.retain(|pair| pair.created <= max);
    }
    match get.order {
        SortOrder::Key => {}
        SortOrder::Created => pairs.sort_by_key(|pair| pair.created),
        SortOrder::CreatedDescending => pairs.sort_by_key(|pair| std::cmp::Reverse(pair.created)),
    }
    let more = limit.is_some_and(|limit| pairs.len() > limit);
    if let Some(limit) = limit {
        pairs.truncate(limit);
    }
    if get.values == ValueMode::Omitted {
        for pair in &mut pairs {
            pair.value.clear();
        }
    }
    Ok(Page { pairs, more, revision })
}
