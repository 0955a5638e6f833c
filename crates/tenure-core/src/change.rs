//! Changes of a store, as its watches deliver them.

use bytes::Bytes;

use crate::error::StoreError;
use crate::kv::KeyValue;
use crate::revision::Revision;

/// Where a watch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchStart {
    /// Every change that is committed after the call has returned.
    Now,
    /// Every change after some revision that is not later than the return of the call: the current
    /// revision of the server that answers. It may be slightly old. A read after the call has
    /// returned misses nothing, and the watch needs no read to find the current revision.
    Recent,
    /// Every change with a revision above this one, past ones first.
    After(Revision),
}

/// Whether a change carries the previous value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PreviousValues {
    /// Without the previous value.
    #[default]
    Omitted,
    /// With the previous value, if there was one.
    Included,
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key was put.
    Put {
        /// The pair that is stored now.
        pair: KeyValue,
        /// The previous pair, if requested and if there was one.
        previous: Option<KeyValue>,
    },
    /// The key was deleted, or its lease ended.
    Delete {
        /// The key.
        key: Bytes,
        /// The revision of the delete.
        revision: Revision,
        /// The previous pair, if requested.
        previous: Option<KeyValue>,
    },
}

impl Change {
    /// The key that changed.
    pub fn key(&self) -> &Bytes {
        match self {
            Change::Put { pair, .. } => &pair.key,
            Change::Delete { key, .. } => key,
        }
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put { pair, .. } => pair.modified,
            Change::Delete { revision, .. } => *revision,
        }
    }

    /// Returns the same change without the previous pair.
    #[must_use]
    pub fn without_previous(self) -> Change {
        match self {
            Change::Put { pair, .. } => Change::Put { pair, previous: None },
            Change::Delete { key, revision, .. } => Change::Delete { key, revision, previous: None },
        }
    }
}

/// An item of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchItem {
    /// All selected changes of one revision, in the order of the operations: a revision is never
    /// split.
    Batch {
        /// The revision.
        revision: Revision,
        /// Its changes.
        changes: Vec<Change>,
    },
    /// Everything up to this revision was delivered.
    Progress(Revision),
}

impl WatchItem {
    /// Everything up to this revision was delivered.
    pub fn revision(&self) -> Revision {
        match self {
            WatchItem::Batch { revision, .. } | WatchItem::Progress(revision) => *revision,
        }
    }
}

/// Why a watch ended. Always its last item.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// The history between the last item and `at` was compacted: list again.
    #[error("history up to {at} was compacted away before it was delivered")]
    Compacted {
        /// History begins after this revision.
        at: Revision,
    },
    /// The store was lost; unless the error is fatal, watch again after the last revision
    /// delivered.
    #[error("the watch was lost")]
    Lost(#[source] StoreError),
}
