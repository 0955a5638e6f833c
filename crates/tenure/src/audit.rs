//! The audit trail of destructive commands: which process took what from another one, when and why.
//!
//! A record is put in the transaction of what it describes, so one is never there without the other. Records are kept for [`AUDIT_KEEP`].

use tenure_core::layout::Layout;

use crate::clock::wall_time;
use crate::rng;

pub use tenure_core::audit::AuditEntry;
pub use tenure_core::layout::AUDIT_KEEP;
pub use tenure_core::record::{AuditAction, AuditRecord};

/// The entry for a record, which gets the time of now.
pub fn entry(layout: &Layout, record: AuditRecord) -> AuditEntry {
    AuditEntry::new(layout, record, wall_time(), rng::nonce().to_be_bytes())
}
