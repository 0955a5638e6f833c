//! The keys that a queue driver watches: its own keys, the keys before them, and whole queues where several waiters hold at once.
//!
//! The driver's task polls all watches itself: no relay task is between a watch and the machine.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{AbortHandle, Abortable, BoxStream, SelectAll, unfold};
use tenure_core::backoff::Backoff;
use tenure_core::layout::QueueKey;
use tenure_core::queue::{LockMode, queue_key_of};
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tracing::debug;

use crate::clock::Clock;
use crate::feed::{Feed, FeedItem};
use crate::retry::Attempts;
use crate::store::{
    Cause, Change, KeyValue, PreviousValues, Revision, Selection, Store, StoreError, WatchError, WatchItem,
    WatchStart, WatchStream,
};

/// How long a key is stored before it is watched. Most locks are released within this time, and the reply to a release reports whether the key
/// still existed. Doubled, a holder learns so much later that another client broke its lock.
const OWN_AFTER: Duration = Duration::from_millis(100);

/// What a watch delivered of a queue.
pub(super) struct QueueChange {
    /// The prefix of the queue.
    pub(super) queue: Bytes,
    pub(super) observed: ObservedKey,
}

/// What was observed.
pub(super) enum ObservedKey {
    /// A key is watched from now on; what happened before was not seen.
    Watched(QueueKey),
    /// A key was put.
    Put(QueueKey, KeyValue),
    /// A key was deleted.
    Deleted(QueueKey, Revision),
    /// The whole queue.
    Snapshot(BTreeMap<Token, LockMode>),
}

/// The watches of a driver; dropping it ends them.
///
/// **Invariant**: a watch that was ended delivers nothing more, because its stream checks that before each item.
pub(super) struct QueueWatches {
    store: Store,
    clock: Arc<dyn Clock>,
    own: BTreeMap<(QueueKey, Bytes), AbortHandle>,
    predecessors: BTreeMap<Bytes, AbortHandle>,
    snapshots: BTreeMap<Bytes, AbortHandle>,
    streams: SelectAll<Abortable<BoxStream<'static, QueueChange>>>,
}

impl QueueWatches {
    pub(super) fn new(store: Store, clock: Arc<dyn Clock>) -> QueueWatches {
        QueueWatches {
            store,
            clock,
            own: BTreeMap::new(),
            predecessors: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            streams: SelectAll::new(),
        }
    }

    /// Watches an own key since its create revision; from now on if it should not be stored.
    pub(super) fn begin_own(&mut self, queue: &Bytes, key: QueueKey, token: Option<Token>) {
        let start = token.map_or(WatchStart::Recent, |token| WatchStart::After(token.0));
        let watch = self.watch_key(queue, key, start);
        self.own.insert((key, queue.clone()), watch);
    }

    /// An own key is not watched any more.
    pub(super) fn end_own(&mut self, queue: &Bytes, key: QueueKey) {
        if let Some(watch) = self.own.remove(&(key, queue.clone())) {
            watch.abort();
        }
    }

    /// Watches this predecessor in a queue instead of another one.
    pub(super) fn change_predecessor(&mut self, queue: &Bytes, wanted: Option<QueueKey>) {
        if let Some(watch) = self.predecessors.remove(queue) {
            watch.abort();
        }
        if let Some(key) = wanted {
            let watch = self.watch_key(queue, key, WatchStart::Recent);
            self.predecessors.insert(queue.clone(), watch);
        }
    }

    /// Watches a whole queue, or not any more.
    pub(super) fn change_snapshot(&mut self, queue: &Bytes, is_wanted: bool) {
        if let Some(watch) = self.snapshots.remove(queue) {
            watch.abort();
        }
        if !is_wanted {
            return;
        }
        match SnapshotWatch::open(self.store.clone(), queue.clone()) {
            Ok(watch) => {
                let next = |mut watch: SnapshotWatch| async move { Some((watch.next().await?, watch)) };
                let watch = self.add(unfold(watch, next).boxed());
                self.snapshots.insert(queue.clone(), watch);
            }
            Err(error) => debug!(?queue, %error, "queue cannot be watched"),
        }
    }

    /// The next change. Never ends.
    pub(super) async fn next(&mut self) -> QueueChange {
        match self.streams.next().await {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }

    fn watch_key(&mut self, queue: &Bytes, key: QueueKey, start: WatchStart) -> AbortHandle {
        let watch = KeyWatch {
            store: self.store.clone(),
            attempts: Attempts::new(&self.clock, Backoff::QUEUE),
            queue: queue.clone(),
            key,
            start,
            stream: None,
            must_read: false,
            ready: VecDeque::new(),
        };
        let next = |mut watch: KeyWatch| async move {
            let observed = watch.next().await?;
            Some((QueueChange { queue: watch.queue.clone(), observed }, watch))
        };
        self.add(unfold(watch, next).boxed())
    }

    fn add(&mut self, stream: BoxStream<'static, QueueChange>) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        self.streams.push(Abortable::new(stream, registration));
        handle
    }
}

/// The watch of one key. It is opened again when it breaks.
struct KeyWatch {
    store: Store,
    attempts: Attempts,
    queue: Bytes,
    key: QueueKey,
    start: WatchStart,
    stream: Option<WatchStream>,
    /// Whether an earlier watch broke, so that a put between the two must be read.
    must_read: bool,
    ready: VecDeque<ObservedKey>,
}

impl KeyWatch {
    /// The next observation; none if the key cannot be watched any more.
    async fn next(&mut self) -> Option<ObservedKey> {
        loop {
            if let Some(observed) = self.ready.pop_front() {
                return Some(observed);
            }
            let Err(error) = self.step().await else { continue };
            self.stream = None;
            if error.is_fatal() {
                debug!(queue = ?self.queue, %error, "queue key watch ended");
                return None;
            }
            // What happens until the next watch is read then.
            (self.start, self.must_read) = (WatchStart::Recent, true);
            self.attempts.wait("queue key watch", &error).await;
        }
    }

    async fn step(&mut self) -> Result<(), StoreError> {
        let stored = self.key.key_in(&self.queue);
        let Some(stream) = &mut self.stream else {
            let select = Selection::Key(stored);
            self.stream = Some(self.store.watch(select, self.start, PreviousValues::Omitted).await?);
            self.attempts.succeeded();
            // The machine reads the key after this, so it does not matter where exactly the watch begins.
            if self.start == WatchStart::Recent {
                self.ready.push_back(ObservedKey::Watched(self.key));
            }
            return Ok(());
        };
        if self.must_read {
            let pair = self.store.get_key(stored).await?;
            self.must_read = false;
            // A deleted key needs no event: the machine reads it because of `Watched`.
            self.ready.extend(pair.map(|pair| ObservedKey::Put(self.key, pair)));
            return Ok(());
        }
        match stream.next().await {
            Some(Ok(WatchItem::Batch { changes, .. })) => {
                self.ready.extend(changes.into_iter().map(|change| match change {
                    Change::Put { pair, .. } => ObservedKey::Put(self.key, pair),
                    Change::Delete { revision, .. } => ObservedKey::Deleted(self.key, revision),
                }));
                Ok(())
            }
            Some(Ok(WatchItem::Progress(_))) => Ok(()),
            Some(Err(WatchError::Compacted { at })) => Err(StoreError::Compacted { at: Some(at) }),
            Some(Err(WatchError::Lost(error))) => Err(error),
            None => Err(StoreError::Unavailable(Cause::new("the watch ended without a reason"))),
        }
    }
}

/// The watch of a whole queue.
struct SnapshotWatch {
    queue: Bytes,
    feed: Feed,
    modes: BTreeMap<Token, LockMode>,
    tokens: BTreeMap<Bytes, Token>,
}

impl SnapshotWatch {
    fn open(store: Store, queue: Bytes) -> Result<SnapshotWatch, StoreError> {
        let feed = Feed::open(store, Selection::Prefix(queue.clone()))?;
        Ok(SnapshotWatch { queue, feed, modes: BTreeMap::new(), tokens: BTreeMap::new() })
    }

    /// The next snapshot; none if the queue cannot be watched any more.
    async fn next(&mut self) -> Option<QueueChange> {
        while let Some(item) = self.feed.next().await {
            match item {
                Ok(FeedItem::SnapshotBegin) => {}
                Ok(FeedItem::Put(pair)) => self.put(pair),
                Ok(FeedItem::Delete { key, .. }) => {
                    if let Some(token) = self.tokens.remove(&key) {
                        self.modes.remove(&token);
                    }
                }
                Ok(FeedItem::Synced(_)) => {
                    let observed = ObservedKey::Snapshot(self.modes.clone());
                    return Some(QueueChange { queue: self.queue.clone(), observed });
                }
                Err(error) => {
                    debug!(queue = ?self.queue, %error, "queue watch ended");
                    return None;
                }
            }
        }
        None
    }

    fn put(&mut self, pair: KeyValue) {
        // A foreign key blocks no waiter.
        if queue_key_of(&self.queue, &pair.key).is_none() {
            return;
        }
        let token = Token(pair.created);
        if let Some(former) = self.tokens.insert(pair.key, token) {
            self.modes.remove(&former);
        }
        // A record that cannot be read counts as exclusive: that errs on the safe side.
        let mode = HolderRecord::decode(&pair.value).map(|holder| holder.mode).unwrap_or_default();
        self.modes.insert(token, mode);
    }
}

/// The own keys of one queue that are to be watched, and which of them are.
#[derive(Default)]
pub(super) struct OwnKeyWatches {
    keys: Vec<WatchedKey>,
}

struct WatchedKey {
    key: QueueKey,
    /// Its create revision; none if it should not be stored.
    token: Option<Token>,
    /// When its watch begins.
    at: Moment,
    is_watched: bool,
}

impl OwnKeyWatches {
    /// These keys are to be watched from now on, and no others. Returns those that are not watched any more.
    pub(super) fn set(
        &mut self,
        wanted: impl Iterator<Item = (QueueKey, Option<Token>)> + Clone,
        now: Moment,
    ) -> Vec<QueueKey> {
        if wanted.clone().map(|(key, _)| key).eq(self.keys.iter().map(|watched| watched.key)) {
            return Vec::new();
        }
        let mut former: BTreeMap<QueueKey, WatchedKey> =
            self.keys.drain(..).map(|watched| (watched.key, watched)).collect();
        self.keys.extend(wanted.map(|(key, token)| {
            let new = || WatchedKey { key, token, at: now + OWN_AFTER, is_watched: false };
            former.remove(&key).unwrap_or_else(new)
        }));
        former.into_values().filter(|watched| watched.is_watched).map(|watched| watched.key).collect()
    }

    /// A key that is to be watched now, and its create revision.
    pub(super) fn next_due(&mut self, now: Moment) -> Option<(QueueKey, Option<Token>)> {
        let due = self.keys.iter_mut().find(|watched| !watched.is_watched && watched.at <= now)?;
        due.is_watched = true;
        Some((due.key, due.token))
    }

    /// When the next watch begins.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.keys.iter().filter(|watched| !watched.is_watched).map(|watched| watched.at).min()
    }

    /// Whether a key is watched, or about to be.
    pub(super) fn may_be_watched(&self, now: Moment) -> bool {
        self.keys.iter().any(|watched| watched.is_watched || watched.at <= now + OWN_AFTER / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::LeaseId;

    const NOW: Moment = Moment::from_ms(1_000);

    fn key(nonce: u64) -> (QueueKey, Option<Token>) {
        let lease = LeaseId::new(7).unwrap();
        (QueueKey { lease, nonce }, Some(Token(Revision(5))))
    }

    #[test]
    fn key_that_is_deleted_soon_is_never_watched() {
        let mut own = OwnKeyWatches::default();
        assert!(own.set([key(1)].into_iter(), NOW).is_empty());
        assert_eq!(own.next_due(NOW + OWN_AFTER - Duration::from_millis(1)), None);
        assert!(own.set(std::iter::empty(), NOW).is_empty(), "no watch ends that has not begun");
        assert_eq!((own.next_wake(), own.next_due(NOW + OWN_AFTER)), (None, None));
    }

    #[test]
    fn key_that_stays_is_watched_once() {
        let mut own = OwnKeyWatches::default();
        for ms in 0..90 {
            own.set([key(1), key(ms + 2)].into_iter(), NOW + Duration::from_millis(ms));
        }
        assert_eq!(own.next_wake(), Some(NOW + OWN_AFTER));
        assert_eq!(own.next_due(NOW + OWN_AFTER), Some(key(1)));
        assert_eq!(own.next_due(NOW + OWN_AFTER), None);
        assert_eq!(own.set(std::iter::empty(), NOW + OWN_AFTER), [key(1).0]);
    }

    #[test]
    fn key_may_be_watched_shortly_before_its_time() {
        let mut own = OwnKeyWatches::default();
        own.set([key(1)].into_iter(), NOW);
        assert!(!own.may_be_watched(NOW));
        assert!(own.may_be_watched(NOW + OWN_AFTER / 2));
    }
}
