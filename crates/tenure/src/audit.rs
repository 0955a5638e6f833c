//! The audit trail of destructive commands: who took what away from another process, when and why.
//!
//! A record is put in the transaction of what it describes, so one is never there without the other. A store cannot revoke a lease in a
//! transaction: the record of a revoke is put before it, and deleted again if there was no such lease.
//!
//! Records are kept for [`AUDIT_KEEP`]. Their ids begin with their time, so the transaction that puts one deletes all that are older with one
//! range. No lease and no further request is needed, and the trail does not grow for ever.

use bytes::Bytes;
use tenure_core::layout::{Key, Layout};
use tenure_core::name::{CommandId, CommandIds};
use tenure_core::record::{Record, WallTime};

use crate::clock::wall_time;
use crate::dice;
use crate::store::{Op, Selection, Txn};

pub use tenure_core::layout::AUDIT_KEEP;
pub use tenure_core::record::{AuditAction, AuditRecord};

/// A record that is about to be put.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    key: Bytes,
    value: Bytes,
    expired: Selection,
}

impl AuditEntry {
    /// The entry for a record, which gets the time of now.
    pub fn new(layout: &Layout, record: AuditRecord) -> AuditEntry {
        let now = wall_time();
        // Ids of one millisecond are in no order: the revisions of the records have it.
        let id = CommandIds::default().next(now, dice::nonce().to_be_bytes());
        let key = layout.encode(&Key::Audit(id));
        let first = layout.audit().first().clone();
        let expired = Selection::Range(first, layout.encode(&Key::Audit(oldest_kept(now))));
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

/// The first id of the time from which on records are kept.
fn oldest_kept(now: WallTime) -> CommandId {
    let keep_ms = u64::try_from(AUDIT_KEEP.as_millis()).unwrap_or(u64::MAX);
    CommandIds::default().next(WallTime(now.0.saturating_sub(keep_ms)), [0; 8])
}
