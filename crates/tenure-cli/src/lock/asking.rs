//! Getting a lock: standing in line, saying so, and standing in line again after a lost session.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tenure::clock::{BootClock, Clock};
use tenure::core::line::Mode;
use tenure::core::name::LockName;
use tenure::core::time::Moment;
use tenure::lock::{Acquire, Guard, LockError, StandError};
use tenure::store::LeaseId;

use super::stage::{Stage, Stop};
use super::timing::Timing;
use super::waiting;
use crate::failure::{Code, Failure};
use crate::supervise::Signals;

/// How long the store may take to let us into the line, from our start. Scripts were promised an answer within 6 s.
const START_WITHIN: Duration = Duration::from_secs(5);

/// What is left of that at least, when reaching the store took nearly all of it.
const ENTER_WITHIN_MIN: Duration = Duration::from_millis(300);

/// A status line comes after this long: whoever waits less need not know.
const STATUS_AFTER: Duration = Duration::from_secs(1);

/// How often it is said anew, into a log and to a person.
const STATUS_EVERY: Duration = Duration::from_secs(30);
const STATUS_EVERY_ON_TERMINAL: Duration = Duration::from_secs(1);

/// How long one look at the line may take.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// How long to wait for those who are before us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    Endless,
    UpTo(Duration),
    None,
}

/// Which lock is wanted, and how.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) wait: Wait,
}

/// How far we have come.
#[derive(Default)]
struct Progress {
    /// The lease that our place hangs on.
    lease: Cell<Option<LeaseId>>,
    /// Whether we were seen in the line.
    has_stood: Cell<bool>,
    /// Whether a status is shown.
    has_said: Cell<bool>,
}

impl Stage<'_> {
    /// Waits for a lock, counting from `begin`; ends in another way with everything said.
    pub(crate) async fn acquire(
        &self,
        wish: &Wish,
        begin: Instant,
        signals: &mut Signals,
    ) -> Result<Guard, Stop> {
        let progress = Progress::default();
        loop {
            let left = || match wish.wait {
                Wait::UpTo(wait) => wait.saturating_sub(begin.elapsed()),
                Wait::Endless | Wait::None => Duration::MAX,
            };
            // However short the wait: the store has its time to let us into the line.
            let within = if progress.has_stood.get() { left() } else { left().max(START_WITHIN) };
            let asking = async {
                // A lease first: by it we know our place among the others.
                let loan = self.session.lend().within(within).await.map_err(StandError::from)?;
                progress.lease.set(Some(loan.lease()));
                self.ask(wish, left()).await
            };
            let told = tokio::select! {
                biased;
                signal = signals.next_end() => Err(Stop::signal(signal)),
                told = asking => Ok(told),
                failure = self.watch_over(wish, &progress, begin) => Err(failure.into()),
            };
            if progress.has_said.take() {
                self.output.clear_status();
            }
            match told? {
                Ok(guard) if self.is_fresh(&guard, signals).await? => return Ok(guard),
                Ok(_) => self.again(wish, "was lost before anything was begun under it"),
                Err(LockError::NotHeld(StandError::SessionLost(why))) => {
                    progress.has_stood.set(true);
                    self.again(wish, &format!("is still waited for, but {why}"));
                }
                Err(LockError::NotHeld(StandError::Held)) => return Err(self.refuse(wish, begin).await),
                Err(LockError::NotHeld(StandError::Unavailable { .. })) if progress.has_stood.get() => {
                    return Err(self.refuse(wish, begin).await);
                }
                Err(error) => return Err(failed(wish, &error).into()),
            }
        }
    }

    /// Waits until a lock is as sure as it can be: one that we came to with an old lease could be over before the command has begun. False
    /// if it is.
    async fn is_fresh(&self, guard: &Guard, signals: &mut Signals) -> Result<bool, Stop> {
        let sent = guard.acknowledged();
        let due = Timing::renewal(sent, guard.ttl());
        tokio::select! {
            biased;
            signal = signals.next_end() => Err(Stop::signal(signal)),
            is_sure = is_sure(due, BootClock.now(), guard.lost(), guard.acknowledged_after(sent)) => Ok(is_sure),
        }
    }

    /// Says that another turn begins.
    pub(super) fn again(&self, wish: &Wish, why: &str) {
        self.output.note(&format!("'{}' {why}; standing in line again", wish.name));
    }

    fn ask(&self, wish: &Wish, left: Duration) -> Acquire {
        let name = wish.name.as_str();
        let ask = match wish.mode {
            Mode::Exclusive => self.locks.lock(name),
            Mode::Shared => self.locks.shared(name),
            Mode::Permit { of } => self.locks.permit(name, of),
        };
        let ask = ask.reason(self.args.reason.clone());
        match wish.wait {
            Wait::Endless => ask,
            Wait::UpTo(_) if !left.is_zero() => ask.wait_up_to(left.max(ENTER_WITHIN_MIN)),
            Wait::UpTo(_) | Wait::None => ask.try_once(),
        }
    }

    /// Says how the line stands while we wait; ends only if the store does not let us into it in time.
    async fn watch_over(&self, wish: &Wish, progress: &Progress, begin: Instant) -> Failure {
        let Progress { lease, has_stood, has_said } = progress;
        let every = if self.output.has_status() { STATUS_EVERY_ON_TERMINAL } else { STATUS_EVERY };
        let in_line_by = self.start_by();
        let mut say_at = begin + STATUS_AFTER;
        loop {
            let next = if has_stood.get() { say_at } else { say_at.min(in_line_by) };
            tokio::time::sleep_until(next.into()).await;
            let view = tokio::time::timeout(self.patience_to_look(in_line_by), self.locks.view(&wish.name));
            // A store that does not answer just now is the session's business.
            if let Ok(Ok(view)) = view.await {
                let place = lease.get().and_then(|lease| waiting::place(&view, lease));
                has_stood.set(has_stood.get() || place.is_some());
                if !self.args.quiet
                    && let Some(line) = waiting::line(&view, place)
                {
                    self.output.status(&line);
                    has_said.set(true);
                }
            }
            if !has_stood.get() && Instant::now() >= in_line_by {
                return unavailable(wish, self.begin.elapsed());
            }
            if has_stood.get() && self.args.quiet {
                std::future::pending::<()>().await;
            }
            say_at = Instant::now() + if has_stood.get() { every } else { LOOK_WITHIN };
        }
    }

    /// By when the store must have answered what a start needs.
    pub(crate) fn start_by(&self) -> Instant {
        (self.begin + START_WITHIN).max(Instant::now() + ENTER_WITHIN_MIN)
    }

    /// The last look before the store must have let us in is a short one.
    fn patience_to_look(&self, in_line_by: Instant) -> Duration {
        in_line_by.saturating_duration_since(Instant::now()).clamp(ENTER_WITHIN_MIN / 3, LOOK_WITHIN)
    }

    /// Says who has it.
    async fn refuse(&self, wish: &Wish, begin: Instant) -> Stop {
        let view = tokio::time::timeout(LOOK_WITHIN, self.locks.view(&wish.name)).await;
        let by = match view {
            Ok(Ok(view)) => waiting::held_by(&view),
            _ => None,
        };
        let by = by.unwrap_or_else(|| "held by somebody else".to_owned());
        let name = &wish.name;
        let (message, hint) = match wish.wait {
            Wait::UpTo(_) => (
                format!("'{name}' was not to be had within {:.1?}: {by}", begin.elapsed()),
                format!("wait longer, or see `tenure locks show {name}`"),
            ),
            Wait::Endless | Wait::None => {
                (format!("'{name}' is not to be had: {by}"), format!("see `tenure locks show {name}`"))
            }
        };
        self.not_acquired(&Failure::new(Code::NotAcquired, message).hint(hint))
    }

    /// Ends with the exit code that the user wants for this.
    pub(crate) fn not_acquired(&self, failure: &Failure) -> Stop {
        self.output.failure(failure);
        Stop::Ended(std::process::ExitCode::from(self.args.not_acquired))
    }
}

/// Whether something may begin under a lock: at once as long as no renewal is due, then only when it was renewed, and not if it is lost
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

/// The mode that the flags mean.
pub(super) fn mode(permits: Option<NonZeroU32>, is_shared: bool) -> Mode {
    match permits {
        Some(of) => Mode::Permit { of },
        None if is_shared => Mode::Shared,
        None => Mode::Exclusive,
    }
}

fn unavailable(wish: &Wish, within: Duration) -> Failure {
    Failure::new(
        Code::Unavailable,
        format!("the store did not let us stand in line for '{}' within {within:.1?}", wish.name),
    )
    .hint("run `tenure doctor`")
}

fn failed(wish: &Wish, error: &LockError) -> Failure {
    match error {
        LockError::NotHeld(StandError::Unavailable { within }) => unavailable(wish, *within),
        LockError::NotHeld(StandError::Store(error)) => {
            Failure::from(error.clone()).while_doing(&format!("'{}'", wish.name))
        }
        LockError::NotHeld(StandError::Ttl(_) | StandError::Invalid(_)) => {
            Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
        }
        LockError::Name(error) => Failure::usage(error.to_string()),
        error => {
            Failure::new(Code::Failed, format!("'{}': {error}", wish.name)).hint("run the command again")
        }
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
