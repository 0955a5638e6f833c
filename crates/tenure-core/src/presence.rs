//! Members of a prefix: the current set, its changes, and how old that knowledge is.
//!
//! The set receives the items of a [feed](crate::snapshot) and the time. It keeps one entry for
//! each member's key. It reports the whole set once and every difference after it. Nodes and
//! service instances are handled alike: a [`PresenceKind`] defines which keys are members and how
//! their values are read.
//!
//! Intuition: a member *is* its key. The create revision of the key is the member's token and its
//! incarnation. A key that was deleted and put again has another token, so a restart is visible
//! even if no watch was open while it happened. It is reported as `Left` and then `Joined`, as if a
//! watch had been open.
//!
//! **Invariant**: nothing is reported between a break of the feed and the next `Synced`. The
//! changes in between are reported then, all at once.
//!
//! **Invariant**: `Snapshot` is the first event and the only one of its kind. It and the later
//! events add up to the current set.
//!
//! **Invariant**: an unreadable key is kept apart with the reason. It is no member and affects no
//! other key.

mod event;
mod kind;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::kv::KeyValue;
use crate::revision::{Revision, Token};
use crate::snapshot::FeedItem;
use crate::time::Moment;

pub use event::{Presence, PresenceEvent, PresenceSnapshot, UnreadableKey};
pub use kind::{AllInstancePresence, InstancePresence, NodePresence, PresenceKind};

/// The members of one kind.
#[derive(Clone, Debug)]
pub struct PresenceSet<K: PresenceKind> {
    kind: K,
    members: BTreeMap<K::Id, Arc<PresenceOf<K>>>,
    set_aside: BTreeMap<K::Id, UnreadableKey<K::Id>>,
    /// Changes since the last `Synced`, the newest for each id.
    pending: BTreeMap<K::Id, PendingEntry<K::Record>>,
    /// The revision of the last `Synced`.
    synced_at: Option<Revision>,
    /// The time of the last reply of the store.
    replied_at: Moment,
    sync: SyncState,
    /// The last snapshot that was taken, until the set changes.
    taken: Option<PresenceSnapshotOf<K>>,
}

/// How current the set is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SyncState {
    /// No listing is complete yet.
    Initial,
    /// A watch keeps it current.
    Synced,
    /// The watch is open, but the store does not reply.
    Unconfirmed,
    /// The feed broke, and the prefix is being listed again.
    Listing,
}

/// A change of one key since the last `Synced`.
#[derive(Clone, Debug)]
enum PendingEntry<R> {
    Present {
        token: Token,
        lease: Option<crate::lease::LeaseId>,
        modified: Revision,
        record: Result<R, String>,
    },
    Deleted(Revision),
}

/// The events of a set of this kind.
pub type PresenceEventOf<K> = PresenceEvent<<K as PresenceKind>::Id, <K as PresenceKind>::Record>;

/// The snapshot of a set of this kind.
pub type PresenceSnapshotOf<K> = PresenceSnapshot<<K as PresenceKind>::Id, <K as PresenceKind>::Record>;

/// A member of a set of this kind.
pub type PresenceOf<K> = Presence<<K as PresenceKind>::Id, <K as PresenceKind>::Record>;

impl<K: PresenceKind> PresenceSet<K> {
    /// Creates an empty set, before the first listing.
    pub fn new(kind: K) -> PresenceSet<K> {
        PresenceSet {
            kind,
            members: BTreeMap::new(),
            set_aside: BTreeMap::new(),
            pending: BTreeMap::new(),
            synced_at: None,
            replied_at: Moment::ORIGIN,
            sync: SyncState::Initial,
            taken: None,
        }
    }

    /// Handles an item of the feed.
    pub fn handle_item(&mut self, item: FeedItem, now: Moment, events: &mut impl Extend<PresenceEventOf<K>>) {
        match item {
            FeedItem::SnapshotBegin => self.degrade_to(SyncState::Listing, events),
            FeedItem::Put(pair) => {
                if let Some(id) = self.kind.id(&pair.key) {
                    let entry = self.read_entry(&id, &pair);
                    self.pending.insert(id, entry);
                }
            }
            FeedItem::Delete { key, revision } => {
                if let Some(id) = self.kind.id(&key) {
                    self.pending.insert(id, PendingEntry::Deleted(revision));
                }
            }
            FeedItem::Synced(revision) => self.handle_synced(revision, now, events),
        }
    }

    /// Reports a reply to a request that was sent at `sent_at`: a set kept current by a watch was
    /// correct at that time.
    pub fn handle_reply(&mut self, sent_at: Moment, events: &mut impl Extend<PresenceEventOf<K>>) {
        match (self.sync, self.synced_at) {
            (SyncState::Synced, Some(_)) => self.replied_at = self.replied_at.max(sent_at),
            (SyncState::Unconfirmed, Some(revision)) => {
                self.replied_at = self.replied_at.max(sent_at);
                self.sync = SyncState::Synced;
                events.extend([PresenceEvent::Fresh { revision }]);
            }
            // After a break only a complete listing makes the set current again.
            (SyncState::Initial | SyncState::Listing, _) | (_, None) => {}
        }
    }

    /// Reports that the store did not reply.
    pub fn handle_no_reply(&mut self, events: &mut impl Extend<PresenceEventOf<K>>) {
        if self.sync == SyncState::Synced {
            self.degrade_to(SyncState::Unconfirmed, events);
        }
    }

    /// Returns the set as last known; none before the first listing is complete.
    pub fn snapshot(&mut self) -> Option<PresenceSnapshotOf<K>> {
        let revision = self.synced_at?;
        let taken = self.taken.get_or_insert_with(|| PresenceSnapshot {
            revision,
            members: self.members.values().cloned().collect(),
            set_aside: self.set_aside.values().cloned().collect(),
        });
        taken.revision = revision;
        Some(taken.clone())
    }

    /// Returns one member, as last known.
    pub fn get(&self, id: &K::Id) -> Option<&Arc<PresenceOf<K>>> {
        self.members.get(id)
    }

    /// The number of members, as last known.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The revision of the last `Synced`; none before the first one.
    pub fn synced_at(&self) -> Option<Revision> {
        self.synced_at
    }

    /// Whether a watch keeps the set current.
    pub fn is_fresh(&self) -> bool {
        self.sync == SyncState::Synced
    }

    /// The time of the last reply of the store; none before the first listing is complete.
    pub fn replied_at(&self) -> Option<Moment> {
        self.synced_at.map(|_| self.replied_at)
    }

    /// The age of the set: how long ago it was certainly correct. None before the first listing is
    /// complete.
    pub fn age(&self, now: Moment) -> Option<Duration> {
        self.replied_at().map(|replied_at| now.since(replied_at))
    }

    fn read_entry(&self, id: &K::Id, pair: &KeyValue) -> PendingEntry<K::Record> {
        let record = self.kind.read(id, &pair.value).map_err(|error| error.reason());
        PendingEntry::Present {
            token: Token(pair.created),
            lease: pair.lease,
            modified: pair.modified,
            record,
        }
    }

    fn degrade_to(&mut self, sync: SyncState, events: &mut impl Extend<PresenceEventOf<K>>) {
        match std::mem::replace(&mut self.sync, sync) {
            SyncState::Synced => events.extend([PresenceEvent::Stale { heard: self.replied_at }]),
            // It was reported as stale already. Before the first listing nothing can be stale.
            SyncState::Unconfirmed | SyncState::Listing => {}
            SyncState::Initial => self.sync = SyncState::Initial,
        }
    }

    fn handle_synced(
        &mut self,
        revision: Revision,
        now: Moment,
        events: &mut impl Extend<PresenceEventOf<K>>,
    ) {
        let mut changes = Vec::new();
        for (id, entry) in std::mem::take(&mut self.pending) {
            self.apply(id, entry, &mut changes);
        }
        if !changes.is_empty() {
            self.taken = None;
        }
        self.synced_at = Some(revision);
        self.replied_at = self.replied_at.max(now);
        match std::mem::replace(&mut self.sync, SyncState::Synced) {
            SyncState::Initial => {
                self.taken = None;
                events.extend(self.snapshot().map(PresenceEvent::Snapshot));
            }
            SyncState::Synced => events.extend(changes),
            SyncState::Unconfirmed | SyncState::Listing => {
                events.extend(changes);
                events.extend([PresenceEvent::Fresh { revision }]);
            }
        }
    }

    /// Applies one change and collects the differences.
    fn apply(&mut self, id: K::Id, entry: PendingEntry<K::Record>, changes: &mut Vec<PresenceEventOf<K>>) {
        let was_set_aside = self.set_aside.remove(&id).is_some();
        let before = self.members.remove(&id);
        match entry {
            PendingEntry::Deleted(revision) => match before {
                Some(member) => changes.push(PresenceEvent::Left { member, revision }),
                None if was_set_aside => changes.push(PresenceEvent::Cleared { id, revision }),
                None => {}
            },
            PendingEntry::Present { token, lease, modified, record: Err(why) } => {
                if let Some(member) = before {
                    changes.push(PresenceEvent::Left { member, revision: modified });
                }
                let aside = UnreadableKey { id: id.clone(), token, lease, modified, why };
                self.set_aside.insert(id, aside.clone());
                changes.push(PresenceEvent::Unreadable(aside));
            }
            PendingEntry::Present { token, lease, modified, record: Ok(record) } => {
                let now = Arc::new(Presence { id: id.clone(), record, token, lease, modified });
                self.members.insert(id.clone(), now.clone());
                if was_set_aside {
                    changes.push(PresenceEvent::Cleared { id, revision: modified });
                }
                match before {
                    Some(before) if before.token == token => {
                        changes.push(PresenceEvent::Updated { before, now });
                    }
                    Some(member) => {
                        // The earlier incarnation ended in between, watched or not. This is the
                        // first revision at which that is certain.
                        changes.push(PresenceEvent::Left { member, revision: token.0 });
                        changes.push(PresenceEvent::Joined(now));
                    }
                    None => changes.push(PresenceEvent::Joined(now)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
