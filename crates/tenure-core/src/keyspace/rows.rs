//! The storage that the evaluator needs, inside one isolated transaction.
//!
//! The memory engine implements it on ordered maps, the file engine on SQLite tables. Everything
//! that could differ between engines (conditions, revisions, versions, limits, leases) is decided
//! once, in the evaluator above it.

use crate::change::Change;
use crate::error::StoreError;
use crate::kv::{KeyValue, Selection};
use crate::lease::LeaseId;
use crate::revision::Revision;

/// The rows of a store inside one isolated transaction.
pub trait Rows {
    /// The store's revision before this transaction.
    fn revision(&self) -> Revision;

    /// The compacted revision: history begins after it.
    fn compacted(&self) -> Revision;

    /// The row of a key, changes of this transaction included.
    fn current(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError>;

    /// The rows of a selection in key order, changes of this transaction included; at most `limit`
    /// where given.
    fn select(&self, select: &Selection, limit: Option<usize>) -> Result<Vec<KeyValue>, StoreError>;

    /// The rows of a selection after `at`, in key order. `at` was checked to be neither compacted
    /// nor in the future.
    fn select_at(
        &self,
        select: &Selection,
        at: Revision,
        limit: Option<usize>,
    ) -> Result<Vec<KeyValue>, StoreError>;

    /// Whether a lease exists and has not expired.
    fn has_lease(&self, lease: LeaseId) -> Result<bool, StoreError>;

    /// Writes one change, with its `previous`: the current row, history, and the attachment of the
    /// key to leases.
    ///
    /// All changes of one transaction carry the revision after [`Rows::revision`] and come in
    /// order.
    fn write(&mut self, change: Change) -> Result<(), StoreError>;
}
