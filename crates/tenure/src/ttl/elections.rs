//! All elections of this process on one storage: options, the terms in use, and the common end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::keepalive::{Timing, TtlTooShort};
use tenure_core::ttl::{FencingSupport, TtlConfig, TtlEnd, TtlReleaseOutcome};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::election::{TtlCampaignError, TtlElection};
use super::storage::{Capabilities, KeyFreed, TtlStorage};
use super::term_state::TtlTermState;
use crate::clock::{BootClock, Clock};
use crate::error::CloseError;

/// The TTL of campaigns that do not choose another.
const TTL: Duration = Duration::from_secs(15);

/// How long the work of a leader may take to stop by default. A dropped future stops at once; work in a blocking call for longer than this
/// keeps its key until it expires.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// How long a release waits for the storage. If the deletion of a key is not confirmed by then, the key expires by itself.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// Elections on one storage; see the [module](super). Cheap to clone; all clones share their terms.
///
/// ```
/// use tenure::BootClock;
/// use tenure::ttl::{MemoryStorage, TtlElections};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let elections = TtlElections::new(MemoryStorage::<String, String>::new(BootClock));
/// let done = elections.election("reports").lead("web-1", |term| async move { term.is_valid() }).await?;
/// assert!(done);
/// elections.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct TtlElections<S: TtlStorage> {
    handle: Arc<TtlHandle<S>>,
}

impl<S: TtlStorage> Clone for TtlElections<S> {
    fn clone(&self) -> TtlElections<S> {
        TtlElections { handle: self.handle.clone() }
    }
}

/// Ends all terms with the last clone.
struct TtlHandle<S: TtlStorage> {
    shared: Arc<TtlShared<S>>,
}

impl<S: TtlStorage> Drop for TtlHandle<S> {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

/// How elections are held.
///
/// ```
/// use std::time::Duration;
/// use tenure::BootClock;
/// use tenure::ttl::{MemoryStorage, TtlElections};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let storage = MemoryStorage::<String, String>::new(BootClock);
/// let elections = TtlElections::builder(storage).ttl(Duration::from_secs(5)).require_fencing().build()?;
/// # elections.close().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "elections begin with `build`"]
pub struct TtlElectionsBuilder<S> {
    storage: S,
    clock: Arc<dyn Clock>,
    options: TtlOptions,
    requires_fencing: bool,
}

#[derive(Clone, Copy, Debug)]
struct TtlOptions {
    ttl: Duration,
    margin: Option<Duration>,
    stop_within: Duration,
}

impl<S: TtlStorage> TtlElectionsBuilder<S> {
    /// The TTL of campaigns that do not choose another; 15 s.
    pub fn ttl(mut self, ttl: Duration) -> TtlElectionsBuilder<S> {
        self.options.ttl = ttl;
        self
    }

    /// How long before the TTL validity ends; max(500 ms, 5 %) by default. A TTL below a second needs a shorter margin. It must cover
    /// what a loaded machine lets a task wait.
    pub fn margin(mut self, margin: Duration) -> TtlElectionsBuilder<S> {
        self.options.margin = Some(margin);
        self
    }

    /// How long the work of a leader may take to stop before its key is left to expire; 5 s, and never longer than its validity.
    pub fn stop_within(mut self, stop_within: Duration) -> TtlElectionsBuilder<S> {
        self.options.stop_within = stop_within;
        self
    }

    /// Refuses storages without fencing tokens.
    pub fn require_fencing(mut self) -> TtlElectionsBuilder<S> {
        self.requires_fencing = true;
        self
    }

    /// The clock of validity, retries and waits; the boot clock of the machine by default.
    pub fn clock(mut self, clock: impl Clock) -> TtlElectionsBuilder<S> {
        self.clock = Arc::new(clock);
        self
    }

    /// Sends nothing.
    ///
    /// # Errors
    ///
    /// [`TtlCampaignError::NotFenced`] if fencing is required and the storage has no tokens, [`TtlCampaignError::InvalidTtl`] if no key can have
    /// the TTL.
    pub fn build(self) -> Result<TtlElections<S>, TtlCampaignError> {
        let TtlElectionsBuilder { storage, clock, options, requires_fencing } = self;
        let capabilities = storage.capabilities();
        if requires_fencing && !capabilities.fencing {
            return Err(TtlCampaignError::NotFenced { capabilities });
        }
        // Checked here, so that a wrong TTL fails at the start of the program and not at the first campaign.
        options.timing(options.ttl)?;
        Ok(TtlElections::open(storage, clock, options))
    }
}

impl TtlOptions {
    fn timing(&self, ttl: Duration) -> Result<Timing, TtlTooShort> {
        Timing::quarterly(ttl, self.margin)
    }
}

impl<S: TtlStorage> TtlElections<S> {
    /// Elections on a storage, with the defaults of [`TtlElections::builder`].
    pub fn new(storage: S) -> TtlElections<S> {
        let TtlElectionsBuilder { storage, clock, options, .. } = TtlElections::builder(storage);
        TtlElections::open(storage, clock, options)
    }

    /// Elections with options.
    pub fn builder(storage: S) -> TtlElectionsBuilder<S> {
        let options = TtlOptions { ttl: TTL, margin: None, stop_within: STOP_WITHIN };
        TtlElectionsBuilder { storage, clock: Arc::new(BootClock), options, requires_fencing: false }
    }

    fn open(storage: S, clock: Arc<dyn Clock>, options: TtlOptions) -> TtlElections<S> {
        let terms = TtlTerms { is_closed: false, terms: BTreeMap::new(), unconfirmed: Vec::new() };
        let shared = Arc::new(TtlShared {
            storage,
            clock,
            options,
            terms: Mutex::new(terms),
            tasks: TaskTracker::new(),
            close: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        TtlElections { handle: Arc::new(TtlHandle { shared }) }
    }

    /// The election under one key. Sends nothing.
    pub fn election(&self, key: impl Into<S::Key>) -> TtlElection<S> {
        TtlElection::new(self.clone(), key.into())
    }

    /// What the storage can do.
    pub fn capabilities(&self) -> Capabilities {
        self.handle.shared.storage.capabilities()
    }

    /// Releases all terms, and refuses later campaigns. A campaign in flight is undone.
    ///
    /// # Errors
    ///
    /// [`CloseError::StillHeld`] names the keys that may still be stored until they expire.
    ///
    /// # Cancellation
    ///
    /// The terms are released in the background.
    pub async fn close(&self) -> Result<(), CloseError> {
        let shared = &self.handle.shared;
        // Before the wait, and under the lock: no campaign can be reserved after this point.
        shared.begin_close();
        let deadline = shared.clock.now() + shared.options.stop_within + CONFIRM_WITHIN;
        tokio::select! {
            biased;
            () = shared.tasks.wait() => {}
            () = shared.clock.sleep_until(deadline) => {
                // The drivers end without a confirmation, and report their keys as unconfirmed.
                shared.stop.cancel();
                shared.tasks.wait().await;
            }
        }
        let unconfirmed = std::mem::take(&mut shared.lock().unconfirmed);
        let Some(ttl) = unconfirmed.iter().map(|(_, ttl)| *ttl).max() else { return Ok(()) };
        let holds = unconfirmed.into_iter().map(|(name, _)| name).collect();
        Err(CloseError::StillHeld { holds, leases: 0, ttl })
    }

    pub(super) fn shared(&self) -> &Arc<TtlShared<S>> {
        &self.handle.shared
    }
}

impl<S: TtlStorage> fmt::Debug for TtlElections<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<S::Key> = self.handle.shared.lock().terms.keys().cloned().collect();
        f.debug_struct("TtlElections").field("keys", &keys).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for TtlElectionsBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TtlElectionsBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What the handles and the drivers share.
pub(super) struct TtlShared<S: TtlStorage> {
    pub(super) storage: S,
    pub(super) clock: Arc<dyn Clock>,
    options: TtlOptions,
    terms: Mutex<TtlTerms<S::Key>>,
    pub(super) tasks: TaskTracker,
    /// Cancelled when all terms are to be released.
    pub(super) close: CancellationToken,
    /// Cancelled when the drivers must not wait any longer.
    pub(super) stop: CancellationToken,
}

struct TtlTerms<K> {
    is_closed: bool,
    /// The terms and the campaigns in flight.
    terms: BTreeMap<K, Arc<TtlTermState>>,
    /// What may still be stored after the close, with its TTL.
    unconfirmed: Vec<(String, Duration)>,
}

impl<S: TtlStorage> TtlShared<S> {
    fn lock(&self) -> MutexGuard<'_, TtlTerms<S::Key>> {
        // Plain data, changed in single steps: a panic leaves it whole.
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The TTL of campaigns that do not choose another.
    pub(super) fn ttl(&self) -> Duration {
        self.options.ttl
    }

    pub(super) fn config(&self, ttl: Duration) -> Result<TtlConfig, TtlTooShort> {
        let fencing =
            if self.storage.capabilities().fencing { FencingSupport::Token } else { FencingSupport::None };
        Ok(TtlConfig { timing: self.options.timing(ttl)?, stop_within: self.options.stop_within, fencing })
    }

    /// Reserves a key for one campaign of this process.
    pub(super) fn reserve(&self, key: &S::Key, term: &Arc<TtlTermState>) -> Result<(), TtlCampaignError> {
        let mut terms = self.lock();
        // Under the same lock as `begin_close`: a campaign is either refused or seen by the close.
        if terms.is_closed {
            return Err(TtlCampaignError::Closed);
        }
        // Two campaigns of one process would renew and delete each other's key.
        if terms.terms.contains_key(key) {
            return Err(TtlCampaignError::AlreadyLeading);
        }
        terms.terms.insert(key.clone(), term.clone());
        Ok(())
    }

    /// Whether this process leads under a key, by its own clock.
    pub(super) fn is_leader(&self, key: &S::Key) -> bool {
        self.lock().terms.get(key).is_some_and(|term| term.is_valid())
    }

    fn begin_close(&self) {
        self.lock().is_closed = true;
        self.tasks.close();
        self.close.cancel();
    }

    /// A watch, if the storage has one and opens it in time. Without one, a waiting campaign polls.
    pub(super) async fn watch(&self, key: &S::Key, ttl: Duration) -> Option<KeyFreed> {
        if !self.storage.capabilities().watch {
            return None;
        }
        // A storage that hangs must not keep the campaign from polling, hence the deadline.
        let deadline = self.clock.sleep_until(self.clock.now() + ttl / 4);
        tokio::select! {
            biased;
            () = self.close.cancelled() => None,
            () = deadline => None,
            freed = self.storage.watch(key) => freed.ok(),
        }
    }

    /// A term does not prevent another campaign for its key any more.
    pub(super) fn remove(&self, key: &S::Key, term: &Arc<TtlTermState>) {
        let mut terms = self.lock();
        // Only this term: another campaign may have reserved the key since.
        if terms.terms.get(key).is_some_and(|current| Arc::ptr_eq(current, term)) {
            terms.terms.remove(key);
        }
    }

    /// A driver ended. What it left in the storage is reported by [`TtlElections::close`].
    pub(super) fn handle_end(&self, term: &TtlTermState, end: Option<TtlEnd>) {
        let may_be_stored = match end {
            // The driver was dropped with requests in flight.
            None => true,
            Some(TtlEnd::Released(outcome)) => match outcome {
                TtlReleaseOutcome::StillRunning | TtlReleaseOutcome::Unconfirmed => true,
                TtlReleaseOutcome::Nothing | TtlReleaseOutcome::Gone => false,
            },
            Some(TtlEnd::Held | TtlEnd::NotAcquired | TtlEnd::Lapsed | TtlEnd::Replaced) => false,
        };
        let mut terms = self.lock();
        // The close reports it. Before a close, the caller of `release` gets the outcome.
        if may_be_stored && terms.is_closed {
            terms.unconfirmed.push((term.subject().to_string(), term.ttl()));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

/// How long a release waits for the work and for the storage.
pub(super) fn confirm_within(config: &TtlConfig) -> Duration {
    config.stop_within + CONFIRM_WITHIN
}
