//! Locks: who stands first in line holds, and is told before that stops being true.
//!
//! **No lock service can give mutual exclusion of effects** in a network that delays messages: a holder can be paused between its last look
//! at the lock and its write. What a lock gives is a *token* that grows with every holder. Let the resource refuse a smaller token than it
//! has seen ([`Hold::fence`](crate::hold::Hold::fence) for writes inside the store, a [`FenceVerifier`](crate::fence::FenceVerifier) outside), and a late write of an earlier holder does nothing.

mod acquire;
mod barrier;
mod guard;
mod view;

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use tenure_core::id::{InvalidName, LockName, Namespace};
use tenure_core::layout::Layout;
use tenure_core::queue::{LockMode, QueueKind};
use tenure_core::record::HolderRecord;

use crate::hold::Subject;
use crate::identity::{self, Identity};
use crate::queue::QueueDriver;
use crate::session::Session;
use crate::store::Store;

pub use acquire::{Acquire, LockError};
pub use barrier::{Barrier, BarrierError};
pub use guard::Guard;
pub use view::{Holder, LockList, LockSnapshot};

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
/// // The work ends with it, or is dropped the moment the lock cannot be proven any more.
/// let done = guard.run(async { "deployed" }).await?;
/// assert_eq!(done, "deployed");
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * At most one exclusive holder of a name believes that it holds, as long as nobody deletes keys or revokes leases by hand.
/// * A holder stops believing before the store can give the lock to anybody else, whatever hangs, also after a suspend.
/// * Tokens of one name only grow.
/// * First come, first served; whoever waits on one session excludes the others on it too.
/// * An uncontended lock costs one request and its release another, once the session has a lease. A hold that lasts for 100 ms costs one more
///   in the background: its queue key then contains when the lock was acquired ([`Holder::record`]).
///
/// # Not guaranteed
///
/// * Mutual exclusion of effects: use the token.
/// * That a lock broken by hand is foreseen: it is seen within a round trip, at most 100 ms after it was taken.
///
/// # Cancellation
///
/// Dropping the future of an acquire, or a guard, leaves the line in the background.
#[derive(Clone)]
pub struct Locks {
    queues: QueueDriver,
    store: Store,
    layout: Arc<Layout>,
    holder: Arc<HolderRecord>,
}

impl Locks {
    /// The locks of a namespace. Asks nothing of the store yet.
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
    pub fn identity(mut self, identity: Identity) -> Locks {
        self.holder = Arc::new(identity.into());
        self
    }

    /// A lock that one holds. Nothing happens before the result is awaited.
    pub fn lock(&self, name: impl AsRef<str>) -> Acquire {
        self.acquire(name.as_ref(), LockMode::Exclusive)
    }

    /// A lock that many hold together, but not beside one who holds it alone with [`Locks::lock`].
    pub fn shared(&self, name: impl AsRef<str>) -> Acquire {
        self.acquire(name.as_ref(), LockMode::Shared)
    }

    /// One of a number of permits. All who use the name must say the same number.
    pub fn permit(&self, name: impl AsRef<str>, of: NonZeroU32) -> Acquire {
        self.acquire(name.as_ref(), LockMode::Permit { of })
    }

    /// A point that a number of parties pass together. All who use the name must say the same number; nothing happens before the
    /// result is awaited.
    pub fn barrier(&self, name: impl AsRef<str>, parties: NonZeroU32) -> Barrier {
        self.barrier_of(LockName::parse(name.as_ref()), parties)
    }

    /// A barrier whose name was checked before; a wrong one is reported when it is awaited.
    pub(crate) fn barrier_of(&self, name: Result<LockName, InvalidName>, parties: NonZeroU32) -> Barrier {
        let queue = name.map(|name| self.queue(&name));
        let holder = HolderRecord { mode: LockMode::Permit { of: parties }, ..(*self.holder).clone() };
        Barrier::new(self.queues.clone(), self.store.clone(), holder, queue, parties)
    }

    /// A request for a name that was checked before; a wrong one is reported when it is awaited.
    pub(crate) fn request(&self, name: Result<LockName, InvalidName>, mode: LockMode) -> Acquire {
        let queue = name.map(|name| self.queue(&name));
        Acquire::new(self.queues.clone(), (self.holder.clone(), mode), queue)
    }

    /// What the queue of a lock is called in messages, and its prefix.
    fn queue(&self, name: &LockName) -> (Subject, Bytes) {
        let subject = Subject { kind: "lock", name: name.shared_str() };
        (subject, self.layout.waiters(name).first().clone())
    }

    fn acquire(&self, name: &str, mode: LockMode) -> Acquire {
        self.request(LockName::parse(name), mode)
    }
}
