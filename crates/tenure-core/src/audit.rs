//! The audit trail of destructive commands: which process took what from another one, when and why.
//!
//! A record is put in the transaction of what it describes, so one is never there without the other. A store cannot revoke a lease in a
//! transaction: the record of a revoke is put before it, and deleted again if there was no such lease.
//!
//! Records are kept for [`AUDIT_KEEP`]. Their ids begin with their time, so the transaction that puts one deletes all that are older with one
//! range. No lease and no further request is needed, and the trail does not grow for ever.

use bytes::Bytes;

use crate::id::{CommandId, CommandIds};
use crate::kv::Selection;
use crate::layout::{AUDIT_KEEP, Key, Layout};
use crate::record::{AuditRecord, Record, Timestamp};
use crate::txn::{Op, Txn};

/// A record that is about to be put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditEntry {
    key: Bytes,
    value: Bytes,
    expired: Selection,
}

impl AuditEntry {
    /// The entry for a record of this time, under an id with these random bytes.
    pub fn new(layout: &Layout, record: AuditRecord, now: Timestamp, random: [u8; 8]) -> AuditEntry {
        // Ids of one millisecond are in no order: the revisions of the records have it.
        let key = layout.encode(&Key::Audit(CommandIds::default().next(now, random)));
        let oldest_kept = Key::Audit(CommandId::first_at(now.before(AUDIT_KEEP)));
        let expired = Selection::Range(layout.audit().first().clone(), layout.encode(&oldest_kept));
        AuditEntry { key, value: AuditRecord { at: now, ..record }.encode(), expired }
    }

    /// The key of the record.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// A transaction that also puts the record and deletes those that are older than [`AUDIT_KEEP`], behind its other operations.
    #[must_use]
    pub fn add_to(&self, txn: Txn) -> Txn {
        txn.then(Op::put(self.key.clone(), self.value.clone())).then(Op::Delete(self.expired.clone()))
    }
}
