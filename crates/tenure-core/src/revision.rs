//! The numbers that order events: revisions of the store, fencing tokens and request ids.
//!
//! A [`Revision`] counts the store's changes. A [`Token`] is the revision at which an owner's key
//! was created. It grows strictly per name, so a resource that remembers the largest token it saw
//! can refuse a former holder. A [`RequestId`] counts the requests of a machine, so that late
//! replies are recognised.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in the store's history. Every change of the store makes the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub i64);

impl Revision {
    /// Before the first write. As a create or modify revision: the key does not exist.
    pub const ZERO: Revision = Revision(0);

    /// The revision after this one.
    #[must_use]
    pub const fn next(self) -> Revision {
        Revision(self.0 + 1)
    }

    /// The revision before this one.
    #[must_use]
    pub const fn previous(self) -> Revision {
        Revision(self.0 - 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The proof that no later process has held the same name.
///
/// It is the create revision of the holder's own key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub Revision);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies the request that a reply belongs to. A reply to an older request is undone, never
/// trusted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The next request id.
    #[must_use]
    pub const fn next(self) -> RequestId {
        RequestId(self.0 + 1)
    }
}
