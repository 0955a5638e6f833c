//! Watches of the session's own keys, so that a revoked lease or a deleted key is noticed immediately and not at the next renewal.
//!
//! A few keys under one parent are watched one by one. Many are watched through their parent, because each of ten thousand watches would
//! have to be opened again whenever a connection breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, warn};

use crate::feed::{Feed, FeedItem};
use crate::store::{LeaseId, Revision, Selection, Store, StoreError};

/// With more keys than this under one parent, the parent is watched. Halved, a session receives the changes of neighbouring keys sooner; doubled,
/// it has more watches to open again.
const KEY_WATCHES_MAX: usize = 16;

/// How many changes may wait; feeds wait when the session is busy.
const CHANGES_LEN: usize = 256;

/// How long to wait before a watch that ended is opened again. A feed backs off by itself while the store is unreachable. This is for an
/// unexpected end, which must not become a busy loop.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// A change of an own key.
pub(super) enum OwnKeyChange {
    /// It was put, under this lease.
    Put { key: Bytes, value: Bytes, lease: Option<LeaseId>, revision: Revision },
    /// It was deleted.
    Deleted { key: Bytes, revision: Revision },
    /// At this revision exactly these keys of the selection were stored. Reported once, when a watch begins.
    Listed { select: Selection, present: BTreeSet<Bytes>, revision: Revision },
    /// No watch of this store works any more.
    Failed(StoreError),
}

/// A message of a watch task.
enum WatchMessage {
    Changed(OwnKeyChange),
    /// The last message of the task.
    Ended {
        select: Selection,
        error: Option<StoreError>,
    },
}

/// The watches of the own keys of a session. Dropping it ends them.
pub(super) struct SessionKeyWatches {
    store: Store,
    parents: BTreeMap<Bytes, Parent>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<WatchMessage>,
    messages: mpsc::Receiver<WatchMessage>,
}

#[derive(Default)]
struct Parent {
    keys: BTreeMap<Bytes, Option<AbortHandle>>,
    whole: Option<AbortHandle>,
    /// Whether this process may read its own keys and not their neighbours.
    is_private: bool,
}

impl SessionKeyWatches {
    pub(super) fn new(store: Store) -> SessionKeyWatches {
        let (sender, messages) = mpsc::channel(CHANGES_LEN);
        SessionKeyWatches { store, parents: BTreeMap::new(), tasks: JoinSet::new(), sender, messages }
    }

    /// Watches a key from now on.
    pub(super) fn add(&mut self, key: &Bytes) {
        let name = parent_of(key);
        let parent = self.parents.entry(name.clone()).or_default();
        if parent.keys.contains_key(key) {
            return;
        }
        parent.keys.insert(key.clone(), None);
        if parent.whole.is_some() {
            return;
        }
        if parent.keys.len() > KEY_WATCHES_MAX && !name.is_empty() && !parent.is_private {
            parent.keys.values_mut().filter_map(Option::take).for_each(|watch| watch.abort());
            self.open(Selection::Prefix(name), Duration::ZERO);
        } else {
            self.open(Selection::Key(key.clone()), Duration::ZERO);
        }
    }

    /// Ends the watch of a key.
    pub(super) fn remove(&mut self, key: &Bytes) {
        let name = parent_of(key);
        let Some(parent) = self.parents.get_mut(&name) else { return };
        if let Some(watch) = parent.keys.remove(key).flatten() {
            watch.abort();
        }
        if parent.keys.is_empty()
            && let Some(parent) = self.parents.remove(&name)
            && let Some(watch) = parent.whole
        {
            watch.abort();
        }
    }

    /// The next changes, at least one. Never ends: a watch that ended is opened again, unless that cannot succeed.
    pub(super) async fn next(&mut self) -> Vec<OwnKeyChange> {
        loop {
            let mut received = Vec::new();
            tokio::select! {
                biased;
                // `self` keeps a sender, so the channel never closes.
                _ = self.messages.recv_many(&mut received, CHANGES_LEN) => {}
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
            }
            let mut changes = Vec::with_capacity(received.len());
            for message in received {
                match message {
                    WatchMessage::Changed(change) => changes.push(change),
                    WatchMessage::Ended { select, error } => changes.extend(self.on_end(select, error)),
                }
            }
            if !changes.is_empty() {
                return changes;
            }
        }
    }

    /// A watch ended.
    fn on_end(&mut self, select: Selection, error: Option<StoreError>) -> Option<OwnKeyChange> {
        match (error, select) {
            // A user that may read each own key need not have access to its neighbours: watch the keys one by one.
            (Some(StoreError::Denied(_)), Selection::Prefix(name)) => {
                let parent = self.parents.get_mut(&name)?;
                parent.whole = None;
                parent.is_private = true;
                let keys: Vec<Bytes> = parent.keys.keys().cloned().collect();
                keys.into_iter().for_each(|key| self.open(Selection::Key(key), Duration::ZERO));
                None
            }
            (Some(error @ StoreError::Denied(_)), select) => {
                warn!(?select, %error, "own key not readable");
                None
            }
            (Some(error), _) if error.is_fatal() => Some(OwnKeyChange::Failed(error)),
            (error, select) => {
                let error = error.map(tracing::field::display);
                debug!(?select, error, "own key watch restarted");
                self.open(select, REOPEN_AFTER);
                None
            }
        }
    }

    /// Opens a watch, if its key is still registered.
    fn open(&mut self, select: Selection, wait: Duration) {
        let slot = match &select {
            Selection::Prefix(name) => self.parents.get_mut(name).map(|parent| &mut parent.whole),
            Selection::Key(key) => {
                self.parents.get_mut(&parent_of(key)).and_then(|parent| parent.keys.get_mut(key))
            }
            Selection::Range(..) | Selection::From(_) => None,
        };
        if let Some(slot) = slot {
            *slot = Some(self.tasks.spawn(watch(self.store.clone(), select, wait, self.sender.clone())));
        }
    }

    /// Ends all watches and waits for their tasks.
    pub(super) async fn close(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Everything up to the last `/`; nothing if there is none.
fn parent_of(key: &Bytes) -> Bytes {
    let end = key.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    key.slice(..end)
}

async fn watch(store: Store, select: Selection, wait: Duration, messages: mpsc::Sender<WatchMessage>) {
    tokio::time::sleep(wait).await;
    let error = match Feed::open(store, select.clone()) {
        Ok(feed) => forward(feed, &select, &messages).await,
        Err(error) => Some(error),
    };
    // The receiver is dropped with the session, which needs no message then.
    let _ = messages.send(WatchMessage::Ended { select, error }).await;
}

/// Reports the changes of a feed; returns the error that ended it.
async fn forward(
    mut feed: Feed,
    select: &Selection,
    messages: &mpsc::Sender<WatchMessage>,
) -> Option<StoreError> {
    let mut listing = Some(BTreeSet::new());
    while let Some(item) = feed.next().await {
        let change = match item {
            Ok(FeedItem::Put(pair)) => {
                if let Some(listing) = &mut listing {
                    listing.insert(pair.key.clone());
                }
                OwnKeyChange::Put {
                    key: pair.key,
                    value: pair.value,
                    lease: pair.lease,
                    revision: pair.modified,
                }
            }
            Ok(FeedItem::Delete { key, revision }) => OwnKeyChange::Deleted { key, revision },
            Ok(FeedItem::Synced(revision)) => match listing.take() {
                Some(present) => OwnKeyChange::Listed { select: select.clone(), present, revision },
                None => continue,
            },
            Ok(FeedItem::SnapshotBegin) => continue,
            Err(error) => return Some(error),
        };
        if messages.send(WatchMessage::Changed(change)).await.is_err() {
            return None;
        }
    }
    None
}
