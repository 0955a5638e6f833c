//! A command that runs only while a hold is valid, and the release after it.

use std::ffi::OsString;
use std::future::Future;
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::clock::{BootClock, Clock};
use tenure::hold::{Hold, LossReason, Lost, ReleaseError};
use tenure::store::{Get, Reach, Revision};
use tokio::sync::watch;

use super::context::{CLOSE_WITHIN, HoldContext};
use super::timing::Timing;
use crate::failure::{Code, Failure};
use crate::supervise::{self, CommandExit, Job, Program, Signals, StopTimes, SupervisorAction};

/// How long a file store may show no new revision before a release is abandoned. Many processes commit far more often. With
/// `CLOSE_WITHIN` and two reads it stays within the documented 2 s.
const MOVES_WITHIN: Duration = Duration::from_millis(200);

/// The result of a release.
pub(crate) type Released = Result<(), ReleaseError>;

/// The result of a command.
pub(crate) struct CommandRun<T> {
    pub(crate) outcome: CommandExit,
    /// Why the hold was lost, if the session reported a loss.
    pub(crate) loss: Option<LossReason>,
    /// The request that stopped it.
    pub(crate) recalled: Option<T>,
}

/// The report of a new hold.
#[derive(Serialize)]
pub(crate) struct Acquired<'a> {
    pub(crate) name: &'a str,
    pub(crate) key: String,
    pub(crate) token: String,
    pub(crate) lease: String,
    ttl_seconds: f64,
    namespace: String,
    node: &'a str,
}

impl HoldContext<'_> {
    pub(crate) fn acquired<'a>(&'a self, name: &'a str, held: &Hold) -> Acquired<'a> {
        let fence = held.fence();
        Acquired {
            name,
            key: String::from_utf8_lossy(&fence.key).into_owned(),
            token: fence.token.to_string(),
            lease: held.lease().to_string(),
            ttl_seconds: held.ttl().as_secs_f64(),
            namespace: self.namespace.to_string(),
            node: &self.identity.node,
        }
    }

    /// Runs the command until it ends, the hold is lost, or `recall` completes. `env` adds to the variables that every command gets.
    ///
    /// # Errors
    ///
    /// The command did not run; [`Code::Lost`]: the hold ended before the command started.
    pub(crate) async fn run<T>(
        &self,
        program: &Program,
        mut env: Vec<(&'static str, OsString)>,
        held: &Hold,
        recall: impl Future<Output = T>,
        signals: &mut Signals,
    ) -> Result<CommandRun<T>, Failure> {
        env.extend(self.environment(held));
        let job = Job {
            program,
            args: self.command.get(1..).unwrap_or_default(),
            env: &env,
            grace: Some(self.timing.grace),
            signal: self.args.signal,
        };
        let deadlines = |until| Some(self.timing.deadlines(Timing::sent(until, held.ttl()), held.ttl()));
        let until = held.valid_until();
        let (feed, terms) =
            watch::channel(StopTimes { deadlines: deadlines(until), order: SupervisorAction::Run });
        let (mut loss, mut recalled) = (None, None);
        let watching = async {
            let mut recall = pin!(recall);
            let mut until = until;
            loop {
                tokio::select! {
                    biased;
                    lost = held.lost() => {
                        loss = Some(lost.reason);
                        feed.send_modify(|terms| terms.order = SupervisorAction::Lost);
                        std::future::pending::<()>().await;
                    }
                    renewed = held.renewed_after(until) => {
                        until = renewed;
                        feed.send_modify(|terms| terms.deadlines = deadlines(until));
                    }
                    // The hold stays valid until the command has stopped.
                    reason = recall.as_mut(), if recalled.is_none() => {
                        recalled = Some(reason);
                        feed.send_modify(|terms| terms.order = SupervisorAction::Stop);
                    }
                }
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = supervise::run(&job, terms, signals, self.output) => outcome?,
            () = watching => unreachable!("the loop does not end"),
        };
        Ok(CommandRun { outcome, loss, recalled })
    }

    /// Waits for a release, then closes the session. `None` if the store did not reply in time.
    pub(crate) async fn release(&self, releasing: impl Future<Output = Released>) -> Option<Released> {
        let begin = Instant::now();
        let released = self.release_only(releasing).await;
        // The lease has no key any more, so it does not matter whether it is revoked or expires.
        let _ =
            tokio::time::timeout(CLOSE_WITHIN.saturating_sub(begin.elapsed()), self.session.close()).await;
        released
    }

    /// Waits for a release; the session stays open. `None` if the store did not reply in time.
    pub(crate) async fn release_only(&self, releasing: impl Future<Output = Released>) -> Option<Released> {
        let mut releasing = pin!(releasing);
        let mut released = tokio::time::timeout(CLOSE_WITHIN, &mut releasing).await.ok();
        // A file store serves its writers in order: while its revision grows, this release is only queued.
        while released.is_none()
            && let Some(before) = self.file_revision().await
        {
            released = tokio::time::timeout(MOVES_WITHIN, &mut releasing).await.ok();
            if self.file_revision().await == Some(before) {
                break;
            }
        }
        self.is_silent.set(released.is_none());
        released
    }

    /// The revision of a store that the processes of this machine share; `None` for others, and if it does not reply.
    async fn file_revision(&self) -> Option<Revision> {
        if self.store.info().reach != Reach::Machine {
            return None;
        }
        let page = tokio::time::timeout(MOVES_WITHIN, self.store.get(Get::key("/"))).await;
        page.ok()?.ok().map(|page| page.revision)
    }

    pub(crate) fn lost(&self, name: &str, reason: LossReason, then: &str) -> ExitCode {
        let failure = Failure::new(Code::Lost, format!("'{name}' was lost ({reason}), {then}")).hint(
            "later writes of the command are safe only where TENURE_FENCING_TOKEN is checked with the write",
        );
        self.output.failure(&failure);
        ExitCode::from(self.args.lost)
    }

    /// Reports a release that the store did not confirm. The time counts from now, because the last renewal may have arrived.
    pub(crate) fn warn_unless(&self, released: Option<&Released>, name: &str, ttl: Duration) {
        let is_unconfirmed = matches!(
            released,
            None | Some(Err(ReleaseError::NotConfirmed { .. }
                | ReleaseError::Lost(Lost { reason: LossReason::Lapsed, .. })))
        );
        if is_unconfirmed {
            let seconds = ttl.as_secs_f64().ceil();
            // The last error during the release; a store that is down returns none.
            let cause = match self.session.failure_since(BootClock.now() - CLOSE_WITHIN) {
                Some(error) => error.to_string(),
                None => "the store does not reply".to_owned(),
            };
            self.output
                .note(&format!("{cause}, so '{name}' could not be released; it expires within {seconds} s"));
        }
    }

    /// The variables that every command gets.
    fn environment(&self, held: &Hold) -> [(&'static str, OsString); 5] {
        [
            ("TENURE_FENCING_TOKEN", held.fence().token.to_string().into()),
            ("TENURE_LEASE", held.lease().to_string().into()),
            ("TENURE_TTL_SECONDS", held.ttl().as_secs_f64().to_string().into()),
            ("TENURE_NAMESPACE", self.namespace.to_string().into()),
            ("TENURE_NODE", self.identity.node.clone().into()),
        ]
    }
}

/// The reason if a release found that another process had ended the hold. How long the command ran without it is then unknown.
pub(crate) fn taken(released: Option<&Released>) -> Option<LossReason> {
    match released {
        Some(Err(ReleaseError::Lost(Lost {
            reason: reason @ (LossReason::Revoked | LossReason::Deleted),
            ..
        }))) => Some(*reason),
        _ => None,
    }
}
