//! The difference between a listing and what the follower of a prefix knows.
//!
//! A watch alone does not keep a snapshot correct: history is compacted, streams break, and deletes
//! during a break are never delivered. So a follower lists, watches from that revision, and lists
//! again after every break. This machine compares each listing with what the follower knows, and
//! returns the difference.
//!
//! Intuition: a listing is in key order, so a known key between two neighbours of the listing was
//! deleted. No second copy of the keys is needed, and the first deletes are returned while the
//! listing is still in progress.
//!
//! Keys are stored without the prefix and as copies: a slice of a reply would keep the whole reply
//! in memory.
//!
//! **Invariant**: `known` contains every key that the follower knows to exist, with the modify
//! revision it knows.
//!
//! **Invariant**: `SnapshotBegin` is the first item, and follows later only after a `Synced`.
//!
//! **Invariant**: between `SnapshotBegin` and the next `Synced` the follower's state is of no
//! single revision. At `Synced` it equals the store's.

mod suffix;

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::change::Change;
use crate::kv::KeyValue;
use crate::revision::Revision;
use crate::sabotage::{SabotageRule, is_broken};

use suffix::KeySuffix;

/// An item for the follower of a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedItem {
    /// The feed broke and the prefix is listed again. The follower must not act on its state before
    /// the next `Synced`.
    SnapshotBegin,
    /// A key was put, at its `modified` revision.
    Put(KeyValue),
    /// A key was deleted.
    Delete {
        /// The key.
        key: Bytes,
        /// The revision of the delete; after a new listing, the revision of the listing.
        revision: Revision,
    },
    /// The follower's state is the store's at this revision and may be acted on.
    Synced(Revision),
}

/// The keys that the follower knows, and the state of its listing.
#[derive(Clone, Debug, Default)]
pub struct SnapshotDiff {
    /// The prefix of all keys. Other keys are ignored.
    prefix: Bytes,
    known: BTreeMap<KeySuffix, Revision>,
    phase: DiffPhase,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum DiffPhase {
    /// Nothing was delivered yet.
    #[default]
    Initial,
    /// No listing since the last break.
    Broken,
    /// A listing of this revision is in progress; keys up to `up_to` are compared.
    Listing { at: Revision, up_to: Bound<KeySuffix> },
    /// Everything up to this revision was delivered.
    Synced(Revision),
}

impl SnapshotDiff {
    /// Creates the state of a follower that knows nothing.
    pub fn new() -> SnapshotDiff {
        SnapshotDiff::default()
    }

    /// Creates the state of a follower that knows nothing and follows the keys with this prefix.
    pub fn under(prefix: Bytes) -> SnapshotDiff {
        SnapshotDiff { prefix, ..SnapshotDiff::default() }
    }

    /// The revision up to which everything was delivered; none while a listing is needed or in
    /// progress.
    pub fn synced_at(&self) -> Option<Revision> {
        match self.phase {
            DiffPhase::Synced(revision) => Some(revision),
            DiffPhase::Initial | DiffPhase::Broken | DiffPhase::Listing { .. } => None,
        }
    }

    /// The number of keys that the follower knows to exist.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether the follower knows no key.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Handles a break of the watch or the listing, or the start: a new listing is needed.
    ///
    /// `SnapshotBegin` is returned once, however many listings fail after it.
    pub fn handle_break(&mut self, items: &mut impl Extend<FeedItem>) {
        match std::mem::replace(&mut self.phase, DiffPhase::Broken) {
            DiffPhase::Initial | DiffPhase::Synced(_) => items.extend([FeedItem::SnapshotBegin]),
            DiffPhase::Broken | DiffPhase::Listing { .. } => {}
        }
    }

    /// Handles a page of the listing, in key order. All pages of one listing are of the revision
    /// `at`.
    pub fn handle_page(&mut self, at: Revision, pairs: Vec<KeyValue>, items: &mut impl Extend<FeedItem>) {
        let mut up_to = match &self.phase {
            DiffPhase::Broken => Bound::Unbounded,
            DiffPhase::Listing { at: began_at, up_to } => {
                assert!(*began_at == at, "all pages of one listing are of one revision");
                up_to.clone()
            }
            DiffPhase::Initial | DiffPhase::Synced(_) => unreachable!("a listing begins with a break"),
        };
        for pair in pairs {
            let Some(key) = KeySuffix::of(&pair.key, &self.prefix) else { continue };
            if let Bound::Excluded(last) = &up_to {
                assert!(*last < key, "a listing comes in key order");
            }
            // A known key between the last key and this one is not in the listing, so it was
            // deleted.
            let between = (up_to, Bound::Excluded(key.clone()));
            self.delete_between(between, at, items);
            up_to = Bound::Excluded(key.clone());
            let before = self.known.insert(key, pair.modified);
            // A key with the same modify revision is unchanged: the follower has its value already.
            if before != Some(pair.modified) {
                items.extend([FeedItem::Put(pair)]);
            }
        }
        self.phase = DiffPhase::Listing { at, up_to };
    }

    /// Handles the end of the listing: known keys that it did not contain were deleted.
    pub fn handle_listed(&mut self, items: &mut impl Extend<FeedItem>) {
        let DiffPhase::Listing { at, up_to } = std::mem::take(&mut self.phase) else {
            unreachable!("a listing has at least one page");
        };
        self.delete_between((up_to, Bound::Unbounded), at, items);
        self.phase = DiffPhase::Synced(at);
        items.extend([FeedItem::Synced(at)]);
    }

    /// Handles the changes of one revision from the watch.
    pub fn handle_batch(
        &mut self,
        revision: Revision,
        changes: Vec<Change>,
        items: &mut impl Extend<FeedItem>,
    ) {
        if !self.advance_to(revision) {
            return;
        }
        for change in changes {
            match change {
                Change::Put { pair, .. } => {
                    let Some(key) = KeySuffix::of(&pair.key, &self.prefix) else { continue };
                    self.known.insert(key, pair.modified);
                    items.extend([FeedItem::Put(pair)]);
                }
                Change::Delete { key, revision, .. } => {
                    let was_known = KeySuffix::of(&key, &self.prefix).and_then(|key| self.known.remove(&key));
                    // The follower needs no delete of a key that it does not know.
                    if was_known.is_some() {
                        items.extend([FeedItem::Delete { key, revision }]);
                    }
                }
            }
        }
        items.extend([FeedItem::Synced(revision)]);
    }

    /// Handles the watch's report that there was no other change up to `revision`.
    pub fn handle_progress(&mut self, revision: Revision, items: &mut impl Extend<FeedItem>) {
        if self.advance_to(revision) {
            items.extend([FeedItem::Synced(revision)]);
        }
    }

    /// Returns whether `revision` is newer. A watch may deliver a revision twice; the state must
    /// not go back.
    fn advance_to(&mut self, revision: Revision) -> bool {
        match &mut self.phase {
            DiffPhase::Synced(at) if revision > *at => {
                *at = revision;
                true
            }
            DiffPhase::Synced(_) => false,
            DiffPhase::Initial | DiffPhase::Broken | DiffPhase::Listing { .. } => {
                unreachable!("a watch begins after a complete listing")
            }
        }
    }

    /// Returns deletes for all known keys between two neighbours of a listing.
    fn delete_between(
        &mut self,
        between: (Bound<KeySuffix>, Bound<KeySuffix>),
        revision: Revision,
        items: &mut impl Extend<FeedItem>,
    ) {
        if is_broken(SabotageRule::WholePicture) {
            return;
        }
        let gone: Vec<KeySuffix> = self.known.range(between).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.known.remove(&key);
            items.extend([FeedItem::Delete { key: key.after(&self.prefix), revision }]);
        }
    }
}

#[cfg(test)]
mod tests;
