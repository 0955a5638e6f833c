//! Barriers: no party passes before all parties have arrived.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::id::{InvalidName, LockName};
use tenure_core::layout::{PriorityClass, QueueKey};
use tenure_core::queue::{
    BarrierRound, LockMode, PassedMark, Rewrite, RewriteError, RewriteLimit, Rewritten,
};
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::time::Instant;

use super::Locks;
use crate::clock::wall_time;
use crate::error::{ErrorClass, classified};
use crate::feed::{Feed, FeedItem};
use crate::hold::{Lost, Subject};
use crate::queue::{AcquireOptions, QueueDriver, QueueError, QueueHold, WaitPolicy};
use crate::retry;
use crate::session::InvalidTtl;
use crate::store::{KeyValue, Selection, Store, StoreError};
use crate::tenure::request;

/// A point that a number of parties pass together. Cheap to clone; the same name can be used again for the next round.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let start = tenure.barrier("start", 2);
/// let (one, two) = tokio::join!(async { start.wait().await }, async { start.wait().await });
/// one?;
/// two?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Barrier {
    locks: Locks,
    name: Result<LockName, InvalidName>,
    parties: u32,
}

impl Barrier {
    pub(super) fn new(locks: &Locks, name: Result<LockName, InvalidName>, parties: u32) -> Barrier {
        Barrier { locks: locks.clone(), name, parties }
    }

    /// Waits until all parties of a round have arrived. Zero parties are reported when it is awaited.
    pub fn wait(&self) -> BarrierRequest {
        let Locks { queues, store, holder, .. } = &self.locks;
        BarrierRequest {
            queues: queues.clone(),
            store: store.clone(),
            holder: holder.clone(),
            target: self.target(),
            ttl: None,
            wait_policy: WaitPolicy::Endless,
        }
    }

    fn target(&self) -> Result<BarrierTarget, BarrierError> {
        let (subject, queue) = self.locks.queue(self.name.as_ref().map_err(Clone::clone)?);
        let parties = NonZeroU32::new(self.parties).ok_or(BarrierError::InvalidParties)?;
        Ok(BarrierTarget { subject, queue, parties })
    }
}

/// A party that is about to arrive at a [`Barrier`]. Awaiting it waits until all parties have arrived.
///
/// ```
/// use std::time::Duration;
/// use tenure::{BarrierError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let alone = tenure.barrier("start", 2).wait().timeout(Duration::from_millis(10)).await;
/// assert!(matches!(alone, Err(BarrierError::Timeout { .. })));
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * No party passes before the queue held so many parties at one moment.
/// * Once one party of a round passes, all of that round pass that are still alive: a queue key that has passed stays and is marked, until
///   every party of its round has passed or is deleted.
/// * Later parties are the next round; the same name can be used again immediately.
///
/// # Not guaranteed
///
/// * That all parties are still alive when one passes. A party that dies counts until its lease has expired; if its round is complete by
///   then, the others pass without it, but not before its lease has expired.
/// * If a party dies right after it passed, and the connection of another one is broken for so long that it sees neither the complete
///   round nor the mark, that other party waits for the next round.
///
/// # Cancellation
///
/// Dropping the future deletes the queue key in the background.
///
/// # Errors
///
/// [`BarrierError`]; a wrong name is reported when it is awaited. After [`BarrierError::Timeout`] another party may have seen the round
/// complete just before, and passed.
#[must_use = "no party arrives before this is awaited"]
pub struct BarrierRequest {
    queues: QueueDriver,
    store: Store,
    holder: Arc<HolderRecord>,
    target: Result<BarrierTarget, BarrierError>,
    ttl: Option<Duration>,
    wait_policy: WaitPolicy,
}

struct BarrierTarget {
    subject: Subject,
    /// The prefix of the queue.
    queue: Bytes,
    parties: NonZeroU32,
}

request!(BarrierRequest => Result<(), BarrierError>);

/// Why a barrier was not passed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// No barrier has such a name. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// A barrier has at least one party. Nothing was sent.
    #[error("a barrier needs at least one party")]
    InvalidParties,
    /// No lease can have the requested TTL. Nothing was sent.
    #[error(transparent)]
    InvalidTtl(#[from] InvalidTtl),
    /// Not all parties arrived in time.
    #[error("timed out after {after:?}: {arrived} of {parties} parties arrived")]
    Timeout {
        /// How many had arrived at last; 0 also while an earlier round was not over.
        arrived: usize,
        /// How many parties the barrier has.
        parties: NonZeroU32,
        /// How long it waited.
        after: Duration,
    },
    /// Other callers use the name with a different number of parties.
    #[error("requested a barrier of {given} parties, but the name is in use with {stored}")]
    PartiesDiffer {
        /// The number that was requested.
        given: NonZeroU32,
        /// The number that is in use.
        stored: NonZeroU32,
    },
    /// The key of this party was lost while it waited.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store did not reply in time. What it may still apply is undone in the background.
    #[error("the store did not reply within {after:?}")]
    Unavailable {
        /// How long it waited.
        after: Duration,
    },
    /// The store failed for good.
    #[error("the store failed")]
    Store(#[source] StoreError),
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
}

impl BarrierError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            BarrierError::InvalidName(_)
            | BarrierError::InvalidParties
            | BarrierError::InvalidTtl(_)
            | BarrierError::PartiesDiffer { .. } => ErrorClass::Invalid,
            BarrierError::Timeout { .. } => ErrorClass::Timeout,
            BarrierError::Lost(lost) => lost.into(),
            BarrierError::Unavailable { .. } => ErrorClass::Unavailable,
            BarrierError::Store(error) => error.into(),
            BarrierError::Closed => ErrorClass::Closed,
        }
    }

    fn of(error: QueueError, parties: NonZeroU32) -> BarrierError {
        match error {
            QueueError::Timeout { after, .. } => BarrierError::Timeout { arrived: 0, parties, after },
            // A barrier always waits.
            QueueError::Held { .. } => BarrierError::Timeout { arrived: 0, parties, after: Duration::ZERO },
            QueueError::Lost(lost) => BarrierError::Lost(lost),
            QueueError::Closed => BarrierError::Closed,
            QueueError::Unavailable { after } => BarrierError::Unavailable { after },
            QueueError::PermitsDiffer { given, stored } => BarrierError::PartiesDiffer { given, stored },
            QueueError::Store(error) => BarrierError::Store(error),
            QueueError::InvalidTtl(invalid) => BarrierError::InvalidTtl(invalid),
        }
    }
}

classified!(BarrierError);

impl BarrierRequest {
    /// With a lease of this TTL; that of the session otherwise.
    pub fn ttl(mut self, ttl: Duration) -> BarrierRequest {
        self.ttl = Some(ttl);
        self
    }

    /// Waits at most this long for the other parties, then fails with [`BarrierError::Timeout`].
    pub fn timeout(mut self, timeout: Duration) -> BarrierRequest {
        self.wait_policy = WaitPolicy::UpTo(timeout);
        self
    }

    async fn send(self) -> Result<(), BarrierError> {
        let BarrierTarget { subject, queue, parties } = self.target?;
        let mode = LockMode::Permit { of: parties };
        let holder = HolderRecord { mode, queued: wall_time(), ..(*self.holder).clone() };
        let deadline = match self.wait_policy {
            WaitPolicy::UpTo(wait) => Some((Instant::now() + wait, wait)),
            WaitPolicy::Endless | WaitPolicy::Try => None,
        };
        let options = AcquireOptions {
            subject,
            queue: queue.clone(),
            mode,
            class: PriorityClass::Ordinary,
            value: holder.encode(),
            ttl: self.ttl,
            wait: self.wait_policy,
            former: None,
            on_queued: None,
        };
        // A permit of `parties` is held as soon as the key is stored, unless parties of the round before have not left yet.
        let held = self.queues.acquire(options).await.map_err(|error| BarrierError::of(error, parties))?;
        let mut view = BarrierView::open(&self.store, &queue).map_err(BarrierError::Store)?;
        let waiting = held.run(view.wait_for(|round| round.of(held.token(), parties)));
        let waited = match deadline {
            Some((deadline, within)) => match tokio::time::timeout_at(deadline, waiting).await {
                Ok(waited) => waited,
                Err(_) => {
                    let arrived = view.round.waiting();
                    return Err(BarrierError::Timeout { arrived, parties, after: within });
                }
            },
            None => waiting.await,
        };
        let round = waited.map_err(BarrierError::Lost)?.map_err(BarrierError::Store)?;
        // From here on other parties rely on the mark of this one, so the deadline does not apply any more.
        mark(&self.queues, &self.store, &held, PassedMark { round, own: holder }).await?;
        let over = held.run(view.wait_for(|seen| seen.is_over(round).then_some(()))).await;
        // This party has passed. A key that is not deleted now is deleted in the background, or expires with its lease.
        if over.is_ok() {
            let _ = held.release().await;
        }
        Ok(())
    }
}

/// Writes into the own queue key that this party has passed. The end of the lease ends the retries.
async fn mark(
    queues: &QueueDriver,
    store: &Store,
    held: &QueueHold,
    mark: PassedMark,
) -> Result<(), BarrierError> {
    let mut rewrite = Rewrite::new(held.fence().key, held.token(), mark, RewriteLimit::UntilApplied);
    let marked = held.run(retry::run("barrier mark", store, queues.clock(), &mut rewrite)).await;
    match marked.map_err(BarrierError::Lost)? {
        // The queue driver notices the deleted key as well, and knows the reason.
        Ok(Rewritten::Gone) => Err(BarrierError::Lost(held.lost().await)),
        Ok(Rewritten::Stored(..) | Rewritten::Contended) => Ok(()),
        Err(RewriteError::Store(error)) => Err(BarrierError::Store(error)),
        Err(RewriteError::Unreadable(_)) => unreachable!("the owner replaces what cannot be read"),
    }
}

/// The parties at a barrier, as the store shows them.
struct BarrierView {
    queue: Bytes,
    feed: Feed,
    round: BarrierRound,
    tokens: BTreeMap<Bytes, Token>,
    is_complete: bool,
}

impl BarrierView {
    fn open(store: &Store, queue: &Bytes) -> Result<BarrierView, StoreError> {
        let feed = Feed::open(store.clone(), Selection::Prefix(queue.clone()))?;
        Ok(BarrierView {
            queue: queue.clone(),
            feed,
            round: BarrierRound::default(),
            tokens: BTreeMap::new(),
            is_complete: false,
        })
    }

    /// Checks each complete snapshot, the present one first, until one satisfies the condition.
    async fn wait_for<T>(&mut self, wanted: impl Fn(&BarrierRound) -> Option<T>) -> Result<T, StoreError> {
        loop {
            if self.is_complete
                && let Some(found) = wanted(&self.round)
            {
                return Ok(found);
            }
            match self.feed.next().await {
                Some(Ok(item)) => self.take(item),
                Some(Err(error)) => return Err(error),
                None => return Err(StoreError::Closed),
            }
        }
    }

    fn take(&mut self, item: FeedItem) {
        self.is_complete = matches!(item, FeedItem::Synced(_));
        match item {
            FeedItem::SnapshotBegin | FeedItem::Synced(_) => {}
            FeedItem::Put(pair) => {
                self.forget(&pair.key);
                if self.is_queue_key(&pair) {
                    // A record that cannot be read has not passed.
                    let passed = HolderRecord::decode(&pair.value).ok().and_then(|holder| holder.passed);
                    self.tokens.insert(pair.key, Token(pair.created));
                    self.round.queue_keys.insert(Token(pair.created), passed);
                }
            }
            FeedItem::Delete { key, .. } => self.forget(&key),
        }
    }

    fn forget(&mut self, key: &Bytes) {
        if let Some(token) = self.tokens.remove(key) {
            self.round.queue_keys.remove(&token);
        }
    }

    /// Returns whether it is a queue key: a foreign key is no party.
    fn is_queue_key(&self, pair: &KeyValue) -> bool {
        let name = pair.key.strip_prefix(&self.queue[..]).and_then(|name| std::str::from_utf8(name).ok());
        name.and_then(QueueKey::parse).is_some()
    }
}
