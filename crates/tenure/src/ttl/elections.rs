//! Elections on one storage: acquire, wait, release, close.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::keepalive::{Terms, TtlTooShort};
use tenure_core::leadership::{End, FencingSupport, Left, Plan};
use thiserror::Error;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::driver::{self, Acquisition, Subject};
use super::leadership::Leadership;
use super::stamp::{Nonce, Value};
use super::storage::{Capabilities, Freed, StorageError, TtlStorage};
use super::term::Term;
use crate::clock::Clock;
use crate::dice;
use crate::hold;

/// How long the work of a leader may take to stop unless told otherwise: a future that is dropped stops at once, and one that
/// sits in a blocking call for longer than this is better left to lapse.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// How long `release` and `close` wait for the storage to confirm; what is not confirmed by then lapses by itself.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// The least that lies between two tries of one who waits, as a part of the duration: a watch that is done early again and
/// again must not become an attack on the storage.
const PAUSE_PART: u32 = 100;

/// What names a leadership: anything with an order.
pub trait Key: Ord + Clone + fmt::Debug + Send + Sync + 'static {}

impl<T: Ord + Clone + fmt::Debug + Send + Sync + 'static> Key for T {}

/// How elections are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    margin: Option<Duration>,
    stop_within: Duration,
    is_strict: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { margin: None, stop_within: STOP_WITHIN, is_strict: false }
    }
}

impl Options {
    /// A margin of max(500 ms, 5 % of the duration), 5 s for the work to stop, any storage.
    pub fn new() -> Options {
        Options::default()
    }

    /// How long before the storage's end a leader stops believing. Durations below a second need a shorter one than the
    /// usual 500 ms; it must cover what a loaded machine lets a task wait.
    #[must_use]
    pub fn margin(self, margin: Duration) -> Options {
        Options { margin: Some(margin), ..self }
    }

    /// How long the work may take to stop before its key is left to lapse; 5 s, and never longer than validity.
    #[must_use]
    pub fn stop_within(self, stop_within: Duration) -> Options {
        Options { stop_within, ..self }
    }

    /// Refuses storages that cannot fence.
    #[must_use]
    pub fn strict(self) -> Options {
        Options { is_strict: true, ..self }
    }
}

/// A storage without tokens, where tokens are demanded: take another storage, or give up strict mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the storage cannot fence, and strict elections need that (it offers: {0})")]
pub struct CannotFence(pub Capabilities);

/// Elections on one storage; see the [module](super). Cheap to clone; all clones are one.
pub struct Elections<K: Key, V: Value, S: TtlStorage<K, V>> {
    handle: Arc<Handle<K, V, S>>,
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> Clone for Elections<K, V, S> {
    fn clone(&self) -> Elections<K, V, S> {
        Elections { handle: self.handle.clone() }
    }
}

/// Ends all leaderships when the last clone is gone.
struct Handle<K: Key, V: Value, S: TtlStorage<K, V>> {
    shared: Arc<Shared<K, V, S>>,
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> Drop for Handle<K, V, S> {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

/// What the handles and the tasks have in common.
pub(super) struct Shared<K: Key, V: Value, S: TtlStorage<K, V>> {
    pub(super) storage: S,
    pub(super) clock: Arc<dyn Clock>,
    options: Options,
    slots: Mutex<Slots<K>>,
    tasks: TaskTracker,
    /// Everything is to be given back.
    pub(super) close: CancellationToken,
    /// Nothing is to be waited for any more.
    pub(super) stop: CancellationToken,
    values: PhantomData<fn() -> V>,
}

struct Slots<K> {
    is_closed: bool,
    /// Who leads, or is about to.
    terms: BTreeMap<K, Arc<Term>>,
    /// What may still be stored although it was to be given back.
    left_behind: Vec<K>,
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> Elections<K, V, S> {
    /// Elections on a storage, with the usual [`Options`].
    pub fn new(storage: S, clock: impl Clock) -> Elections<K, V, S> {
        Elections::build(storage, Arc::new(clock), Options::new())
    }

    /// Elections with options.
    ///
    /// # Errors
    ///
    /// [`CannotFence`] if the options are strict and the storage has no tokens.
    pub fn with(storage: S, clock: impl Clock, options: Options) -> Result<Elections<K, V, S>, CannotFence> {
        let capabilities = storage.capabilities();
        if options.is_strict && !capabilities.fencing {
            return Err(CannotFence(capabilities));
        }
        Ok(Elections::build(storage, Arc::new(clock), options))
    }

    fn build(storage: S, clock: Arc<dyn Clock>, options: Options) -> Elections<K, V, S> {
        let shared = Arc::new(Shared {
            storage,
            clock,
            options,
            slots: Mutex::new(Slots { is_closed: false, terms: BTreeMap::new(), left_behind: Vec::new() }),
            tasks: TaskTracker::new(),
            close: CancellationToken::new(),
            stop: CancellationToken::new(),
            values: PhantomData,
        });
        Elections { handle: Arc::new(Handle { shared }) }
    }

    /// Takes the leadership of `key` for `duration`, renewed every quarter of it until it is released or lost.
    ///
    /// # Cancellation
    ///
    /// Dropping the future gives back what it may have taken, in the background.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`]; each says what to do next. After none of them does anybody lead through this call.
    pub async fn acquire(&self, key: K, value: V, duration: Duration) -> Result<Leadership<K>, AcquireError> {
        let shared = &self.handle.shared;
        let plan = shared.plan(duration)?;
        // Most keys are texts, which `Debug` quotes.
        let name = format!("{key:?}").trim_matches('"').into();
        let subject = hold::Subject { kind: "election", name };
        let term = Arc::new(Term::new(plan, shared.clock.clone(), subject));
        {
            let mut slots = shared.lock();
            if slots.is_closed {
                return Err(AcquireError::Closed);
            }
            if slots.terms.contains_key(&key) {
                return Err(AcquireError::AlreadyLeading);
            }
            slots.terms.insert(key.clone(), term.clone());
        }
        let (reply, replied) = oneshot::channel();
        let subject = Subject { key, stored: value.stamped(Nonce::random()), ttl: duration };
        shared.tasks.spawn(driver::drive(shared.clone(), Acquisition { subject, term, reply }));
        // The task always answers, unless the runtime is going down with it.
        replied.await.unwrap_or(Err(AcquireError::Closed))
    }

    /// Waits until the leadership of `key` can be taken, through outages of the storage too. Ends only with the leadership, when the
    /// elections are closed, or with what waiting cannot change.
    ///
    /// # Cancellation
    ///
    /// As for [`Elections::acquire`].
    pub async fn acquire_wait(
        &self,
        key: K,
        value: V,
        duration: Duration,
    ) -> Result<Leadership<K>, AcquireError> {
        let shared = &self.handle.shared;
        let mut is_failing = false;
        loop {
            let freed = shared.watch(&key, duration).await;
            let has_watch = freed.is_some();
            match self.acquire(key.clone(), value.clone(), duration).await {
                Ok(leadership) => return Ok(leadership),
                Err(AcquireError::Held) => is_failing = false,
                Err(AcquireError::Storage(error)) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        warn!(?key, %error, "the storage fails, still waiting for leadership");
                    }
                }
                Err(
                    error @ (AcquireError::Closed | AcquireError::AlreadyLeading | AcquireError::TooShort(_)),
                ) => return Err(error),
            }
            let now = shared.clock.now();
            let pause = shared.clock.sleep_until(now + duration / PAUSE_PART);
            let poll = shared.clock.sleep_until(now + poll_after(duration, has_watch, dice::throw()));
            let freed: Freed = freed.unwrap_or_else(|| Box::pin(std::future::pending()));
            tokio::select! {
                biased;
                () = shared.close.cancelled() => return Err(AcquireError::Closed),
                () = poll => {}
                ((), ()) = async { tokio::join!(freed, pause) } => {}
            }
        }
    }

    /// Gives up the leadership of `key`: permission ends, the work is stopped and waited for, then the key is deleted.
    ///
    /// # Cancellation
    ///
    /// Dropping the future does not stop the release.
    ///
    /// # Errors
    ///
    /// See [`ReleaseError`]. After all of them nobody leads through this handle.
    pub async fn release(&self, key: &K) -> Result<(), ReleaseError> {
        let term = self.handle.shared.lock().terms.get(key).cloned();
        match term {
            Some(term) if term.is_valid() => term.release().await,
            Some(_) | None => Err(ReleaseError::NotLeading),
        }
    }

    /// Ends all leaderships as [`Elections::release`] does, and refuses later acquires. One that races with this is given back.
    ///
    /// # Cancellation
    ///
    /// Dropping the future does not stop the closing.
    ///
    /// # Errors
    ///
    /// [`LeftBehind`] names the keys that may still be stored; their TTL ends them.
    pub async fn close(&self) -> Result<(), LeftBehind<K>> {
        let shared = &self.handle.shared;
        shared.begin_close();
        let deadline = shared.clock.now() + shared.options.stop_within + CONFIRM_WITHIN;
        tokio::select! {
            biased;
            () = shared.tasks.wait() => {}
            () = shared.clock.sleep_until(deadline) => {
                shared.stop.cancel();
                shared.tasks.wait().await;
            }
        }
        let keys = std::mem::take(&mut shared.lock().left_behind);
        if keys.is_empty() { Ok(()) } else { Err(LeftBehind { keys }) }
    }

    /// What the storage can do.
    pub fn capabilities(&self) -> Capabilities {
        self.handle.shared.storage.capabilities()
    }

    /// The keys that are led through this handle now.
    pub fn leading(&self) -> Vec<K> {
        let slots = self.handle.shared.lock();
        slots.terms.iter().filter(|(_, term)| term.is_valid()).map(|(key, _)| key.clone()).collect()
    }
}

/// When one who waits asks again without having been told to: seldom where there is a watch, which may have been lost.
fn poll_after(duration: Duration, has_watch: bool, jitter: f64) -> Duration {
    let longest = if has_watch { duration } else { duration / 4 };
    longest.mul_f64(0.5 + jitter / 2.0)
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> Shared<K, V, S> {
    fn lock(&self) -> MutexGuard<'_, Slots<K>> {
        // Plain data, changed in single steps: a panic leaves it whole.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, duration: Duration) -> Result<Plan, AcquireError> {
        if duration.is_zero() {
            return Err(AcquireError::Storage(StorageError::ZeroTtl));
        }
        let terms = Terms::quarterly(duration, self.options.margin)?;
        let fencing =
            if self.storage.capabilities().fencing { FencingSupport::Token } else { FencingSupport::None };
        Ok(Plan { terms, stop_within: self.options.stop_within, fencing })
    }

    fn begin_close(&self) {
        self.lock().is_closed = true;
        self.tasks.close();
        self.close.cancel();
    }

    /// A watch, if the storage has one and gives it in time; without it there is still the polling.
    async fn watch(&self, key: &K, duration: Duration) -> Option<Freed> {
        if !self.storage.capabilities().watch {
            return None;
        }
        let deadline = self.clock.sleep_until(self.clock.now() + duration / 4);
        tokio::select! {
            biased;
            () = self.close.cancelled() => None,
            () = deadline => None,
            freed = self.storage.watch(key) => freed.ok(),
        }
    }

    /// The term no longer stands in the way of another one of the same key.
    pub(super) fn vacate(&self, key: &K, term: &Arc<Term>) {
        let mut slots = self.lock();
        if slots.terms.get(key).is_some_and(|standing| Arc::ptr_eq(standing, term)) {
            slots.terms.remove(key);
        }
    }

    /// A term is over; what it left matters to one who closes.
    pub(super) fn note_end(&self, key: &K, end: Option<End>) {
        let is_left = match end {
            // Cut short: nobody knows.
            None | Some(End::Left(Left::StillRunning | Left::Unconfirmed)) => true,
            Some(End::Left(Left::Nothing | Left::Gone) | End::Held) => false,
            Some(End::NotTaken | End::Lapsed | End::Taken) => false,
        };
        let mut slots = self.lock();
        if is_left && slots.is_closed {
            slots.left_behind.push(key.clone());
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

/// Why somebody does not lead.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else leads: try again later, or use [`Elections::acquire_wait`].
    #[error("somebody else leads")]
    Held,
    /// The storage failed. What it may have stored is given back in the background: try again later.
    #[error(transparent)]
    Storage(StorageError),
    /// The elections were closed.
    #[error("the elections are closed")]
    Closed,
    /// This very handle leads already, or is about to: ask the [`Leadership`] that it gave.
    #[error("this key is already led, or being acquired, through this handle")]
    AlreadyLeading,
    /// One lost answer would end it: take a longer duration, or a shorter [`Options::margin`].
    #[error(transparent)]
    TooShort(#[from] TtlTooShort),
}

/// What a release could not do. Permission has ended in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// There was nothing to release: it was released before, or lost.
    #[error("this key is not led through this handle")]
    NotLeading,
    /// The work did not stop in time, so the key was not given up: it lapses with its TTL.
    #[error("the work did not stop in time, so the key is left to lapse")]
    StillRunning,
    /// The storage did not confirm the deletion: the key lapses with its TTL at the latest.
    #[error("the storage did not confirm the deletion, so the key may stay until its time is over")]
    Unconfirmed,
}

/// Keys that may still be stored after closing; their TTL ends them.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{} keys may stay in the storage until their time is over", keys.len())]
pub struct LeftBehind<K> {
    /// The keys.
    pub keys: Vec<K>,
}

/// How long one waits for a release to be confirmed, the work's own time included.
pub(super) fn confirm_within(plan: &Plan) -> Duration {
    plan.stop_within + CONFIRM_WITHIN
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> fmt::Debug for Elections<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elections").field("leading", &self.leading()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_waits_without_a_watch_asks_between_an_eighth_and_a_quarter_of_the_duration() {
        let duration = Duration::from_secs(8);
        assert_eq!(poll_after(duration, false, 0.0), Duration::from_secs(1));
        assert_eq!(poll_after(duration, false, 1.0), Duration::from_secs(2));
        assert_eq!(poll_after(duration, true, 0.0), Duration::from_secs(4));
        assert_eq!(poll_after(duration, true, 1.0), Duration::from_secs(8));
    }
}
