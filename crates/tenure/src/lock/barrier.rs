//! A barrier: nobody goes on before everybody has come.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::id::InvalidName;
use tenure_core::layout::{PriorityClass, QueueKey};
use tenure_core::queue::{BarrierRound, PassedMark, Rewrite, RewriteError, RewriteLimit, Rewritten};
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::time::Instant;

use crate::clock::wall_time;
use crate::feed::{Feed, FeedItem};
use crate::hold::{Lost, Subject};
use crate::queue::{AcquireOptions, QueueDriver, QueueError, QueueHold, WaitPolicy};
use crate::retry;
use crate::session::InvalidTtl;
use crate::store::{KeyValue, Selection, Store, StoreError};

/// A barrier that is about to be come to. Awaiting it waits until all parties have come.
///
/// # Guarantees
///
/// * Nobody goes on before so many parties stood in line at one moment.
/// * Once one party of a round goes on, all of that round do that are still alive: a place that has passed stays, and says so, until
///   everybody of its round has passed or is gone.
/// * The next to come are the next round; the same name can be used again at once.
///
/// # Not guaranteed
///
/// * That all are still alive when you go on. A party that dies counts until its lease is over; if its round is complete by then, the
///   others go on without it, but not before its lease is over.
/// * If a party dies right after it went on, and the connection of another is broken just then for so long that it sees neither the
///   complete round nor the mark, that one waits for the next round.
///
/// # Cancellation
///
/// Dropping the future leaves the line in the background.
///
/// # Errors
///
/// [`BarrierError::Timeout`] when the wait is over: another party may have seen the round complete just before, and gone on.
#[must_use = "nobody comes to the barrier before this is awaited"]
pub struct Barrier {
    queues: QueueDriver,
    store: Store,
    holder: HolderRecord,
    queue: Result<(Subject, Bytes), InvalidName>,
    parties: NonZeroU32,
    ttl: Option<Duration>,
    wait_policy: WaitPolicy,
}

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

impl Barrier {
    pub(super) fn new(
        queues: QueueDriver,
        store: Store,
        holder: HolderRecord,
        queue: Result<(Subject, Bytes), InvalidName>,
        parties: NonZeroU32,
    ) -> Barrier {
        Barrier { queues, store, holder, queue, parties, ttl: None, wait_policy: WaitPolicy::Endless }
    }

    /// With a lease of its own length; the session's otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Barrier {
        self.ttl = Some(ttl);
        self
    }

    /// Waits this long for the others to come.
    pub fn wait_up_to(mut self, wait: Duration) -> Barrier {
        self.wait_policy = WaitPolicy::UpTo(wait);
        self
    }

    async fn pass(mut self) -> Result<(), BarrierError> {
        let (subject, queue) = self.queue.clone()?;
        self.holder.queued = wall_time();
        let deadline = match self.wait_policy {
            WaitPolicy::UpTo(wait) => Some((Instant::now() + wait, wait)),
            WaitPolicy::Endless | WaitPolicy::Try => None,
        };
        let options = AcquireOptions {
            subject,
            queue: queue.clone(),
            mode: self.holder.mode,
            class: PriorityClass::Ordinary,
            value: self.holder.encode(),
            ttl: self.ttl,
            wait: self.wait_policy,
            former: None,
        };
        let held =
            self.queues.acquire(options).await.map_err(|error| BarrierError::of(error, self.parties))?;
        let mut view = View::open(&self.store, &queue).map_err(BarrierError::Store)?;
        let waiting = held.run(view.wait_for(|round| round.of(held.token(), self.parties)));
        let waited = match deadline {
            Some((deadline, within)) => match tokio::time::timeout_at(deadline, waiting).await {
                Ok(waited) => waited,
                Err(_) => {
                    let arrived = view.round.waiting();
                    return Err(BarrierError::Timeout { arrived, parties: self.parties, after: within });
                }
            },
            None => waiting.await,
        };
        let round = waited.map_err(BarrierError::Lost)?.map_err(BarrierError::Store)?;
        // From here on others rely on us having passed, so no deadline counts any more.
        self.mark(&held, round).await?;
        let over = held.run(view.wait_for(|seen| seen.is_over(round).then_some(()))).await;
        // We have passed whatever comes now; a place that cannot leave leaves in the background or ends with its lease.
        if over.is_ok() {
            let _ = held.release().await;
        }
        Ok(())
    }

    /// Writes into the own queue key that this party has passed. The end of the lease ends the retries.
    async fn mark(&self, held: &QueueHold, round: Token) -> Result<(), BarrierError> {
        let mark = PassedMark { round, own: self.holder.clone() };
        let mut rewrite = Rewrite::new(held.fence().key, held.token(), mark, RewriteLimit::UntilApplied);
        let marked =
            held.run(retry::run("barrier mark", &self.store, self.queues.clock(), &mut rewrite)).await;
        match marked.map_err(BarrierError::Lost)? {
            // The queue driver notices it too, and knows why.
            Ok(Rewritten::Gone) => Err(BarrierError::Lost(held.lost().await)),
            Ok(Rewritten::Stored(..) | Rewritten::Contended) => Ok(()),
            Err(RewriteError::Store(error)) => Err(BarrierError::Store(error)),
            Err(RewriteError::Unreadable(_)) => unreachable!("the owner replaces what cannot be read"),
        }
    }
}

/// The parties at a barrier, as they come and go.
struct View {
    queue: Bytes,
    feed: Feed,
    round: BarrierRound,
    tokens: BTreeMap<Bytes, Token>,
    is_whole: bool,
}

impl View {
    fn open(store: &Store, queue: &Bytes) -> Result<View, StoreError> {
        let feed = Feed::open(store.clone(), Selection::Prefix(queue.clone()))?;
        Ok(View {
            queue: queue.clone(),
            feed,
            round: BarrierRound::default(),
            tokens: BTreeMap::new(),
            is_whole: false,
        })
    }

    /// Looks at every whole picture, the present one first, until one is as wanted.
    async fn wait_for<T>(&mut self, wanted: impl Fn(&BarrierRound) -> Option<T>) -> Result<T, StoreError> {
        loop {
            if self.is_whole
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
        self.is_whole = matches!(item, FeedItem::Synced(_));
        match item {
            FeedItem::SnapshotBegin | FeedItem::Synced(_) => {}
            FeedItem::Put(pair) => {
                self.forget(&pair.key);
                if self.is_place(&pair) {
                    // What cannot be read has not passed.
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

    /// A stranger's key is no party.
    fn is_place(&self, pair: &KeyValue) -> bool {
        let name = pair.key.strip_prefix(&self.queue[..]).and_then(|name| std::str::from_utf8(name).ok());
        name.and_then(QueueKey::parse).is_some()
    }
}

impl IntoFuture for Barrier {
    type Output = Result<(), BarrierError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.pass())
    }
}
