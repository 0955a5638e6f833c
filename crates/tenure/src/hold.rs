//! What a process holds: validity in time, and a fencing token. Locks, terms and claims dereference to [`Hold`].
//!
//! ```text
//! Validity            is_valid, remaining, lost, run           Clone, keeps nothing alive
//!   └─ Hold           + token, fence, lease, fenced, commit    Clone, keeps nothing alive
//!        ├─ Guard     a lock; released on drop
//!        ├─ Term      leadership; resigned on drop
//!        └─ TaskContext a claimed task; owned by its worker
//!   ├─ TtlTerm        leadership on a storage with TTLs; its token is optional
//!   └─ LeaseHandle         a lease of a session
//! ```
//!
//! **Invariant**: a hold is valid only before `sent + ttl − margin` of a renewal that the store acknowledged (G1). Each call judges that by
//! the clock, never by what a task has noticed.
//!
//! **Invariant**: once lost, always lost, with the same reason.

mod lease_cell;
mod validity;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::fence::Fence;
use tenure_core::kv::Get;
use tenure_core::revision::Token;
use tenure_core::txn::{Op, OpReply, Txn, TxnReply};
use thiserror::Error;

use crate::error::{ErrorClass, classified};
use crate::store::{LeaseId, Store, StoreError};

pub use tenure_core::loss::LossReason;
pub use validity::Validity;

pub(crate) use lease_cell::LeaseCell;
pub(crate) use validity::Subject;

/// Something that is not held any more.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{subject} lost: {reason}")]
pub struct Lost {
    /// What was held, such as `lock 'deploy'`.
    pub subject: Arc<str>,
    /// Why it is lost.
    #[source]
    pub reason: LossReason,
}

/// A right of this process: [`Validity`] and a fencing token. A clone keeps nothing alive: no lease, no key, no session.
///
/// ```
/// use tenure::store::{Op, Txn};
/// # use tenure::Namespace;
/// # use tenure::lock::Locks;
/// # use tenure::session::Session;
/// # use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let session = Session::open(Store::memory())?;
/// # let locks = Locks::new(&session, &Namespace::parse("shop")?);
/// let guard = locks.lock("ledger").await?;
/// // Written only if the lock is still held when the store applies it.
/// guard.commit(Txn::from(Op::put("/shop/balance", "100"))).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Hold {
    validity: Validity,
    fence: Fence,
    lease: LeaseId,
    store: Store,
}

impl Hold {
    pub(crate) fn new(validity: Validity, fence: Fence, lease: LeaseId, store: Store) -> Hold {
        Hold { validity, fence, lease, store }
    }

    /// The fencing token: larger than that of every earlier holder of this name.
    pub fn token(&self) -> Token {
        self.fence.token
    }

    /// The key of this hold and its token, for conditions of own transactions.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// The lease of the key.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// A view of this hold that keeps nothing alive.
    pub fn hold(&self) -> Hold {
        self.clone()
    }

    /// A view of the validity that keeps nothing alive.
    pub fn validity(&self) -> Validity {
        self.validity.clone()
    }

    /// Adds the condition that the key of this hold still exists.
    ///
    /// If that fails, the store applies the `otherwise` of the transaction.
    #[must_use]
    pub fn fenced(&self, txn: Txn) -> Txn {
        self.fence.guard(txn)
    }

    /// Sends a transaction. Its `then` is applied only while the key of this hold exists.
    ///
    /// Its `otherwise` is applied if one of its own conditions fails, and also if the key does not exist any more: it must not write.
    ///
    /// # Errors
    ///
    /// [`CommitError`]. Only after [`CommitError::Ambiguous`] it may have been applied.
    ///
    /// # Cancellation
    ///
    /// It may have been applied or not.
    pub async fn commit(&self, txn: Txn) -> Result<TxnReply, CommitError> {
        self.check()?;
        // The read shows which condition failed: the fence, or one of the caller's.
        let txn = self.fenced(txn).otherwise(Op::Get(Get::key(self.fence.key.clone())));
        match self.store.txn(txn).await {
            Ok(reply) if reply.succeeded => Ok(reply),
            Ok(mut reply) => {
                let is_there = match reply.results.pop() {
                    Some(OpReply::Get(page)) => {
                        page.pairs.first().is_some_and(|pair| pair.created == self.fence.token.0)
                    }
                    Some(OpReply::Put | OpReply::Delete { .. }) | None => false,
                };
                if is_there {
                    return Ok(reply);
                }
                // The store has just shown it. Why the key is gone may be known already.
                self.validity.end(LossReason::Deleted);
                let reason = self.loss().unwrap_or(LossReason::Deleted);
                Err(CommitError::Lost(self.validity.lost_by(reason)))
            }
            Err(error) if error.is_ambiguous() => Err(CommitError::Ambiguous(error)),
            Err(error) => Err(CommitError::Store(error)),
        }
    }
}

impl Deref for Hold {
    type Target = Validity;

    fn deref(&self) -> &Validity {
        &self.validity
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({}, {:?})", self.token(), self.validity)
    }
}

/// Why a release cannot confirm that it was held until then. It is not held any more in any case.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before. Nothing of another holder was released.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Work that runs under it in another task did not stop in time. The key stays, and nothing else can hold, until that work has ended: then
    /// it is released in the background. If the session ends before that, it expires with its lease.
    #[error("work under {subject} still runs after {after:?}; it is released when that has ended")]
    StillRunning {
        /// What was held, such as `lock 'deploy'`.
        subject: Arc<str>,
        /// How long the release waited.
        after: Duration,
    },
    /// The store did not confirm it in time. The release continues in the background; at the latest the key expires within the TTL.
    #[error(
        "the store did not confirm the release in time; it continues in the background, or the key expires within {ttl:?}"
    )]
    NotConfirmed {
        /// The TTL of the lease.
        ttl: Duration,
    },
}

/// Why a fenced transaction was not applied.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The hold was lost; nothing was applied.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// It may have been applied: read before sending it again.
    #[error("the reply to the transaction was lost")]
    Ambiguous(#[source] StoreError),
    /// The store failed; nothing was applied.
    #[error("the transaction was not applied")]
    Store(#[source] StoreError),
}

impl ReleaseError {
    /// What the caller can do about it. It is not held any more in any case.
    pub fn class(&self) -> ErrorClass {
        match self {
            ReleaseError::Lost(lost) => lost.into(),
            ReleaseError::StillRunning { .. } | ReleaseError::NotConfirmed { .. } => ErrorClass::Ambiguous,
        }
    }
}

impl CommitError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            CommitError::Lost(lost) => lost.into(),
            CommitError::Ambiguous(_) => ErrorClass::Ambiguous,
            CommitError::Store(error) => error.into(),
        }
    }
}

classified!(ReleaseError, CommitError);

#[cfg(test)]
mod tests;
