//! What a follower of a prefix was told so far, and what it must be told next.
//!
//! A watch alone cannot be trusted with a picture: history is compacted, streams break, and what was deleted meanwhile is told by
//! nobody. So a follower lists, watches from there, and lists again after every break; this machine compares each listing with
//! what was told before, and says the difference.
//!
//! Intuition: a listing comes in key order, so whatever was told and lies between two neighbours of the listing is gone.
//! No second copy of the keys is needed, and the first deletes are told while the listing is still under way.
//!
//! Keys are kept as what follows the prefix, and as copies: a slice of an answer would keep the whole answer in memory.
//!
//! **Invariant**: `told` holds every key that the follower was told to exist, with the revision of the put it was told.
//!
//! **Invariant**: `SnapshotBegin` comes first, and after that only when the picture was whole.
//!
//! **Invariant**: between `SnapshotBegin` and the next `Synced` the follower's picture is of no revision at all; at `Whole` it is exactly the store's.

mod suffix;

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::change::Change;
use crate::kv::KeyValue;
use crate::revision::Revision;
use crate::sabotage::{SabotageRule, is_broken};

use suffix::KeySuffix;

/// What the follower of a prefix is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedItem {
    /// The picture is no longer being kept up to date, and is listed anew: do not act on it before the next `Synced`.
    SnapshotBegin,
    /// A key was put, at its `modified` revision.
    Put(KeyValue),
    /// A key is gone.
    Delete {
        /// The key.
        key: Bytes,
        /// When it was deleted; after a new listing, when that was seen.
        revision: Revision,
    },
    /// Everything up to this revision was told: the picture is the store's at this revision, and may be acted on.
    Synced(Revision),
}

/// What was told so far.
#[derive(Clone, Debug, Default)]
pub struct SnapshotDiff {
    /// What all keys begin with. One that does not was not asked for, and is not told.
    prefix: Bytes,
    told: BTreeMap<KeySuffix, Revision>,
    stage: DiffPhase,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum DiffPhase {
    /// Nothing was told yet.
    #[default]
    Blank,
    /// Not listed since the last break.
    Broken,
    /// A listing of this revision is under way; keys up to `up_to` are compared.
    Listing { at: Revision, up_to: Bound<KeySuffix> },
    /// Everything up to this revision was told.
    Whole(Revision),
}

impl SnapshotDiff {
    /// Nothing was told yet.
    pub fn new() -> SnapshotDiff {
        SnapshotDiff::default()
    }

    /// Nothing was told yet, and only of keys with this prefix anything will be.
    pub fn under(prefix: Bytes) -> SnapshotDiff {
        SnapshotDiff { prefix, ..SnapshotDiff::default() }
    }

    /// Up to where everything was told; none while the picture is not whole.
    pub fn whole_at(&self) -> Option<Revision> {
        match self.stage {
            DiffPhase::Whole(revision) => Some(revision),
            DiffPhase::Blank | DiffPhase::Broken | DiffPhase::Listing { .. } => None,
        }
    }

    /// How many keys the follower was told to exist.
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// Whether the follower was told of no key.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// The watch or the listing broke, or has not begun: everything has to be listed anew.
    ///
    /// One who was told so already is not told again, however often a listing fails.
    pub fn handle_break(&mut self, told: &mut impl Extend<FeedItem>) {
        match std::mem::replace(&mut self.stage, DiffPhase::Broken) {
            DiffPhase::Blank | DiffPhase::Whole(_) => told.extend([FeedItem::SnapshotBegin]),
            DiffPhase::Broken | DiffPhase::Listing { .. } => {}
        }
    }

    /// A page of the listing came, in key order. All pages of one listing are of the revision `at`.
    pub fn handle_page(&mut self, at: Revision, pairs: Vec<KeyValue>, told: &mut impl Extend<FeedItem>) {
        let mut up_to = match &self.stage {
            DiffPhase::Broken => Bound::Unbounded,
            DiffPhase::Listing { at: began_at, up_to } => {
                assert!(*began_at == at, "all pages of one listing are of one revision");
                up_to.clone()
            }
            DiffPhase::Blank | DiffPhase::Whole(_) => unreachable!("a listing begins with a break"),
        };
        for pair in pairs {
            let Some(key) = KeySuffix::of(&pair.key, &self.prefix) else { continue };
            if let Bound::Excluded(last) = &up_to {
                assert!(*last < key, "a listing comes in key order");
            }
            let passed = (up_to, Bound::Excluded(key.clone()));
            self.forget(passed, at, told);
            up_to = Bound::Excluded(key.clone());
            let before = self.told.insert(key, pair.modified);
            if before != Some(pair.modified) {
                told.extend([FeedItem::Put(pair)]);
            }
        }
        self.stage = DiffPhase::Listing { at, up_to };
    }

    /// The last page of the listing was handled: what was not in it is gone, and the picture is whole.
    pub fn handle_listed(&mut self, told: &mut impl Extend<FeedItem>) {
        let DiffPhase::Listing { at, up_to } = std::mem::take(&mut self.stage) else {
            unreachable!("a listing has at least one page");
        };
        self.forget((up_to, Bound::Unbounded), at, told);
        self.stage = DiffPhase::Whole(at);
        told.extend([FeedItem::Synced(at)]);
    }

    /// The watch told the changes of one revision.
    pub fn handle_batch(
        &mut self,
        revision: Revision,
        changes: Vec<Change>,
        told: &mut impl Extend<FeedItem>,
    ) {
        if !self.moves_on_to(revision) {
            return;
        }
        for change in changes {
            match change {
                Change::Put { pair, .. } => {
                    let Some(key) = KeySuffix::of(&pair.key, &self.prefix) else { continue };
                    self.told.insert(key, pair.modified);
                    told.extend([FeedItem::Put(pair)]);
                }
                Change::Delete { key, revision, .. } => {
                    let was_told = KeySuffix::of(&key, &self.prefix).and_then(|key| self.told.remove(&key));
                    if was_told.is_some() {
                        told.extend([FeedItem::Delete { key, revision }]);
                    }
                }
            }
        }
        told.extend([FeedItem::Synced(revision)]);
    }

    /// The watch told that nothing else happened up to `revision`.
    pub fn handle_progress(&mut self, revision: Revision, told: &mut impl Extend<FeedItem>) {
        if self.moves_on_to(revision) {
            told.extend([FeedItem::Synced(revision)]);
        }
    }

    /// Whether `revision` is news for a whole picture. A watch that repeats itself is not followed back.
    fn moves_on_to(&mut self, revision: Revision) -> bool {
        match &mut self.stage {
            DiffPhase::Whole(at) if revision > *at => {
                *at = revision;
                true
            }
            DiffPhase::Whole(_) => false,
            DiffPhase::Blank | DiffPhase::Broken | DiffPhase::Listing { .. } => {
                unreachable!("only a whole picture is watched")
            }
        }
    }

    /// Tells the deletes of all keys between two neighbours of a listing.
    fn forget(
        &mut self,
        between: (Bound<KeySuffix>, Bound<KeySuffix>),
        revision: Revision,
        told: &mut impl Extend<FeedItem>,
    ) {
        if is_broken(SabotageRule::WholePicture) {
            return;
        }
        let gone: Vec<KeySuffix> = self.told.range(between).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.told.remove(&key);
            told.extend([FeedItem::Delete { key: key.after(&self.prefix), revision }]);
        }
    }
}

#[cfg(test)]
mod tests;
