//! A feed's picture is the store's at every `Whole`, whatever breaks in between.

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

/// How long a feed may take to say what it must; in virtual time this costs nothing.
const ITEM_MAX: Duration = Duration::from_secs(60);

/// Reads a feed and keeps its picture, as a follower would.
pub(crate) struct PresenceWatch {
    feed: Feed,
    pub(crate) picture: BTreeMap<Bytes, KeyValue>,
    /// Every item, in short words.
    pub(crate) told: Vec<String>,
    is_whole: bool,
    at: Revision,
}

impl PresenceWatch {
    pub(crate) fn new(store: Store) -> PresenceWatch {
        let feed = Feed::open(store, Selection::prefix("/f/")).expect("the prefix is closed");
        PresenceWatch {
            feed,
            picture: BTreeMap::new(),
            told: Vec::new(),
            is_whole: false,
            at: Revision::ZERO,
        }
    }

    /// Takes in the next item, and checks what every feed must keep to. Says at which revision the picture is whole now.
    pub(crate) async fn next(&mut self) -> Result<Option<Revision>, StoreError> {
        let item = timeout(ITEM_MAX, self.feed.next()).await.expect("the feed says something");
        self.take(item.expect("a feed ends with an error")?)
    }

    fn take(&mut self, item: FeedItem) -> Result<Option<Revision>, StoreError> {
        let name = |key: &[u8]| String::from_utf8_lossy(&key[3..]).into_owned();
        match item {
            FeedItem::SnapshotBegin => {
                assert!(self.is_whole || self.told.is_empty(), "begun twice: {:?}", self.told);
                self.is_whole = false;
                self.told.push("begin".into());
            }
            FeedItem::Put(pair) => {
                self.told.push(name(&pair.key));
                let before = self.picture.insert(pair.key.clone(), pair.clone());
                assert_ne!(before, Some(pair), "told what was told before");
            }
            FeedItem::Delete { key, .. } => {
                self.told.push(format!("-{}", name(&key)));
                assert!(self.picture.remove(&key).is_some(), "told to delete what was never told: {key:?}");
            }
            FeedItem::Synced(revision) => {
                assert!(revision >= self.at, "whole at {revision} after {}", self.at);
                self.told.push("whole".into());
                (self.is_whole, self.at) = (true, revision);
                return Ok(Some(revision));
            }
        }
        Ok(None)
    }

    /// Reads until the picture is whole.
    pub(crate) async fn whole(&mut self) -> Result<Revision, StoreError> {
        loop {
            if let Some(revision) = self.next().await? {
                return Ok(revision);
            }
        }
    }

    /// Says that the picture is what the store held then, unless the store has forgotten it.
    async fn must_be(&self, store: &Store, at: Revision) {
        let page = match store.get(Get::prefix("/f/").at(at)).await {
            Ok(page) => page,
            Err(StoreError::Compacted { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let held: BTreeMap<_, _> = page.pairs.into_iter().map(|pair| (pair.key.clone(), pair)).collect();
        assert_eq!(self.picture, held, "at {at}, told {:?}", self.told);
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
async fn the_picture_is_the_stores_at_every_whole_wherever_the_watch_is_cut() {
    for how in [Cut::Lost, Cut::Compacted, Cut::Silent] {
        for after in 0..12 {
            let memory = TokioClock::memory();
            let twist = Interrupted { after, how, refuse_every: 3, reads: AtomicUsize::new(0) };
            let mut follower = PresenceWatch::new(Twisted::store(memory.clone(), twist));
            let store = Store::new(memory);
            let writer = store.clone();
            let writing = tokio::spawn(async move { write(&writer, 80, Duration::from_millis(20)).await });
            while !follower.picture.contains_key("/f/~".as_bytes()) {
                let at = follower.whole().await.unwrap();
                follower.must_be(&store, at).await;
            }
            writing.await.unwrap().unwrap();
            assert!(follower.told.iter().filter(|told| *told == "begin").count() > 1, "{how:?} {after}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_feed_survives_compaction_and_tells_only_what_differs() {
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    for name in ["a", "b", "c", "d"] {
        store.put(format!("/f/{name}"), "1").await.unwrap();
    }
    let mut follower = PresenceWatch::new(store.clone());
    follower.whole().await.unwrap();
    assert_eq!(follower.told.join(" "), "begin a b c d whole");
    // The watch is opened by reading on; it sees one change and then sleeps through the others.
    store.put("/f/a", "2").await.unwrap();
    follower.whole().await.unwrap();
    follower.told.clear();
    store.delete(Selection::key("/f/b")).await.unwrap();
    store.put("/f/c", "3").await.unwrap();
    store.put("/f/e", "4").await.unwrap();
    store.delete(Selection::key("/f/e")).await.unwrap();
    store.put("/f/f", "5").await.unwrap();
    let last = store.delete(Selection::key("/f/d")).await.and(store.put("/elsewhere", "").await).unwrap();
    store.compact(last).await.unwrap();
    let at = follower.whole().await.unwrap();
    assert_eq!(follower.told.join(" "), "begin -b c -d f whole");
    follower.must_be(&store, at).await;
}

/// Follows through one handle what is written, and compacted, through another, while `shake` breaks what it can.
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
            let at = follower.whole().await.expect("a feed survives");
            follower.must_be(&writer, at).await;
            if at >= last {
                break;
            }
        }
    }
    let there = writer.list(Selection::prefix("/f/")).await.expect("the writer is not cut off").pairs;
    assert_eq!(follower.picture.into_values().collect::<Vec<_>>(), there);
}

#[tokio::test]
async fn a_feed_of_a_file_follows_another_handle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state").join("store.db");
    let open = async || Store::new(FileEngine::options().open(path.clone()).await.unwrap());
    let (writer, reader) = (open().await, open().await);
    follow(writer.clone(), reader.clone(), |_| {}).await;
    writer.close().await;
    reader.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_of_etcd_survives_a_network_that_breaks() {
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
async fn a_listing_of_many_pages_is_of_one_revision() {
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    let puts = |value: &'static str| (0..2_500).map(move |n| Op::put(format!("/f/{n:05}"), value));
    for outcome in store.apply_all(puts("1")).await.unwrap() {
        outcome.unwrap();
    }
    // Between two pages everything is overwritten and the last keys go.
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
    let first = follower.whole().await.unwrap();
    assert_eq!(follower.picture.len(), 2_500);
    follower.must_be(&store, first).await;
    let second = follower.whole().await.unwrap();
    assert_eq!(follower.picture.len(), 2_000);
    follower.must_be(&store, second).await;
}

/// A page of tasks with long props was more than an answer carries. The feed took that for a mistake of its own and ended, and the node with it.
#[tokio::test(start_paused = true)]
async fn a_page_that_no_answer_carries_is_asked_for_in_smaller_ones() {
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
    let whole = follower.whole().await.unwrap();
    assert_eq!(follower.picture.len(), 500);
    follower.must_be(&store, whole).await;
    assert_eq!(reads.load(Ordering::Relaxed), 2 + 9, "two that are too large, and nine of 62 keys");
    let listed = narrow.list(Selection::prefix("/f/")).await.unwrap();
    assert_eq!((listed.pairs.len(), listed.more), (500, false));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_is_waited_for_in_growing_rests() {
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
    let whole = loop {
        match timeout(Duration::from_secs(600), follower.feed.next()).await.unwrap().unwrap().unwrap() {
            FeedItem::Synced(at) => break at,
            item => drop(follower.take(item).unwrap()),
        }
    };
    assert_eq!((whole, reads.load(Ordering::Relaxed)), (Revision(1), 41));
    assert_eq!(follower.told.join(" "), "begin", "told once, however often it failed");
    // Forty rests of up to 5 s, half of it on average: far from a busy loop, far from giving up.
    assert!(began.elapsed() > Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(180), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_loses_nothing_and_asks_nothing_twice() {
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
    while follower.told.len() < 5 {
        match timeout(Duration::from_millis(3), follower.feed.next()).await {
            Ok(item) => drop(follower.take(item.unwrap().unwrap()).unwrap()),
            Err(_) => dropped += 1,
        }
        if follower.told.len() == 3 {
            store.put("/f/b", "2").await.unwrap();
        }
    }
    assert_eq!(follower.told.join(" "), "begin a whole b whole");
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    assert!(dropped >= 10, "{dropped}");
}

#[tokio::test(start_paused = true)]
async fn what_no_trying_can_mend_is_the_last_item() {
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
fn an_open_prefix_cannot_be_followed() {
    let refusal = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { Feed::open(Store::memory(), Selection::prefix("/f")).map(drop) });
    assert!(matches!(refusal, Err(StoreError::Invalid(InvalidRequest::OpenPrefix(_)))));
}

/// With a hundred nodes in one process no timer fired for seconds, because a reader of a busy watch never yielded: leases were lost.
async fn reader_of_many_changes_lets_other_tasks_run(store: Store) {
    const CHANGES: usize = 1_000;
    let start = WatchStart::After(store.put("/f/start", "").await.unwrap());
    for n in 0..CHANGES {
        store.put(format!("/f/{n}"), "1").await.unwrap();
    }
    let mut watch = store.watch(Selection::prefix("/f/"), start, PreviousValues::Omitted).await.unwrap();
    // From here on everything is there to be read.
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
async fn reader_of_many_changes_lets_other_tasks_run_on_memory() {
    reader_of_many_changes_lets_other_tasks_run(Store::memory()).await;
}

#[tokio::test]
async fn reader_of_many_changes_lets_other_tasks_run_on_file() {
    let folder = tempfile::tempdir().unwrap();
    let engine = FileEngine::open(&folder.path().join("store.db")).await.unwrap();
    reader_of_many_changes_lets_other_tasks_run(Store::new(engine)).await;
}

#[tokio::test]
async fn reader_of_many_changes_lets_other_tasks_run_on_etcd() {
    let server = Server::start();
    let store = Store::open(&format!("etcd://{}", server.endpoints()).parse().unwrap()).await.unwrap();
    reader_of_many_changes_lets_other_tasks_run(store).await;
}

#[tokio::test]
async fn reader_of_a_large_snapshot_lets_other_tasks_run() {
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
