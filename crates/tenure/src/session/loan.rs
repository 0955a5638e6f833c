//! Lending a session's lease to those who put keys under it themselves: locks, elections, claims.
//!
//! A loan judges its validity by itself, from the last renewal that the session noted and the clock; so it ends on time even when the
//! session's task, or a call to the store, hangs.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::hold::{End, Terms, TtlTooShort};
use tenure_core::session::{Lent, LoanId};
use tenure_core::time::Moment;
use thiserror::Error;
use tokio::sync::oneshot;

use super::shared::Shared;
use crate::clock::Clock;
use crate::news;
use crate::news::Liveness;
use crate::store::{Invalid, LeaseId, StoreError};

/// How long `lend` waits for a lease unless told otherwise; as long as `register` does.
const LEND_WITHIN: Duration = Duration::from_secs(10);

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
/// let loan = session.lend().await?;
/// store.put_leased("/shop/locks/till/1", "web-1", loan.lease()).await?;
/// assert!(loan.is_valid());
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * It is bound to one lease. When that lease is lost the loan is over for good, whatever the session does next.
/// * [`Loan::is_valid`] turns false before the store can end the lease by itself, and never true again.
/// * The lease is renewed, and not revoked, until the last clone is dropped or the lease is lost.
///
/// # Not guaranteed
///
/// * That a lease revoked by hand is foreseen: it is seen at the next renewal, or when somebody says so with [`Loan::report_gone`].
///
/// # Cancellation
///
/// Dropping the future of `lend` gives back what it was waiting for. Dropping the last clone gives the lease back and never blocks;
/// what was put under it should be deleted before, because the lease may live on for others.
#[derive(Clone)]
pub struct Loan {
    inner: Arc<Borrowed>,
}

struct Borrowed {
    shared: Arc<Shared>,
    lent: Lent,
    cell: Arc<LoanCell>,
}

impl Loan {
    /// A hold on this lease lasted when the session was closed.
    pub(crate) fn report_unreleased(&self, name: String, owner: Liveness) {
        let mut inner = self.inner.shared.lock();
        inner.unreleased.push((name, owner));
        inner.unreleased.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.shared.give_back(self.lent.loan);
    }
}

/// Why a loan is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LoanEnd {
    /// The lease was not renewed in time: the store may end it any moment.
    #[error("the lease was not renewed in time")]
    Lapsed,
    /// The store has ended the lease.
    #[error("the store has ended the lease")]
    Gone,
    /// The session is closing: stop, and drop the loan.
    #[error("the session was closed")]
    Closed,
}

impl From<End> for LoanEnd {
    fn from(end: End) -> LoanEnd {
        match end {
            End::Lapsed => LoanEnd::Lapsed,
            End::Gone => LoanEnd::Gone,
        }
    }
}

/// How long the loans of a lease may be relied upon; shared by them and the session's task.
///
/// **Invariant**: once it has an end, neither that nor `valid_until` changes. So nobody sees a loan come back to life.
pub(super) struct LoanCell {
    state: news::Sender<LoanState>,
    /// Told when it has an end. Thousands of handlers wait for that, and each would be woken by every renewal otherwise.
    over: news::Sender<()>,
}

#[derive(Clone, Copy, Debug)]
struct LoanState {
    valid_until: Moment,
    end: Option<LoanEnd>,
}

impl LoanCell {
    pub(super) fn new(valid_until: Moment) -> LoanCell {
        let state = news::Sender::new(LoanState { valid_until, end: None });
        LoanCell { state, over: news::Sender::new(()) }
    }

    /// The lease was renewed.
    pub(super) fn extend(&self, valid_until: Moment) {
        self.state.send_if_modified(|state| {
            let is_longer = state.end.is_none() && state.valid_until < valid_until;
            if is_longer {
                state.valid_until = valid_until;
            }
            is_longer
        });
    }

    /// Whether it has an end.
    pub(super) fn has_end(&self) -> bool {
        self.state.borrow().end.is_some()
    }

    /// The loans are over. A thousand of them may each say so.
    pub(super) fn end(&self, why: LoanEnd) {
        let is_news = self.state.send_if_modified(|state| {
            let is_news = state.end.is_none();
            state.end.get_or_insert(why);
            is_news
        });
        if is_news {
            self.over.send_replace(());
        }
    }

    /// How it stands now; whoever sees first that the time is over ends it for all.
    fn look(&self, now: Moment) -> LoanState {
        let seen = *self.state.borrow();
        if seen.end.is_some() || now < seen.valid_until {
            return seen;
        }
        let is_news = self.state.send_if_modified(|state| {
            let is_over = state.end.is_none() && now >= state.valid_until;
            if is_over {
                state.end = Some(LoanEnd::Lapsed);
            }
            is_over
        });
        if is_news {
            self.over.send_replace(());
        }
        *self.state.borrow()
    }
}

impl Loan {
    fn new(shared: Arc<Shared>, lent: Lent, cell: Arc<LoanCell>) -> Loan {
        Loan { inner: Arc::new(Borrowed { shared, lent, cell }) }
    }

    /// The lease.
    pub fn lease(&self) -> LeaseId {
        self.inner.lent.lease
    }

    /// Which incarnation of the session the lease belongs to.
    pub fn incarnation(&self) -> u64 {
        self.inner.lent.incarnation
    }

    /// The TTL that the store granted.
    pub fn ttl(&self) -> Duration {
        self.inner.lent.ttl
    }

    /// The clock that validity is counted on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.shared.clock
    }

    /// Whether what hangs on the lease may be relied upon. Once false, always false.
    pub fn is_valid(&self) -> bool {
        self.end().is_none()
    }

    /// Why it is over; none if it is valid.
    pub fn end(&self) -> Option<LoanEnd> {
        self.look().end
    }

    /// How long it is certainly valid, if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        let now = self.clock().now();
        let state = self.inner.cell.look(now);
        if state.end.is_some() { Duration::ZERO } else { state.valid_until.remaining(now) }
    }

    /// Until when it is certainly valid, if nothing is renewed, on the session's clock.
    pub fn valid_until(&self) -> Moment {
        self.look().valid_until
    }

    /// When the last request was sent that the store has acknowledged: whatever hangs on the lease is there until this and the TTL.
    pub fn acknowledged(&self) -> Moment {
        self.sent(self.valid_until())
    }

    /// Waits for an acknowledgement that was sent after `before`, and says when. Never comes once the loan is over; see [`Loan::lost`].
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn acknowledged_after(&self, before: Moment) -> Moment {
        let mut news = self.inner.cell.state.subscribe();
        let is_news = |state: &LoanState| state.end.is_none() && self.sent(state.valid_until) > before;
        let seen = news.wait_for(is_news).await.map(|state| state.valid_until);
        match seen {
            Ok(valid_until) => self.sent(valid_until),
            // Fails only when the cell is gone, and we hold it.
            Err(_) => std::future::pending().await,
        }
    }

    /// `valid_until` counts from here.
    fn sent(&self, valid_until: Moment) -> Moment {
        valid_until + Terms::margin_of(self.ttl()) - self.ttl()
    }

    /// Waits until the loan is over, and says why. Comes on time, even while calls to the store hang.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn lost(&self) -> LoanEnd {
        let mut over = self.inner.cell.over.subscribe();
        loop {
            over.mark_unchanged();
            let state = self.look();
            if let Some(end) = state.end {
                return end;
            }
            // It may have been renewed by the time that it would have ended: then it is waited for again.
            tokio::select! {
                biased;
                // Fails only when the cell is gone, and we hold it.
                _ = over.changed() => {}
                () = self.clock().sleep_until(state.valid_until) => {}
            }
        }
    }

    /// Tells the session that the store does not know the lease any more, so that it need not find out by itself.
    pub fn report_gone(&self) {
        let shared = &self.inner.shared;
        shared.lock().machine.handle_lease_gone(self.lease(), shared.clock.now());
        self.inner.cell.end(LoanEnd::Gone);
        shared.bell.notify_one();
    }

    fn look(&self) -> LoanState {
        self.inner.cell.look(self.clock().now())
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({}, {:?} left)", self.lease(), self.remaining())
    }
}

/// Why no lease is lent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LendError {
    /// No lease could be had in time. Nothing is waited for any more: ask again.
    #[error("no lease could be had within {within:?}")]
    NotYet {
        /// How long was waited.
        within: Duration,
    },
    /// The store can never be used again, and so the session was closed.
    #[error("the store cannot be used any more")]
    Store(#[source] StoreError),
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
    /// The TTL cannot be held. Nothing was sent.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// No store would grant this TTL. Nothing was sent.
    #[error("such a lease cannot be had: {0}")]
    Invalid(Invalid),
}

/// What a borrower is told.
pub(super) type Answer = Result<(Lent, Arc<LoanCell>), LendError>;

/// A loan that is about to be asked for.
#[must_use = "nothing is lent before this is awaited"]
pub struct Lend {
    shared: Arc<Shared>,
    ttl: Option<Duration>,
    within: Duration,
}

impl Lend {
    pub(super) fn new(shared: Arc<Shared>) -> Lend {
        Lend { shared, ttl: None, within: LEND_WITHIN }
    }

    /// With a TTL of its own.
    pub fn ttl(mut self, ttl: Duration) -> Lend {
        self.ttl = Some(ttl);
        self
    }

    /// Waits this long for a lease.
    pub fn within(mut self, within: Duration) -> Lend {
        self.within = within;
        self
    }

    async fn ask(self) -> Result<Loan, LendError> {
        let ttl = self.ttl.unwrap_or(self.shared.ttl);
        if let Err(StoreError::Invalid(invalid)) = self.shared.store.info().limits.grant_ttl(ttl) {
            return Err(LendError::Invalid(invalid));
        }
        let (tell, told) = oneshot::channel();
        let waiting = {
            let mut inner = self.shared.lock();
            if let Some(error) = &inner.fatal {
                return Err(LendError::Store(error.clone()));
            }
            if inner.is_closing {
                return Err(LendError::Closed);
            }
            let loan = inner.machine.lend(self.ttl, self.shared.clock.now())?;
            if let Some(lent) = inner.machine.lent(loan) {
                let cell = inner.begin_loan(&lent);
                drop(inner);
                return Ok(Loan::new(self.shared, lent, cell));
            }
            inner.borrowers.insert(loan, tell);
            self.shared.settled.send_replace(false);
            Waiting { shared: &self.shared, loan: Some(loan) }
        };
        self.shared.bell.notify_one();
        let answer = match tokio::time::timeout(self.within, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LendError::Closed),
            Err(_) => Err(LendError::NotYet { within: self.within }),
        };
        let (lent, cell) = answer?;
        waiting.end();
        Ok(Loan::new(self.shared, lent, cell))
    }
}

/// Gives back what is not waited for any more.
struct Waiting<'a> {
    shared: &'a Shared,
    loan: Option<LoanId>,
}

impl Waiting<'_> {
    /// Whoever waited has it now.
    fn end(mut self) {
        self.loan = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(loan) = self.loan {
            self.shared.give_back(loan);
        }
    }
}

impl IntoFuture for Lend {
    type Output = Result<Loan, LendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

impl fmt::Debug for Lend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lend({:?}, within {:?})", self.ttl, self.within)
    }
}
