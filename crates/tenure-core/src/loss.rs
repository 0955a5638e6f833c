//! Why a right is lost: one list of reasons for leases, locks, terms and claims.

use std::fmt;

/// Why a hold or a lease is not valid any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease was not renewed before the validity deadline: the store may end it any moment.
    Lapsed,
    /// The store ended the lease: its TTL was over, or a client revoked it.
    Revoked,
    /// The key was deleted by another client, such as `tenure locks break`, or with its task.
    Deleted,
    /// The key holds another owner's value, or the claim is not stored any more.
    Replaced,
    /// The key of the worker is gone, and with it the right to its claims.
    MembershipLost,
    /// This process released it, resigned or dropped it.
    Released,
    /// The session, or what else it depends on, was closed.
    Closed,
}

impl LossReason {
    /// Every reason, so that each can be counted from zero.
    pub const ALL: [LossReason; 7] = [
        LossReason::Lapsed,
        LossReason::Revoked,
        LossReason::Deleted,
        LossReason::Replaced,
        LossReason::MembershipLost,
        LossReason::Released,
        LossReason::Closed,
    ];

    /// A stable name: the value of the `reason` label of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            LossReason::Lapsed => "lapsed",
            LossReason::Revoked => "revoked",
            LossReason::Deleted => "deleted",
            LossReason::Replaced => "replaced",
            LossReason::MembershipLost => "membership_lost",
            LossReason::Released => "released",
            LossReason::Closed => "closed",
        }
    }
}

/// The source of every error about a lost hold, so that it is found in a chain of causes.
impl std::error::Error for LossReason {}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::Lapsed => "lease not renewed in time",
            LossReason::Revoked => "lease ended by the store",
            LossReason::Deleted => "key deleted by another client",
            LossReason::Replaced => "key taken by another owner",
            LossReason::MembershipLost => "membership of the worker lost",
            LossReason::Released => "released by this process",
            LossReason::Closed => "session closed",
        })
    }
}
