//! The driver of one campaign and its term: sends the requests of the machine to the storage, and feeds replies back.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tenure_core::ttl::{StorageReply, StorageRequest, TtlEnd, TtlReleaseOutcome, TtlStatus};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::election::TtlCampaignError;
use super::elections::TtlShared;
use super::storage::{StorageError, TtlStorage};
use super::term::TtlTerm;
use super::term_state::{TtlStep, TtlTermState};
use crate::driver::{self, Drive, DriverEvent, NextStep};
use crate::hold::LossReason;
use crate::rng;

/// What the driver acquires, and for which caller.
pub(super) struct TtlCampaignJob<S: TtlStorage> {
    pub(super) key: TtlKey<S>,
    pub(super) term: Arc<TtlTermState>,
    pub(super) reply: oneshot::Sender<Result<TtlTerm, TtlCampaignError>>,
}

/// What is stored, and under which key.
pub(super) struct TtlKey<S: TtlStorage> {
    pub(super) key: S::Key,
    /// The value with the nonce of this campaign.
    pub(super) stored: S::Value,
    pub(super) ttl: Duration,
}

/// The response of the storage to one request.
pub(super) struct StorageResponse {
    request: StorageRequest,
    sent_at: Moment,
    result: Result<Applied, StorageError>,
}

enum Applied {
    Yes,
    No,
    Token(Token),
}

/// The failures of the storage.
#[derive(Default)]
struct StorageFailures {
    last: Option<StorageError>,
    is_failing: bool,
}

/// What happens outside.
enum TtlInput {
    /// The driver must not wait any longer.
    Stop,
    /// The elections are closed, or the caller does not wait any more.
    Release,
    /// A future that ran under the term has ended.
    WorkEnded,
}

/// The driver's task. Its drop ends the term: also when the task is dropped with its runtime.
struct TtlTask<S: TtlStorage> {
    shared: Arc<TtlShared<S>>,
    key: Arc<TtlKey<S>>,
    term: Arc<TtlTermState>,
    /// To the caller of the campaign; none once it has the result.
    reply: Option<oneshot::Sender<Result<TtlTerm, TtlCampaignError>>>,
    storage: StorageFailures,
    /// How many requests have failed in a row.
    failures: u32,
    is_released: bool,
    is_stopped: bool,
    end: Option<TtlEnd>,
}

impl<S: TtlStorage> Drop for TtlTask<S> {
    fn drop(&mut self) {
        self.shared.remove(&self.key.key, &self.term);
        self.shared.handle_end(&self.term, self.end);
        self.term.end(self.end);
    }
}

/// Runs from the first request until nothing is left to do.
pub(super) async fn drive<S: TtlStorage>(shared: Arc<TtlShared<S>>, job: TtlCampaignJob<S>) {
    let TtlCampaignJob { key, term, reply } = job;
    let clock = shared.clock.clone();
    let mut task = TtlTask {
        shared,
        key: Arc::new(key),
        term: term.clone(),
        reply: Some(reply),
        storage: StorageFailures::default(),
        failures: 0,
        is_released: false,
        is_stopped: false,
        end: None,
    };
    driver::run(&mut task, &term.inbox, &clock).await;
}

impl<S: TtlStorage> Drive for TtlTask<S> {
    type Input = TtlInput;
    type Reply = StorageResponse;

    async fn step(&mut self) -> NextStep {
        if self.is_stopped {
            return NextStep::End;
        }
        // One call for requests and status: both must be of the same moment of the machine.
        let TtlStep { requests, status, wake, failures } = self.term.step();
        self.failures = failures;
        for (request, sent_at) in requests {
            self.term.inbox.send(call(self.shared.clone(), self.key.clone(), request, sent_at));
        }
        let key = &self.key.key;
        // From here on this process may campaign again under the same key.
        // The deletion continues in the background. Another campaign for the key stores another nonce.
        if matches!(status, TtlStatus::Leaving(_) | TtlStatus::Over(_)) {
            self.shared.remove(key, &self.term);
        }
        if status != TtlStatus::Acquiring
            && let Some(reply) = self.reply.take()
        {
            let outcome = outcome(status, self.storage.last.clone(), &self.term, self.shared.is_closed());
            if let Ok(term) = &outcome {
                info!(?key, token = ?term.token(), "leadership acquired");
            }
            // A caller that does not wait any more drops the result, and with it the term.
            let _ = reply.send(outcome);
        }
        match (status, wake) {
            (TtlStatus::Over(end), _) => {
                self.end = Some(end);
                log_end(key, end);
                NextStep::End
            }
            (_, Some(wake)) => NextStep::Wait(Some(wake)),
            (_, None) => NextStep::End,
        }
    }

    fn inputs(&mut self) -> (impl Future<Output = TtlInput> + Send, impl Future<Output = TtlInput> + Send) {
        let TtlTask { shared, reply, is_released, term, .. } = self;
        // All are rare, so a `biased` select starves none of them. Replies and timers are the driver's own.
        let rare = async move {
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => TtlInput::Stop,
                () = shared.close.cancelled(), if !*is_released => TtlInput::Release,
                () = gone(reply.as_mut()), if !*is_released => TtlInput::Release,
                () = term.work_ended() => TtlInput::WorkEnded,
            }
        };
        (rare, std::future::pending())
    }

    fn handle(&mut self, event: DriverEvent<TtlInput, StorageResponse>) {
        match event {
            DriverEvent::Input(TtlInput::Stop) => self.is_stopped = true,
            DriverEvent::Input(TtlInput::Release) => {
                // Disables both release inputs: a cancelled token stays ready and would spin the loop.
                self.is_released = true;
                let is_closed = self.shared.is_closed();
                self.term.leave(if is_closed { LossReason::Closed } else { LossReason::Released });
            }
            // The next step sees it.
            DriverEvent::Input(TtlInput::WorkEnded) => {}
            DriverEvent::Reply(reply) => {
                let StorageResponse { request, sent_at, result } = reply;
                let result = self.storage_reply(result);
                self.term.handle_reply(request, sent_at, result, rng::jitter());
            }
            DriverEvent::Wake => {}
        }
    }
}

impl<S: TtlStorage> TtlTask<S> {
    /// A response in the machine's terms. The first failure is logged, and the first success after it.
    fn storage_reply(&mut self, result: Result<Applied, StorageError>) -> StorageReply {
        let key = &self.key.key;
        match result {
            Ok(applied) => {
                if std::mem::take(&mut self.storage.is_failing) {
                    info!(?key, failures = self.failures, "storage requests succeed again");
                }
                match applied {
                    Applied::Yes => StorageReply::Yes,
                    Applied::No => StorageReply::No,
                    Applied::Token(token) => {
                        self.term.note_token(token);
                        StorageReply::Yes
                    }
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.storage.is_failing, true) {
                    warn!(?key, %error, "storage request failed");
                }
                // An ambiguous swap is repeated: it writes the same value, so a second application changes nothing.
                let reply =
                    if error.is_ambiguous() { StorageReply::Unknown } else { StorageReply::NotApplied };
                self.storage.last = Some(error);
                reply
            }
        }
    }
}

/// The result of a campaign.
fn outcome(
    status: TtlStatus,
    error: Option<StorageError>,
    term: &Arc<TtlTermState>,
    is_closed: bool,
) -> Result<TtlTerm, TtlCampaignError> {
    match status {
        TtlStatus::Acquiring | TtlStatus::Leading => {
            let validity = term.validity().expect("a leader has a validity");
            Ok(TtlTerm::new(term.clone(), validity.clone()))
        }
        TtlStatus::Leaving(TtlEnd::Held | TtlEnd::Replaced)
        | TtlStatus::Over(TtlEnd::Held | TtlEnd::Replaced) => {
            Err(TtlCampaignError::Held { subject: term.subject().to_string().into() })
        }
        // While the caller still waits, only a close releases the term.
        TtlStatus::Stopping
        | TtlStatus::Leaving(TtlEnd::Released(_))
        | TtlStatus::Over(TtlEnd::Released(_)) => Err(TtlCampaignError::Closed),
        TtlStatus::Leaving(TtlEnd::NotAcquired | TtlEnd::Lapsed)
        | TtlStatus::Over(TtlEnd::NotAcquired | TtlEnd::Lapsed) => {
            let too_late = || StorageError::ambiguous("the reply came too late");
            let failed = || TtlCampaignError::Storage(error.unwrap_or_else(too_late));
            Err(if is_closed { TtlCampaignError::Closed } else { failed() })
        }
    }
}

/// Completes when the caller does not wait any more.
async fn gone<T>(reply: Option<&mut oneshot::Sender<T>>) {
    match reply {
        Some(reply) => reply.closed().await,
        None => std::future::pending().await,
    }
}

/// Sends a request to the storage. A storage that panics may have applied it.
async fn call<S: TtlStorage>(
    shared: Arc<TtlShared<S>>,
    key: Arc<TtlKey<S>>,
    request: StorageRequest,
    sent_at: Moment,
) -> StorageResponse {
    let applied = |is_applied| if is_applied { Applied::Yes } else { Applied::No };
    let calling = async {
        let (storage, TtlKey { key, stored, ttl }) = (&shared.storage, &*key);
        match request {
            StorageRequest::Insert => storage.insert_if_absent(key, stored, *ttl).await.map(applied),
            // For its own value: the swap only restarts the TTL, and fails if another candidate has the key.
            StorageRequest::Swap => storage.compare_and_swap(key, stored, stored, *ttl).await.map(applied),
            StorageRequest::Delete => storage.compare_and_delete(key, stored).await.map(applied),
            StorageRequest::Token => {
                Ok(storage.token(key, stored).await?.map_or(Applied::No, Applied::Token))
            }
        }
    };
    // A panic in the storage counts as a failed request. If it ended the driver, the term would end without a release.
    let result = AssertUnwindSafe(calling).catch_unwind().await;
    let result = result.unwrap_or_else(|_| Err(StorageError::ambiguous("the storage panicked")));
    StorageResponse { request, sent_at, result }
}

fn log_end(key: &impl std::fmt::Debug, end: TtlEnd) {
    match end {
        TtlEnd::Held | TtlEnd::NotAcquired => debug!(?key, "leadership not acquired"),
        TtlEnd::Lapsed => warn!(?key, reason = "lapsed", "leadership lost"),
        TtlEnd::Replaced => warn!(?key, reason = "replaced", "leadership lost"),
        TtlEnd::Released(TtlReleaseOutcome::Nothing) => info!(?key, "leadership released"),
        TtlEnd::Released(outcome) => warn!(?key, ?outcome, "key not deleted"),
    }
}
