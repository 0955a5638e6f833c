//! Requests for locks, permits and barriers.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::id::{InvalidName, LockName};
use tenure_core::queue::LockMode;

use super::request;
use crate::lock::{self, Acquire, BarrierError, Guard, LockError, Locks};

/// A lock or a permit that is about to be requested. Awaiting it gives a [`Guard`].
///
/// ```
/// use std::time::Duration;
/// use tenure::{LockError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.lock("deploy").reason("release 4.2").timeout(Duration::from_secs(60)).await?;
/// assert!(matches!(tenure.lock("deploy").try_now().await, Err(LockError::Held { .. })));
/// guard.release().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// Those of [`Locks`]: at most one exclusive holder of a name is valid at a time, first come, first served, and tokens only grow.
///
/// # Cancellation
///
/// Dropping the future deletes the queue key in the background.
///
/// # Errors
///
/// [`LockError`]; a wrong name and a TTL that no lease can have are reported when it is awaited.
#[must_use = "nothing is locked before this is awaited"]
pub struct LockRequest {
    acquire: Result<Acquire, LockError>,
}

request!(LockRequest => Result<Guard, LockError>);

impl LockRequest {
    pub(super) fn exclusive(locks: &Locks, name: Result<LockName, InvalidName>) -> LockRequest {
        LockRequest::new(locks, name, LockMode::Exclusive)
    }

    fn new(locks: &Locks, name: Result<LockName, InvalidName>, mode: LockMode) -> LockRequest {
        LockRequest { acquire: Ok(locks.request(name, mode)) }
    }

    /// Why, for those who look at the lock.
    pub fn reason(mut self, reason: impl Into<String>) -> LockRequest {
        self.acquire = self.acquire.map(|acquire| acquire.reason(reason));
        self
    }

    /// With a lease of this TTL; that of the session otherwise.
    pub fn ttl(mut self, ttl: Duration) -> LockRequest {
        self.acquire = self.acquire.map(|acquire| acquire.ttl(ttl));
        self
    }

    /// Waits at most this long, then fails with [`LockError::Timeout`]. Zero is [`LockRequest::try_now`].
    pub fn timeout(mut self, timeout: Duration) -> LockRequest {
        self.acquire = self.acquire.map(|acquire| acquire.wait_up_to(timeout));
        self
    }

    /// Fails at once with [`LockError::Held`] instead of waiting for another holder.
    pub fn try_now(mut self) -> LockRequest {
        self.acquire = self.acquire.map(Acquire::try_once);
        self
    }

    async fn send(self) -> Result<Guard, LockError> {
        self.acquire?.await
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
    pub(super) fn new(locks: &Locks, name: Result<LockName, InvalidName>) -> RwLock {
        RwLock { locks: locks.clone(), name }
    }

    /// A hold that other readers may have at the same time.
    pub fn read(&self) -> LockRequest {
        LockRequest::new(&self.locks, self.name.clone(), LockMode::Shared)
    }

    /// A hold that excludes readers and other writers.
    pub fn write(&self) -> LockRequest {
        LockRequest::exclusive(&self.locks, self.name.clone())
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
    pub(super) fn new(locks: &Locks, name: Result<LockName, InvalidName>, permits: u32) -> Semaphore {
        Semaphore { locks: locks.clone(), name, permits }
    }

    /// One of the permits. Zero permits are reported as [`LockError::InvalidPermits`] when it is awaited.
    pub fn acquire(&self) -> LockRequest {
        match NonZeroU32::new(self.permits) {
            Some(of) => LockRequest::new(&self.locks, self.name.clone(), LockMode::Permit { of }),
            None => LockRequest { acquire: Err(LockError::InvalidPermits) },
        }
    }
}

/// A point that a number of parties pass together. Cheap to clone; the same name can be used again for the next round.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let start = tenure.barrier("start", 2);
/// let (one, two) = tokio::join!(async { start.wait().await }, async { start.wait().await });
/// one?;
/// two?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Barrier {
    locks: Locks,
    name: Result<LockName, InvalidName>,
    parties: u32,
}

impl Barrier {
    pub(super) fn new(locks: &Locks, name: Result<LockName, InvalidName>, parties: u32) -> Barrier {
        Barrier { locks: locks.clone(), name, parties }
    }

    /// Waits until all parties of a round have arrived. Zero parties are reported when it is awaited.
    pub fn wait(&self) -> BarrierWait {
        let barrier = match NonZeroU32::new(self.parties) {
            Some(parties) => Ok(self.locks.barrier_of(self.name.clone(), parties)),
            None => Err(BarrierError::InvalidParties),
        };
        BarrierWait { barrier }
    }
}

/// A party that is about to arrive at a [`Barrier`]. Its guarantees are those of [`lock::Barrier`].
///
/// ```
/// use std::time::Duration;
/// use tenure::{BarrierError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let alone = tenure.barrier("start", 2).wait().timeout(Duration::from_millis(10)).await;
/// assert!(matches!(alone, Err(BarrierError::Timeout { .. })));
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`BarrierError`]; a wrong name is reported when it is awaited.
///
/// # Cancellation
///
/// Dropping the future deletes the queue key in the background.
#[must_use = "nothing arrives at the barrier before this is awaited"]
pub struct BarrierWait {
    barrier: Result<lock::Barrier, BarrierError>,
}

request!(BarrierWait => Result<(), BarrierError>);

impl BarrierWait {
    /// Waits at most this long for the other parties, then fails with [`BarrierError::Timeout`].
    pub fn timeout(mut self, timeout: Duration) -> BarrierWait {
        self.barrier = self.barrier.map(|barrier| barrier.wait_up_to(timeout));
        self
    }

    async fn send(self) -> Result<(), BarrierError> {
        self.barrier?.await
    }
}
