//! What a desk watches: its own places, the places before them, and whole lines where several hold at once.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::layout::Place;
use tenure_core::line::{Mode, Watching};
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep};
use tracing::debug;

use super::ask;
use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::feed::{Feed, FeedItem};
use crate::store::{
    Change, KeyValue, Previous, Revision, Selection, Start, Store, StoreError, WatchEnd, WatchItem,
};

/// How long a place must have stood before it is watched. Most locks are held for less, and need no watch: whoever leaves is told whether its
/// place was still there. Doubled, a holder learns so much later that somebody broke its lock.
pub(super) const OWN_AFTER: Duration = Duration::from_millis(100);

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

/// What was seen.
pub(super) enum Sighting {
    /// A place is watched from now on; what happened before was not seen.
    Watched(Bytes, Place),
    /// A place was put.
    Put(Bytes, Place, KeyValue),
    /// A place is gone.
    Gone(Bytes, Place, Revision),
    /// A whole line.
    Picture(Bytes, BTreeMap<Token, Mode>),
}

/// The watches of a desk; dropping it ends them.
pub(super) struct Watches {
    store: Store,
    /// Our own places: watched, or about to be.
    own: BTreeMap<(Place, Bytes), Own>,
    /// Own places that are watched from then on if they are still wanted, in that order.
    soon: VecDeque<(Instant, Bytes, Place)>,
    /// Rings when the first of those is due; one timer for all, because most places are gone before their time.
    timer: Pin<Box<Sleep>>,
    before: BTreeMap<Bytes, (Place, AbortHandle)>,
    crowds: BTreeMap<Bytes, AbortHandle>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Sighting>,
    sightings: mpsc::Receiver<Sighting>,
}

/// The watch of an own place.
enum Own {
    /// Not yet; it has to begin there, at that time.
    Soon(Start, Instant),
    Watched(AbortHandle),
}

impl Watches {
    pub(super) fn new(store: Store) -> Watches {
        let (sender, sightings) = mpsc::channel(SIGHTINGS_LEN);
        Watches {
            store,
            own: BTreeMap::new(),
            soon: VecDeque::new(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            before: BTreeMap::new(),
            crowds: BTreeMap::new(),
            tasks: JoinSet::new(),
            sender,
            sightings,
        }
    }

    /// Watches for a line what is wanted now, instead of what was wanted before.
    pub(super) fn change(&mut self, line: &Bytes, was: &Watching, wanted: &Watching) {
        for place in was.own.keys().filter(|place| !wanted.own.contains_key(place)) {
            if let Some(Own::Watched(watch)) = self.own.remove(&(*place, line.clone())) {
                watch.abort();
            }
        }
        for (&place, token) in wanted.own.iter().filter(|(place, _)| !was.own.contains_key(place)) {
            let start = token.map_or(Start::Recent, |token| Start::After(token.0));
            let at = Instant::now() + OWN_AFTER;
            self.own.insert((place, line.clone()), Own::Soon(start, at));
            self.soon.push_back((at, line.clone(), place));
        }
        if was.before != wanted.before {
            if let Some((_, watch)) = self.before.remove(line) {
                watch.abort();
            }
            if let Some(place) = wanted.before {
                let watch = self.follow(line, place, Start::Recent);
                self.before.insert(line.clone(), (place, watch));
            }
        }
        match (was.crowd, wanted.crowd) {
            (false, true) => {
                let watch = self.tasks.spawn(crowd(self.store.clone(), line.clone(), self.sender.clone()));
                self.crowds.insert(line.clone(), watch);
            }
            (true, false) => {
                if let Some(watch) = self.crowds.remove(line) {
                    watch.abort();
                }
            }
            (true, true) | (false, false) => {}
        }
    }

    /// The next sighting. Never ends.
    pub(super) async fn next(&mut self) -> Sighting {
        loop {
            self.begin_due();
            tokio::select! {
                biased;
                () = self.timer.as_mut(), if !self.soon.is_empty() => {}
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

    /// Watches the own places whose time has come and that are still wanted, and sets the timer for the next.
    fn begin_due(&mut self) {
        let now = Instant::now();
        while let Some((at, line, place)) = self.soon.front()
            && *at <= now
        {
            let (due, line, place) = (*at, line.clone(), *place);
            self.soon.pop_front();
            let wanted = self.own.get(&(place, line.clone()));
            // The place may have been left and put again since: then it is watched later.
            if let Some(&Own::Soon(start, at)) = wanted
                && at == due
            {
                let watch = self.follow(&line, place, start);
                self.own.insert((place, line), Own::Watched(watch));
            }
        }
        // A timer that rings early is set again then; that is cheaper than to set it for every place.
        if let Some((at, ..)) = self.soon.front()
            && (self.timer.is_elapsed() || *at < self.timer.deadline())
        {
            self.timer.as_mut().reset(*at);
        }
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
            self.tell(Sighting::Watched(self.line.clone(), self.place)).await?;
        }
        if self.is_anew {
            match self.store.get_key(ask::key(&self.line, self.place)).await {
                Ok(Some(pair)) => self.tell(Sighting::Put(self.line.clone(), self.place, pair)).await?,
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
                let sighting = match change {
                    Change::Put { pair, .. } => Sighting::Put(self.line.clone(), self.place, pair),
                    Change::Delete { revision, .. } => {
                        Sighting::Gone(self.line.clone(), self.place, revision)
                    }
                };
                self.tell(sighting).await?;
            }
        }
        Some(StoreError::Unavailable(crate::store::Cause::new("the watch ended without a reason")))
    }

    async fn tell(&self, sighting: Sighting) -> Option<()> {
        self.sender.send(sighting).await.ok()
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
                if sender.send(Sighting::Picture(line.clone(), picture.clone())).await.is_err() {
                    return;
                }
            }
            Err(error) => return debug!(?line, %error, "line is not watched any more"),
        }
    }
}
