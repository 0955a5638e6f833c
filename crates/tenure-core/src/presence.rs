//! Who is there: the members of a prefix, what changed among them, and how old that knowledge is.
//!
//! A roster is told what a [feed](crate::snapshot) says and what time it is. It keeps one entry for each key that is a member's, and
//! tells the whole picture once and every difference after it. Nodes and service instances are the same thing to it: a [`PresenceKind`] says
//! which keys are members and how their values read.
//!
//! Intuition: a member *is* its key. The key's create revision is the member's token and its incarnation: a key that went and
//! came back has another, so a restart shows even if nobody watched while it happened. It is told as `Left` and then `Joined`, exactly
//! as if somebody had watched.
//!
//! **Invariant**: nothing is told between a break and the next whole picture; what changed meanwhile is told then, in one go.
//!
//! **Invariant**: `PresenceSnapshot` comes first and once; from then on what was told adds up to the snapshot that could be taken.
//!
//! **Invariant**: a key that cannot be read is set aside with the reason. It is no member, and it harms none.

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
    /// What was seen since the last whole picture, newest word for each.
    pending: BTreeMap<K::Id, PendingEntry<K::Record>>,
    /// The revision of the last whole picture.
    whole_at: Option<Revision>,
    /// When the store was last heard.
    heard: Moment,
    footing: SyncState,
    /// The last snapshot that was taken, for as long as it holds.
    taken: Option<PresenceSnapshotOf<K>>,
}

/// What the picture rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SyncState {
    /// There is none yet.
    Blank,
    /// A watch that keeps it up to date.
    Followed,
    /// A watch, but the store does not answer.
    Unanswered,
    /// Nothing: it is being listed anew.
    Broken,
}

/// What was seen of a key.
#[derive(Clone, Debug)]
enum PendingEntry<R> {
    Here { token: Token, lease: Option<crate::lease::LeaseId>, modified: Revision, record: Result<R, String> },
    Gone(Revision),
}

/// What a roster of this kind tells.
pub type PresenceEventOf<K> = PresenceEvent<<K as PresenceKind>::Id, <K as PresenceKind>::Record>;

/// What a roster of this kind shows.
pub type PresenceSnapshotOf<K> = PresenceSnapshot<<K as PresenceKind>::Id, <K as PresenceKind>::Record>;

/// A member on a roster of this kind.
pub type PresenceOf<K> = Presence<<K as PresenceKind>::Id, <K as PresenceKind>::Record>;

impl<K: PresenceKind> PresenceSet<K> {
    /// Knows nobody yet.
    pub fn new(kind: K) -> PresenceSet<K> {
        PresenceSet {
            kind,
            members: BTreeMap::new(),
            set_aside: BTreeMap::new(),
            pending: BTreeMap::new(),
            whole_at: None,
            heard: Moment::ORIGIN,
            footing: SyncState::Blank,
            taken: None,
        }
    }

    /// Something came from the feed.
    pub fn handle_item(&mut self, item: FeedItem, now: Moment, told: &mut impl Extend<PresenceEventOf<K>>) {
        match item {
            FeedItem::SnapshotBegin => self.fall_to(SyncState::Broken, told),
            FeedItem::Put(pair) => {
                if let Some(id) = self.kind.id(&pair.key) {
                    let seen = self.look_at(&id, &pair);
                    self.pending.insert(id, seen);
                }
            }
            FeedItem::Delete { key, revision } => {
                if let Some(id) = self.kind.id(&key) {
                    self.pending.insert(id, PendingEntry::Gone(revision));
                }
            }
            FeedItem::Synced(revision) => self.make_whole(revision, now, told),
        }
    }

    /// The store answered a question that was asked at `asked`, so a picture that is being followed was right then.
    pub fn handle_answer(&mut self, asked: Moment, told: &mut impl Extend<PresenceEventOf<K>>) {
        match (self.footing, self.whole_at) {
            (SyncState::Followed, Some(_)) => self.heard = self.heard.max(asked),
            (SyncState::Unanswered, Some(revision)) => {
                self.heard = self.heard.max(asked);
                self.footing = SyncState::Followed;
                told.extend([PresenceEvent::Fresh { revision }]);
            }
            // A picture that broke is made whole by a listing alone.
            (SyncState::Blank | SyncState::Broken, _) | (_, None) => {}
        }
    }

    /// The store did not answer.
    pub fn handle_silence(&mut self, told: &mut impl Extend<PresenceEventOf<K>>) {
        if self.footing == SyncState::Followed {
            self.fall_to(SyncState::Unanswered, told);
        }
    }

    /// The whole picture as it was last known; none before there was one.
    pub fn snapshot(&mut self) -> Option<PresenceSnapshotOf<K>> {
        let revision = self.whole_at?;
        let taken = self.taken.get_or_insert_with(|| PresenceSnapshot {
            revision,
            members: self.members.values().cloned().collect(),
            set_aside: self.set_aside.values().cloned().collect(),
        });
        taken.revision = revision;
        Some(taken.clone())
    }

    /// One member, as last known.
    pub fn get(&self, id: &K::Id) -> Option<&Arc<PresenceOf<K>>> {
        self.members.get(id)
    }

    /// How many members there are, as last known.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The revision of the last whole picture; none before there was one.
    pub fn whole_at(&self) -> Option<Revision> {
        self.whole_at
    }

    /// Whether the picture is kept up to date.
    pub fn is_fresh(&self) -> bool {
        self.footing == SyncState::Followed
    }

    /// When the store was last heard; none before there was a picture.
    pub fn heard(&self) -> Option<Moment> {
        self.whole_at.map(|_| self.heard)
    }

    /// How long ago the picture was certainly right; none before there was one.
    pub fn age(&self, now: Moment) -> Option<Duration> {
        self.heard().map(|heard| now.since(heard))
    }

    fn look_at(&self, id: &K::Id, pair: &KeyValue) -> PendingEntry<K::Record> {
        let record = self.kind.read(id, &pair.value).map_err(|error| error.reason());
        PendingEntry::Here { token: Token(pair.created), lease: pair.lease, modified: pair.modified, record }
    }

    fn fall_to(&mut self, footing: SyncState, told: &mut impl Extend<PresenceEventOf<K>>) {
        match std::mem::replace(&mut self.footing, footing) {
            SyncState::Followed => told.extend([PresenceEvent::Stale { heard: self.heard }]),
            // Whoever was told so is not told again, and who has no picture has none that could be old.
            SyncState::Unanswered | SyncState::Broken => {}
            SyncState::Blank => self.footing = SyncState::Blank,
        }
    }

    fn make_whole(&mut self, revision: Revision, now: Moment, told: &mut impl Extend<PresenceEventOf<K>>) {
        let mut news = Vec::new();
        for (id, seen) in std::mem::take(&mut self.pending) {
            self.apply(id, seen, &mut news);
        }
        if !news.is_empty() {
            self.taken = None;
        }
        self.whole_at = Some(revision);
        self.heard = self.heard.max(now);
        match std::mem::replace(&mut self.footing, SyncState::Followed) {
            SyncState::Blank => {
                self.taken = None;
                told.extend(self.snapshot().map(PresenceEvent::Snapshot));
            }
            SyncState::Followed => told.extend(news),
            SyncState::Unanswered | SyncState::Broken => {
                told.extend(news);
                told.extend([PresenceEvent::Fresh { revision }]);
            }
        }
    }

    /// Takes one change in and says what differs.
    fn apply(&mut self, id: K::Id, seen: PendingEntry<K::Record>, news: &mut Vec<PresenceEventOf<K>>) {
        let was_set_aside = self.set_aside.remove(&id).is_some();
        let before = self.members.remove(&id);
        match seen {
            PendingEntry::Gone(revision) => match before {
                Some(member) => news.push(PresenceEvent::Left { member, revision }),
                None if was_set_aside => news.push(PresenceEvent::Cleared { id, revision }),
                None => {}
            },
            PendingEntry::Here { token, lease, modified, record: Err(why) } => {
                if let Some(member) = before {
                    news.push(PresenceEvent::Left { member, revision: modified });
                }
                let aside = UnreadableKey { id: id.clone(), token, lease, modified, why };
                self.set_aside.insert(id, aside.clone());
                news.push(PresenceEvent::Unreadable(aside));
            }
            PendingEntry::Here { token, lease, modified, record: Ok(record) } => {
                let now = Arc::new(Presence { id: id.clone(), record, token, lease, modified });
                self.members.insert(id.clone(), now.clone());
                if was_set_aside {
                    news.push(PresenceEvent::Cleared { id, revision: modified });
                }
                match before {
                    Some(before) if before.token == token => {
                        news.push(PresenceEvent::Updated { before, now })
                    }
                    Some(member) => {
                        // It was gone in between, whether or not somebody watched: the revision is the first at which that is certain.
                        news.push(PresenceEvent::Left { member, revision: token.0 });
                        news.push(PresenceEvent::Joined(now));
                    }
                    None => news.push(PresenceEvent::Joined(now)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
