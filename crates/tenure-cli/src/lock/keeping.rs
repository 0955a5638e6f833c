//! A lock that is held: what is said of it, and an exit code that tells the truth about it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::hold::LossReason;
use tenure::lock::Guard;

use super::line::LockLine;
use crate::failure::Failure;
use crate::hold::{Acquired, Line, Run, Stage, taken};
use crate::supervise::{Program, Signals};

/// What came of a command under a lock; nobody recalls it.
pub(crate) type LockRun = Run<Infallible>;

#[derive(Serialize)]
struct Said<'a> {
    schema: &'static str,
    #[serde(flatten)]
    acquired: &'a Acquired<'a>,
}

impl LockLine {
    /// Says that the lock is held: without a command on stdout, where a script waits for it.
    pub(super) fn tell(&self, stage: &Stage<'_>, guard: &Guard) -> Result<(), Failure> {
        let acquired = &stage.acquired(self.name(), guard);
        let said = Said { schema: super::SCHEMA, acquired };
        match (stage.program.is_some(), stage.output.is_json) {
            (true, true) => stage.output.talk_object(&said),
            (true, false) => {}
            (false, true) => stage.output.object(&said)?,
            (false, false) => {
                let Acquired { name, key, fence, lease, .. } = acquired;
                stage.output.record([name, fence.as_str(), lease, key])?;
            }
        }
        Ok(())
    }

    /// Runs the command for as long as the lock is held.
    ///
    /// # Errors
    ///
    /// If it did not run; with [`Code::Lost`](crate::failure::Code::Lost) because the lock was over before it could.
    pub(crate) async fn run(
        &self,
        stage: &Stage<'_>,
        program: &Program,
        guard: &Guard,
        signals: &mut Signals,
    ) -> Result<LockRun, Failure> {
        let key = OsString::from(String::from_utf8_lossy(&guard.fence().key).into_owned());
        let env = vec![
            ("TENURE_LOCK", self.name().into()),
            ("TENURE_LOCK_KEY", key.clone()),
            ("ETCD_LOCK_KEY", key),
            ("ETCD_LOCK_REV", guard.token().to_string().into()),
        ];
        stage.run(program, env, guard, std::future::pending(), signals).await
    }

    /// Holds without a command until a signal, or until that is not true any more.
    pub(super) async fn stay(&self, stage: &Stage<'_>, guard: Guard, signals: &mut Signals) -> ExitCode {
        let lost = tokio::select! {
            biased;
            lost = guard.lost() => Some(lost.reason),
            _ = signals.next_end() => None,
        };
        let ttl = guard.ttl();
        let released = stage.release(guard.release()).await;
        let lost = lost.or_else(|| taken(released.as_ref()));
        match lost {
            Some(why) => stage.lost(self.name(), why, "while it was held"),
            None => {
                stage.warn_unless(released.as_ref(), self.name(), ttl);
                ExitCode::SUCCESS
            }
        }
    }

    /// Keeps the lock for the rest of its least time, then gives it back and says how the command ended.
    pub(crate) async fn finish(
        &self,
        stage: &Stage<'_>,
        guard: Guard,
        run: LockRun,
        rest: Duration,
        signals: &mut Signals,
    ) -> ExitCode {
        let name = self.name();
        let ttl = guard.ttl();
        let until = Instant::now() + rest;
        let mut stood = Stood::Unknown;
        let mut is_rest_lost = false;
        if !run.outcome.is_lost && !rest.is_zero() {
            stood = stood_at_the_end(stage, &guard, ASSURE_WITHIN.min(rest)).await;
            if stood != Stood::Taken {
                tracing::debug!(lock = name, ?rest, "lock was kept for the rest of its least time");
                is_rest_lost = tokio::select! {
                    biased;
                    _ = guard.lost() => true,
                    _ = signals.next_end() => false,
                    () = tokio::time::sleep_until(until.into()) => false,
                };
            }
        }
        let released = stage.release(guard.release()).await;
        if run.outcome.is_lost {
            return stage.lost(name, run.why.unwrap_or(LossReason::Lapsed), "and the command was stopped");
        }
        let taken = taken(released.as_ref());
        match (stood, taken) {
            (Stood::Taken, why) => {
                let why = why.unwrap_or(LossReason::Deleted);
                return stage.lost(name, why, "perhaps before the command ended by itself");
            }
            (Stood::Unknown, Some(why)) => {
                return stage.lost(name, why, "perhaps before the command ended by itself");
            }
            (Stood::Held, Some(_)) => is_rest_lost = true,
            (Stood::Held | Stood::Unknown, None) => {}
        }
        if is_rest_lost {
            stage
                .output
                .note(&format!("'{name}' was lost after the command had ended, before --min-hold was over"));
        }
        stage.warn_unless(released.as_ref(), name, ttl);
        ExitCode::from(run.outcome.exit_code())
    }
}

/// How the lock stood when the command had ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stood {
    /// It was still ours: what is lost from here on, is lost after the command.
    Held,
    /// Somebody had ended it.
    Taken,
    /// The store did not say, or was not asked.
    Unknown,
}

/// How long the store may take to say so. Whoever ends the command waits for it, and a store that is down must not be waited for.
const ASSURE_WITHIN: Duration = Duration::from_secs(1);

/// Asks the store whether the lock is still ours: the news that it is not may be on its way.
async fn stood_at_the_end(stage: &Stage<'_>, guard: &Guard, within: Duration) -> Stood {
    if !guard.is_valid() {
        return Stood::Taken;
    }
    let fence = guard.fence();
    match tokio::time::timeout(within, stage.store.get_key(fence.key)).await {
        Ok(Ok(Some(own))) if own.created == fence.token.0 => Stood::Held,
        Ok(Ok(_)) => Stood::Taken,
        Ok(Err(_)) | Err(_) => Stood::Unknown,
    }
}
