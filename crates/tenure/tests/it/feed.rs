//! At every `Synced` the items of a feed add up to the store, also after interruptions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use futures_util::{FutureExt, StreamExt};
use tenure::feed::{Feed, FeedItem};
use tenure::store::etcd::{Config, EtcdEngine};
use tenure::store::file::FileEngine;
use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Cause, Engine, Get, InvalidRequest, KeyValue, Op, Page, PreviousValues, Revision, Selection, Store,
    StoreError, Txn, WatchError, WatchStart, WatchStream,
};
use tenure_fixture::{Etcd as Server, Mode, Proxy};
use tokio::time::timeout;

use crate::tokio_clock::TokioClock;
use crate::twisted::{Twist, Twisted};

/// How long a feed may take for its next item; in virtual time this costs nothing.
const ITEM_MAX: Duration = Duration::from_secs(60);

/// Reads a feed and keeps the resulting keys.
pub(crate) struct PresenceWatch {
    feed: Feed,
    pub(crate) pairs: BTreeMap<Bytes, KeyValue>,
    /// Every item, in a short form.
    pub(crate) items: Vec<String>,
    is_synced: bool,
    at: Revision,
}

impl PresenceWatch {
    pub(crate) fn new(store: Store) -> PresenceWatch {
        let feed = Feed::open(store, Selection::prefix("/f/")).expect("the prefix is closed");
        PresenceWatch {
            feed,
            pairs: BTreeMap::new(),
            items: Vec::new(),
            is_synced: false,
            at: Revision::ZERO,
        }
    }

    /// Applies the next item, and checks the rules of every feed. Returns the revision at `Synced`.
    pub(crate) async fn next(&mut self) -> Result<Option<Revision>, StoreError> {
        let item = timeout(ITEM_MAX, self.feed.next()).await.expect("the feed returns an item");
        self.take(item.expect("a feed ends with an error")?)
    }

    fn take(&mut self, item: FeedItem) -> Result<Option<Revision>, StoreError> {
        let name = |key: &[u8]| String::from_utf8_lossy(&key[3..]).into_owned();
        match item {
            FeedItem::SnapshotBegin => {
                assert!(self.is_synced || self.items.is_empty(), "begun twice: {:?}", self.items);
                self.is_synced = false;
                self.items.push("begin".into());
            }
            FeedItem::Put(pair) => {
                self.items.push(name(&pair.key));
                let before = self.pairs.insert(pair.key.clone(), pair.clone());
                assert_ne!(before, Some(pair), "an unchanged key was repeated");
            }
            FeedItem::Delete { key, .. } => {
                self.items.push(format!("-{}", name(&key)));
                assert!(self.pairs.remove(&key).is_some(), "an unknown key was deleted: {key:?}");
            }
            FeedItem::Synced(revision) => {
                assert!(revision >= self.at, "synced at {revision} after {}", self.at);
                self.items.push("synced".into());
                (self.is_synced, self.at) = (true, revision);
                return Ok(Some(revision));
            }
        }
        Ok(None)
    }

    /// Reads until the next `Synced`.
    pub(crate) async fn synced(&mut self) -> Result<Revision, StoreError> {
        loop {
            if let Some(revision) = self.next().await? {
                return Ok(revision);
            }
        }
    }

    /// Requires that the keys are those of the store at a revision, unless that is compacted.
    async fn assert_matches(&self, store: &Store, at: Revision) {
        let page = match store.get(Get::prefix("/f/").at(at)).await {
            Ok(page) => page,
            Err(StoreError::Compacted { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let held: BTreeMap<_, _> = page.pairs.into_iter().map(|pair| (pair.key.clone(), pair)).collect();
        assert_eq!(self.pairs, held, "at {at}, items {:?}", self.items);
    }
}

/// Writes and deletes a dozen keys in turn, some in transactions, and ends with the key `/f/~`.
pub(crate) async fn write(store: &Store, rounds: usize, pause: Duration) -> Result<(), StoreError> {
    let key = |n: usize| format!("/f/{}", n % 11);
    for n in 0..rounds {
        match n % 5 {
            0 | 3 => drop(store.put(key(n * 7), n.to_string()).await?),
            1 => drop(store.delete(Selection::key(key(n * 3))).await?),
            2 => {
                let txn = Txn::new()
                    .then(Op::put(key(n), n.to_string()))
                    .then(Op::delete(key(n + 1)))
                    .then(Op::put(key(n + 2), n.to_string()));
                store.txn(txn).await?;
            }
            _ => drop(store.put("/elsewhere", n.to_string()).await?),
        }
        tokio::time::sleep(pause).await;
    }
    store.put("/f/~", "").await?;
    Ok(())
}

/// How a watch is interrupted.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Lost,
    Compacted,
    Silent,
}

/// Cuts every watch after a number of items, and refuses every few reads.
struct Interrupted {
    after: usize,
    how: Cut,
    refuse_every: usize,
    reads: AtomicUsize,
}

impl Twist for Interrupted {
    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        if self.reads.fetch_add(1, Ordering::Relaxed) % self.refuse_every == 1 {
            return Err(StoreError::Unavailable(Cause::new("refused on purpose")));
        }
        Engine::get(memory, get).await
    }

    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let stream = Engine::watch(memory, select, start, previous).await?.take(self.after);
        let end = match self.how {
            Cut::Lost => Some(Err(WatchError::Lost(StoreError::Unavailable(Cause::new("cut on purpose"))))),
            Cut::Compacted => Some(Err(WatchError::Compacted { at: Revision(1) })),
            Cut::Silent => None,
        };
        Ok(Box::pin(stream.chain(stream::iter(end))))
    }
}

#[tokio::test(start_paused = true)]
async fn feed_matches_store_at_every_synced() {
    for how in [Cut::Lost, Cut::Compacted, Cut::Silent] {
        for after in 0..12 {
            let memory = TokioClock::memory();
            let twist = Interrupted { after, how, refuse_every: 3, reads: AtomicUsize::new(0) };
            let mut follower = PresenceWatch::new(Twisted::store(memory.clone(), twist));
            let store = Store::new(memory);
            let writer = store.clone();
            let writing = tokio::spawn(async move { write(&writer, 80, Duration::from_millis(20)).await });
            while !follower.pairs.contains_key("/f/~".as_bytes()) {
                let at = follower.synced().await.unwrap();
                follower.assert_matches(&store, at).await;
            }
            writing.await.unwrap().unwrap();
            assert!(follower.items.iter().filter(|item| *item == "begin").count() > 1, "{how:?} {after}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_feed_survives_compaction() {
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    for name in ["a", "b", "c", "d"] {
        store.put(format!("/f/{name}"), "1").await.unwrap();
    }
    let mut follower = PresenceWatch::new(store.clone());
    follower.synced().await.unwrap();
    assert_eq!(follower.items.join(" "), "begin a b c d synced");
    // Reading on opens the watch. It sees one change and then misses the others.
    store.put("/f/a", "2").await.unwrap();
    follower.synced().await.unwrap();
    follower.items.clear();
    store.delete(Selection::key("/f/b")).await.unwrap();
    store.put("/f/c", "3").await.unwrap();
    store.put("/f/e", "4").await.unwrap();
    store.delete(Selection::key("/f/e")).await.unwrap();
    store.put("/f/f", "5").await.unwrap();
    let last = store.delete(Selection::key("/f/d")).await.and(store.put("/elsewhere", "").await).unwrap();
    store.compact(last).await.unwrap();
    let at = follower.synced().await.unwrap();
    assert_eq!(follower.items.join(" "), "begin -b c -d f synced");
    follower.assert_matches(&store, at).await;
}

/// Follows through one handle what is written and compacted through another, while `shake` injects faults.
async fn follow(writer: Store, reader: Store, mut shake: impl FnMut(usize)) {
    let mut follower = PresenceWatch::new(reader);
    for round in 0..12 {
        shake(round);
        write(&writer, 20, Duration::ZERO).await.expect("the writer is not cut off");
        let last = writer.put("/f/round", round.to_string()).await.expect("the writer is not cut off");
        if round % 3 == 2 {
            writer.compact(last).await.expect("the writer is not cut off");
        }
        shake(round);
        loop {
            let at = follower.synced().await.expect("a feed survives");
            follower.assert_matches(&writer, at).await;
            if at >= last {
                break;
            }
        }
    }
    let there = writer.list(Selection::prefix("/f/")).await.expect("the writer is not cut off").pairs;
    assert_eq!(follower.pairs.into_values().collect::<Vec<_>>(), there);
}

#[tokio::test]
async fn feed_of_a_file_follows_another_handle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state").join("store.db");
    let open = async || Store::new(FileEngine::options().open(path.clone()).await.unwrap());
    let (writer, reader) = (open().await, open().await);
    follow(writer.clone(), reader.clone(), |_| {}).await;
    writer.close().await;
    reader.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn feed_survives_broken_network_on_etcd() {
    let server = Server::start();
    let proxy = Proxy::to(server.member(0).client_addr());
    let writer = Store::new(EtcdEngine::connect(Config::new(server.client_urls())).await.unwrap());
    let reader = Store::new(EtcdEngine::connect(Config::new([proxy.url()])).await.unwrap());
    let mut is_broken = false;
    follow(writer.clone(), reader.clone(), |round| {
        is_broken = !is_broken;
        proxy.set(match round % 4 {
            _ if !is_broken => Mode::Pass,
            0 => Mode::CutReset,
            1 => Mode::CutFin,
            2 => Mode::BlackHole,
            _ => Mode::Pass,
        });
    })
    .await;
    writer.close().await;
    reader.close().await;
}

#[tokio::test(start_paused = true)]
async fn listing_of_many_pages_has_one_revision() {
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    let puts = |value: &'static str| (0..2_500).map(move |n| Op::put(format!("/f/{n:05}"), value));
    for outcome in store.apply_all(puts("1")).await.unwrap() {
        outcome.unwrap();
    }
    // Between two pages a key is overwritten and the last keys are deleted.
    struct Busy(AtomicUsize);
    impl Twist for Busy {
        async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
            let page = Engine::get(memory, get).await?;
            if self.0.fetch_add(1, Ordering::Relaxed) == 1 {
                let rest = Selection::Range("/f/02000".into(), "/f/03000".into());
                Engine::txn(memory, Txn::new().then(Op::Delete(rest)).then(Op::put("/f/00000", "2"))).await?;
            }
            Ok(page)
        }
    }
    let mut follower = PresenceWatch::new(Twisted::store(memory.clone(), Busy(AtomicUsize::new(0))));
    let first = follower.synced().await.unwrap();
    assert_eq!(follower.pairs.len(), 2_500);
    follower.assert_matches(&store, first).await;
    let second = follower.synced().await.unwrap();
    assert_eq!(follower.pairs.len(), 2_000);
    follower.assert_matches(&store, second).await;
}

/// A page of tasks with long props exceeded the limit of a response. The feed took that for a fatal error and ended, and the worker with it.
#[tokio::test(start_paused = true)]
async fn too_large_page_is_requested_smaller() {
    struct Narrow(Arc<AtomicUsize>);
    impl Twist for Narrow {
        async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let page = Engine::get(memory, get).await?;
            if page.pairs.len() > 100 {
                return Err(StoreError::Invalid(InvalidRequest::AnswerTooLarge("on purpose".to_owned())));
            }
            Ok(page)
        }
    }
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    let puts = (0..500).map(|n| Op::put(format!("/f/{n:05}"), "1"));
    for outcome in store.apply_all(puts).await.unwrap() {
        outcome.unwrap();
    }
    let reads = Arc::new(AtomicUsize::new(0));
    let narrow = Twisted::store(memory, Narrow(reads.clone()));
    let mut follower = PresenceWatch::new(narrow.clone());
    let synced = follower.synced().await.unwrap();
    assert_eq!(follower.pairs.len(), 500);
    follower.assert_matches(&store, synced).await;
    assert_eq!(reads.load(Ordering::Relaxed), 2 + 9, "two that are too large, and nine of 62 keys");
    let listed = narrow.list(Selection::prefix("/f/")).await.unwrap();
    assert_eq!((listed.pairs.len(), listed.more), (500, false));
}

#[tokio::test(start_paused = true)]
async fn unreachable_store_is_retried_with_backoff() {
    struct Down(Arc<AtomicUsize>);
    impl Twist for Down {
        async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
            if self.0.fetch_add(1, Ordering::Relaxed) < 40 {
                return Err(StoreError::Unavailable(Cause::new("down on purpose")));
            }
            Engine::get(memory, get).await
        }
    }
    let reads = Arc::new(AtomicUsize::new(0));
    let mut follower = PresenceWatch::new(Twisted::store(TokioClock::memory(), Down(reads.clone())));
    let began = tokio::time::Instant::now();
    let synced = loop {
        match timeout(Duration::from_secs(600), follower.feed.next()).await.unwrap().unwrap().unwrap() {
            FeedItem::Synced(at) => break at,
            item => drop(follower.take(item).unwrap()),
        }
    };
    assert_eq!((synced, reads.load(Ordering::Relaxed)), (Revision(1), 41));
    assert_eq!(follower.items.join(" "), "begin", "one `SnapshotBegin` for all failures");
    // Forty backoffs of up to 5 s, half of it on average: neither a busy loop nor a stop.
    assert!(began.elapsed() > Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(180), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn dropped_next_loses_and_repeats_nothing() {
    struct Slow(Arc<AtomicUsize>);
    impl Twist for Slow {
        async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
            Engine::get(memory, get).await
        }
    }
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    store.put("/f/a", "1").await.unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let mut follower = PresenceWatch::new(Twisted::store(memory, Slow(reads.clone())));
    let mut dropped = 0;
    while follower.items.len() < 5 {
        match timeout(Duration::from_millis(3), follower.feed.next()).await {
            Ok(item) => drop(follower.take(item.unwrap().unwrap()).unwrap()),
            Err(_) => dropped += 1,
        }
        if follower.items.len() == 3 {
            store.put("/f/b", "2").await.unwrap();
        }
    }
    assert_eq!(follower.items.join(" "), "begin a synced b synced");
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    assert!(dropped >= 10, "{dropped}");
}

#[tokio::test(start_paused = true)]
async fn fatal_error_is_the_last_item() {
    let store = TokioClock::store();
    let mut feed = Feed::open(store.clone(), Selection::prefix("/f/")).unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap(), FeedItem::SnapshotBegin);
    assert_eq!(feed.next().await.unwrap().unwrap(), FeedItem::Synced(Revision(1)));
    assert!(feed.next().now_or_never().is_none());
    store.close().await;
    assert!(matches!(feed.next().await, Some(Err(StoreError::Closed))));
    assert!(feed.next().await.is_none());
}

#[test]
fn open_prefix_cannot_be_followed() {
    let refusal = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { Feed::open(Store::memory(), Selection::prefix("/f")).map(drop) });
    assert!(matches!(refusal, Err(StoreError::Invalid(InvalidRequest::OpenPrefix(_)))));
}

/// With a hundred workers in one process no timer fired for seconds, because a reader of a busy watch never yielded: leases were lost.
async fn busy_reader_yields(store: Store) {
    const CHANGES: usize = 1_000;
    let start = WatchStart::After(store.put("/f/start", "").await.unwrap());
    for n in 0..CHANGES {
        store.put(format!("/f/{n}"), "1").await.unwrap();
    }
    let mut watch = store.watch(Selection::prefix("/f/"), start, PreviousValues::Omitted).await.unwrap();
    // From here on every change can be read without waiting.
    assert!(watch.next().await.unwrap().is_ok());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = ran.clone();
    tokio::spawn(async move { counter.fetch_add(1, Ordering::Relaxed) });
    for _ in 1..CHANGES / 2 {
        assert!(watch.next().await.unwrap().is_ok());
    }
    assert_eq!(ran.load(Ordering::Relaxed), 1, "the other task ran between two changes");
    store.close().await;
}

#[tokio::test]
async fn busy_reader_yields_on_memory() {
    busy_reader_yields(Store::memory()).await;
}

#[tokio::test]
async fn busy_reader_yields_on_file() {
    let folder = tempfile::tempdir().unwrap();
    let engine = FileEngine::open(&folder.path().join("store.db")).await.unwrap();
    busy_reader_yields(Store::new(engine)).await;
}

#[tokio::test]
async fn busy_reader_yields_on_etcd() {
    let server = Server::start();
    let store = Store::open(&format!("etcd://{}", server.endpoints()).parse().unwrap()).await.unwrap();
    busy_reader_yields(store).await;
}

#[tokio::test]
async fn reader_of_large_snapshot_yields() {
    const KEYS: usize = 1_000;
    let store = Store::memory();
    for n in 0..KEYS {
        store.put(format!("/f/{n}"), "1").await.unwrap();
    }
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = ran.clone();
    tokio::spawn(async move { counter.fetch_add(1, Ordering::Relaxed) });
    let mut feed = Feed::open(store, Selection::prefix("/f/")).unwrap();
    for _ in 0..KEYS / 2 {
        assert!(feed.next().await.unwrap().is_ok());
    }
    assert_eq!(ran.load(Ordering::Relaxed), 1, "the other task ran between two items");
}
