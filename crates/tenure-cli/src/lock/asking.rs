//! Getting a lock: standing in line, saying so, and standing in line again after a lost session.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tenure::core::line::Mode;
use tenure::core::name::LockName;
use tenure::lock::{Acquire, Guard, LockError, StandError};
use tenure::store::LeaseId;

use super::stage::{Stage, Stop};
use super::waiting;
use crate::failure::{Code, Failure};
use crate::supervise::Signals;

/// How long the store may take to let us into the line, from our start. Scripts were promised an answer within 6 s.
const START_WITHIN: Duration = Duration::from_secs(5);

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

impl Stage<'_> {
    /// Waits for a lock, counting from `begin`; ends in another way with everything said.
    pub(crate) async fn acquire(
        &self,
        wish: &Wish,
        begin: Instant,
        signals: &mut Signals,
    ) -> Result<Guard, Stop> {
        let stood = Cell::new(None);
        let has_stood = Cell::new(false);
        loop {
            let left = match wish.wait {
                Wait::UpTo(wait) => wait.saturating_sub(begin.elapsed()),
                Wait::Endless | Wait::None => Duration::MAX,
            };
            let asking = async {
                // A lease first: by it we know our place among the others.
                let loan = self.session.lend().within(left).await.map_err(StandError::from)?;
                stood.set(Some(loan.lease()));
                self.ask(wish, left).await
            };
            let told = tokio::select! {
                biased;
                signal = signals.next_end() => return Err(Stop::signal(signal)),
                told = asking => told,
                failure = self.watch_over(wish, &stood, &has_stood, begin) => return Err(failure.into()),
            };
            self.output.clear_status();
            match told {
                Ok(guard) => return Ok(guard),
                Err(LockError::NotHeld(StandError::SessionLost(why))) => {
                    has_stood.set(true);
                    self.output
                        .note(&format!("{why} while waiting for '{}'; standing in line again", wish.name));
                }
                Err(LockError::NotHeld(StandError::Held)) => return Err(self.refuse(wish, begin).await),
                Err(LockError::NotHeld(StandError::Unavailable { .. })) if has_stood.get() => {
                    return Err(self.refuse(wish, begin).await);
                }
                Err(error) => return Err(failed(wish, error).into()),
            }
        }
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
            Wait::UpTo(_) => ask.wait_up_to(left),
            Wait::None => ask.try_once(),
        }
    }

    /// Says how the line stands while we wait; ends only if the store does not let us into it in time.
    async fn watch_over(
        &self,
        wish: &Wish,
        ours: &Cell<Option<LeaseId>>,
        has_stood: &Cell<bool>,
        begin: Instant,
    ) -> Failure {
        let every = if self.output.has_status() { STATUS_EVERY_ON_TERMINAL } else { STATUS_EVERY };
        let mut said: Option<Instant> = None;
        tokio::time::sleep(STATUS_AFTER.saturating_sub(begin.elapsed())).await;
        loop {
            let view = tokio::time::timeout(LOOK_WITHIN, self.locks.view(&wish.name)).await;
            // A store that does not answer just now is the session's business.
            if let Ok(Ok(view)) = view {
                let place = ours.get().and_then(|lease| waiting::place(&view, lease));
                has_stood.set(has_stood.get() || place.is_some());
                if !self.args.quiet
                    && said.is_none_or(|said| said.elapsed() >= every)
                    && let Some(line) = waiting::line(&view, place)
                {
                    self.output.status(&line);
                    said = Some(Instant::now());
                }
            }
            if !has_stood.get() && self.begin.elapsed() >= START_WITHIN {
                return unavailable(wish, self.begin.elapsed());
            }
            let pause = match (has_stood.get(), said) {
                (true, Some(said)) => every.saturating_sub(said.elapsed()),
                _ => START_WITHIN.saturating_sub(self.begin.elapsed()),
            };
            tokio::time::sleep(pause.clamp(LOOK_WITHIN / 10, every.max(LOOK_WITHIN))).await;
        }
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
        self.not_acquired(Failure::new(Code::NotAcquired, message).hint(hint))
    }

    /// Ends with the exit code that the user wants for this.
    pub(crate) fn not_acquired(&self, failure: Failure) -> Stop {
        self.output.failure(&failure);
        Stop::Ended(std::process::ExitCode::from(self.args.not_acquired))
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

fn failed(wish: &Wish, error: LockError) -> Failure {
    let error = match error {
        LockError::NotHeld(error) => error,
        LockError::Name(error) => return Failure::usage(error.to_string()),
        error => return Failure::new(Code::Failed, error.to_string()),
    };
    match error {
        StandError::Unavailable { within } => unavailable(wish, within),
        StandError::Store(error) => Failure::from(error).while_doing(&format!("'{}'", wish.name)),
        StandError::Ttl(_) | StandError::Invalid(_) => {
            Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
        }
        error => {
            Failure::new(Code::Failed, format!("'{}': {error}", wish.name)).hint("run the command again")
        }
    }
}
