//! What must be right even if everybody looks at the wrong moment: races made to happen, on a store that is late on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::store::memory::MemoryEngine;
use tenure::store::{Engine, Get, Page, PreviousValues, StoreError, WatchStart, WatchStream};
use tenure_core::record::{MemberRecord, Record};
use tokio::sync::Notify;

use super::*;
use crate::tokio_clock::TokioClock;
use crate::twisted::{Twist, Twisted};

/// Answers to reads are kept back until they are let go.
struct Late(Arc<Notify>);

impl Twist for Late {
    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        let page = Engine::get(memory, get).await;
        self.0.notified().await;
        page
    }
}

/// Nothing is told to those who watch.
struct Mute;

impl Twist for Mute {
    async fn watch(
        &self,
        _: &MemoryEngine,
        _: Selection,
        _: WatchStart,
        _: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        Ok(Box::pin(futures_util::stream::pending()))
    }
}

/// Reads fail until they are allowed.
struct Down(Arc<AtomicBool>);

impl Twist for Down {
    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        match self.0.load(Ordering::Relaxed) {
            true => Engine::get(memory, get).await,
            false => Err(StoreError::Unavailable(tenure::store::Cause::new("down on purpose"))),
        }
    }
}

#[tokio::test]
async fn one_who_saw_the_id_free_does_not_overwrite_another_of_its_own_session() {
    let memory = MemoryEngine::new();
    let store = Store::new(memory.clone());
    let (cluster, session) = enter(&store);
    let let_go = Arc::new(Notify::new());
    let late = Cluster::new(Twisted::store(memory, Late(let_go.clone())), &namespace());
    let mut second = late.join(&session, node("a").address("late")).into_future();
    assert!(futures_util::poll!(&mut second).is_pending(), "it has looked, and was not told yet");
    let first = cluster.join(&session, node("a")).await.unwrap();
    let_go.notify_one();
    let refused = tokio::time::timeout(PATIENCE, second).await.unwrap().unwrap_err();
    assert!(matches!(refused, JoinError::OurOwn(_)), "{refused:?}");
    assert_eq!(cluster.members().await.unwrap().members()[0].record, first.record());
    assert!(first.token().is_some());
    session.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_who_does_not_know_yet_that_its_id_was_taken_does_not_overwrite_the_other() {
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    let cluster = Cluster::new(Twisted::store(memory, Mute), &namespace());
    let session = Session::options().clock(TokioClock::new()).open(store.clone()).unwrap();
    let a = cluster.join(&session, node("a")).await.unwrap();
    store.put("/shop/nodes/a", r#"{"address":"usurper"}"#).await.unwrap();
    assert!(a.token().is_some(), "nobody told it yet");
    let changed = a.set_state(MemberState::Ready).await;
    assert!(matches!(changed, Err(UpdateError::Displaced)), "{changed:?}");
    let there = store.get_key("/shop/nodes/a").await.unwrap().unwrap();
    assert_eq!(MemberRecord::decode(&there.value).unwrap().address.as_deref(), Some("usurper"));
    tokio::time::timeout(PATIENCE, a.lost(a.incarnation())).await.expect("and it knows now");
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_join_goes_on_trying_for_as_long_as_it_was_told() {
    let memory = MemoryEngine::new();
    let is_up = Arc::new(AtomicBool::new(false));
    let cluster = Cluster::new(Twisted::store(memory.clone(), Down(is_up.clone())), &namespace());
    let session = Session::open(Store::new(memory)).unwrap();
    let refused = cluster.join(&session, node("a")).within(Duration::from_millis(200)).await.unwrap_err();
    assert!(matches!(refused, JoinError::NotYet { .. }), "{refused:?}");
    let mut join = cluster.join(&session, node("a")).within(PATIENCE).into_future();
    assert!(futures_util::poll!(&mut join).is_pending());
    is_up.store(true, Ordering::Relaxed);
    join.await.unwrap().leave().await.unwrap();
    session.close().await.unwrap();
}
