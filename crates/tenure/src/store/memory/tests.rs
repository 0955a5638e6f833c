//! What the memory engine adds to the machine: waking, reaping on time, closing, leaving nothing behind.

use futures_util::StreamExt;

use super::*;
use crate::clock::VirtualClock;
use crate::store::{Op, Store};

const LIMITS: Limits = Limits { ttl_min: Duration::from_millis(1), ..Limits::EMBEDDED };

#[tokio::test]
async fn lease_expires_on_time_without_requests() {
    let clock = VirtualClock::new();
    let store = Store::new(MemoryEngine::with_clock(clock.clone(), LIMITS));
    let lease = store.grant(Duration::from_millis(50), None).await.unwrap().id;
    store.put_leased("/k", "v", lease).await.unwrap();
    let mut watch =
        store.watch(Selection::key("/k"), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    // The reaper has to be asleep before time may pass, or it would not be what wakes the watcher.
    tokio::task::yield_now().await;
    clock.advance(Duration::from_millis(50));
    let item = watch.next().await.unwrap().unwrap();
    assert_eq!(item.revision(), Revision(3));
}

#[tokio::test]
async fn closing_ends_watches_and_later_calls() {
    let store = Store::memory();
    let mut watch =
        store.watch(Selection::everything(), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    store.close().await;
    assert!(matches!(watch.next().await, Some(Err(WatchError::Lost(StoreError::Closed)))));
    assert!(watch.next().await.is_none());
    assert!(matches!(store.put("/k", "v").await, Err(StoreError::Closed)));
}

#[tokio::test]
async fn dropped_watch_leaves_nothing_behind() {
    let memory = MemoryEngine::new();
    let watch =
        memory.watch(Selection::everything(), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    assert_eq!(memory.shared.lock().keyspace.watches(), 1);
    drop(watch);
    assert_eq!(memory.shared.lock().keyspace.watches(), 0);
}

#[tokio::test]
async fn dropped_store_ends_its_reaper() {
    let memory = MemoryEngine::new();
    memory.grant(Duration::from_secs(60), None).await.unwrap();
    let bell = Arc::downgrade(&memory.shared.reaper);
    drop(memory);
    while bell.upgrade().is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn paged_listing_is_of_one_revision() {
    let store = Store::memory();
    let puts = (0..2_500).map(|n| Op::put(format!("/k/{n:05}"), "v"));
    for outcome in store.apply_all(puts).await.unwrap() {
        outcome.unwrap();
    }
    let page = store.list(Selection::prefix("/k/")).await.unwrap();
    assert_eq!((page.pairs.len(), page.more), (2_500, false));
    assert_eq!(store.list(Selection::everything()).await.unwrap().pairs.len(), 2_500);
}
