//! Reports of a held lock, and the exit code after it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::hold::LossReason;
use tenure::lock::Guard;

use super::subject::LockSubject;
use crate::failure::Failure;
use crate::hold::{Acquired, CommandRun, HoldContext, HoldSubject, taken};
use crate::supervise::{Program, Signals};

/// The result of a command under a lock, which no request stops.
pub(crate) type LockCommandRun = CommandRun<Infallible>;

#[derive(Serialize)]
struct LockReport<'a> {
    schema: &'static str,
    #[serde(flatten)]
    acquired: &'a Acquired<'a>,
}

impl LockSubject {
    /// Reports that the lock is held: without a command on stdout, where a script waits for it.
    pub(super) fn report(&self, context: &HoldContext<'_>, guard: &Guard) -> Result<(), Failure> {
        let acquired = &context.acquired(self.name(), guard);
        let report = LockReport { schema: super::SCHEMA, acquired };
        match (context.program.is_some(), context.output.is_json) {
            (true, true) => context.output.note_object(&report),
            (true, false) => {}
            (false, true) => context.output.object(&report)?,
            (false, false) => {
                let Acquired { name, key, token, lease, .. } = acquired;
                context.output.record([name, token.as_str(), lease, key])?;
            }
        }
        Ok(())
    }

    /// Runs the command while the lock is held.
    ///
    /// # Errors
    ///
    /// The command did not run; [`Code::Lost`](crate::failure::Code::Lost): the hold ended before the command started.
    pub(crate) async fn run(
        &self,
        context: &HoldContext<'_>,
        program: &Program,
        guard: &Guard,
        signals: &mut Signals,
    ) -> Result<LockCommandRun, Failure> {
        let key = OsString::from(String::from_utf8_lossy(&guard.fence().key).into_owned());
        let env = vec![
            ("TENURE_LOCK", self.name().into()),
            ("TENURE_LOCK_KEY", key.clone()),
            ("ETCD_LOCK_KEY", key),
            ("ETCD_LOCK_REV", guard.token().to_string().into()),
        ];
        context.run(program, env, guard, std::future::pending(), signals).await
    }

    /// Holds without a command, until a signal or the loss of the lock.
    pub(super) async fn hold(
        &self,
        context: &HoldContext<'_>,
        guard: Guard,
        signals: &mut Signals,
    ) -> ExitCode {
        let lost = tokio::select! {
            biased;
            lost = guard.lost() => Some(lost.reason),
            _ = signals.next_end() => None,
        };
        let ttl = guard.ttl();
        let released = context.release(guard.release()).await;
        let lost = lost.or_else(|| taken(released.as_ref()));
        match lost {
            Some(reason) => context.lost(self.name(), reason, "while it was held"),
            None => {
                context.warn_unless(released.as_ref(), self.name(), ttl);
                ExitCode::SUCCESS
            }
        }
    }

    /// Keeps the lock for the rest of `--min-hold`, releases it, and returns the exit code.
    pub(crate) async fn finish(
        &self,
        context: &HoldContext<'_>,
        guard: Guard,
        run: LockCommandRun,
        rest: Duration,
        signals: &mut Signals,
    ) -> ExitCode {
        let name = self.name();
        let ttl = guard.ttl();
        let until = Instant::now() + rest;
        let mut at_exit = HeldAtExit::Unknown;
        let mut is_rest_lost = false;
        if !run.outcome.is_lost && !rest.is_zero() {
            at_exit = held_at_exit(context, &guard, CHECK_WITHIN.min(rest)).await;
            if at_exit != HeldAtExit::No {
                let remaining_ms = u64::try_from(rest.as_millis()).unwrap_or(u64::MAX);
                tracing::debug!(lock = name, remaining_ms, "lock kept for --min-hold");
                is_rest_lost = tokio::select! {
                    biased;
                    _ = guard.lost() => true,
                    _ = signals.next_end() => false,
                    () = tokio::time::sleep_until(until.into()) => false,
                };
            }
        }
        let released = context.release(guard.release()).await;
        if run.outcome.is_lost {
            return context.lost(name, run.loss.unwrap_or(LossReason::Lapsed), "and the command was stopped");
        }
        let taken = taken(released.as_ref());
        match (at_exit, taken) {
            (HeldAtExit::No, reason) => {
                return context.lost(name, reason.unwrap_or(LossReason::Deleted), MAYBE_DURING);
            }
            (HeldAtExit::Unknown, Some(reason)) => return context.lost(name, reason, MAYBE_DURING),
            (HeldAtExit::Yes, Some(_)) => is_rest_lost = true,
            (HeldAtExit::Yes | HeldAtExit::Unknown, None) => {}
        }
        if is_rest_lost {
            context
                .output
                .note(&format!("'{name}' was lost after the command had ended, before --min-hold was over"));
        }
        context.warn_unless(released.as_ref(), name, ttl);
        ExitCode::from(run.outcome.exit_code())
    }
}

/// The end of the message when a loss may have happened while the command ran.
pub(crate) const MAYBE_DURING: &str = "perhaps before the command ended by itself";

/// Whether the lock was held when the command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HeldAtExit {
    /// A later loss is a loss after the command.
    Yes,
    No,
    /// The store did not reply, or was not read.
    Unknown,
}

/// How long that read may take. The exit code waits for it, so a store that is down must not delay it for long.
const CHECK_WITHIN: Duration = Duration::from_secs(1);

/// Reads whether this process still holds the lock: the watch event of a loss may be in flight.
async fn held_at_exit(context: &HoldContext<'_>, guard: &Guard, within: Duration) -> HeldAtExit {
    if !guard.is_valid() {
        return HeldAtExit::No;
    }
    let fence = guard.fence();
    match tokio::time::timeout(within, context.store.get_key(fence.key)).await {
        Ok(Ok(Some(own))) if own.created == fence.token.0 => HeldAtExit::Yes,
        Ok(Ok(_)) => HeldAtExit::No,
        Ok(Err(_)) | Err(_) => HeldAtExit::Unknown,
    }
}
