//! What a desk watches: its own places, the places before them, and whole lines where several hold at once.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::layout::Place;
use tenure_core::line::Mode;
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::ask;
use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::feed::{Feed, FeedItem};
use crate::store::{
    Change, KeyValue, Previous, Revision, Selection, Start, Store, StoreError, WatchEnd, WatchItem,
};

/// How many sightings may wait; watches wait when the desk is busy.
const SIGHTINGS_LEN: usize = 256;

/// Rests between tries to watch; the engine mends what it can by itself, so this is rare.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(2),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// What was seen of a line.
pub(super) struct Sighting {
    pub(super) line: Bytes,
    pub(super) seen: Seen,
}

/// What was seen.
pub(super) enum Seen {
    /// A place is watched from now on; what happened before was not seen.
    Watched(Place),
    /// A place was put.
    Put(Place, KeyValue),
    /// A place is gone.
    Gone(Place, Revision),
    /// The whole line.
    Picture(BTreeMap<Token, Mode>),
}

/// The watches of a desk; dropping it ends them.
pub(super) struct Watches {
    store: Store,
    own: BTreeMap<(Place, Bytes), AbortHandle>,
    before: BTreeMap<Bytes, AbortHandle>,
    crowds: BTreeMap<Bytes, AbortHandle>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Sighting>,
    sightings: mpsc::Receiver<Sighting>,
}

impl Watches {
    pub(super) fn new(store: Store) -> Watches {
        let (sender, sightings) = mpsc::channel(SIGHTINGS_LEN);
        Watches {
            store,
            own: BTreeMap::new(),
            before: BTreeMap::new(),
            crowds: BTreeMap::new(),
            tasks: JoinSet::new(),
            sender,
            sightings,
        }
    }

    /// Watches a place of ours, since it is there; from now on if it should not be.
    pub(super) fn begin_own(&mut self, line: &Bytes, place: Place, token: Option<Token>) {
        let start = token.map_or(Start::Recent, |token| Start::After(token.0));
        let watch = self.follow(line, place, start);
        self.own.insert((place, line.clone()), watch);
    }

    /// A place of ours is not watched any more.
    pub(super) fn end_own(&mut self, line: &Bytes, place: Place) {
        if let Some(watch) = self.own.remove(&(place, line.clone())) {
            watch.abort();
        }
    }

    /// Watches this place of somebody else in a line, instead of another one.
    pub(super) fn change_before(&mut self, line: &Bytes, wanted: Option<Place>) {
        if let Some(watch) = self.before.remove(line) {
            watch.abort();
        }
        if let Some(place) = wanted {
            let watch = self.follow(line, place, Start::Recent);
            self.before.insert(line.clone(), watch);
        }
    }

    /// Watches a whole line, or not any more.
    pub(super) fn change_crowd(&mut self, line: &Bytes, is_wanted: bool) {
        if let Some(watch) = self.crowds.remove(line) {
            watch.abort();
        }
        if is_wanted {
            let watch = self.tasks.spawn(crowd(self.store.clone(), line.clone(), self.sender.clone()));
            self.crowds.insert(line.clone(), watch);
        }
    }

    /// The next sighting. Never ends.
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

    fn follow(&mut self, line: &Bytes, place: Place, start: Start) -> AbortHandle {
        let (store, line, sender) = (self.store.clone(), line.clone(), self.sender.clone());
        let watch = Follow { store, line, place, sender, is_anew: false };
        self.tasks.spawn(watch.run(start))
    }
}

/// The watch of one place.
struct Follow {
    store: Store,
    line: Bytes,
    place: Place,
    sender: mpsc::Sender<Sighting>,
    /// Whether it was watched before, and what was put meanwhile has to be read.
    is_anew: bool,
}

impl Follow {
    async fn run(mut self, mut start: Start) {
        let mut backoff = Backoff::new(RETRY);
        loop {
            let end = self.watch(start, &mut backoff).await;
            match end {
                Some(error) if error.is_fatal() => {
                    debug!(line = ?self.line, %error, "place is not watched any more");
                    return;
                }
                Some(error) => debug!(line = ?self.line, %error, "place is watched anew"),
                // Nobody listens any more.
                None => return,
            }
            // Whatever happened meanwhile is looked up instead.
            start = Start::Recent;
            self.is_anew = true;
            tokio::time::sleep(backoff.after_failure(BootClock.now(), dice::throw(), None)).await;
        }
    }

    /// Watches until the watch breaks; none if nobody listens any more.
    async fn watch(&self, start: Start, backoff: &mut Backoff) -> Option<StoreError> {
        let select = Selection::Key(ask::key(&self.line, self.place));
        let mut stream = match self.store.watch(select, start, Previous::Omitted).await {
            Ok(stream) => stream,
            Err(error) => return Some(error),
        };
        backoff.after_success(BootClock.now());
        // What happened before is looked up after this, so where exactly it begins does not matter.
        if start == Start::Recent {
            self.tell(Seen::Watched(self.place)).await?;
        }
        if self.is_anew {
            match self.store.get_key(ask::key(&self.line, self.place)).await {
                Ok(Some(pair)) => self.tell(Seen::Put(self.place, pair)).await?,
                // What is gone was told to be looked at.
                Ok(None) => {}
                Err(error) => return Some(error),
            }
        }
        while let Some(item) = stream.next().await {
            let changes = match item {
                Ok(WatchItem::Batch { changes, .. }) => changes,
                Ok(WatchItem::Progress(_)) => continue,
                Err(WatchEnd::Compacted { at }) => return Some(StoreError::Compacted { at: Some(at) }),
                Err(WatchEnd::Lost(error)) => return Some(error),
            };
            for change in changes {
                self.tell(match change {
                    Change::Put { pair, .. } => Seen::Put(self.place, pair),
                    Change::Delete { revision, .. } => Seen::Gone(self.place, revision),
                })
                .await?;
            }
        }
        Some(StoreError::Unavailable(crate::store::Cause::new("the watch ended without a reason")))
    }

    async fn tell(&self, seen: Seen) -> Option<()> {
        self.sender.send(Sighting { line: self.line.clone(), seen }).await.ok()
    }
}

/// Follows a whole line.
async fn crowd(store: Store, line: Bytes, sender: mpsc::Sender<Sighting>) {
    let mut feed = match Feed::open(store, Selection::Prefix(line.clone())) {
        Ok(feed) => feed,
        Err(error) => return debug!(?line, %error, "line cannot be watched"),
    };
    let mut picture: BTreeMap<Token, Mode> = BTreeMap::new();
    let mut tokens: BTreeMap<Bytes, Token> = BTreeMap::new();
    while let Some(item) = feed.next().await {
        match item {
            Ok(FeedItem::Begin) => {}
            Ok(FeedItem::Put(pair)) if ask::place(&line, &pair.key).is_some() => {
                let token = Token(pair.created);
                if let Some(before) = tokens.insert(pair.key, token) {
                    picture.remove(&before);
                }
                // What cannot be read wants all for itself: that errs on the safe side.
                let mode = HolderRecord::decode(&pair.value).map(|holder| holder.mode).unwrap_or_default();
                picture.insert(token, mode);
            }
            // A stranger's key blocks nobody.
            Ok(FeedItem::Put(_)) => {}
            Ok(FeedItem::Delete { key, .. }) => {
                if let Some(token) = tokens.remove(&key) {
                    picture.remove(&token);
                }
            }
            Ok(FeedItem::Whole(_)) => {
                let sighting = Sighting { line: line.clone(), seen: Seen::Picture(picture.clone()) };
                if sender.send(sighting).await.is_err() {
                    return;
                }
            }
            Err(error) => return debug!(?line, %error, "line is not watched any more"),
        }
    }
}
