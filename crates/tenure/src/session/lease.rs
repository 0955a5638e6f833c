//! Lending a session's lease to those who put keys under it themselves: locks, elections, claims.
//!
//! The validity of a loan is judged by the last renewal that the session noted and the clock; so it ends on time even when the session's task, or
//! a call to the store, hangs.

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

/// How long `lend` waits for a lease unless told otherwise; as long as `register` does.
const LEASE_WITHIN: Duration = Duration::from_secs(10);

/// A lease of a session's, for keys that its holder puts itself. Cheap to clone; all clones are one loan.
///
/// ```
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let session = Session::open(store.clone())?;
/// let loan = session.lease().await?;
/// store.put_leased("/shop/locks/till/1", "web-1", loan.lease()).await?;
/// assert!(loan.is_valid());
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * It is bound to one lease. When that lease is lost the loan is over for good, whatever the session does next.
/// * [`Validity::is_valid`] turns false before the store can end the lease by itself, and never true again.
/// * The lease is renewed, and not revoked, until the last clone is dropped or the lease is lost.
///
/// # Not guaranteed
///
/// * That a lease revoked by hand is foreseen: it is seen at the next renewal, or when somebody says so with [`LeaseHandle::report_gone`].
///
/// # Cancellation
///
/// Dropping the future of `lend` gives back what it was waiting for. Dropping the last clone gives the lease back and never blocks;
/// what was put under it should be deleted before, because the lease may live on for others.
#[derive(Clone)]
pub struct LeaseHandle {
    inner: Arc<LeaseHandleInner>,
}

struct LeaseHandleInner {
    shared: Arc<SessionShared>,
    lent: LeaseInfo,
    validity: Validity,
}

impl LeaseHandle {
    /// A hold on this lease lasted when the session was closed.
    pub(crate) fn report_unreleased(&self, name: String, owner: Liveness) {
        let mut inner = self.inner.shared.lock();
        inner.unreleased.push((name, owner));
        inner.unreleased.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
}

impl Drop for LeaseHandleInner {
    fn drop(&mut self) {
        self.validity.end(LossReason::Released);
        self.shared.give_back(self.lent.user);
    }
}

impl LeaseHandle {
    fn new(shared: Arc<SessionShared>, lent: LeaseInfo, cell: Arc<LeaseCell>) -> LeaseHandle {
        let subject = Subject { kind: "lease", name: lent.lease.to_string().into() };
        let validity = Validity::new(subject, cell, shared.clock.clone(), lent.ttl);
        LeaseHandle { inner: Arc::new(LeaseHandleInner { shared, lent, validity }) }
    }

    /// The lease.
    pub fn lease(&self) -> LeaseId {
        self.inner.lent.lease
    }

    /// Which incarnation of the session the lease belongs to.
    pub fn incarnation(&self) -> u64 {
        self.inner.lent.incarnation
    }

    /// The clock that validity is counted on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.shared.clock
    }

    /// The validity of a right whose key is put under this lease.
    pub(crate) fn validity_of(&self, subject: Subject) -> Validity {
        self.of_same_lease(subject)
    }

    /// Tells the session that the store does not know the lease any more, so that it need not find out by itself.
    pub fn report_gone(&self) {
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

/// Why no lease is lent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// No lease could be had in time. Nothing is waited for any more: ask again.
    #[error("the store did not grant a lease within {after:?}")]
    Unavailable {
        /// How long the caller waited.
        after: Duration,
    },
    /// The store can never be used again, and so the session was closed.
    #[error("the store cannot be used any more")]
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

/// What a borrower is told.
pub(super) type LeaseReply = Result<(LeaseInfo, Arc<LeaseCell>), LeaseError>;

/// A loan that is about to be asked for.
#[must_use = "nothing is lent before this is awaited"]
pub struct LeaseRequest {
    shared: Arc<SessionShared>,
    ttl: Option<Duration>,
    timeout: Duration,
}

impl LeaseRequest {
    pub(super) fn new(shared: Arc<SessionShared>) -> LeaseRequest {
        LeaseRequest { shared, ttl: None, timeout: LEASE_WITHIN }
    }

    /// With a TTL of its own.
    pub fn ttl(mut self, ttl: Duration) -> LeaseRequest {
        self.ttl = Some(ttl);
        self
    }

    /// Waits at most this long for a lease; 10 s.
    pub fn timeout(mut self, timeout: Duration) -> LeaseRequest {
        self.timeout = timeout;
        self
    }

    async fn ask(self) -> Result<LeaseHandle, LeaseError> {
        let ttl = self.ttl.unwrap_or(self.shared.ttl);
        if let Err(StoreError::Invalid(invalid)) = self.shared.store.info().limits.grant_ttl(ttl) {
            return Err(InvalidTtl::Refused(invalid).into());
        }
        let (tell, told) = oneshot::channel();
        let waiting = {
            let mut inner = self.shared.lock();
            if let Some(error) = &inner.fatal {
                return Err(LeaseError::Store(error.clone()));
            }
            if inner.is_closing {
                return Err(LeaseError::Closed);
            }
            let loan =
                inner.machine.request_lease(self.ttl, self.shared.clock.now()).map_err(InvalidTtl::from)?;
            if let Some(lent) = inner.machine.lease_info(loan) {
                let cell = inner.begin_loan(&lent);
                drop(inner);
                return Ok(LeaseHandle::new(self.shared, lent, cell));
            }
            inner.borrowers.insert(loan, tell);
            self.shared.settled.send_replace(false);
            PendingLease { shared: &self.shared, loan: Some(loan) }
        };
        self.shared.inbox.notify();
        let answer = match tokio::time::timeout(self.timeout, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LeaseError::Closed),
            Err(_) => Err(LeaseError::Unavailable { after: self.timeout }),
        };
        let (lent, cell) = answer?;
        waiting.end();
        Ok(LeaseHandle::new(self.shared, lent, cell))
    }
}

/// Gives back what is not waited for any more.
struct PendingLease<'a> {
    shared: &'a SessionShared,
    loan: Option<LeaseUserId>,
}

impl PendingLease<'_> {
    /// Whoever waited has it now.
    fn end(mut self) {
        self.loan = None;
    }
}

impl Drop for PendingLease<'_> {
    fn drop(&mut self) {
        if let Some(loan) = self.loan {
            self.shared.give_back(loan);
        }
    }
}

impl IntoFuture for LeaseRequest {
    type Output = Result<LeaseHandle, LeaseError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

impl fmt::Debug for LeaseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseRequest({:?}, within {:?})", self.ttl, self.timeout)
    }
}
