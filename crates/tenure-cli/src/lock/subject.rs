//! The lock that `tenure lock` and `tenure once` acquire.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure::lock::{Guard, Locks};
use tenure::store::{LeaseId, StoreError};
use tenure_core::id::LockName;
use tenure_core::queue::LockMode;

use super::wait_output;
use crate::failure::Failure;
use crate::hold::{HoldContext, HoldSubject, NotHeld, QueueStatus, Wait};

/// How long a reason may be: one sentence for listings, not a document.
const REASON_BYTES_MAX: usize = 1_000;

/// Which lock to acquire, and how.
#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(crate) name: LockName,
    pub(crate) mode: LockMode,
    pub(crate) reason: String,
}

impl LockOptions {
    /// Checks the length of the reason.
    pub(crate) fn new(name: LockName, mode: LockMode, reason: &str) -> Result<LockOptions, Failure> {
        let len = reason.len();
        if len > REASON_BYTES_MAX {
            return Err(Failure::usage(format!(
                "the reason has {len} bytes, and the limit is {REASON_BYTES_MAX}"
            ))
            .hint("use one sentence, and write the rest to the command's own log"));
        }
        Ok(LockOptions { name, mode, reason: reason.to_owned() })
    }
}

/// A lock and the way to acquire it.
pub(crate) struct LockSubject {
    locks: Locks,
    options: LockOptions,
}

impl LockSubject {
    pub(crate) fn new(context: &HoldContext<'_>, options: LockOptions) -> LockSubject {
        let locks = Locks::new(&context.session, &context.namespace).identity(context.identity.clone());
        LockSubject { locks, options }
    }

    pub(crate) fn lock(&self) -> &LockName {
        &self.options.name
    }
}

impl HoldSubject for LockSubject {
    type Held = Guard;

    const STATUS_EVERY: Option<Duration> = Some(Duration::from_secs(30));

    fn name(&self) -> &str {
        self.options.name.as_str()
    }

    async fn acquire(&self, wait: Wait) -> Result<Guard, NotHeld> {
        let name = self.name();
        let request = match self.options.mode {
            LockMode::Exclusive => self.locks.lock(name),
            LockMode::Shared => self.locks.rw_lock(name).read(),
            LockMode::Permit { of } => self.locks.semaphore(name, of.get()).acquire(),
        };
        let request = request.reason(self.options.reason.clone());
        let request = match wait {
            Wait::Endless => request,
            Wait::UpTo(wait) => request.timeout(wait),
            Wait::None => request.try_now(),
        };
        request.await.map_err(|error| NotHeld::lock(name, error))
    }

    async fn status(&self, lease: Option<LeaseId>) -> Result<QueueStatus, StoreError> {
        let view = self.locks.get(&self.options.name).await?;
        let ahead = lease.and_then(|lease| wait_output::ahead(&view, lease));
        Ok(QueueStatus {
            is_queued: ahead.is_some(),
            held_by: wait_output::held_by(&view),
            text: wait_output::status(&view, ahead),
        })
    }

    fn show_command(&self) -> String {
        format!("tenure locks show {}", self.options.name)
    }
}

/// The mode that the flags select.
pub(super) fn mode(permits: Option<NonZeroU32>, is_shared: bool) -> LockMode {
    match permits {
        Some(of) => LockMode::Permit { of },
        None if is_shared => LockMode::Shared,
        None => LockMode::Exclusive,
    }
}
