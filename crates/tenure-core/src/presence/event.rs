//! What a roster shows and tells.

use std::sync::Arc;

use crate::lease::LeaseId;
use crate::revision::{Revision, Token};
use crate::time::Moment;

/// One who is there.
#[derive(Clone, PartialEq, Debug)]
pub struct Presence<I, R> {
    /// Who.
    pub id: I,
    /// What it says of itself.
    pub record: R,
    /// Which incarnation of it this is: the create revision of its key. A later one of the same id has a larger token.
    pub token: Token,
    /// The lease it lives by; none if somebody put the key without one.
    pub lease: Option<LeaseId>,
    /// When the record was last written.
    pub modified: Revision,
}

/// A key whose value could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreadableKey<I> {
    /// Whose key it is.
    pub id: I,
    /// When the key was created.
    pub token: Token,
    /// The lease it hangs on.
    pub lease: Option<LeaseId>,
    /// When it was last written.
    pub modified: Revision,
    /// Why it could not be read; never what it holds.
    pub why: String,
}

/// Everybody, as they were at one revision. Cheap to clone.
#[derive(Clone, PartialEq, Debug)]
pub struct PresenceSnapshot<I, R> {
    /// Of which revision of the store.
    pub revision: Revision,
    /// Who is there, in the order of their ids.
    pub(super) members: Arc<[Arc<Presence<I, R>>]>,
    /// What could not be read, in the order of ids.
    pub(super) set_aside: Arc<[UnreadableKey<I>]>,
}

impl<I: Ord, R> PresenceSnapshot<I, R> {
    /// Who is there, in the order of their ids.
    pub fn members(&self) -> &[Arc<Presence<I, R>>] {
        &self.members
    }

    /// The keys that could not be read, in the order of their ids.
    pub fn set_aside(&self) -> &[UnreadableKey<I>] {
        &self.set_aside
    }

    /// One member.
    pub fn get(&self, id: &I) -> Option<&Arc<Presence<I, R>>> {
        self.members.binary_search_by(|member| member.id.cmp(id)).ok().map(|at| &self.members[at])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether nobody is there.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The first member after an id, and after the last one the first of all: whose turn it is.
    pub fn after(&self, last: Option<&I>) -> Option<&Arc<Presence<I, R>>> {
        let next = last.map_or(0, |last| self.members.partition_point(|member| member.id <= *last));
        self.members.get(next).or_else(|| self.members.first())
    }
}

/// What changed among the members.
#[derive(Clone, PartialEq, Debug)]
pub enum PresenceEvent<I, R> {
    /// Everybody who is there. Comes first, and once.
    Snapshot(PresenceSnapshot<I, R>),
    /// Somebody came, or came back as a new incarnation.
    Joined(Arc<Presence<I, R>>),
    /// Somebody says something else of itself, or lives by another lease, in the same incarnation.
    Updated {
        /// As it was.
        before: Arc<Presence<I, R>>,
        /// As it is.
        now: Arc<Presence<I, R>>,
    },
    /// Somebody is gone: left, died, or was replaced by a new incarnation.
    Left {
        /// As it was last known.
        member: Arc<Presence<I, R>>,
        /// When that was certain.
        revision: Revision,
    },
    /// A key cannot be read; whoever it stood for is no member.
    Unreadable(UnreadableKey<I>),
    /// A key that could not be read is gone, or can be read now.
    Cleared {
        /// Whose key it was.
        id: I,
        /// When that was certain.
        revision: Revision,
    },
    /// The picture is not kept up to date any more; the last one known stays.
    Stale {
        /// When the store was last heard.
        heard: Moment,
    },
    /// The picture is up to date again. What changed meanwhile was told before this.
    Fresh {
        /// Of which revision of the store.
        revision: Revision,
    },
}
