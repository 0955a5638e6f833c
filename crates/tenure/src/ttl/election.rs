//! One election on a TTL storage: campaign, wait, lead.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::keepalive::TtlTooShort;
use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::driver::{self, TtlCampaignJob, TtlKey};
use super::elections::{TtlElections, TtlShared};
use super::storage::{Capabilities, KeyFreed, StorageError, TtlStorage};
use super::term::TtlTerm;
use super::term_state::TtlTermState;
use super::value::{Nonce, TtlValue};
use crate::hold::Subject;
use crate::rng;

/// The shortest time between two attempts of a waiting campaign, as a part of the TTL. It bounds the requests that a watch can cause that
/// completes early again and again.
const PAUSE_PART: u32 = 100;

/// The election under one key of a storage. Cheap to clone.
///
/// ```
/// use tenure::BootClock;
/// use tenure::ttl::{MemoryStorage, TtlElections};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let election = TtlElections::new(MemoryStorage::<String, String>::new(BootClock)).election("reports");
/// let term = election.campaign("web-1").await?;
/// assert!(election.is_leader());
/// term.release().await?;
/// assert!(!election.is_leader());
/// # Ok(())
/// # }
/// ```
pub struct TtlElection<S: TtlStorage> {
    elections: TtlElections<S>,
    key: S::Key,
}

impl<S: TtlStorage> Clone for TtlElection<S> {
    fn clone(&self) -> TtlElection<S> {
        TtlElection { elections: self.elections.clone(), key: self.key.clone() }
    }
}

impl<S: TtlStorage> TtlElection<S> {
    pub(super) fn new(elections: TtlElections<S>, key: S::Key) -> TtlElection<S> {
        TtlElection { elections, key }
    }

    /// A candidacy with the value that other processes read under the key.
    pub fn campaign(&self, value: impl Into<S::Value>) -> TtlCampaign<S> {
        TtlCampaign { election: self.clone(), value: value.into(), ttl: None, wait: TtlWait::Endless }
    }

    /// Leads whenever it can: campaigns, runs the work while the term is valid, campaigns again after a loss. Releases the term and returns
    /// when the work has ended.
    ///
    /// The work is a future, made anew for each term, and dropped when its term is not valid any more. The term stays with this call: dropping
    /// the [`TtlTerm`] that the work receives does not release it.
    ///
    /// # Errors
    ///
    /// [`TtlCampaignError`] that another campaign cannot mend, such as closed elections.
    ///
    /// # Cancellation
    ///
    /// Drops the work and releases the term in the background.
    pub async fn lead<T, Work: Future<Output = T>>(
        &self,
        value: impl Into<S::Value>,
        work: impl FnMut(TtlTerm) -> Work,
    ) -> Result<T, TtlCampaignError> {
        self.campaign(value).lead(work).await
    }

    /// Whether this process leads, by its own clock. Sends nothing. All handles of one [`TtlElections`] return the same.
    pub fn is_leader(&self) -> bool {
        self.elections.shared().is_leader(&self.key)
    }
}

impl<S: TtlStorage> fmt::Debug for TtlElection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TtlElection").field(&self.key).finish()
    }
}

/// A candidacy that is about to begin. Awaiting it returns a [`TtlTerm`].
///
/// ```
/// use std::time::Duration;
/// use tenure::BootClock;
/// use tenure::ttl::{MemoryStorage, TtlCampaignError, TtlElections};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let storage = MemoryStorage::<String, String>::new(BootClock);
/// let (web_1, web_2) = (TtlElections::new(storage.clone()), TtlElections::new(storage));
/// let term = web_1.election("reports").campaign("web-1").ttl(Duration::from_secs(5)).await?;
/// let waited = web_2.election("reports").campaign("web-2").timeout(Duration::from_millis(20)).await;
/// assert!(matches!(waited, Err(TtlCampaignError::Timeout { .. })));
/// # drop(term);
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// Dropping the future deletes what it may have stored, in the background.
///
/// # Errors
///
/// [`TtlCampaignError`]. After each of them this campaign leads nothing.
#[must_use = "nothing is a candidate before this is awaited"]
pub struct TtlCampaign<S: TtlStorage> {
    election: TtlElection<S>,
    value: S::Value,
    ttl: Option<Duration>,
    wait: TtlWait,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TtlWait {
    Endless,
    UpTo(Duration),
    Try,
}

/// Why no term began.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum TtlCampaignError {
    /// A single lost reply would end a term of this TTL. Use a longer TTL, or a shorter margin. Nothing was sent.
    #[error(transparent)]
    InvalidTtl(#[from] TtlTooShort),
    /// Fencing is required, and the storage has no tokens. Nothing was sent.
    #[error("the storage has no fencing tokens, which are required (it has: {capabilities})")]
    NotFenced {
        /// What the storage can do.
        capabilities: Capabilities,
    },
    /// Another candidate leads; only after [`TtlCampaign::try_now`].
    #[error("{subject} is held by another candidate")]
    Held {
        /// What was requested, such as `election 'reports'`.
        subject: Arc<str>,
    },
    /// The wait of [`TtlCampaign::timeout`] is over.
    #[error("timed out after {after:?} waiting for {subject}")]
    Timeout {
        /// What was requested, such as `election 'reports'`.
        subject: Arc<str>,
        /// How long it waited.
        after: Duration,
    },
    /// These elections lead under the key already, or campaign for it.
    #[error("this process leads under the key already, or campaigns for it")]
    AlreadyLeading,
    /// The storage failed. What it may have stored is deleted in the background.
    #[error(transparent)]
    Storage(StorageError),
    /// The elections were closed.
    #[error("the elections are closed")]
    Closed,
}

impl TtlCampaignError {
    /// Whether the same campaign may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            TtlCampaignError::Held { .. } | TtlCampaignError::Timeout { .. } => true,
            TtlCampaignError::Storage(_) => true,
            TtlCampaignError::InvalidTtl(_)
            | TtlCampaignError::NotFenced { .. }
            | TtlCampaignError::AlreadyLeading
            | TtlCampaignError::Closed => false,
        }
    }
}

impl<S: TtlStorage> TtlCampaign<S> {
    /// With this TTL; that of [`TtlElectionsBuilder::ttl`](super::TtlElectionsBuilder::ttl) otherwise.
    pub fn ttl(mut self, ttl: Duration) -> TtlCampaign<S> {
        self.ttl = Some(ttl);
        self
    }

    /// Waits at most this long, then fails with [`TtlCampaignError::Timeout`]. Zero is [`TtlCampaign::try_now`].
    pub fn timeout(mut self, timeout: Duration) -> TtlCampaign<S> {
        self.wait = if timeout.is_zero() { TtlWait::Try } else { TtlWait::UpTo(timeout) };
        self
    }

    /// Fails with [`TtlCampaignError::Held`] instead of waiting for another leader.
    pub fn try_now(mut self) -> TtlCampaign<S> {
        self.wait = TtlWait::Try;
        self
    }

    /// Leads as [`TtlElection::lead`] does, with the options of this campaign.
    ///
    /// # Errors
    ///
    /// As for [`TtlElection::lead`].
    ///
    /// # Cancellation
    ///
    /// As for [`TtlElection::lead`].
    pub async fn lead<T, Work: Future<Output = T>>(
        self,
        mut work: impl FnMut(TtlTerm) -> Work,
    ) -> Result<T, TtlCampaignError> {
        loop {
            let term = self.send().await?;
            match term.run(work(term.share())).await {
                Ok(done) => {
                    // The work is complete. A key that is not deleted expires.
                    if let Err(error) = term.release().await {
                        debug!(key = ?self.election.key, %error, "release not confirmed");
                    }
                    return Ok(done);
                }
                // The work was dropped. This process may lead again, so the loop campaigns once more.
                Err(lost) => warn!(key = ?self.election.key, reason = %lost.reason, "leadership lost"),
            }
        }
    }

    async fn send(&self) -> Result<TtlTerm, TtlCampaignError> {
        match self.wait {
            TtlWait::Try => self.attempt().await,
            TtlWait::Endless => self.wait().await,
            TtlWait::UpTo(after) => {
                let clock = &self.election.elections.shared().clock;
                let deadline = clock.sleep_until(clock.now() + after);
                tokio::select! {
                    biased;
                    result = self.wait() => result,
                    () = deadline => Err(TtlCampaignError::Timeout { subject: self.subject().to_string().into(), after }),
                }
            }
        }
    }

    /// Campaigns once.
    async fn attempt(&self) -> Result<TtlTerm, TtlCampaignError> {
        let (shared, ttl) = (self.shared(), self.requested_ttl());
        let config = shared.config(ttl)?;
        let term = Arc::new(TtlTermState::new(config, shared.clock.clone(), self.subject()));
        shared.reserve(&self.election.key, &term)?;
        let (reply, replied) = oneshot::channel();
        // A nonce for each attempt, so that a late request of an earlier one is never taken for this one.
        let stored = self.value.stamped(Nonce::random());
        let key = TtlKey { key: self.election.key.clone(), stored, ttl };
        // A task of its own: if the caller drops its future, the driver still undoes the request in flight.
        shared.tasks.spawn(driver::drive(shared.clone(), TtlCampaignJob { key, term, reply }));
        // The driver always replies, unless the runtime shuts down.
        replied.await.unwrap_or(Err(TtlCampaignError::Closed))
    }

    /// Campaigns until a term begins, through outages of the storage too.
    async fn wait(&self) -> Result<TtlTerm, TtlCampaignError> {
        let (shared, key, ttl) = (self.shared(), &self.election.key, self.requested_ttl());
        let mut is_failing = false;
        loop {
            // Before the attempt: a key that is freed between the attempt and the watch would not be noticed.
            let freed = shared.watch(key, ttl).await;
            let has_watch = freed.is_some();
            match self.attempt().await {
                Err(TtlCampaignError::Held { .. }) => is_failing = false,
                Err(TtlCampaignError::Storage(error)) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        warn!(?key, %error, "storage request failed");
                    }
                }
                result => return result,
            }
            let now = shared.clock.now();
            // Also after a notification: candidates that are woken together must not all retry without a pause.
            let pause = shared.clock.sleep_until(now + ttl / PAUSE_PART);
            let poll = shared.clock.sleep_until(now + poll_after(ttl, has_watch, rng::jitter()));
            let freed: KeyFreed = freed.unwrap_or_else(|| Box::pin(std::future::pending()));
            tokio::select! {
                biased;
                () = shared.close.cancelled() => return Err(TtlCampaignError::Closed),
                () = poll => {}
                ((), ()) = async { tokio::join!(freed, pause) } => {}
            }
        }
    }

    fn shared(&self) -> &Arc<TtlShared<S>> {
        self.election.elections.shared()
    }

    fn requested_ttl(&self) -> Duration {
        self.ttl.unwrap_or(self.shared().ttl())
    }

    fn subject(&self) -> Subject {
        // Most keys are strings, which `Debug` puts in quotes.
        let name = format!("{:?}", self.election.key).trim_matches('"').into();
        Subject { kind: "election", name }
    }
}

impl<S: TtlStorage> IntoFuture for TtlCampaign<S> {
    type Output = Result<TtlTerm, TtlCampaignError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.send().await })
    }
}

/// When a waiting campaign tries again without a notification. Seldom with a watch, which may have been lost.
fn poll_after(ttl: Duration, has_watch: bool, jitter: f64) -> Duration {
    let longest = if has_watch { ttl } else { ttl / 4 };
    longest.mul_f64(0.5 + jitter / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_campaign_polls_within_a_quarter_ttl() {
        let ttl = Duration::from_secs(8);
        assert_eq!(poll_after(ttl, false, 0.0), Duration::from_secs(1));
        assert_eq!(poll_after(ttl, false, 1.0), Duration::from_secs(2));
        assert_eq!(poll_after(ttl, true, 0.0), Duration::from_secs(4));
        assert_eq!(poll_after(ttl, true, 1.0), Duration::from_secs(8));
    }
}
