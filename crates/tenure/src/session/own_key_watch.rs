//! Watching the session's own keys, so that a revoked lease or a deleted key is seen at once and not at the next renewal.
//!
//! A few keys under one parent are watched one by one; many are watched through their parent, because ten thousand watches would all have
//! to be asked for again whenever a connection breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, warn};

use crate::feed::{Feed, FeedItem};
use crate::store::{LeaseId, Revision, Selection, Store, StoreError};

/// From how many keys on a parent is watched as a whole. Halved, a node listens to all its neighbours sooner; doubled, a session
/// has more watches to ask for again.
const CROWD: usize = 16;

/// How many sightings may wait; feeds wait when the session is busy.
const SIGHTINGS_LEN: usize = 256;

/// How long to rest before a watch that ended is opened again. A feed rests by itself while the store is away; this is for an end that it
/// did not expect, which must not become a loop.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What was seen of a key.
pub(super) enum OwnKeyChange {
    /// It was put, under this lease.
    Put { key: Bytes, value: Bytes, lease: Option<LeaseId>, revision: Revision },
    /// It was deleted.
    Deleted { key: Bytes, revision: Revision },
    /// At this revision exactly these keys of the selection were there; told once, when a watch begins.
    Listed { select: Selection, present: BTreeSet<Bytes>, revision: Revision },
    /// Nothing can be seen through this store any more.
    Blind(StoreError),
}

/// What a watch says.
enum WatchMessage {
    Saw(OwnKeyChange),
    /// Its last word.
    Ended {
        select: Selection,
        error: Option<StoreError>,
    },
}

/// The watches of a session's own keys; dropping it ends them.
pub(super) struct OwnKeyWatches {
    store: Store,
    parents: BTreeMap<Bytes, Parent>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<WatchMessage>,
    said: mpsc::Receiver<WatchMessage>,
}

#[derive(Default)]
struct Parent {
    keys: BTreeMap<Bytes, Option<AbortHandle>>,
    whole: Option<AbortHandle>,
    /// We may read our own keys and not their neighbours.
    is_private: bool,
}

impl OwnKeyWatches {
    pub(super) fn new(store: Store) -> OwnKeyWatches {
        let (sender, said) = mpsc::channel(SIGHTINGS_LEN);
        OwnKeyWatches { store, parents: BTreeMap::new(), tasks: JoinSet::new(), sender, said }
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
        if parent.keys.len() > CROWD && !name.is_empty() && !parent.is_private {
            parent.keys.values_mut().filter_map(Option::take).for_each(|watch| watch.abort());
            self.open(Selection::Prefix(name), Duration::ZERO);
        } else {
            self.open(Selection::Key(key.clone()), Duration::ZERO);
        }
    }

    /// Does not watch a key any more.
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

    /// The next sightings, at least one. Never ends: a watch that ended is opened again, or has said why that is of no use.
    pub(super) async fn next(&mut self) -> Vec<OwnKeyChange> {
        loop {
            let mut said = Vec::new();
            tokio::select! {
                biased;
                // A sender is kept beside the receiver, so there is always something to come.
                _ = self.said.recv_many(&mut said, SIGHTINGS_LEN) => {}
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
            }
            let mut sightings = Vec::with_capacity(said.len());
            for said in said {
                match said {
                    WatchMessage::Saw(sighting) => sightings.push(sighting),
                    WatchMessage::Ended { select, error } => sightings.extend(self.on_end(select, error)),
                }
            }
            if !sightings.is_empty() {
                return sightings;
            }
        }
    }

    /// A watch ended for good.
    fn on_end(&mut self, select: Selection, error: Option<StoreError>) -> Option<OwnKeyChange> {
        match (error, select) {
            // Who may read each key need not be allowed to read what is beside it.
            (Some(StoreError::Denied(_)), Selection::Prefix(name)) => {
                let parent = self.parents.get_mut(&name)?;
                parent.whole = None;
                parent.is_private = true;
                let keys: Vec<Bytes> = parent.keys.keys().cloned().collect();
                keys.into_iter().for_each(|key| self.open(Selection::Key(key), Duration::ZERO));
                None
            }
            (Some(error @ StoreError::Denied(_)), select) => {
                warn!(?select, %error, "own key must not be read, so nobody sees when it is deleted");
                None
            }
            (Some(error), _) if error.is_fatal() => Some(OwnKeyChange::Blind(error)),
            (error, select) => {
                let error = error.map(tracing::field::display);
                debug!(?select, error, "own keys are watched anew");
                self.open(select, AGAIN_AFTER);
                None
            }
        }
    }

    /// Opens a watch and notes it, if anybody still wants it.
    fn open(&mut self, select: Selection, rest: Duration) {
        let place = match &select {
            Selection::Prefix(name) => self.parents.get_mut(name).map(|parent| &mut parent.whole),
            Selection::Key(key) => {
                self.parents.get_mut(&parent_of(key)).and_then(|parent| parent.keys.get_mut(key))
            }
            Selection::Range(..) | Selection::From(_) => None,
        };
        if let Some(place) = place {
            *place = Some(self.tasks.spawn(look(self.store.clone(), select, rest, self.sender.clone())));
        }
    }

    /// Ends all watches and waits for them.
    pub(super) async fn close(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Everything up to the last `/`; nothing if there is none.
fn parent_of(key: &Bytes) -> Bytes {
    let end = key.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    key.slice(..end)
}

async fn look(store: Store, select: Selection, rest: Duration, said: mpsc::Sender<WatchMessage>) {
    tokio::time::sleep(rest).await;
    let error = match Feed::open(store, select.clone()) {
        Ok(feed) => follow(feed, &select, &said).await,
        Err(error) => Some(error),
    };
    // If nobody listens any more, nobody has to know.
    let _ = said.send(WatchMessage::Ended { select, error }).await;
}

/// Passes on what a feed shows; returns why it ended.
async fn follow(mut feed: Feed, select: &Selection, said: &mpsc::Sender<WatchMessage>) -> Option<StoreError> {
    let mut listing = Some(BTreeSet::new());
    while let Some(item) = feed.next().await {
        let sighting = match item {
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
        if said.send(WatchMessage::Saw(sighting)).await.is_err() {
            return None;
        }
    }
    None
}
