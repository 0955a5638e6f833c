//! Locks: the oldest waiter holds, and its hold is invalid before the store can give the lock to another one.
//!
//! **No lock service can give mutual exclusion of effects** in a network that delays messages: a holder can be paused between its last check
//! of the lock and its write. A lock gives a *token* that grows with every holder. Let the resource refuse a smaller token than it
//! has seen ([`Hold::fence`](crate::hold::Hold::fence) for writes inside the store, a [`FenceVerifier`](crate::fence::FenceVerifier) outside), and a late write of an earlier holder does nothing.

mod barrier;
mod guard;
mod request;
mod snapshot;

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use tenure_core::id::{InvalidName, LockName, Namespace};
use tenure_core::layout::Layout;
use tenure_core::queue::QueueKind;
use tenure_core::record::HolderRecord;

use crate::hold::Subject;
use crate::id::{IntoId, IntoIdentity};
use crate::identity;
use crate::queue::QueueDriver;
use crate::session::Session;
use crate::store::Store;

pub use barrier::{Barrier, BarrierError, BarrierRequest};
pub use guard::Guard;
pub use request::{LockError, LockRequest};
pub use snapshot::{Holder, LockList, LockSnapshot};
pub use tenure_core::queue::LockMode;

pub use crate::queue::QueuePosition;

pub use crate::hold::{Lost, ReleaseError};

/// The locks of a namespace, on a session. Cheap to clone.
///
/// ```
/// use tenure::Namespace;
/// use tenure::lock::Locks;
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = Session::open(Store::memory())?;
/// let locks = Locks::new(&session, &Namespace::parse("shop")?);
///
/// let guard = locks.lock("deploy").await?;
/// // The work completes, or is dropped when the lock is not valid any more.
/// let done = guard.run(async { "deployed" }).await?;
/// assert_eq!(done, "deployed");
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * At most one exclusive hold of a name is valid, as long as no operator deletes keys or revokes leases.
/// * A hold is invalid before the store can give the lock to another process, although tasks or the store hang, also after a suspend.
/// * Tokens of one name only grow.
/// * First come, first served; the callers of one session exclude each other too.
/// * An uncontended lock costs one request and its release another, once the session has a lease. A hold that lasts for 100 ms costs one more
///   in the background: its queue key then contains when the lock was acquired ([`Holder::record`]).
///
/// # Not guaranteed
///
/// * Mutual exclusion of effects: use the token.
/// * That a holder foresees that an operator breaks its lock: it notices within a round trip, for a hold of 100 ms or more.
///
/// # Cancellation
///
/// Dropping the future of a request, or a guard, deletes the queue key in the background.
#[derive(Clone)]
pub struct Locks {
    queues: QueueDriver,
    store: Store,
    layout: Arc<Layout>,
    holder: Arc<HolderRecord>,
}

impl Locks {
    /// The locks of a namespace. Sends nothing yet.
    pub fn new(session: &Session, namespace: &Namespace) -> Locks {
        Locks {
            queues: QueueDriver::open(session, &Layout::new(namespace), QueueKind::Lock),
            store: session.store().clone(),
            layout: Arc::new(Layout::new(namespace)),
            holder: Arc::new(identity::current().into()),
        }
    }

    /// The identity that is stored with each holder and waiter; [`identity::current`] otherwise.
    #[must_use]
    pub fn identity(mut self, identity: impl IntoIdentity) -> Locks {
        self.holder = Arc::new(identity.into_identity().into());
        self
    }

    /// A lock that one process holds. Nothing is sent before the result is awaited.
    pub fn lock(&self, name: impl IntoId<LockName>) -> LockRequest {
        self.request(name.into_id(), LockMode::Exclusive)
    }

    /// A lock that many readers or one writer hold. Its writers exclude the holders of [`Locks::lock`] as well.
    pub fn rw_lock(&self, name: impl IntoId<LockName>) -> RwLock {
        RwLock { locks: self.clone(), name: name.into_id() }
    }

    /// A number of permits. All callers of the name must use the same number.
    pub fn semaphore(&self, name: impl IntoId<LockName>, permits: u32) -> Semaphore {
        Semaphore { locks: self.clone(), name: name.into_id(), permits }
    }

    /// A point that a number of parties pass together. All callers of the name must use the same number.
    pub fn barrier(&self, name: impl IntoId<LockName>, parties: u32) -> Barrier {
        Barrier::new(self, name.into_id(), parties)
    }

    fn request(&self, name: Result<LockName, InvalidName>, mode: LockMode) -> LockRequest {
        LockRequest::new(self, name, mode)
    }

    /// The name of a lock's queue in messages, and its prefix.
    fn queue(&self, name: &LockName) -> (Subject, Bytes) {
        let subject = Subject { kind: "lock", name: name.shared_str() };
        (subject, self.layout.waiters(name).first().clone())
    }
}

/// A lock that many readers or one writer hold. Cheap to clone.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let config = tenure.rw_lock("config");
/// let (one, two) = (config.read().await?, config.read().await?);
/// assert!(config.write().try_now().await.is_err());
/// one.release().await?;
/// two.release().await?;
/// config.write().await?.release().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RwLock {
    locks: Locks,
    name: Result<LockName, InvalidName>,
}

impl RwLock {
    /// A hold that other readers may have at the same time.
    pub fn read(&self) -> LockRequest {
        self.locks.request(self.name.clone(), LockMode::Shared)
    }

    /// A hold that excludes readers and other writers.
    pub fn write(&self) -> LockRequest {
        self.locks.request(self.name.clone(), LockMode::Exclusive)
    }
}

/// A number of permits. Cheap to clone.
///
/// ```
/// use tenure::{LockError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let exports = tenure.semaphore("exports", 2);
/// let (one, two) = (exports.acquire().await?, exports.acquire().await?);
/// assert!(matches!(exports.acquire().try_now().await, Err(LockError::Held { .. })));
/// one.release().await?;
/// two.release().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    locks: Locks,
    name: Result<LockName, InvalidName>,
    permits: u32,
}

impl Semaphore {
    /// One of the permits. Zero permits are reported as [`LockError::InvalidPermits`] when it is awaited.
    pub fn acquire(&self) -> LockRequest {
        match NonZeroU32::new(self.permits) {
            Some(of) => self.locks.request(self.name.clone(), LockMode::Permit { of }),
            None => LockRequest::invalid(&self.locks, LockError::InvalidPermits),
        }
    }
}
