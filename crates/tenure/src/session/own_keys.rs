//! Watching the session's own keys, so that a revoked lease or a deleted key is seen at once and not at the next renewal.
//!
//! A few keys under one parent are watched one by one; many are watched through their parent, because ten thousand watches would all have
//! to be asked for again whenever a connection breaks.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use crate::feed::{Feed, FeedItem};
use crate::store::{LeaseId, Revision, Selection, Store};

/// From how many keys on a parent is watched as a whole. Halved, a node listens to all its neighbours sooner; doubled, a session
/// has more watches to ask for again.
const CROWD: usize = 16;

/// How many sightings may wait; feeds wait when the session is busy.
const SIGHTINGS_LEN: usize = 256;

/// What was seen of a key.
pub(super) enum Sighting {
    /// It was put, under this lease.
    Put { key: Bytes, lease: Option<LeaseId>, revision: Revision },
    /// It was deleted.
    Deleted { key: Bytes, revision: Revision },
    /// At this revision exactly these keys of the selection were there; told once, when a watch begins.
    Listed { select: Selection, present: BTreeSet<Bytes>, revision: Revision },
}

/// The watches of a session's own keys; dropping it ends them.
pub(super) struct OwnKeys {
    store: Store,
    parents: BTreeMap<Bytes, Parent>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Sighting>,
    sightings: mpsc::Receiver<Sighting>,
}

#[derive(Default)]
struct Parent {
    keys: BTreeMap<Bytes, Option<AbortHandle>>,
    whole: Option<AbortHandle>,
}

impl OwnKeys {
    pub(super) fn new(store: Store) -> OwnKeys {
        let (sender, sightings) = mpsc::channel(SIGHTINGS_LEN);
        OwnKeys { store, parents: BTreeMap::new(), tasks: JoinSet::new(), sender, sightings }
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
        if parent.keys.len() > CROWD && !name.is_empty() {
            parent.keys.values_mut().filter_map(Option::take).for_each(|watch| watch.abort());
            parent.whole = Some(self.tasks.spawn(look(
                self.store.clone(),
                Selection::Prefix(name),
                self.sender.clone(),
            )));
        } else {
            let watch =
                self.tasks.spawn(look(self.store.clone(), Selection::Key(key.clone()), self.sender.clone()));
            parent.keys.insert(key.clone(), Some(watch));
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

    /// The next sighting. Never ends: a watch that ended has said why in the log, and renewals still tell.
    pub(super) async fn next(&mut self) -> Sighting {
        loop {
            tokio::select! {
                biased;
                sighting = self.sightings.recv() => match sighting {
                    Some(sighting) => return sighting,
                    // A sender is kept beside the receiver.
                    None => std::future::pending().await,
                },
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
            }
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

async fn look(store: Store, select: Selection, sightings: mpsc::Sender<Sighting>) {
    let mut feed = match Feed::open(store, select.clone()) {
        Ok(feed) => feed,
        Err(error) => {
            debug!(?select, %error, "own keys cannot be watched");
            return;
        }
    };
    let mut listing = Some(BTreeSet::new());
    while let Some(item) = feed.next().await {
        let sighting = match item {
            Ok(FeedItem::Put(pair)) => {
                if let Some(listing) = &mut listing {
                    listing.insert(pair.key.clone());
                }
                Sighting::Put { key: pair.key, lease: pair.lease, revision: pair.modified }
            }
            Ok(FeedItem::Delete { key, revision }) => Sighting::Deleted { key, revision },
            Ok(FeedItem::Whole(revision)) => match listing.take() {
                Some(present) => Sighting::Listed { select: select.clone(), present, revision },
                None => continue,
            },
            Ok(FeedItem::Begin) => continue,
            Err(error) => {
                debug!(?select, %error, "own keys are not watched any more");
                return;
            }
        };
        if sightings.send(sighting).await.is_err() {
            return;
        }
    }
}
