//! A barrier: nobody goes on before everybody has come.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::layout::{Place, Rank};
use tenure_core::line::Round;
use tenure_core::name::BadName;
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::time::Instant;

use crate::clock::{BootClock, Clock, wall_time};
use crate::dice;
use crate::feed::{Feed, FeedItem};
use crate::line::{Desk, Held, Lost, Patience, StandError, Wish};
use crate::store::{KeyValue, LeaseChoice, Op, Selection, Store, StoreError, Txn};

/// Rests between tries to mark our place; the end of our lease ends the trying.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(1),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

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
/// [`BarrierError::NotAll`] when the wait is over: another party may have seen the round complete just before, and gone on.
#[must_use = "nobody comes to the barrier before this is awaited"]
pub struct Barrier {
    desk: Desk,
    store: Store,
    holder: HolderRecord,
    line: Result<Bytes, BadName>,
    parties: NonZeroU32,
    ttl: Option<Duration>,
    patience: Patience,
}

/// Why a barrier was not passed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// No barrier has such a name. Nothing was sent.
    #[error(transparent)]
    Name(#[from] BadName),
    /// We could not come to it.
    #[error(transparent)]
    NotThere(#[from] StandError),
    /// Not all came in time.
    #[error("{arrived} of {parties} came within {within:?}")]
    NotAll {
        /// How many were there at last.
        arrived: usize,
        /// How many should have come.
        parties: NonZeroU32,
        /// How long was waited.
        within: Duration,
    },
    /// Our own place was lost while we waited.
    #[error("its own place was lost: {0}")]
    Lost(Lost),
    /// The store cannot be asked any more.
    #[error("the store failed")]
    Store(#[source] StoreError),
}

impl Barrier {
    pub(super) fn new(
        desk: Desk,
        store: Store,
        holder: HolderRecord,
        line: Result<Bytes, BadName>,
        parties: NonZeroU32,
    ) -> Barrier {
        Barrier { desk, store, holder, line, parties, ttl: None, patience: Patience::Endless }
    }

    /// With a lease of its own length; the session's otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Barrier {
        self.ttl = Some(ttl);
        self
    }

    /// Waits this long for the others to come.
    pub fn wait_up_to(mut self, wait: Duration) -> Barrier {
        self.patience = Patience::UpTo(wait);
        self
    }

    async fn pass(mut self) -> Result<(), BarrierError> {
        let line = self.line.clone()?;
        self.holder.queued = wall_time();
        let deadline = match self.patience {
            Patience::UpTo(wait) => Some((Instant::now() + wait, wait)),
            Patience::Endless | Patience::None => None,
        };
        let wish = Wish {
            line: line.clone(),
            mode: self.holder.mode,
            rank: Rank::Ordinary,
            value: self.holder.encode(),
            ttl: self.ttl,
            patience: self.patience,
            former: None,
        };
        let held = self.desk.hold(wish).await?;
        let mut view = View::open(&self.store, &line).map_err(BarrierError::Store)?;
        let waiting = held.run(view.wait_for(|round| round.of(held.token(), self.parties)));
        let waited = match deadline {
            Some((deadline, within)) => match tokio::time::timeout_at(deadline, waiting).await {
                Ok(waited) => waited,
                Err(_) => {
                    let arrived = view.round.waiting();
                    return Err(BarrierError::NotAll { arrived, parties: self.parties, within });
                }
            },
            None => waiting.await,
        };
        let round = waited.map_err(BarrierError::Lost)?.map_err(BarrierError::Store)?;
        // From here on others rely on us having passed, so no deadline counts any more.
        self.holder.passed = Some(round);
        let marking = mark(&self.store, &held, &self.holder);
        held.run(marking).await.map_err(BarrierError::Lost)?.map_err(BarrierError::Store)?;
        let over = held.run(view.wait_for(|seen| seen.is_over(round).then_some(()))).await;
        // We have passed whatever comes now; a place that cannot leave leaves in the background or ends with its lease.
        if over.is_ok() {
            let _ = held.release().await;
        }
        Ok(())
    }
}

/// Says in our own place that we have passed.
async fn mark(store: &Store, held: &Held, holder: &HolderRecord) -> Result<(), StoreError> {
    let fence = held.fence();
    let put = Op::Put { key: fence.key.clone(), value: holder.encode(), lease: LeaseChoice::Keep };
    let mut backoff = Backoff::new(RETRY);
    loop {
        match store.txn(fence.guard(Txn::new().then(put.clone()))).await {
            // A place that is gone is told by its holder.
            Ok(reply) if reply.succeeded => return Ok(()),
            Ok(_) => std::future::pending().await,
            Err(error) if error.is_fatal() || matches!(error, StoreError::Invalid(_)) => return Err(error),
            Err(_) => {}
        }
        tokio::time::sleep(backoff.after_failure(BootClock.now(), dice::throw(), None)).await;
    }
}

/// The parties at a barrier, as they come and go.
struct View {
    line: Bytes,
    feed: Feed,
    round: Round,
    tokens: BTreeMap<Bytes, Token>,
    is_whole: bool,
}

impl View {
    fn open(store: &Store, line: &Bytes) -> Result<View, StoreError> {
        let feed = Feed::open(store.clone(), Selection::Prefix(line.clone()))?;
        Ok(View {
            line: line.clone(),
            feed,
            round: Round::default(),
            tokens: BTreeMap::new(),
            is_whole: false,
        })
    }

    /// Looks at every whole picture, the present one first, until one is as wanted.
    async fn wait_for<T>(&mut self, wanted: impl Fn(&Round) -> Option<T>) -> Result<T, StoreError> {
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
        self.is_whole = matches!(item, FeedItem::Whole(_));
        match item {
            FeedItem::Begin | FeedItem::Whole(_) => {}
            FeedItem::Put(pair) => {
                self.forget(&pair.key);
                if self.is_place(&pair) {
                    // What cannot be read has not passed.
                    let passed = HolderRecord::decode(&pair.value).ok().and_then(|holder| holder.passed);
                    self.tokens.insert(pair.key, Token(pair.created));
                    self.round.places.insert(Token(pair.created), passed);
                }
            }
            FeedItem::Delete { key, .. } => self.forget(&key),
        }
    }

    fn forget(&mut self, key: &Bytes) {
        if let Some(token) = self.tokens.remove(key) {
            self.round.places.remove(&token);
        }
    }

    /// A stranger's key is no party.
    fn is_place(&self, pair: &KeyValue) -> bool {
        let name = pair.key.strip_prefix(&self.line[..]).and_then(|name| std::str::from_utf8(name).ok());
        name.and_then(Place::parse).is_some()
    }
}

impl IntoFuture for Barrier {
    type Output = Result<(), BarrierError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.pass())
    }
}
