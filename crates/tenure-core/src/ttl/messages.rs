//! What a TTL election and its driver exchange: requests to the storage, replies, and how a term
//! can end.

use std::time::Duration;

use crate::keepalive::Timing;

/// The configuration of one campaign and its term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TtlConfig {
    /// How its time is divided.
    pub timing: Timing,
    /// How long the work may take to stop. After that the key is not deleted, but expires.
    pub stop_within: Duration,
    /// Whether the storage has a fencing token.
    pub fencing: FencingSupport,
}

/// Whether a term has a fencing token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FencingSupport {
    /// The storage has one, and a term begins when it is known.
    Token,
    /// There is none.
    None,
}

/// The outcome of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageReply {
    /// Applied.
    Yes,
    /// Not applied, because another value is stored, or none.
    No,
    /// Failed, and certainly not applied.
    NotApplied,
    /// Failed, and possibly applied.
    Unknown,
}

/// A request to the storage. Each reply carries the moment at which its request was sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StorageRequest {
    /// Insert the value if the key is absent.
    Insert,
    /// Swap the value for itself, with a new TTL.
    Swap,
    /// Read the token of the value.
    Token,
    /// Delete the value.
    Delete,
}

/// The status of a campaign and its term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TtlStatus {
    /// Not decided yet.
    Acquiring,
    /// The term is valid.
    Leading,
    /// Released; the work is being stopped.
    Stopping,
    /// Not valid; the stored value is being deleted.
    Leaving(TtlEnd),
    /// Nothing is left to do.
    Over(TtlEnd),
}

/// Why no term began, or how it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TtlEnd {
    /// Another candidate has the key.
    Held,
    /// The storage did not store the value, or that is unknown.
    NotAcquired,
    /// It was not renewed in time.
    Lapsed,
    /// The storage holds another value, or none.
    Replaced,
    /// Released on purpose.
    Released(TtlReleaseOutcome),
}

/// What is left in the storage after a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TtlReleaseOutcome {
    /// Nothing: the key was deleted.
    Nothing,
    /// The key, until it expires, because the work did not stop in time.
    StillRunning,
    /// Possibly the key, until it expires, because the storage does not reply.
    Unconfirmed,
    /// Nothing: the key was lost before the release deleted it.
    Gone,
}

impl TtlEnd {
    /// The same end without a confirmation by the storage.
    pub(super) fn unconfirmed(self) -> TtlEnd {
        match self {
            TtlEnd::Released(_) => TtlEnd::Released(TtlReleaseOutcome::Unconfirmed),
            TtlEnd::Held | TtlEnd::NotAcquired | TtlEnd::Lapsed | TtlEnd::Replaced => self,
        }
    }
}
