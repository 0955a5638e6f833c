//! The line of a lock, and what is said of it.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure::lock::{Guard, Locks};
use tenure::store::{LeaseId, StoreError};
use tenure_core::id::LockName;
use tenure_core::queue::LockMode;

use super::waiting;
use crate::failure::Failure;
use crate::hold::{Line, Look, NotHeld, Stage, Wait};

/// How long a reason may be: a sentence for whoever looks, not a document.
const REASON_BYTES_MAX: usize = 1_000;

/// Which lock is wanted, and how.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) name: LockName,
    pub(crate) mode: LockMode,
    pub(crate) reason: String,
}

impl Wish {
    /// Refuses a reason that is too long to be kept.
    pub(crate) fn new(name: LockName, mode: LockMode, reason: &str) -> Result<Wish, Failure> {
        let len = reason.len();
        if len > REASON_BYTES_MAX {
            return Err(Failure::usage(format!(
                "a reason of {len} bytes, at most {REASON_BYTES_MAX} are kept"
            ))
            .hint("use a sentence, and keep the rest where the command writes"));
        }
        Ok(Wish { name, mode, reason: reason.to_owned() })
    }
}

/// The line of a lock.
pub(crate) struct LockLine {
    locks: Locks,
    wish: Wish,
}

impl LockLine {
    pub(crate) fn new(stage: &Stage<'_>, wish: Wish) -> LockLine {
        let locks = Locks::new(&stage.session, &stage.namespace).identity(stage.who.clone());
        LockLine { locks, wish }
    }

    pub(crate) fn lock(&self) -> &LockName {
        &self.wish.name
    }
}

impl Line for LockLine {
    type Held = Guard;

    const STATUS_EVERY: Option<Duration> = Some(Duration::from_secs(30));

    fn name(&self) -> &str {
        self.wish.name.as_str()
    }

    async fn stand(&self, wait: Wait) -> Result<Guard, NotHeld> {
        let name = self.name();
        let ask = match self.wish.mode {
            LockMode::Exclusive => self.locks.lock(name),
            LockMode::Shared => self.locks.shared(name),
            LockMode::Permit { of } => self.locks.permit(name, of),
        };
        let ask = ask.reason(self.wish.reason.clone());
        let ask = match wait {
            Wait::Endless => ask,
            Wait::UpTo(wait) => ask.wait_up_to(wait),
            Wait::None => ask.try_once(),
        };
        ask.await.map_err(|error| NotHeld::lock(name, error))
    }

    async fn look(&self, lease: Option<LeaseId>) -> Result<Look, StoreError> {
        let view = self.locks.view(&self.wish.name).await?;
        let place = lease.and_then(|lease| waiting::place(&view, lease));
        Ok(Look {
            is_in_line: place.is_some(),
            had_by: waiting::held_by(&view),
            status: waiting::line(&view, place),
        })
    }

    fn shown_by(&self) -> String {
        format!("tenure locks show {}", self.wish.name)
    }
}

/// The mode that the flags mean.
pub(super) fn mode(permits: Option<NonZeroU32>, is_shared: bool) -> LockMode {
    match permits {
        Some(of) => LockMode::Permit { of },
        None if is_shared => LockMode::Shared,
        None => LockMode::Exclusive,
    }
}
