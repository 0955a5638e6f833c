//! A whole snapshot of a prefix: list, then watch, and list again when the watch broke.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use tenure_core::backoff::{Backoff, BackoffState};
use tenure_core::snapshot::SnapshotDiff;
use tenure_core::time::Moment;
use tokio::task::coop::poll_proceed;
use tokio::time::{Instant, Sleep};
use tracing::{debug, info, warn};

use crate::rng;
use crate::store::page::PageLen;
use crate::store::{
    Cause, Get, Page, PreviousValues, Revision, Selection, Store, StoreError, WatchError, WatchItem,
    WatchStart, WatchStream,
};

pub use tenure_core::snapshot::FeedItem;

/// What a selection of keys holds, and every change of it, for as long as you like.
///
/// Follows a prefix without a gap: it lists the prefix at one revision, watches it from there, and lists it again whenever the
/// watch breaks. The feed compares the listings, and reports the differences as puts and deletes.
///
/// ```
/// use futures_util::StreamExt;
/// use tenure::feed::{Feed, FeedItem};
/// use tenure::store::{Selection, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// store.put("/nodes/a", "10.0.0.1").await?;
///
/// let mut feed = Feed::open(store, Selection::prefix("/nodes/"))?;
/// let mut nodes = std::collections::BTreeMap::new();
/// while let Some(item) = feed.next().await {
///     match item? {
///         FeedItem::SnapshotBegin => {} // the snapshot gets old: wait for the next `Synced`
///         FeedItem::Put(pair) => drop(nodes.insert(pair.key, pair.value)),
///         FeedItem::Delete { key, .. } => drop(nodes.remove(&key)),
///         FeedItem::Synced(_) => break, // now, and only now, `nodes` is what the store held at one revision
///     }
/// }
/// assert_eq!(nodes["/nodes/a".as_bytes()], "10.0.0.1");
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * At every [`FeedItem::Synced`] the items so far add up to exactly what the store held at that revision.
/// * Revisions of `Synced` only grow. A transaction is never shown by half: its changes are between two `Synced`s.
/// * A key that no longer exists is reported as a delete, also if it was deleted during a gap. Unchanged keys are not repeated.
/// * [`FeedItem::SnapshotBegin`] comes first, and later exactly when the snapshot is no longer kept current.
///
/// # Not guaranteed
///
/// * *Every change*: after a new listing, all changes of the gap are reported as one step. A key that was deleted and put again
///   shows as a put with another `created`, and the revision of a delete is then that of the listing.
/// * *The age* of the snapshot: without changes there are no items. `Synced` comes again as progress where the engine knows more.
///
/// # Cancellation
///
/// Nothing is lost when a future of `next` is dropped: a listing continues where it was. Dropping the feed ends its watch.
///
/// # Errors
///
/// A store that cannot be reached is not an error: the feed returns `SnapshotBegin` and retries, with a backoff of up to 5 s.
/// An error that no retry can fix (a closed, replaced or corrupt store, a denied access, an invalid request) is the last item.
#[must_use = "a feed does nothing unless it is read"]
pub struct Feed {
    store: Store,
    select: Selection,
    snapshot: SnapshotDiff,
    state: FeedState,
    page_len: PageLen,
    backoff: BackoffState,
    opened: Instant,
    /// Items that are not yet read.
    ready: VecDeque<FeedItem>,
}

/// A request in flight, kept here so that a dropped `next` does not repeat it.
type FeedRequest<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// What the feed waits for.
enum FeedState {
    /// The end of the backoff after an error.
    BackingOff(Pin<Box<Sleep>>),
    /// A page of the listing, of these keys; its revision is known from the second page on.
    Listing { request: FeedRequest<Page>, select: Selection, at: Option<Revision> },
    /// A watch after the listing.
    Opening(FeedRequest<WatchStream>),
    /// A change.
    Watching(WatchStream),
    /// Nothing; this error is still to be returned.
    Failed(StoreError),
    /// Nothing.
    Over,
}

impl Feed {
    /// Follows a selection; the listing begins when the feed is first read.
    ///
    /// # Errors
    ///
    /// Only [`StoreError::Invalid`], for a selection that no store would take.
    pub fn open(store: Store, select: Selection) -> Result<Feed, StoreError> {
        select.check()?;
        let page_len = PageLen::new();
        let snapshot = match &select {
            Selection::Prefix(prefix) => SnapshotDiff::under(prefix.clone()),
            Selection::Key(_) | Selection::Range(..) | Selection::From(_) => SnapshotDiff::new(),
        };
        let mut feed = Feed {
            state: list(&store, select.clone(), None, page_len),
            page_len,
            store,
            select,
            snapshot,
            backoff: BackoffState::new(Backoff::FEED),
            opened: Instant::now(),
            ready: VecDeque::new(),
        };
        feed.snapshot.handle_break(&mut feed.ready);
        Ok(feed)
    }

    /// What is followed.
    pub fn selection(&self) -> &Selection {
        &self.select
    }

    /// Waits for one thing and takes it in.
    fn step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.state {
            FeedState::BackingOff(sleep) => {
                ready!(sleep.as_mut().poll(context));
                // From the first page: pages of the interrupted listing may be compacted by now.
                self.state = list(&self.store, self.select.clone(), None, self.page_len);
            }
            FeedState::Listing { request, select, at } => match ready!(request.as_mut().poll(context)) {
                Ok(page) => {
                    // Later pages are read at the revision of the first, so that all pages are one snapshot.
                    let at = at.unwrap_or(page.revision);
                    self.on_page(page, at);
                }
                Err(error) if self.page_len.shrinks_for(&error) => {
                    debug!(select = ?self.select, len = self.page_len.get(), "page was too large, retrying smaller");
                    // The same page again. The pages before it are not repeated.
                    self.state = list(&self.store, select.clone(), *at, self.page_len);
                }
                Err(error) => self.on_break(error),
            },
            FeedState::Opening(request) => match ready!(request.as_mut().poll(context)) {
                Ok(stream) => self.state = FeedState::Watching(stream),
                Err(error) => self.on_break(error),
            },
            FeedState::Watching(stream) => match ready!(stream.as_mut().poll_next(context)) {
                Some(Ok(WatchItem::Batch { revision, changes })) => {
                    self.snapshot.handle_batch(revision, changes, &mut self.ready);
                }
                Some(Ok(WatchItem::Progress(revision))) => {
                    self.snapshot.handle_progress(revision, &mut self.ready);
                }
                // The watcher is behind the compaction: only a new listing closes the gap.
                Some(Err(WatchError::Compacted { at })) => {
                    self.on_break(StoreError::Compacted { at: Some(at) });
                }
                Some(Err(WatchError::Lost(error))) => self.on_break(error),
                None => {
                    self.on_break(StoreError::Unavailable(Cause::new("the watch ended without a reason")));
                }
            },
            FeedState::Failed(_) | FeedState::Over => {}
        }
        Poll::Ready(())
    }

    fn on_page(&mut self, page: Page, at: Revision) {
        let last = page.pairs.last().map(|pair| pair.key.clone());
        self.snapshot.handle_page(at, page.pairs, &mut self.ready);
        self.state = match last {
            Some(last) if page.more => list(&self.store, after(&self.select, last), Some(at), self.page_len),
            Some(_) | None => {
                self.snapshot.handle_listed(&mut self.ready);
                self.backoff.after_success(Moment::after_origin(self.opened.elapsed()));
                if self.backoff.failures() > 0 {
                    info!(select = ?self.select, revision = %at, keys = self.snapshot.len(), "feed synced");
                }
                // After the revision of the listing: no change between the two is missed or repeated.
                watch(&self.store, &self.select, at)
            }
        };
    }

    /// Backs off and lists again, unless no retry can fix the error.
    fn on_break(&mut self, error: StoreError) {
        if error.is_fatal() || matches!(error, StoreError::Invalid(_)) {
            // A retry gets the same error, so the caller has to see it.
            self.state = FeedState::Failed(error);
            return;
        }
        self.snapshot.handle_break(&mut self.ready);
        let now = Moment::after_origin(self.opened.elapsed());
        let backoff = self.backoff.after_failure(now, rng::jitter(), None);
        let failures = self.backoff.failures();
        // A compaction is normal operation of a slow reader, not a fault.
        if matches!(error, StoreError::Compacted { .. }) || !self.backoff.is_worth_logging() {
            debug!(select = ?self.select, %error, failures, "feed lists the prefix again");
        } else {
            warn!(select = ?self.select, %error, failures, "feed interrupted");
        }
        self.state = FeedState::BackingOff(Box::pin(tokio::time::sleep(backoff)));
    }
}

impl Stream for Feed {
    type Item = Result<FeedItem, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A list of ten thousand keys is read without a wait on a local store: the reader has to yield all the same.
        let budget = ready!(poll_proceed(context));
        loop {
            if let Some(item) = self.ready.pop_front() {
                budget.made_progress();
                return Poll::Ready(Some(Ok(item)));
            }
            // Items first: `Failed` is returned after everything that the feed knows.
            match std::mem::replace(&mut self.state, FeedState::Over) {
                FeedState::Over => return Poll::Ready(None),
                FeedState::Failed(error) => return Poll::Ready(Some(Err(error))),
                waiting => self.state = waiting,
            }
            ready!(self.step(context));
        }
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Feed({:?}, {} keys, synced at {:?})",
            self.select,
            self.snapshot.len(),
            self.snapshot.synced_at()
        )
    }
}

fn list(store: &Store, select: Selection, at: Option<Revision>, len: PageLen) -> FeedState {
    let get = Get { at, ..Get::new(select.clone()).limit(len.get()) };
    let store = store.clone();
    FeedState::Listing { request: Box::pin(async move { store.get(get).await }), select, at }
}

fn watch(store: &Store, select: &Selection, after: Revision) -> FeedState {
    let (store, select) = (store.clone(), select.clone());
    FeedState::Opening(Box::pin(async move {
        store.watch(select, WatchStart::After(after), PreviousValues::Omitted).await
    }))
}

/// What is left of a selection after its key `last`.
fn after(select: &Selection, last: Bytes) -> Selection {
    // The first key after the last one: the same bytes and a zero.
    let from = Selection::Key(last).end().unwrap_or_default();
    match select.end() {
        Some(end) => Selection::Range(from, end),
        None => Selection::From(from),
    }
}
