//! At most one run per period, across all processes.
//!
//! The machine in `core::once` decides which run counts and builds the transactions; here they are sent. [`Once`] does everything that
//! takes: the lock, the record, the work. [`RunGate`] is the part without the lock, for programs that hold it in their own way.

mod gate;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backoff::Backoff;
use tenure_core::id::{InvalidName, LockName, Namespace};
use thiserror::Error;
use tracing::{debug, warn};

use crate::clock::{Clock, wall_time};
use crate::hold::{LossReason, Lost};
use crate::identity::{self, Identity};
use crate::lock::{Guard, LockError, Locks};
use crate::retry::Attempts;
use crate::session::Session;
use crate::store::StoreError;

pub use gate::{LastRun, RunGate, RunGateError, list};
pub use tenure_core::once::{AHEAD_MAX, Begun, EVERY_MIN, OnceDecision, lock_of};
pub use tenure_core::record::OnceRecord;

/// How long the store may take to record how a run ended. The work is done and the record of its begin counts, so only a later
/// `retry_failed` needs it; longer, and the lock is released later.
const FINISH_WITHIN: Duration = Duration::from_secs(3);

/// How long [`Once::run_forever`] sleeps at most before it reads the wall clock again, which an operator may have set meanwhile. The wake-up
/// sends no request to the store.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Work that runs at most once per period, whichever process does it. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use tenure::Namespace;
/// use tenure::once::{Once, Run};
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = Session::open(Store::memory())?;
/// // A period that does not end while this example runs.
/// let century = Duration::from_secs(100 * 365 * 24 * 3_600);
/// let backup = Once::new(&session, &Namespace::parse("shop")?, "backup", century);
///
/// let first = backup.run(|guard| async move { Ok::<_, std::io::Error>(guard.token()) }).await?;
/// assert!(matches!(first, Run::Ran(_)));
/// let second = backup.run(|_| async { Ok::<_, std::io::Error>(()) }).await?;
/// assert!(matches!(second, Run::Skipped { last: Some(_) }));
/// # Ok(())
/// # }
/// ```
///
/// Periods are buckets of the wall clock, counted from 1970 on in UTC: one of an hour begins at each full hour, one of a day at midnight.
/// Each process asks its own clock which period it is.
///
/// # Guarantees
///
/// * At most one run per period begins, as long as no operator deletes the record and clocks differ by less than 10 minutes.
/// * Runs never overlap, also not those of different periods: they hold a lock.
/// * A run is recorded before its work starts, in a transaction that the lock fences. A process that dies has used up its run.
/// * The work is dropped the moment the lock cannot be proven any more.
/// * A run that is recorded more than 10 minutes in the future was recorded by a wrong clock, and does not block later ones.
///
/// # Not guaranteed
///
/// * *That the work is done*: a run that was begun counts. With [`Once::retry_failed`] only a success counts, so the work may
///   run again after an end that was not recorded.
/// * *Mutual exclusion of effects*: use the token of the guard.
///
/// # Cancellation
///
/// Dropping the future drops the work and releases the lock in the background. The run was begun, and counts.
///
/// # Errors
///
/// See [`OnceError`].
#[derive(Clone)]
pub struct Once {
    locks: Locks,
    clock: Arc<dyn Clock>,
    gate: Result<RunGate, InvalidName>,
    reason: String,
}

/// What came of [`Once::run`].
#[derive(Clone, PartialEq, Debug)]
pub enum Run<T> {
    /// The work ran, with this result.
    Ran(T),
    /// It did not run.
    Skipped {
        /// The run that counts, or goes on. None if another process holds the lock and has not recorded its run yet.
        last: Option<OnceRecord>,
    },
}

/// Why the work did not run to its end.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// Nothing has such a name. Nothing was sent.
    #[error(transparent)]
    InvalidName(InvalidName),
    /// The clocks of two hosts differ by more than such a period. Nothing was sent.
    #[error("a period of {every:?} is shorter than {EVERY_MIN:?}")]
    PeriodTooShort {
        /// The period.
        every: Duration,
    },
    /// The lock was not acquired for another reason than that it is held.
    #[error("the lock of the run was not acquired")]
    Lock(#[source] Box<LockError>),
    /// The lock was lost before the run began: nothing ran.
    #[error("the lock was lost before the run began")]
    LostBefore,
    /// The lock was lost while the work ran: it was dropped. The run counts, except with [`Once::retry_failed`].
    #[error("the work was dropped: {0}")]
    Lost(Lost),
    /// The work failed. The run counts, except with [`Once::retry_failed`].
    #[error("the work failed")]
    Work(#[source] E),
    /// The record of the last run cannot be read: nothing ran. If no program needs it, delete its key.
    #[error("the record of the last run cannot be read: {reason}")]
    Unreadable {
        /// Why.
        reason: String,
    },
    /// The store failed, and nothing ran. After [`StoreError::Ambiguous`] the run may count nevertheless.
    #[error("the run was not recorded, so it did not begin")]
    Store(#[source] StoreError),
}

impl<E> OnceError<E> {
    /// Whether a later attempt may succeed without a change to the call.
    pub fn is_retryable(&self) -> bool {
        match self {
            OnceError::InvalidName(_) | OnceError::PeriodTooShort { .. } | OnceError::Unreadable { .. } => {
                false
            }
            OnceError::LostBefore | OnceError::Work(_) => true,
            OnceError::Lost(lost) => lost.reason != LossReason::Closed,
            OnceError::Store(error) => !error.is_fatal() && !matches!(error, StoreError::Invalid(_)),
            OnceError::Lock(error) => match &**error {
                LockError::Store(error) => !error.is_fatal(),
                error => error.is_retryable(),
            },
        }
    }
}

impl<E> From<RunGateError> for OnceError<E> {
    fn from(error: RunGateError) -> OnceError<E> {
        match error {
            RunGateError::Unreadable { reason } => OnceError::Unreadable { reason },
            RunGateError::Store(error) => OnceError::Store(error),
        }
    }
}

/// How long to wait for the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockWait {
    None,
    /// Until the period ends: the holder may be a run of the last one, or one that fails.
    Period,
}

impl Once {
    /// Work that runs at most once in each period of this length. Asks nothing of the store yet.
    pub fn new(session: &Session, namespace: &Namespace, name: impl AsRef<str>, every: Duration) -> Once {
        let locks = Locks::new(session, namespace);
        Once::with_locks(locks, session, namespace, LockName::parse(name.as_ref()), every)
            .identity(identity::current())
    }

    /// As [`Once::new`], with locks that exist and a name that was checked before; a wrong one is reported by the run.
    pub(crate) fn with_locks(
        locks: Locks,
        session: &Session,
        namespace: &Namespace,
        name: Result<LockName, InvalidName>,
        every: Duration,
    ) -> Once {
        let clock = session.clock().clone();
        let gate = name.map(|name| RunGate::new(session.store(), namespace, name, every).on(&clock));
        Once { locks, clock, gate, reason: String::new() }
    }

    /// Counts only runs that succeeded: one that failed, or one without a recorded end, is tried again in the same period.
    #[must_use]
    pub fn retry_failed(mut self) -> Once {
        self.gate = self.gate.map(RunGate::retry_failed);
        self
    }

    /// The identity that is stored with the lock and the run; [`identity::current`] otherwise.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Once {
        self.locks = self.locks.identity(identity.clone());
        self.gate = self.gate.map(|gate| gate.identity(identity));
        self
    }

    /// The reason that is stored with the lock, for its observers.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Once {
        self.reason = reason.into();
        self
    }

    /// Runs the work if no process has run it in this period, and no process runs it now.
    ///
    /// See [`Once`] for cancellation and errors.
    pub async fn run<T, E, Work: Future<Output = Result<T, E>>>(
        &self,
        work: impl FnOnce(Arc<Guard>) -> Work,
    ) -> Result<Run<T>, OnceError<E>> {
        self.attempt(LockWait::None, work).await
    }

    /// Runs the work once in each period, for ever, whichever of the processes that call this does it: at the begin of a period one acquires the
    /// lock and runs it, the others skip it. The first period is the current one.
    ///
    /// Work that fails is logged, and repeated in the same period only with [`Once::retry_failed`]. An outage of the store delays a run, and
    /// one that is longer than the rest of the period omits it.
    ///
    /// # Cancellation
    ///
    /// As that of [`Once::run`].
    ///
    /// # Errors
    ///
    /// Returns only what no later attempt can mend: an invalid call, a record that cannot be read, a closed session or store.
    pub async fn run_forever<E: fmt::Display, Work: Future<Output = Result<(), E>>>(
        &self,
        mut work: impl FnMut(Arc<Guard>) -> Work,
    ) -> Result<(), OnceError<E>> {
        let gate = self.gate()?.clone();
        let mut attempts = Attempts::new(&self.clock, Backoff::DEFAULT);
        loop {
            let period = gate.rule().period(wall_time());
            match self.attempt(LockWait::Period, &mut work).await {
                Ok(run) => {
                    debug!(name = %gate.name(), ran = matches!(run, Run::Ran(())), "period decided");
                    attempts = Attempts::new(&self.clock, Backoff::DEFAULT);
                    self.sleep_through(&gate, period).await;
                }
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => {
                    let cause = if let OnceError::Work(error) = &error {
                        error.to_string()
                    } else {
                        error.to_string()
                    };
                    warn!(name = %gate.name(), error = cause, "periodic run failed");
                    attempts.wait("periodic run", &cause).await;
                }
            }
        }
    }

    fn gate<E>(&self) -> Result<&RunGate, OnceError<E>> {
        let gate = self.gate.as_ref().map_err(|error| OnceError::InvalidName(error.clone()))?;
        let every = gate.rule().every;
        if every < EVERY_MIN { Err(OnceError::PeriodTooShort { every }) } else { Ok(gate) }
    }

    async fn attempt<T, E, Work: Future<Output = Result<T, E>>>(
        &self,
        wait: LockWait,
        work: impl FnOnce(Arc<Guard>) -> Work,
    ) -> Result<Run<T>, OnceError<E>> {
        let gate = self.gate()?;
        // Most processes come too late, and need no lock to learn that.
        if let OnceDecision::Done(last) = gate.decide().await? {
            return Ok(Run::Skipped { last: Some(last) });
        }
        let lock = self.locks.lock(gate.lock_name().as_str()).reason(self.reason.clone());
        let lock = match wait {
            LockWait::None => lock.try_now(),
            LockWait::Period => lock.timeout(gate.rule().until_next(wall_time())),
        };
        let guard = match lock.await {
            Ok(guard) => guard,
            Err(LockError::Held { .. } | LockError::Timeout { .. }) => {
                return Ok(Run::Skipped { last: gate.last().await.map_err(OnceError::from)? });
            }
            Err(error) => return Err(OnceError::Lock(Box::new(error))),
        };
        let begun = gate.begin(guard.fence()).await;
        let Ok(Begun::Begun { record, ignored }) = begun else {
            release(guard).await;
            return not_begun(begun);
        };
        if let Some(OnceRecord { started, node, .. }) = ignored {
            warn!(name = %gate.name(), %started, node, "run recorded in the future ignored");
        }
        let guard = Arc::new(guard);
        let fence = guard.fence();
        let result = guard.run(work(guard.clone())).await.map_err(OnceError::Lost)?;
        let exit_code = Some(u8::from(result.is_err()));
        let record = OnceRecord { exit_code, ..record };
        let finished = gate.finish(&fence, &record);
        let finishing = self.clock.sleep_until(self.clock.now() + FINISH_WITHIN);
        let is_recorded = tokio::select! {
            biased;
            finished = finished => matches!(finished, Ok(true)),
            () = finishing => false,
        };
        if !is_recorded {
            warn!(name = %gate.name(), "end of a run was not recorded");
        }
        // Work that kept the guard keeps the lock.
        if let Some(guard) = Arc::into_inner(guard) {
            release(guard).await;
        }
        result.map(Run::Ran).map_err(OnceError::Work)
    }

    /// Sleeps until this period is over by the wall clock, which may be set forward or back meanwhile.
    async fn sleep_through(&self, gate: &RunGate, period: u128) {
        loop {
            let now = wall_time();
            if gate.rule().period(now) != period {
                return;
            }
            let left = gate.rule().until_next(now).min(SLEEP_MAX);
            self.clock.sleep_until(self.clock.now() + left).await;
        }
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Once({:?})", self.gate)
    }
}

/// What follows from a run that was not begun.
fn not_begun<T, E>(begun: Result<Begun, StoreError>) -> Result<Run<T>, OnceError<E>> {
    match begun {
        Ok(Begun::Begun { record: last, .. } | Begun::Done(last)) => Ok(Run::Skipped { last: Some(last) }),
        Ok(Begun::HoldLost) => Err(OnceError::LostBefore),
        Ok(Begun::Unreadable { reason }) => Err(OnceError::Unreadable { reason }),
        Err(error) => Err(OnceError::Store(error)),
    }
}

/// A release that is not confirmed ends with the lease: the result of the run does not depend on it.
async fn release(guard: Guard) {
    if let Err(error) = guard.release().await {
        debug!(%error, "lock of a run was released without a confirmation");
    }
}
