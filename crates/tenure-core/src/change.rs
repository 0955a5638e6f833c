//! What a store tells those who watch it.

use bytes::Bytes;

use crate::error::StoreError;
use crate::kv::KeyValue;
use crate::revision::Revision;

/// Where a watch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchStart {
    /// Every change that is committed after the call has returned.
    Now,
    /// Every change after some revision that is not later than the return of the call: where whoever is asked happens to stand. It may be a little in
    /// the past. Whoever reads after the call has returned misses nothing, and is spared the read that finds out where now is.
    Recent,
    /// Every change with a revision above this one, past ones first.
    After(Revision),
}

/// Whether a change carries what was there before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PreviousValues {
    /// Without.
    #[default]
    Omitted,
    /// With what was there before, where there was something.
    Included,
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key was put.
    Put {
        /// What is there now.
        pair: KeyValue,
        /// What was there before, if asked for and if there was something.
        previous: Option<KeyValue>,
    },
    /// The key was deleted, or died with its lease.
    Delete {
        /// The key.
        key: Bytes,
        /// When.
        revision: Revision,
        /// What was there before, if asked for.
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

    /// When it changed.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put { pair, .. } => pair.modified,
            Change::Delete { revision, .. } => *revision,
        }
    }

    /// The same change without what was there before.
    #[must_use]
    pub fn without_previous(self) -> Change {
        match self {
            Change::Put { pair, .. } => Change::Put { pair, previous: None },
            Change::Delete { key, revision, .. } => Change::Delete { key, revision, previous: None },
        }
    }
}

/// What a watch yields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchItem {
    /// All selected changes of one revision, in the order of the operations: a revision is never split.
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

/// Why a watch ended; always its last item.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// History between the last item and `at` is gone: list again.
    #[error("history up to {at} was compacted away before it was delivered")]
    Compacted {
        /// History begins after this revision.
        at: Revision,
    },
    /// The store was lost; unless the error is fatal, watch again after the last revision delivered.
    #[error("the watch was lost")]
    Lost(#[source] StoreError),
}
