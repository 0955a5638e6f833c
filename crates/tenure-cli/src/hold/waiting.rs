//! Waiting for a hold: entering the queue, reporting the wait, and entering again after a lost session.

use std::cell::Cell;
use std::error::Error;
use std::ops::Deref;
use std::time::{Duration, Instant};

use tenure::clock::{BootClock, Clock};
use tenure::election::CampaignError;
use tenure::hold::{Hold, Lost};
use tenure::lock::LockError;
use tenure::session::{InvalidTtl, LeaseError};
use tenure::store::{LeaseId, Reach, StoreError};
use tenure_core::time::Moment;

use super::context::{HoldContext, HoldExit};
use super::timing::Timing;
use crate::failure::{Code, Failure};
use crate::supervise::Signals;

/// How long the store may take to queue a request, from the start of the process. A start is documented to end within 6 s.
const START_WITHIN: Duration = Duration::from_secs(5);

/// The least that remains of that time when connecting used nearly all of it.
const ENTER_WITHIN_MIN: Duration = Duration::from_millis(300);

/// The first status is printed after this time: a shorter wait needs no explanation.
const STATUS_AFTER: Duration = Duration::from_secs(1);

/// How often a terminal shows a new status.
const STATUS_EVERY_ON_TERMINAL: Duration = Duration::from_secs(1);

/// The longest pause between reads of the queue before this process is in it. Doubled, a file store that stops making progress is
/// noticed half a minute late.
const STATUS_PAUSE_MAX: Duration = Duration::from_secs(16);

/// How long one read of the queue may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// The same for the read that names the holder after a timeout. The command may end this much later than `--wait`.
const LAST_STATUS_TIMEOUT: Duration = Duration::from_millis(500);

/// How long to wait for the holders and waiters ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    Endless,
    UpTo(Duration),
    None,
}

/// Something with a queue that can be held: a lock or an election.
pub(crate) trait HoldSubject {
    /// The guard of the hold.
    type Held: Deref<Target = Hold>;

    /// How often the wait is reported where the output is not a terminal; `None`: once.
    const STATUS_EVERY: Option<Duration>;

    /// Its name.
    fn name(&self) -> &str;

    /// Enters the queue and waits for the hold.
    async fn acquire(&self, wait: Wait) -> Result<Self::Held, NotHeld>;

    /// Reads the queue, seen from the queue key under this lease.
    async fn status(&self, lease: Option<LeaseId>) -> Result<QueueStatus, StoreError>;

    /// The command that shows the queue.
    fn show_command(&self) -> String;
}

/// A queue as one waiter sees it.
pub(crate) struct QueueStatus {
    /// Whether this process has a key in it.
    pub(crate) is_queued: bool,
    /// The holder, such as `held by web-2 pid 4121`.
    pub(crate) held_by: Option<String>,
    /// The status to print.
    pub(crate) text: Option<String>,
}

/// Why nothing is held.
pub(crate) enum NotHeld {
    /// Another holder has it, and the wait has ended.
    Held,
    /// The lease was lost while waiting.
    Lost(Lost),
    /// The store did not reply in time.
    Unavailable(Duration),
    /// An error that waiting does not change.
    Failed(Failure),
}

impl NotHeld {
    pub(crate) fn lock(name: &str, error: LockError) -> NotHeld {
        match error {
            LockError::Held { .. } | LockError::Timeout { .. } => NotHeld::Held,
            LockError::Lost(lost) => NotHeld::Lost(lost),
            LockError::Unavailable { after } => NotHeld::Unavailable(after),
            LockError::Store(error) => NotHeld::store(name, error),
            LockError::InvalidTtl(error) => NotHeld::ttl(&error),
            LockError::InvalidName(error) => NotHeld::Failed(Failure::usage(error.to_string())),
            error @ LockError::PermitsDiffer { stored, .. } => NotHeld::Failed(
                Failure::usage(format!("'{name}': {error}"))
                    .hint(format!("use `--permits {stored}`, or another name")),
            ),
            error => NotHeld::other(name, &error),
        }
    }

    pub(crate) fn campaign(name: &str, error: CampaignError) -> NotHeld {
        match error {
            CampaignError::Held { .. } | CampaignError::Timeout { .. } => NotHeld::Held,
            CampaignError::Lost(lost) => NotHeld::Lost(lost),
            CampaignError::Unavailable { after } => NotHeld::Unavailable(after),
            CampaignError::Store(error) => NotHeld::store(name, error),
            CampaignError::InvalidTtl(error) => NotHeld::ttl(&error),
            error @ CampaignError::ValueTooLarge { .. } => NotHeld::Failed(Failure::usage(error.to_string())),
            error => NotHeld::other(name, &error),
        }
    }

    fn lease(name: &str, error: LeaseError) -> NotHeld {
        match error {
            LeaseError::Unavailable { after } => NotHeld::Unavailable(after),
            LeaseError::Store(error) => NotHeld::store(name, error),
            LeaseError::InvalidTtl(error) => NotHeld::ttl(&error),
            error => NotHeld::other(name, &error),
        }
    }

    fn store(name: &str, error: StoreError) -> NotHeld {
        NotHeld::Failed(Failure::from(error).while_doing(&format!("'{name}'")))
    }

    fn ttl(error: &InvalidTtl) -> NotHeld {
        NotHeld::Failed(Failure::usage(error.to_string()).hint(super::timing::LONGER_TTL))
    }

    fn other(name: &str, error: &dyn Error) -> NotHeld {
        let failure = Failure::new(Code::Failed, format!("'{name}': {error}")).hint("run the command again");
        NotHeld::Failed(failure)
    }
}

/// The progress of a wait, over several attempts.
#[derive(Default)]
pub(crate) struct WaitProgress {
    /// The lease of the queue key.
    lease: Cell<Option<LeaseId>>,
    /// Whether the key was seen in the queue. From then on the store has no time limit.
    was_queued: Cell<bool>,
    /// Whether a status is on the terminal.
    has_status: Cell<bool>,
}

impl HoldContext<'_> {
    /// Waits for the hold, counting from `begin`. An error of kind [`HoldExit::Ended`] is already reported.
    pub(crate) async fn acquire<L: HoldSubject>(
        &self,
        subject: &L,
        wait: Wait,
        begin: Instant,
        progress: &WaitProgress,
        signals: &mut Signals,
    ) -> Result<L::Held, HoldExit> {
        loop {
            let left = || match wait {
                Wait::UpTo(wait) => wait.saturating_sub(begin.elapsed()),
                Wait::Endless | Wait::None => Duration::MAX,
            };
            // A short `--wait` limits the wait for the holder, not the time that the store needs to queue the request.
            let within = if progress.was_queued.get() { left() } else { left().max(START_WITHIN) };
            let acquiring = async {
                // The lease comes first: it identifies this process's key in the queue status.
                let lend = self.session.lease().timeout(within).await;
                let lease = lend.map_err(|error| NotHeld::lease(subject.name(), error))?;
                progress.lease.set(Some(lease.lease()));
                let wait = match wait {
                    Wait::Endless => Wait::Endless,
                    Wait::UpTo(_) if !left().is_zero() => Wait::UpTo(left().max(ENTER_WITHIN_MIN)),
                    Wait::UpTo(_) | Wait::None => Wait::None,
                };
                subject.acquire(wait).await
            };
            let result = tokio::select! {
                biased;
                signal = signals.next_end() => Err(HoldExit::signal(signal)),
                result = acquiring => Ok(result),
                failure = self.report_progress(subject, progress) => Err(failure.into()),
            };
            if progress.has_status.take() {
                self.output.clear_status();
            }
            let name = subject.name();
            match result? {
                Ok(held) => {
                    progress.was_queued.set(true);
                    if self.wait_for_renewal(&held, signals).await? {
                        return Ok(held);
                    }
                    self.note_retry(name, "was lost before the command was started");
                }
                Err(NotHeld::Lost(lost)) => {
                    progress.was_queued.set(true);
                    self.note_retry(
                        name,
                        &format!("is not held yet, and its lease was lost ({})", lost.reason),
                    );
                }
                Err(NotHeld::Held) => return Err(self.refuse(subject, wait, begin).await),
                Err(NotHeld::Unavailable(_)) if progress.was_queued.get() => {
                    return Err(self.refuse(subject, wait, begin).await);
                }
                Err(NotHeld::Unavailable(after)) => return Err(self.not_queued(name, after).into()),
                Err(NotHeld::Failed(failure)) => return Err(failure.into()),
            }
        }
    }

    /// Waits until no renewal of the hold is due. Returns false if the hold is lost first.
    ///
    /// A hold that was acquired with an old lease could otherwise end before the command has started.
    async fn wait_for_renewal(&self, held: &Hold, signals: &mut Signals) -> Result<bool, HoldExit> {
        let until = held.valid_until();
        let due = Timing::renewal(Timing::sent(until, held.ttl()), held.ttl());
        tokio::select! {
            biased;
            signal = signals.next_end() => Err(HoldExit::signal(signal)),
            is_renewed = is_renewed(due, BootClock.now(), held.lost(), held.renewed_after(until)) => Ok(is_renewed),
        }
    }

    /// Reports that this process enters the queue again.
    pub(crate) fn note_retry(&self, name: &str, why: &str) {
        self.output.note(&format!("'{name}' {why}; entering the queue again"));
    }

    /// Reports the queue while this process waits. Ends only if the store does not queue the request in time.
    async fn report_progress<L: HoldSubject>(&self, subject: &L, progress: &WaitProgress) -> Failure {
        let WaitProgress { lease, was_queued, has_status } = progress;
        let every = if self.output.has_status() { Some(STATUS_EVERY_ON_TERMINAL) } else { L::STATUS_EVERY };
        let queued_by = self.start_by();
        let mut report_at = Instant::now() + STATUS_AFTER;
        // Many starts at once wait for the store: each read of the queue, and each line, would delay the others.
        let mut pause = STATUS_TIMEOUT;
        loop {
            // After the deadline the checks go on: a file store that made progress can stop making it.
            let is_late = was_queued.get() || Instant::now() >= queued_by;
            let next = if is_late { report_at } else { report_at.min(queued_by) };
            tokio::time::sleep_until(next.into()).await;
            let status = tokio::time::timeout(self.status_timeout(queued_by), subject.status(lease.get()));
            // The session handles a store that does not reply to this read.
            if let Ok(Ok(status)) = status.await {
                was_queued.set(was_queued.get() || status.is_queued);
                if !self.output.is_quiet
                    && let Some(text) = status.text
                {
                    self.output.status(&text);
                    has_status.set(true);
                }
            }
            if !was_queued.get() && Instant::now() >= queued_by && !self.is_queued_at_file() {
                return self.not_queued(subject.name(), self.begin.elapsed());
            }
            let is_done = self.output.is_quiet || (every.is_none() && has_status.get());
            if was_queued.get() && is_done {
                std::future::pending::<()>().await;
            }
            report_at = Instant::now() + every.filter(|_| was_queued.get()).unwrap_or(pause);
            pause = (2 * pause).min(STATUS_PAUSE_MAX);
        }
    }

    /// Whether the requests wait behind those of other processes of this machine. The engine fails them when its queue makes no
    /// progress; until then waiting is right, however many processes start at once.
    fn is_queued_at_file(&self) -> bool {
        let failure = self.session.failure_since(self.begin_at);
        // A lease that expired during the wait is no failure of the store: the session requests another one.
        self.store.info().reach == Reach::Machine
            && failure.is_none_or(|error| matches!(error, StoreError::LeaseNotFound))
    }

    /// The deadline for the store's replies that a start needs.
    pub(crate) fn start_by(&self) -> Instant {
        (self.begin + START_WITHIN).max(Instant::now() + ENTER_WITHIN_MIN)
    }

    /// A short timeout for the last read before the deadline.
    fn status_timeout(&self, queued_by: Instant) -> Duration {
        queued_by.saturating_duration_since(Instant::now()).clamp(ENTER_WITHIN_MIN / 3, STATUS_TIMEOUT)
    }

    /// Reports the holder, or that the store does not reply.
    async fn refuse(&self, subject: &impl HoldSubject, wait: Wait, begin: Instant) -> HoldExit {
        let waited = begin.elapsed();
        let timeout = match wait {
            Wait::UpTo(_) => LAST_STATUS_TIMEOUT,
            Wait::Endless | Wait::None => STATUS_TIMEOUT,
        };
        let status = tokio::time::timeout(timeout, subject.status(None)).await;
        self.is_silent.set(status.is_err());
        let (name, show) = (subject.name(), subject.show_command());
        let by = match status {
            Ok(Ok(status)) => status.held_by,
            Ok(Err(_)) | Err(_) => None,
        };
        let by = by.unwrap_or_else(|| "another process holds it".to_owned());
        let (message, hint) = match wait {
            // The holder at the end of the wait is unknown.
            Wait::UpTo(_) if self.is_silent.get() => (
                format!("could not acquire '{name}' within {waited:.1?}: the store does not reply"),
                "run `tenure doctor`".to_owned(),
            ),
            Wait::UpTo(_) => (
                format!("could not acquire '{name}' within {waited:.1?}: {by}"),
                format!("wait longer with --wait, or see the queue with `{show}`"),
            ),
            Wait::Endless | Wait::None => (
                format!("could not acquire '{name}': {by}"),
                format!("wait for it with --wait, or see the queue with `{show}`"),
            ),
        };
        self.not_acquired(&Failure::new(Code::NotAcquired, message).hint(hint))
    }

    /// The failure of a start if the store did not queue the request in time, with the store's last error.
    fn not_queued(&self, name: &str, within: Duration) -> Failure {
        let what = format!("the store did not queue the request for '{name}' within {within:.1?}");
        match self.session.failure_since(self.begin_at) {
            Some(error @ StoreError::NoSpace) => Failure::from(error).while_doing(&what),
            Some(error) => {
                Failure::new(Code::Unavailable, format!("{what}: {error}")).hint("run `tenure doctor`")
            }
            None => Failure::new(Code::Unavailable, what).hint("run `tenure doctor`"),
        }
    }

    /// Reports a refusal and ends with the exit code for it.
    pub(crate) fn not_acquired(&self, failure: &Failure) -> HoldExit {
        if !self.output.is_quiet {
            self.output.failure(failure);
        }
        HoldExit::Ended(std::process::ExitCode::from(self.args.not_acquired))
    }
}

/// Waits for a renewal if one is due. Returns false if the hold is lost before it.
async fn is_renewed<L, R>(
    due: Moment,
    now: Moment,
    lost: impl Future<Output = L>,
    renewed: impl Future<Output = R>,
) -> bool {
    if now < due {
        return true;
    }
    tokio::select! {
        biased;
        _ = lost => false,
        _ = renewed => true,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;

    /// etcd paused for more than a third of the TTL, and this process held the lock when it continued. A command that started at
    /// once would have been stopped immediately, by the deadlines of the previous renewal.
    #[test]
    fn due_renewal_delays_the_command() {
        let (sent, ttl) = (Moment::from_ms(1_000), Duration::from_secs(3));
        let after = |ms| (Timing::renewal(sent, ttl), sent + Duration::from_millis(ms));
        let (due, early) = after(999);
        assert_eq!(is_renewed(due, early, pending::<()>(), pending::<()>()).now_or_never(), Some(true));
        for late in [1_000, 1_400, 2_400] {
            let (due, now) = after(late);
            assert_eq!(is_renewed(due, now, pending::<()>(), pending::<()>()).now_or_never(), None, "{late}");
            assert_eq!(is_renewed(due, now, pending::<()>(), ready(())).now_or_never(), Some(true), "{late}");
            assert_eq!(
                is_renewed(due, now, ready(()), pending::<()>()).now_or_never(),
                Some(false),
                "{late}"
            );
            assert_eq!(is_renewed(due, now, ready(()), ready(())).now_or_never(), Some(false), "lost first");
        }
    }
}
