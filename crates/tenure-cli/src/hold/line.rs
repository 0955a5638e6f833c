//! Waiting for our turn: standing in line, saying so, and standing in line again after a lost session.

use std::cell::Cell;
use std::error::Error;
use std::ops::Deref;
use std::time::{Duration, Instant};

use tenure::clock::{BootClock, Clock};
use tenure::election::CampaignError;
use tenure::hold::{Hold, Lost};
use tenure::lock::LockError;
use tenure::session::{InvalidTtl, LendError};
use tenure::store::{LeaseId, Reach, StoreError};
use tenure_core::time::Moment;

use super::stage::{Stage, Stop};
use super::timing::Timing;
use crate::failure::{Code, Failure};
use crate::supervise::Signals;

/// How long the store may take to let us into the line, from our start. Scripts were promised an answer within 6 s.
const START_WITHIN: Duration = Duration::from_secs(5);

/// What is left of that at least, when reaching the store took nearly all of it.
const ENTER_WITHIN_MIN: Duration = Duration::from_millis(300);

/// A status line comes after this long: whoever waits less need not know.
const STATUS_AFTER: Duration = Duration::from_secs(1);

/// How often it is said anew to a person.
const STATUS_EVERY_ON_TERMINAL: Duration = Duration::from_secs(1);

/// How long one look at the line may take.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// How long the look may take by which one who has waited long enough is told for whom: so much later than promised it may end.
const LAST_LOOK_WITHIN: Duration = Duration::from_millis(500);

/// How long to wait for those who are before us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    Endless,
    UpTo(Duration),
    None,
}

/// A line to stand in: that of a lock, or of an election.
pub(crate) trait Line {
    /// What is held when it is our turn.
    type Held: Deref<Target = Hold>;

    /// How often one who waits is told how it stands, where that is written down; none: once.
    const STATUS_EVERY: Option<Duration>;

    /// What it is the line for.
    fn name(&self) -> &str;

    /// Stands in it until it is our turn.
    async fn stand(&self, wait: Wait) -> Result<Self::Held, NotHeld>;

    /// How it stands, seen from the place that hangs on this lease.
    async fn look(&self, lease: Option<LeaseId>) -> Result<Look, StoreError>;

    /// The command that shows who is in it.
    fn shown_by(&self) -> String;
}

/// How a line stands.
pub(crate) struct Look {
    /// Whether we are in it.
    pub(crate) is_in_line: bool,
    /// Who has what we wait for, such as `held by web-2 pid 4121`.
    pub(crate) had_by: Option<String>,
    /// What to tell one who waits.
    pub(crate) status: Option<String>,
}

/// Why nothing is held.
pub(crate) enum NotHeld {
    /// Another holder has it, and the wait is over.
    Held,
    /// The lease was lost while we waited.
    Lost(Lost),
    /// The store did not reply in time.
    Unavailable(Duration),
    /// What does not change by waiting.
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

    fn lease(name: &str, error: LendError) -> NotHeld {
        match error {
            LendError::NotYet { within } => NotHeld::Unavailable(within),
            LendError::Store(error) => NotHeld::store(name, error),
            LendError::InvalidTtl(error) => NotHeld::ttl(&error),
            error => NotHeld::other(name, &error),
        }
    }

    fn store(name: &str, error: StoreError) -> NotHeld {
        NotHeld::Failed(Failure::from(error).while_doing(&format!("'{name}'")))
    }

    fn ttl(error: &InvalidTtl) -> NotHeld {
        let hint = "use a longer --ttl; 15s suits nearly everybody";
        NotHeld::Failed(Failure::usage(error.to_string()).hint(hint))
    }

    fn other(name: &str, error: &dyn Error) -> NotHeld {
        let failure = Failure::new(Code::Failed, format!("'{name}': {error}")).hint("run the command again");
        NotHeld::Failed(failure)
    }
}

/// How far we have come.
#[derive(Default)]
pub(crate) struct Progress {
    /// The lease that our place hangs on.
    lease: Cell<Option<LeaseId>>,
    /// Whether we were seen in the line; from then on the store may take its time.
    has_stood: Cell<bool>,
    /// Whether a status is shown.
    has_said: Cell<bool>,
}

impl Stage<'_> {
    /// Waits for our turn, counting from `begin`; ends in another way with everything said.
    pub(crate) async fn acquire<L: Line>(
        &self,
        line: &L,
        wait: Wait,
        begin: Instant,
        progress: &Progress,
        signals: &mut Signals,
    ) -> Result<L::Held, Stop> {
        loop {
            let left = || match wait {
                Wait::UpTo(wait) => wait.saturating_sub(begin.elapsed()),
                Wait::Endless | Wait::None => Duration::MAX,
            };
            // However short the wait: the store has its time to let us into the line.
            let within = if progress.has_stood.get() { left() } else { left().max(START_WITHIN) };
            let asking = async {
                // A lease first: by it we know our place among the others.
                let lend = self.session.lend().within(within).await;
                let loan = lend.map_err(|error| NotHeld::lease(line.name(), error))?;
                progress.lease.set(Some(loan.lease()));
                let wait = match wait {
                    Wait::Endless => Wait::Endless,
                    Wait::UpTo(_) if !left().is_zero() => Wait::UpTo(left().max(ENTER_WITHIN_MIN)),
                    Wait::UpTo(_) | Wait::None => Wait::None,
                };
                line.stand(wait).await
            };
            let told = tokio::select! {
                biased;
                signal = signals.next_end() => Err(Stop::signal(signal)),
                told = asking => Ok(told),
                failure = self.watch_over(line, progress) => Err(failure.into()),
            };
            if progress.has_said.take() {
                self.output.clear_status();
            }
            let name = line.name();
            match told? {
                Ok(held) => {
                    progress.has_stood.set(true);
                    if self.is_fresh(&held, signals).await? {
                        return Ok(held);
                    }
                    self.again(name, "was lost before anything was begun under it");
                }
                Err(NotHeld::Lost(lost)) => {
                    progress.has_stood.set(true);
                    self.again(
                        name,
                        &format!("is still waited for, but its lease was lost ({})", lost.reason),
                    );
                }
                Err(NotHeld::Held) => return Err(self.refuse(line, wait, begin).await),
                Err(NotHeld::Unavailable(_)) if progress.has_stood.get() => {
                    return Err(self.refuse(line, wait, begin).await);
                }
                Err(NotHeld::Unavailable(after)) => return Err(self.not_let_in(name, after).into()),
                Err(NotHeld::Failed(failure)) => return Err(failure.into()),
            }
        }
    }

    /// Waits until what is held is as sure as it can be: what we came to with an old lease could be over before the command has begun. False
    /// if it is.
    async fn is_fresh(&self, held: &Hold, signals: &mut Signals) -> Result<bool, Stop> {
        let until = held.valid_until();
        let due = Timing::renewal(Timing::sent(until, held.ttl()), held.ttl());
        tokio::select! {
            biased;
            signal = signals.next_end() => Err(Stop::signal(signal)),
            is_sure = is_sure(due, BootClock.now(), held.lost(), held.renewed_after(until)) => Ok(is_sure),
        }
    }

    /// Says that another turn begins.
    pub(crate) fn again(&self, name: &str, why: &str) {
        self.output.note(&format!("'{name}' {why}; standing in line again"));
    }

    /// Says how the line stands while we wait; ends only if the store does not let us into it in time.
    async fn watch_over<L: Line>(&self, line: &L, progress: &Progress) -> Failure {
        let Progress { lease, has_stood, has_said } = progress;
        let every = if self.output.has_status() { Some(STATUS_EVERY_ON_TERMINAL) } else { L::STATUS_EVERY };
        let in_line_by = self.start_by();
        let mut say_at = Instant::now() + STATUS_AFTER;
        loop {
            // After that time it is looked at again, in case that a file which made progress makes none any more.
            let is_late = has_stood.get() || Instant::now() >= in_line_by;
            let next = if is_late { say_at } else { say_at.min(in_line_by) };
            tokio::time::sleep_until(next.into()).await;
            let look = tokio::time::timeout(self.patience_to_look(in_line_by), line.look(lease.get()));
            // A store that does not answer just now is the session's business.
            if let Ok(Ok(look)) = look.await {
                has_stood.set(has_stood.get() || look.is_in_line);
                if !self.output.is_quiet
                    && let Some(status) = look.status
                {
                    self.output.status(&status);
                    has_said.set(true);
                }
            }
            if !has_stood.get() && Instant::now() >= in_line_by && !self.is_queued_at_file() {
                return self.not_let_in(line.name(), self.begin.elapsed());
            }
            let has_nothing_to_say = self.output.is_quiet || (every.is_none() && has_said.get());
            if has_stood.get() && has_nothing_to_say {
                std::future::pending::<()>().await;
            }
            say_at = Instant::now() + every.filter(|_| has_stood.get()).unwrap_or(LOOK_WITHIN);
        }
    }

    /// Whether our requests wait behind those of other processes of this machine. The engine fails them when the queue makes no progress; until
    /// then patience is right, however many processes start at once.
    fn is_queued_at_file(&self) -> bool {
        let failure = self.session.failure_since(self.begin_at);
        // A lease that ended while its holder waited is no failure of the store: the session asks for another one.
        self.store.info().reach == Reach::Machine
            && failure.is_none_or(|error| matches!(error, StoreError::LeaseNotFound))
    }

    /// By when the store must have answered what a start needs.
    pub(crate) fn start_by(&self) -> Instant {
        (self.begin + START_WITHIN).max(Instant::now() + ENTER_WITHIN_MIN)
    }

    /// The last look before the store must have let us in is a short one.
    fn patience_to_look(&self, in_line_by: Instant) -> Duration {
        in_line_by.saturating_duration_since(Instant::now()).clamp(ENTER_WITHIN_MIN / 3, LOOK_WITHIN)
    }

    /// Says who has it, or that the store does not say.
    async fn refuse(&self, line: &impl Line, wait: Wait, begin: Instant) -> Stop {
        let waited = begin.elapsed();
        let look_within = match wait {
            Wait::UpTo(_) => LAST_LOOK_WITHIN,
            Wait::Endless | Wait::None => LOOK_WITHIN,
        };
        let look = tokio::time::timeout(look_within, line.look(None)).await;
        self.is_silent.set(look.is_err());
        let (name, shown_by) = (line.name(), line.shown_by());
        let by = match look {
            Ok(Ok(look)) => look.had_by,
            Ok(Err(_)) | Err(_) => None,
        };
        let by = by.unwrap_or_else(|| "somebody else has it".to_owned());
        let (message, hint) = match wait {
            // Nobody knows for whom we waited in the end.
            Wait::UpTo(_) if self.is_silent.get() => (
                format!("'{name}' was not to be had within {waited:.1?}: the store does not answer"),
                "run `tenure doctor`".to_owned(),
            ),
            Wait::UpTo(_) => (
                format!("'{name}' was not to be had within {waited:.1?}: {by}"),
                format!("wait longer, or see `{shown_by}`"),
            ),
            Wait::Endless | Wait::None => {
                (format!("'{name}' is not to be had: {by}"), format!("see `{shown_by}`"))
            }
        };
        self.not_acquired(&Failure::new(Code::NotAcquired, message).hint(hint))
    }

    /// The store took too long, and perhaps said why.
    fn not_let_in(&self, name: &str, within: Duration) -> Failure {
        let what = format!("the store did not let us stand in line for '{name}' within {within:.1?}");
        match self.session.failure_since(self.begin_at) {
            Some(error @ StoreError::NoSpace) => Failure::from(error).while_doing(&what),
            Some(error) => {
                Failure::new(Code::Unavailable, format!("{what}: {error}")).hint("run `tenure doctor`")
            }
            None => Failure::new(Code::Unavailable, what).hint("run `tenure doctor`"),
        }
    }

    /// Ends with the exit code that the user wants for this.
    pub(crate) fn not_acquired(&self, failure: &Failure) -> Stop {
        if !self.output.is_quiet {
            self.output.failure(failure);
        }
        Stop::Ended(std::process::ExitCode::from(self.args.not_acquired))
    }
}

/// Whether something may begin under what is held: at once as long as no renewal is due, then only when it was renewed, and not if it is lost
/// before that.
async fn is_sure<L, R>(
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

    /// etcd stood still for longer than a third of the TTL, and the lock was ours when it went on: a command that had begun at once would
    /// have been asked to stop before its first word, by deadlines of the renewal before.
    #[test]
    fn nothing_begins_under_a_lock_whose_renewal_is_due_before_it_was_renewed() {
        let (sent, ttl) = (Moment::from_ms(1_000), Duration::from_secs(3));
        let after = |ms| (Timing::renewal(sent, ttl), sent + Duration::from_millis(ms));
        let (due, early) = after(999);
        assert_eq!(is_sure(due, early, pending::<()>(), pending::<()>()).now_or_never(), Some(true));
        for late in [1_000, 1_400, 2_400] {
            let (due, now) = after(late);
            assert_eq!(is_sure(due, now, pending::<()>(), pending::<()>()).now_or_never(), None, "{late}");
            assert_eq!(is_sure(due, now, pending::<()>(), ready(())).now_or_never(), Some(true), "{late}");
            assert_eq!(is_sure(due, now, ready(()), pending::<()>()).now_or_never(), Some(false), "{late}");
            assert_eq!(is_sure(due, now, ready(()), ready(())).now_or_never(), Some(false), "lost is lost");
        }
    }
}
