//! A lock that is held: the command runs no longer than that, and the exit code tells the truth about it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::core::name::LockName;
use tenure::lock::{Guard, Lost, ReleaseError};
use tokio::sync::watch;

use super::stage::Stage;
use crate::failure::{Code, Failure};
use crate::supervise::{self, Job, Order, Outcome, Program, Signals, Terms};

/// What came of a command under a lock.
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    /// Why the lock is lost, if we were told.
    why: Option<Lost>,
}

#[derive(Serialize)]
struct Acquired<'a> {
    schema: &'static str,
    name: &'a str,
    key: String,
    fence: String,
    lease: String,
    ttl_seconds: f64,
    namespace: String,
    node: &'a str,
}

impl Stage<'_> {
    /// Says that a lock is held: without a command on stdout, where a script waits for it.
    pub(super) fn tell(&self, name: &LockName, guard: &Guard) -> Result<(), Failure> {
        let key = String::from_utf8_lossy(&guard.fence().key).into_owned();
        let acquired = Acquired {
            schema: super::SCHEMA,
            name: name.as_str(),
            key,
            fence: guard.token().to_string(),
            lease: guard.lease().to_string(),
            ttl_seconds: guard.ttl().as_secs_f64(),
            namespace: self.namespace.to_string(),
            node: &self.who.node,
        };
        match (self.program.is_some(), self.output.is_json) {
            (true, true) => self.output.talk_object(&acquired),
            (true, false) => {}
            (false, true) => self.output.object(&acquired)?,
            (false, false) => {
                self.output.record([acquired.name, &acquired.fence, &acquired.lease, &acquired.key])?;
            }
        }
        Ok(())
    }

    /// Runs the command for as long as the lock is held.
    ///
    /// # Errors
    ///
    /// If it did not run; with [`Code::Lost`] because the lock was over before it could.
    pub(crate) async fn run(
        &self,
        program: &Program,
        name: &LockName,
        guard: &Guard,
        signals: &mut Signals,
    ) -> Result<Run, Failure> {
        let env = self.environment(name.as_str(), guard);
        let job = Job {
            program,
            args: self.command.get(1..).unwrap_or_default(),
            env: &env,
            grace: Some(self.timing.grace),
            signal: self.args.signal,
        };
        let sent = guard.acknowledged();
        let deadlines = |sent| Some(self.timing.deadlines(sent, guard.ttl()));
        let (feed, terms) = watch::channel(Terms { deadlines: deadlines(sent), order: Order::Run });
        let mut why = None;
        let feeding = async {
            let mut sent = sent;
            loop {
                tokio::select! {
                    biased;
                    end = guard.lost() => {
                        why = Some(end);
                        feed.send_modify(|terms| terms.order = Order::Lost);
                        std::future::pending::<()>().await;
                    }
                    newer = guard.acknowledged_after(sent) => {
                        sent = newer;
                        feed.send_modify(|terms| terms.deadlines = deadlines(sent));
                    }
                }
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = supervise::run(&job, terms, signals, self.output) => outcome?,
            () = feeding => unreachable!("it goes on for ever"),
        };
        Ok(Run { outcome, why })
    }

    /// Holds without a command until a signal, or until that is not true any more.
    pub(super) async fn stay(&self, name: &LockName, guard: Guard, signals: &mut Signals) -> ExitCode {
        let lost = tokio::select! {
            biased;
            why = guard.lost() => Some(why),
            _ = signals.next_end() => None,
        };
        let ttl = guard.ttl();
        let released = self.release(guard).await;
        let lost = lost.or_else(|| taken(released.as_ref()));
        match lost {
            Some(why) => self.lost(name, why, "while it was held"),
            None => {
                self.warn_unless(released.as_ref(), name, ttl);
                ExitCode::SUCCESS
            }
        }
    }

    /// Keeps the lock for the rest of its least time, then gives it back and says how the command ended.
    pub(crate) async fn finish(
        &self,
        name: &LockName,
        guard: Guard,
        run: Run,
        rest: Duration,
        signals: &mut Signals,
    ) -> ExitCode {
        let ttl = guard.ttl();
        let until = Instant::now() + rest;
        let mut is_rest_lost = false;
        if !run.outcome.is_lost && !rest.is_zero() {
            tokio::select! {
                biased;
                _ = guard.lost() => is_rest_lost = true,
                _ = signals.next_end() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
        let released = self.release(guard).await;
        if run.outcome.is_lost {
            return self.lost(name, run.why.unwrap_or(Lost::Lapsed), "and the command was stopped");
        }
        if is_rest_lost {
            self.output
                .note(&format!("'{name}' was lost after the command had ended, before --min-hold was over"));
        } else if let Some(why) = taken(released.as_ref()) {
            return self.lost(name, why, "perhaps before the command ended by itself");
        }
        self.warn_unless(released.as_ref(), name, ttl);
        ExitCode::from(run.outcome.exit_code())
    }

    fn lost(&self, name: &LockName, why: Lost, then: &str) -> ExitCode {
        let failure = Failure::new(Code::Lost, format!("'{name}' was lost ({why}), {then}"))
            .hint("what it wrote since is only safe where TENURE_FENCE was checked with the write");
        self.output.failure(&failure);
        ExitCode::from(self.args.lost)
    }

    /// A lock that could not be given back ends by itself; counted from now, because nobody knows whether the last renewal arrived.
    fn warn_unless(&self, released: Option<&Result<(), ReleaseError>>, name: &LockName, ttl: Duration) {
        let is_done = !matches!(
            released,
            None | Some(Err(ReleaseError::NotYet { .. } | ReleaseError::Lost(Lost::Lapsed)))
        );
        if !is_done {
            let seconds = ttl.as_secs_f64().ceil();
            self.output.note(&format!(
                "the store does not answer, so '{name}' could not be released; it expires by itself in {seconds} s"
            ));
        }
    }
}

/// Whether a release found that somebody else had ended our lock: then nobody knows for how long the command ran without it.
fn taken(released: Option<&Result<(), ReleaseError>>) -> Option<Lost> {
    match released {
        Some(Err(ReleaseError::Lost(why @ (Lost::LeaseGone | Lost::Broken)))) => Some(*why),
        _ => None,
    }
}
