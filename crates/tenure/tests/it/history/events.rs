//! The history as a stream.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure::events::{Event, EventKind, EventStream, Events, LockEvent, TaskEvent};
use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Cause, Engine, PreviousValues, Revision, Selection, Store, StoreError, WatchError, WatchStart,
    WatchStream,
};
use tenure::testing::World;

use super::{hold, locks, namespace, submit};
use crate::membership::on_every_engine;
use crate::twisted::{Twist, Twisted};

/// `lock a acquired`, `task x submitted` and the like.
fn text(event: &Event) -> String {
    match &event.kind {
        EventKind::Lock { name, event: LockEvent::Acquired(_) } => format!("lock {name} acquired"),
        EventKind::Lock { name, event: LockEvent::Released(_) } => format!("lock {name} released"),
        EventKind::Task { id, event: TaskEvent::Submitted { .. } } => format!("task {id} submitted"),
        EventKind::HistoryCompacted { after } => format!("compacted after {after}"),
        EventKind::Interrupted { .. } => "interrupted".to_owned(),
        other => format!("{other:?}"),
    }
}

async fn texts(events: EventStream) -> Vec<String> {
    events.map(|event| text(&event.unwrap())).collect().await
}

/// The next event of a stream that follows.
async fn next(events: &mut EventStream) -> Event {
    let next = tokio::time::timeout(Duration::from_secs(20), events.next()).await;
    next.expect("an event must come soon").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_folded_in_order() {
    on_every_engine(claims::history_is_folded_in_order).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_continues_after_a_revision() {
    on_every_engine(claims::stream_continues_after_a_revision).await;
}

mod claims {
    use super::*;

    pub(super) async fn history_is_folded_in_order(store: Store) {
        let locks = locks(&store);
        assert_eq!(texts(Events::new(&store, &namespace()).await.unwrap()).await, [""; 0]);
        hold(&locks, "a").await;
        submit(&store, "x").await;
        hold(&locks, "b").await;
        // Keys of others are no events, and do not hold up the end of the stream.
        store.put("/other/tasks/y", "{}").await.unwrap();
        let events = Events::new(&store, &namespace()).await.unwrap();
        let expected =
            ["lock a acquired", "lock a released", "task x submitted", "lock b acquired", "lock b released"];
        assert_eq!(texts(events).await, expected);
    }

    pub(super) async fn stream_continues_after_a_revision(store: Store) {
        let locks = locks(&store);
        let guard = locks.lock("a").await.unwrap();
        let mut events = Events::new(&store, &namespace()).follow().await.unwrap();
        let acquired = next(&mut events).await;
        let EventKind::Lock { event: LockEvent::Acquired(holding), .. } = &acquired.kind else {
            panic!("{acquired:?}")
        };
        assert_eq!((holding.token, acquired.revision), (guard.token(), guard.token().0));
        // A second reader begins after the first event: it knows the holder that it was not shown.
        let mut later = Events::new(&store, &namespace()).after(acquired.revision).follow().await.unwrap();
        guard.release().await.unwrap();
        for events in [&mut events, &mut later] {
            let released = next(events).await;
            let EventKind::Lock { event: LockEvent::Released(gone), .. } = &released.kind else {
                panic!("{released:?}")
            };
            assert_eq!(gone, holding);
        }
        let ahead = Revision(i64::MAX);
        let refused = Events::new(&store, &namespace()).after(ahead).await;
        assert!(matches!(refused, Err(StoreError::FutureRevision)), "{refused:?}");
    }
}

#[tokio::test]
async fn compacted_history_is_reported_unless_read_from_start() {
    let store = Store::memory();
    let locks = locks(&store);
    let guard = locks.lock("a").await.unwrap();
    submit(&store, "old").await;
    let now = store.put("/t/once/x", "{}").await.unwrap();
    store.compact(now).await.unwrap();
    submit(&store, "new").await;
    guard.release().await.unwrap();
    let events = Events::new(&store, &namespace()).await.unwrap();
    assert_eq!(texts(events).await, ["task new submitted", "lock a released"]);
    let events = Events::new(&store, &namespace()).after(Revision(2)).await.unwrap();
    let expected = ["compacted after 2", "task new submitted", "lock a released"];
    assert_eq!(texts(events).await, expected);
}

/// An outage is one event, and what happened in it comes after it, once.
#[tokio::test(start_paused = true)]
async fn followed_stream_survives_an_outage() {
    let world = World::new();
    let (reader, others) = (world.process("reader").store(), world.process("others").store());
    let locks = locks(&others);
    let events = Events::new(&reader, &namespace()).follow().clock(world.process("reader").clock());
    let mut events = events.await.unwrap();
    world.process("reader").refuse_connections();
    assert_eq!(text(&next(&mut events).await), "interrupted");
    hold(&locks, "a").await;
    world.process("reader").heal();
    assert_eq!(text(&next(&mut events).await), "lock a acquired");
    assert_eq!(text(&next(&mut events).await), "lock a released");
    let mut bounded =
        Events::new(&reader, &namespace()).clock(world.process("reader").clock()).await.unwrap();
    world.process("reader").refuse_connections();
    let broken = bounded.next().await.unwrap();
    assert!(matches!(broken, Err(StoreError::Unavailable(_))), "{broken:?}");
    assert!(bounded.next().await.is_none(), "an error is the last item");
}

/// Each watch is lost after one item.
struct ShortWatches(AtomicUsize);

impl Twist for ShortWatches {
    async fn watch(
        &self,
        memory: &MemoryEngine,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let watch = Engine::watch(memory, select, start, previous).await?;
        let lost = WatchError::Lost(StoreError::Unavailable(Cause::new("the watch is short")));
        Ok(watch.take(1).chain(stream::iter([Err(lost)])).boxed())
    }
}

#[tokio::test]
async fn event_is_read_once_despite_lost_watches() {
    let memory = MemoryEngine::new();
    let store = Store::new(memory.clone());
    let locks = locks(&store);
    for name in ["a", "b", "c"] {
        hold(&locks, name).await;
    }
    let twisted = Twisted::store(memory, ShortWatches(AtomicUsize::new(0)));
    let mut events = Events::new(&twisted, &namespace()).follow().await.unwrap();
    let (mut seen, mut revisions) = (Vec::new(), BTreeSet::new());
    while seen.len() < 6 {
        let event = next(&mut events).await;
        if !matches!(event.kind, EventKind::Interrupted { .. }) {
            assert!(revisions.last().is_none_or(|last| *last < event.revision), "{event:?}");
            revisions.insert(event.revision);
            seen.push(text(&event));
        }
    }
    let expected = [
        "lock a acquired",
        "lock a released",
        "lock b acquired",
        "lock b released",
        "lock c acquired",
        "lock c released",
    ];
    assert_eq!(seen, expected);
}
