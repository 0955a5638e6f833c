//! The time part of a hold: whether it is valid now, for how long, and why not any more.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tenure_core::loss::LossReason;
use tenure_core::time::Moment;
use tokio::sync::Notify;

use super::Lost;
use super::lease_cell::LeaseCell;
use crate::clock::Clock;

/// Local validity of a lock, term, claim or lease. A clone keeps nothing alive: no lease, no key, no session.
///
/// ```
/// use tenure::lock::Locks;
/// use tenure::session::Session;
/// use tenure::store::Store;
/// # use tenure::Namespace;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let session = Session::open(Store::memory())?;
/// # let locks = Locks::new(&session, &Namespace::parse("shop")?);
/// let guard = locks.lock("deploy").await?;
/// let validity = guard.validity();
/// assert!(validity.is_valid());
///
/// guard.release().await?;
/// assert_eq!(validity.check().unwrap_err().to_string(), "lock 'deploy' lost: released by this process");
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * [`Validity::is_valid`] is false before the store can end the lease by itself. Every call reads the clock, so this holds although no task of
///   this process was scheduled, after a suspend, and while the store hangs.
/// * Once lost it stays lost, with the same reason.
///
/// # Not guaranteed
///
/// * That a lease revoked, or a key deleted, by another client is foreseen: that is known when the store reports it.
#[derive(Clone)]
pub struct Validity {
    inner: Arc<ValidityInner>,
}

struct ValidityInner {
    subject: Subject,
    /// Shared with all holds of the lease.
    cell: Arc<LeaseCell>,
    clock: Arc<dyn Clock>,
    ttl: Duration,
    /// Why this hold is over.
    ///
    /// **Invariant**: the first reason that was seen or reported, for ever. That of the lease is copied when it is first seen.
    end: OnceLock<LossReason>,
    ended: Notify,
    /// How many futures run under this hold; see [`Validity::run`].
    running: AtomicUsize,
    /// Notified when one of them has ended. Only the driver of the release waits for it.
    work_ended: Notify,
    /// Called once none of them is running.
    after_work: Mutex<Option<AfterWork>>,
}

type AfterWork = Box<dyn FnOnce() + Send>;

impl ValidityInner {
    /// Calls what waits for the end of the work, unless one of the futures is running.
    fn call_if_stopped(&self) {
        if self.running.load(Ordering::SeqCst) > 0 {
            return;
        }
        let after_work = self.after_work.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(after_work) = after_work {
            after_work();
        }
    }
}

/// What is held, for messages. The text is made only when it is lost: a lock must not cost a formatted string.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) kind: &'static str,
    pub(crate) name: Arc<str>,
}

impl Subject {
    fn lost(&self, reason: LossReason) -> Lost {
        Lost { subject: self.to_string().into(), reason }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}'", self.kind, self.name)
    }
}

impl Validity {
    pub(crate) fn new(
        subject: Subject,
        cell: Arc<LeaseCell>,
        clock: Arc<dyn Clock>,
        ttl: Duration,
    ) -> Validity {
        let inner = ValidityInner {
            subject,
            cell,
            clock,
            ttl,
            end: OnceLock::new(),
            ended: Notify::new(),
            running: AtomicUsize::new(0),
            work_ended: Notify::new(),
            after_work: Mutex::new(None),
        };
        Validity { inner: Arc::new(inner) }
    }

    /// The validity of another right under the same lease.
    pub(crate) fn of_same_lease(&self, subject: Subject) -> Validity {
        let ValidityInner { cell, clock, ttl, .. } = &*self.inner;
        Validity::new(subject, cell.clone(), clock.clone(), *ttl)
    }

    /// Returns whether it may be relied upon. Once false, always false.
    pub fn is_valid(&self) -> bool {
        self.loss().is_none()
    }

    /// Returns an error if it is lost; for `?`.
    ///
    /// # Errors
    ///
    /// [`Lost`] with the reason.
    pub fn check(&self) -> Result<(), Lost> {
        self.loss().map_or(Ok(()), |reason| Err(self.inner.subject.lost(reason)))
    }

    /// Returns an error unless it is certainly valid for another `worst_case`, such as the timeout of the request that comes next.
    ///
    /// # Errors
    ///
    /// [`Lost`]; with [`LossReason::Lapsed`] also if it is still valid, but not for so long.
    pub fn check_for(&self, worst_case: Duration) -> Result<(), Lost> {
        self.check()?;
        if self.remaining() < worst_case {
            return Err(self.inner.subject.lost(LossReason::Lapsed));
        }
        Ok(())
    }

    /// How long it is certainly valid if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        let now = self.inner.clock.now();
        let state = self.inner.cell.state(now);
        if self.loss_at(now).is_some() { Duration::ZERO } else { state.valid_until.remaining(now) }
    }

    /// Until when its lease is certainly valid if nothing is renewed, on the clock of the session.
    pub fn valid_until(&self) -> Moment {
        self.inner.cell.state(self.inner.clock.now()).valid_until
    }

    /// The TTL that the store granted.
    pub fn ttl(&self) -> Duration {
        self.inner.ttl
    }

    /// Why it is lost; `None` while it is valid. The first reason that is seen stays.
    pub fn loss(&self) -> Option<LossReason> {
        self.loss_at(self.inner.clock.now())
    }

    /// Waits until it is lost. Returns on time although requests to the store hang.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn lost(&self) -> Lost {
        let mut over = self.inner.cell.over();
        loop {
            // Both subscriptions begin before the check, so that an end between check and wait is not missed.
            let ended = self.inner.ended.notified();
            over.mark_unchanged();
            if let Some(reason) = self.loss() {
                return self.inner.subject.lost(reason);
            }
            // The lease may be renewed before that: then the loop waits again.
            let lapse = self.inner.clock.sleep_until(self.valid_until());
            tokio::select! {
                biased;
                () = ended => {}
                // Fails only when the cell is gone, and `self` holds it.
                _ = over.changed() => {}
                () = lapse => {}
            }
        }
    }

    /// Waits for the next acknowledged renewal, and returns the new [`Validity::valid_until`]. Never returns once it is lost.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind. A loop that must not miss a renewal between two calls uses [`Validity::renewed_after`].
    pub async fn renewed(&self) -> Moment {
        self.renewed_after(self.valid_until()).await
    }

    /// Waits until [`Validity::valid_until`] is later than `valid_until`, and returns it. Never returns once it is lost.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn renewed_after(&self, valid_until: Moment) -> Moment {
        let mut changes = self.inner.cell.changes();
        let renewed = changes.wait_for(|state| state.end.is_none() && state.valid_until > valid_until).await;
        let renewed = renewed.ok().map(|state| state.valid_until);
        match renewed {
            Some(valid_until) if self.is_valid() => valid_until,
            Some(_) | None => std::future::pending().await,
        }
    }

    /// Runs a future, and drops it the moment validity cannot be proven any more.
    ///
    /// The future is never polled while this is not valid, also not once after a suspend. Blocking code inside it cannot be stopped, and what
    /// it spawned is not dropped with it. A release waits until the future has ended or was dropped.
    ///
    /// # Errors
    ///
    /// [`Lost`] if it was lost before the future ended.
    ///
    /// # Cancellation
    ///
    /// Drops the future too, and changes nothing about the hold.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        // Dropped after `work`: a release must not continue while the work is being dropped.
        let _running = self.begin_work();
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            // The clock comes first: after a suspend no timer has fired yet.
            self.check()?;
            if let Poll::Ready(lost) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(lost));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Runs a fallible future as [`Validity::run`] does, with one `?` for both errors.
    ///
    /// # Errors
    ///
    /// That of the future, or [`Lost`].
    ///
    /// # Cancellation
    ///
    /// As for [`Validity::run`].
    pub async fn try_run<T, E: From<Lost>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.run(work).await?
    }

    /// Ends this hold. The first reason counts, and a lease that is over already is an earlier one.
    pub(crate) fn end(&self, reason: LossReason) {
        self.end_quietly(reason);
        self.notify_ended();
    }

    /// Ends this hold as [`Validity::end`] does; the caller wakes those that wait with [`Validity::notify_ended`] once no lock is held.
    pub(crate) fn end_quietly(&self, reason: LossReason) {
        if self.is_valid() {
            // A reason that was set meanwhile was the first.
            let _ = self.inner.end.set(reason);
        }
    }

    /// Wakes those that wait for the end.
    pub(crate) fn notify_ended(&self) {
        self.inner.ended.notify_waiters();
    }

    /// What is held.
    pub(crate) fn subject(&self) -> &Subject {
        &self.inner.subject
    }

    /// The cell of the lease.
    pub(crate) fn cell(&self) -> &Arc<LeaseCell> {
        &self.inner.cell
    }

    /// The clock that validity is counted on.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// This loss as an error.
    pub(crate) fn lost_by(&self, reason: LossReason) -> Lost {
        self.inner.subject.lost(reason)
    }

    /// Whether a future of [`Validity::run`] is running, or is being dropped.
    pub(crate) fn is_working(&self) -> bool {
        self.inner.running.load(Ordering::SeqCst) > 0
    }

    /// Waits until a future of [`Validity::run`] has ended. One driver waits at a time; an end before the call counts.
    pub(crate) async fn work_ended(&self) {
        self.inner.work_ended.notified().await;
    }

    /// Waits until no future of [`Validity::run`] is running. Comes soon after [`Validity::end`], unless one blocks.
    pub(crate) async fn stopped(&self) {
        while self.is_working() {
            self.work_ended().await;
        }
    }

    /// Calls this once no future of [`Validity::run`] is running: now, or in the task that drops the last one. For a hold that has ended:
    /// no work begins under it any more.
    pub(crate) fn when_stopped(&self, then: impl FnOnce() + Send + 'static) {
        *self.inner.after_work.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(then));
        // A future that ends from here on sees what was just set; one that ended before is seen here.
        self.inner.call_if_stopped();
    }

    fn begin_work(&self) -> RunningWork<'_> {
        // Before `run` checks the validity: either that check sees the end, or the release sees this count.
        self.inner.running.fetch_add(1, Ordering::SeqCst);
        RunningWork { inner: &self.inner }
    }

    fn loss_at(&self, now: Moment) -> Option<LossReason> {
        if let Some(reason) = self.inner.end.get() {
            return Some(*reason);
        }
        // Copied, so that a later reason of this hold cannot replace it.
        let reason = self.inner.cell.state(now).end?;
        Some(*self.inner.end.get_or_init(|| reason))
    }
}

/// A future that runs under a hold.
struct RunningWork<'a> {
    inner: &'a ValidityInner,
}

impl Drop for RunningWork<'_> {
    fn drop(&mut self) {
        self.inner.running.fetch_sub(1, Ordering::SeqCst);
        // One permit is kept if the driver does not wait just now.
        self.inner.work_ended.notify_one();
        self.inner.call_if_stopped();
    }
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.loss() {
            Some(reason) => write!(f, "Validity({}, lost: {reason})", self.subject()),
            None => write!(f, "Validity({}, {:?} left)", self.subject(), self.remaining()),
        }
    }
}
