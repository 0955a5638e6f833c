//! What a presence set contains and reports.

use std::sync::Arc;

use crate::lease::LeaseId;
use crate::revision::{Revision, Token};
use crate::time::Moment;

/// A member.
#[derive(Clone, PartialEq, Debug)]
pub struct Presence<I, R> {
    /// The id of the member.
    pub id: I,
    /// The record that it published.
    pub record: R,
    /// The incarnation: the create revision of its key. A later incarnation of the same id has a
    /// larger token.
    pub token: Token,
    /// The lease of its key; none if a client put the key without one.
    pub lease: Option<LeaseId>,
    /// The revision of the last write of its record.
    pub modified: Revision,
}

/// A key with an unreadable value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreadableKey<I> {
    /// The id in the key.
    pub id: I,
    /// The create revision of the key.
    pub token: Token,
    /// The lease of the key.
    pub lease: Option<LeaseId>,
    /// The revision of the last write.
    pub modified: Revision,
    /// Why the value cannot be read. Never contains the value.
    pub why: String,
}

/// All members at one revision. Cheap to clone.
#[derive(Clone, PartialEq, Debug)]
pub struct PresenceSnapshot<I, R> {
    /// The revision of the store.
    pub revision: Revision,
    /// The members, in the order of their ids.
    pub(super) members: Arc<[Arc<Presence<I, R>>]>,
    /// The unreadable keys, in the order of ids.
    pub(super) set_aside: Arc<[UnreadableKey<I>]>,
}

impl<I: Ord, R> PresenceSnapshot<I, R> {
    /// The members, in the order of their ids.
    pub fn members(&self) -> &[Arc<Presence<I, R>>] {
        &self.members
    }

    /// The unreadable keys, in the order of their ids.
    pub fn set_aside(&self) -> &[UnreadableKey<I>] {
        &self.set_aside
    }

    /// Returns one member.
    pub fn get(&self, id: &I) -> Option<&Arc<Presence<I, R>>> {
        self.members.binary_search_by(|member| member.id.cmp(id)).ok().map(|at| &self.members[at])
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the first member after an id; after the last one, the first of all. For round robin.
    pub fn after(&self, last: Option<&I>) -> Option<&Arc<Presence<I, R>>> {
        let next = last.map_or(0, |last| self.members.partition_point(|member| member.id <= *last));
        self.members.get(next).or_else(|| self.members.first())
    }
}

/// A change of the members.
#[derive(Clone, PartialEq, Debug)]
pub enum PresenceEvent<I, R> {
    /// All members. The first event, reported once.
    Snapshot(PresenceSnapshot<I, R>),
    /// A member joined, or joined again as a new incarnation.
    Joined(Arc<Presence<I, R>>),
    /// A member of the same incarnation changed its record or its lease.
    Updated {
        /// The member before.
        before: Arc<Presence<I, R>>,
        /// The member now.
        now: Arc<Presence<I, R>>,
    },
    /// A member left: it withdrew, its lease expired, or a new incarnation replaced it.
    Left {
        /// The member as last known.
        member: Arc<Presence<I, R>>,
        /// The first revision at which that was certain.
        revision: Revision,
    },
    /// A key cannot be read; its id is no member.
    Unreadable(UnreadableKey<I>),
    /// An unreadable key was deleted, or can be read now.
    Cleared {
        /// The id in the key.
        id: I,
        /// The first revision at which that was certain.
        revision: Revision,
    },
    /// The set is not kept current any more; the last known state remains.
    Stale {
        /// The time of the last reply of the store.
        heard: Moment,
    },
    /// The set is current again. Changes in between were reported before this event.
    Fresh {
        /// The revision of the store.
        revision: Revision,
    },
}
