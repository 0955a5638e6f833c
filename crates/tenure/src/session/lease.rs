//! Leases of a session for callers that put keys under them: locks, elections, claims.
//!
//! The validity of a lease depends on the last acknowledged renewal and the clock. So it ends in time, although the session's task or a request
//! hangs.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::keepalive::TtlTooShort;
use tenure_core::session::{LeaseInfo, LeaseUserId};
use thiserror::Error;
use tokio::sync::oneshot;

use super::shared::SessionShared;
use crate::clock::Clock;
use crate::error::{ErrorClass, classified};
use crate::hold::{LeaseCell, LossReason, Subject, Validity};
use crate::ordered_watch::Liveness;
use crate::store::{InvalidRequest, LeaseId, StoreError};

/// How long a request waits for a lease by default; as long as a registration does.
const LEASE_WITHIN: Duration = Duration::from_secs(10);

/// A lease of a session, for keys that the caller puts itself. Cheap to clone; all clones are one handle.
///
/// ```
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let session = Session::open(store.clone())?;
/// let lease = session.lease().await?;
/// store.put_leased("/shop/locks/till/1", "web-1", lease.lease()).await?;
/// assert!(lease.is_valid());
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * It is bound to one lease. When that lease is lost, the handle is invalid for ever, whatever the session does next.
/// * [`Validity::is_valid`] becomes false before the store can expire the lease, and never true again.
/// * The lease is renewed, and not revoked, until the last clone is dropped or the lease is lost.
///
/// # Not guaranteed
///
/// * That it foresees that an operator revokes the lease: that is noticed at the next renewal, or when a request that needs the lease fails.
///
/// # Cancellation
///
/// Dropping the future of a request cancels it. Dropping the last clone releases the lease and never blocks. Delete the keys before: the lease
/// may stay alive for other users.
#[derive(Clone)]
pub struct LeaseHandle {
    inner: Arc<LeaseHandleInner>,
}

struct LeaseHandleInner {
    shared: Arc<SessionShared>,
    info: LeaseInfo,
    validity: Validity,
}

impl LeaseHandle {
    /// A hold on this lease was not released when the session was closed.
    pub(crate) fn report_unreleased(&self, name: String, owner: Liveness) {
        let mut inner = self.inner.shared.lock();
        inner.unreleased.push((name, owner));
        inner.unreleased.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
}

impl Drop for LeaseHandleInner {
    fn drop(&mut self) {
        self.validity.end(LossReason::Released);
        self.shared.release_lease(self.info.user);
    }
}

impl LeaseHandle {
    fn new(shared: Arc<SessionShared>, info: LeaseInfo, cell: Arc<LeaseCell>) -> LeaseHandle {
        let subject = Subject { kind: "lease", name: info.lease.to_string().into() };
        let validity = Validity::new(subject, cell, shared.clock.clone(), info.ttl);
        LeaseHandle { inner: Arc::new(LeaseHandleInner { shared, info, validity }) }
    }

    /// The lease.
    pub fn lease(&self) -> LeaseId {
        self.inner.info.lease
    }

    /// Which incarnation of the session the lease belongs to.
    pub fn incarnation(&self) -> u64 {
        self.inner.info.incarnation
    }

    /// The clock that validity is counted on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.shared.clock
    }

    /// The validity of a hold with its key under this lease.
    pub(crate) fn validity_of(&self, subject: Subject) -> Validity {
        self.of_same_lease(subject)
    }

    /// The store has reported that the lease does not exist: the session need not find that out by a renewal.
    pub fn lease_not_found(&self) {
        let shared = &self.inner.shared;
        shared.lock().machine.handle_lease_not_found(self.lease(), shared.clock.now());
        self.cell().end(LossReason::Revoked);
        shared.inbox.notify();
    }
}

impl Deref for LeaseHandle {
    type Target = Validity;

    fn deref(&self) -> &Validity {
        &self.inner.validity
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseHandle({}, {:?} left)", self.lease(), self.remaining())
    }
}

/// Why no lease was granted.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The store did not grant a lease in time. The request is cancelled.
    #[error("the store did not grant a lease within {after:?}")]
    Unavailable {
        /// How long the caller waited.
        after: Duration,
    },
    /// The store failed for good, so the session was closed.
    #[error("the store failed for good")]
    Store(#[source] StoreError),
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
    /// No lease can have this TTL. Nothing was sent.
    #[error(transparent)]
    InvalidTtl(#[from] InvalidTtl),
}

impl LeaseError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            LeaseError::Unavailable { .. } => ErrorClass::Unavailable,
            LeaseError::Store(error) => error.into(),
            LeaseError::Closed => ErrorClass::Closed,
            LeaseError::InvalidTtl(_) => ErrorClass::Invalid,
        }
    }
}

classified!(LeaseError);

/// A TTL that no lease can have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidTtl {
    /// One lost reply would end the lease.
    #[error(transparent)]
    TooShort(#[from] TtlTooShort),
    /// No store grants it.
    #[error("no store grants this TTL: {0}")]
    Refused(InvalidRequest),
}

/// The result of a lease request.
pub(super) type LeaseReply = Result<(LeaseInfo, Arc<LeaseCell>), LeaseError>;

/// A lease that is about to be requested. Awaiting it returns a [`LeaseHandle`].
#[must_use = "nothing is requested before this is awaited"]
pub struct LeaseRequest {
    shared: Arc<SessionShared>,
    ttl: Option<Duration>,
    timeout: Duration,
}

impl LeaseRequest {
    pub(super) fn new(shared: Arc<SessionShared>) -> LeaseRequest {
        LeaseRequest { shared, ttl: None, timeout: LEASE_WITHIN }
    }

    /// With this TTL; that of the session otherwise.
    pub fn ttl(mut self, ttl: Duration) -> LeaseRequest {
        self.ttl = Some(ttl);
        self
    }

    /// Waits at most this long for a lease; 10 s.
    pub fn timeout(mut self, timeout: Duration) -> LeaseRequest {
        self.timeout = timeout;
        self
    }

    async fn send(self) -> Result<LeaseHandle, LeaseError> {
        let ttl = self.ttl.unwrap_or(self.shared.ttl);
        if let Err(StoreError::Invalid(invalid)) = self.shared.store.info().limits.grant_ttl(ttl) {
            return Err(InvalidTtl::Refused(invalid).into());
        }
        let (sender, result) = oneshot::channel();
        let pending = {
            let mut inner = self.shared.lock();
            if let Some(error) = &inner.fatal {
                return Err(LeaseError::Store(error.clone()));
            }
            if inner.is_closing {
                return Err(LeaseError::Closed);
            }
            let user =
                inner.machine.request_lease(self.ttl, self.shared.clock.now()).map_err(InvalidTtl::from)?;
            if let Some(info) = inner.machine.lease_info(user) {
                let cell = inner.add_lease_user(&info);
                drop(inner);
                return Ok(LeaseHandle::new(self.shared, info, cell));
            }
            inner.lease_waiters.insert(user, sender);
            self.shared.is_synced.send_replace(false);
            PendingLease { shared: &self.shared, user: Some(user) }
        };
        self.shared.inbox.notify();
        let reply = match tokio::time::timeout(self.timeout, result).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(LeaseError::Closed),
            Err(_) => Err(LeaseError::Unavailable { after: self.timeout }),
        };
        let (info, cell) = reply?;
        pending.end();
        Ok(LeaseHandle::new(self.shared, info, cell))
    }
}

/// Cancels a request that its caller dropped.
struct PendingLease<'a> {
    shared: &'a SessionShared,
    user: Option<LeaseUserId>,
}

impl PendingLease<'_> {
    /// The request has its lease.
    fn end(mut self) {
        self.user = None;
    }
}

impl Drop for PendingLease<'_> {
    fn drop(&mut self) {
        if let Some(user) = self.user {
            self.shared.release_lease(user);
        }
    }
}

impl IntoFuture for LeaseRequest {
    type Output = Result<LeaseHandle, LeaseError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl fmt::Debug for LeaseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseRequest({:?}, within {:?})", self.ttl, self.timeout)
    }
}
