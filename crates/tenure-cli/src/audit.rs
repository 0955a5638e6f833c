//! Audit records of commands on leases and raw keys. The library writes those of locks and tasks.

use tenure::Identity;
use tenure::audit::{self, AuditAction, AuditEntry, AuditRecord};
use tenure::store::{Condition, Op, Selection, Store, StoreError, Txn, TxnReply};
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;

use crate::failure::Failure;
use crate::output::Output;

/// Writes the audit records of this process.
pub(crate) struct Trail {
    layout: Layout,
    by: Identity,
}

impl Trail {
    pub(crate) fn new(namespace: &Namespace, by: Identity) -> Trail {
        Trail { layout: Layout::new(namespace), by }
    }

    pub(crate) fn record(&self, action: AuditAction, target: String, reason: &str) -> AuditRecord {
        let (by, reason) = (self.by.clone(), reason.to_owned());
        AuditRecord { action, target, by, reason, ..AuditRecord::default() }
    }

    /// Puts a record by itself. Returns `None` with a warning if this user may not write in the namespace: the target of the action may be outside of it.
    pub(crate) async fn put(
        &self,
        store: &Store,
        record: AuditRecord,
        output: &Output,
    ) -> Result<Option<AuditEntry>, Failure> {
        let entry = audit::entry(&self.layout, record);
        match store.txn(entry.add_to(Txn::new())).await {
            Ok(_) => Ok(Some(entry)),
            Err(StoreError::Denied(_)) => {
                self.warn(output);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the record of an action that was not done. If that fails, the record stays.
    pub(crate) async fn withdraw(&self, store: &Store, entry: Option<AuditEntry>) {
        if let Some(entry) = entry {
            let _ = store.txn(Txn::new().then(Op::delete(entry.key().clone()))).await;
        }
    }

    /// Deletes keys, with the record in the same transaction.
    pub(crate) async fn delete(
        &self,
        store: &Store,
        select: &Selection,
        record: AuditRecord,
        output: &Output,
    ) -> Result<TxnReply, Failure> {
        let entry = audit::entry(&self.layout, record.clone());
        let delete = Txn::new().then(Op::Delete(select.clone()));
        // A missing key is not deleted, so no record is written for it.
        let guarded = match select {
            Selection::Key(key) => {
                delete.clone().when(Condition::exists(key.clone())).otherwise(Op::Delete(select.clone()))
            }
            Selection::Prefix(_) | Selection::Range(..) | Selection::From(_) => delete.clone(),
        };
        if overlaps(select, &self.layout.audit()) {
            // A transaction of etcd changes a key once, so the record of a deletion that covers the trail itself follows it.
            let reply = store.txn(delete).await?;
            self.put(store, record, output).await?;
            return Ok(reply);
        }
        match store.txn(entry.add_to(guarded)).await {
            Err(StoreError::Denied(_)) => {
                let reply = store.txn(delete).await?;
                self.warn(output);
                Ok(reply)
            }
            reply => Ok(reply?),
        }
    }

    fn warn(&self, output: &Output) {
        output.warn("no audit record was written: this user may not write in the namespace");
    }
}

/// Whether two selections may have a key in common.
fn overlaps(one: &Selection, other: &Selection) -> bool {
    let is_before = |end: Option<bytes::Bytes>, first: &bytes::Bytes| end.is_some_and(|end| end <= *first);
    !is_before(one.end(), other.first()) && !is_before(other.end(), one.first())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_that_share_a_key_overlap() {
        let trail = Selection::prefix("/t/audit/");
        for (select, is) in [
            (Selection::prefix(""), true),
            (Selection::prefix("/t/"), true),
            (Selection::prefix("/t/audit/0"), true),
            (Selection::prefix("/t/tasks/"), false),
            (Selection::Key("/t/audit/1".into()), true),
            (Selection::Key("/t/a".into()), false),
        ] {
            assert_eq!(overlaps(&select, &trail), is, "{select:?}");
        }
    }
}
