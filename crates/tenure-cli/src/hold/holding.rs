//! What is held, and a command that runs no longer than that.

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

use super::stage::{CLOSE_WITHIN, Stage};
use super::timing::Timing;
use crate::failure::{Code, Failure};
use crate::supervise::{self, Job, Order, Outcome, Program, Signals, Terms};

/// How long a file may show no new revision before a release is not waited for any longer. Many processes commit far more often; with
/// `CLOSE_WITHIN` and two looks it stays within the 2 s that scripts were promised.
const MOVES_WITHIN: Duration = Duration::from_millis(200);

/// What a release returned.
pub(crate) type Released = Result<(), ReleaseError>;

/// What came of a command.
pub(crate) struct Run<T> {
    pub(crate) outcome: Outcome,
    /// Why what it relied on is lost, if we were told.
    pub(crate) why: Option<LossReason>,
    /// What it was recalled for.
    pub(crate) recalled: Option<T>,
}

/// What is said when something is held.
#[derive(Serialize)]
pub(crate) struct Acquired<'a> {
    pub(crate) name: &'a str,
    pub(crate) key: String,
    pub(crate) fence: String,
    pub(crate) lease: String,
    ttl_seconds: f64,
    namespace: String,
    node: &'a str,
}

impl Stage<'_> {
    pub(crate) fn acquired<'a>(&'a self, name: &'a str, held: &Hold) -> Acquired<'a> {
        let fence = held.fence();
        Acquired {
            name,
            key: String::from_utf8_lossy(&fence.key).into_owned(),
            fence: fence.token.to_string(),
            lease: held.lease().to_string(),
            ttl_seconds: held.ttl().as_secs_f64(),
            namespace: self.namespace.to_string(),
            node: &self.who.node,
        }
    }

    /// Runs the command for as long as something is held, or until it is recalled. `env` is what its environment has beside what every
    /// command is told.
    ///
    /// # Errors
    ///
    /// If it did not run; with [`Code::Lost`] because the time was over before it could.
    pub(crate) async fn run<T>(
        &self,
        program: &Program,
        mut env: Vec<(&'static str, OsString)>,
        held: &Hold,
        recall: impl Future<Output = T>,
        signals: &mut Signals,
    ) -> Result<Run<T>, Failure> {
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
        let (feed, terms) = watch::channel(Terms { deadlines: deadlines(until), order: Order::Run });
        let (mut why, mut recalled) = (None, None);
        let feeding = async {
            let mut recall = pin!(recall);
            let mut until = until;
            loop {
                tokio::select! {
                    biased;
                    lost = held.lost() => {
                        why = Some(lost.reason);
                        feed.send_modify(|terms| terms.order = Order::Lost);
                        std::future::pending::<()>().await;
                    }
                    renewed = held.renewed_after(until) => {
                        until = renewed;
                        feed.send_modify(|terms| terms.deadlines = deadlines(until));
                    }
                    // It is still held, and stays so until the command has stopped.
                    reason = recall.as_mut(), if recalled.is_none() => {
                        recalled = Some(reason);
                        feed.send_modify(|terms| terms.order = Order::Stop);
                    }
                }
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = supervise::run(&job, terms, signals, self.output) => outcome?,
            () = feeding => unreachable!("it goes on for ever"),
        };
        Ok(Run { outcome, why, recalled })
    }

    /// Waits for a release, and closes the session then. None if the store did not reply in time.
    pub(crate) async fn release(&self, releasing: impl Future<Output = Released>) -> Option<Released> {
        let begin = Instant::now();
        let released = self.give_back(releasing).await;
        // Without its place the lease holds nothing: whether it ends now or by itself matters to nobody.
        let _ =
            tokio::time::timeout(CLOSE_WITHIN.saturating_sub(begin.elapsed()), self.session.close()).await;
        released
    }

    /// Waits for a release; the session stays open. None if the store did not reply in time.
    pub(crate) async fn give_back(&self, releasing: impl Future<Output = Released>) -> Option<Released> {
        let mut giving = pin!(releasing);
        let mut given_back = tokio::time::timeout(CLOSE_WITHIN, &mut giving).await.ok();
        // A file that other processes write at the same time serves us in our turn. One that stands still does not.
        while given_back.is_none()
            && let Some(before) = self.file_revision().await
        {
            given_back = tokio::time::timeout(MOVES_WITHIN, &mut giving).await.ok();
            if self.file_revision().await == Some(before) {
                break;
            }
        }
        self.is_silent.set(given_back.is_none());
        given_back
    }

    /// The revision of a store that the processes of this machine share; none for others, and if it does not answer.
    async fn file_revision(&self) -> Option<Revision> {
        if self.store.info().reach != Reach::Machine {
            return None;
        }
        let page = tokio::time::timeout(MOVES_WITHIN, self.store.get(Get::key("/"))).await;
        page.ok()?.ok().map(|page| page.revision)
    }

    pub(crate) fn lost(&self, name: &str, why: LossReason, then: &str) -> ExitCode {
        let failure = Failure::new(Code::Lost, format!("'{name}' was lost ({why}), {then}"))
            .hint("what it wrote since is only safe where TENURE_FENCE was checked with the write");
        self.output.failure(&failure);
        ExitCode::from(self.args.lost)
    }

    /// What could not be given back ends by itself; counted from now, because nobody knows whether the last renewal arrived.
    pub(crate) fn warn_unless(&self, released: Option<&Released>, name: &str, ttl: Duration) {
        let is_done = !matches!(
            released,
            None | Some(Err(ReleaseError::NotConfirmed { .. }
                | ReleaseError::Lost(Lost { reason: LossReason::Lapsed, .. })))
        );
        if !is_done {
            let seconds = ttl.as_secs_f64().ceil();
            // Whatever it said in the time that a release has. Nothing is what it says when it is down.
            let why = match self.session.failure_since(BootClock.now() - CLOSE_WITHIN) {
                Some(error) => error.to_string(),
                None => "the store does not answer".to_owned(),
            };
            self.output.note(&format!(
                "{why}, so '{name}' could not be released; it expires by itself in {seconds} s"
            ));
        }
    }

    /// What every command is told.
    fn environment(&self, held: &Hold) -> [(&'static str, OsString); 5] {
        [
            ("TENURE_FENCE", held.fence().token.to_string().into()),
            ("TENURE_LEASE", held.lease().to_string().into()),
            ("TENURE_TTL_SECONDS", held.ttl().as_secs_f64().to_string().into()),
            ("TENURE_NAMESPACE", self.namespace.to_string().into()),
            ("TENURE_NODE", self.who.node.clone().into()),
        ]
    }
}

/// Whether a release found that somebody else had ended what was held: then nobody knows for how long the command ran without it.
pub(crate) fn taken(released: Option<&Released>) -> Option<LossReason> {
    match released {
        Some(Err(ReleaseError::Lost(Lost {
            reason: reason @ (LossReason::Revoked | LossReason::Deleted),
            ..
        }))) => Some(*reason),
        _ => None,
    }
}
