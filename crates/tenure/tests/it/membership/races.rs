//! Races made to happen on a store that delays replies and events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::store::memory::MemoryEngine;
use tenure::store::{Engine, Get, Page, PreviousValues, StoreError, WatchStart, WatchStream};
use tenure_core::record::{MemberRecord, Record};
use tokio::sync::Notify;

use super::*;
use crate::tokio_clock::TokioClock;
use crate::twisted::{Twist, Twisted};

/// Delays replies to reads until the test releases them.
struct Late(Arc<Notify>);

impl Twist for Late {
    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        let page = Engine::get(memory, get).await;
        self.0.notified().await;
        page
    }
}

/// Delivers no event to watches.
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
async fn late_join_keeps_other_key_of_session() {
    let memory = MemoryEngine::new();
    let store = Store::new(memory.clone());
    let (cluster, session) = enter(&store);
    let let_go = Arc::new(Notify::new());
    let late = Members::new(Twisted::store(memory, Late(let_go.clone())), &namespace());
    let mut second = join(&late, &session, "a").address("late").into_future();
    assert!(futures_util::poll!(&mut second).is_pending(), "its read is in flight");
    let first = join(&cluster, &session, "a").await.unwrap();
    let_go.notify_one();
    let refused = tokio::time::timeout(PATIENCE, second).await.unwrap().unwrap_err();
    assert!(matches!(refused, JoinError::AlreadyJoined), "{refused:?}");
    assert_eq!(cluster.list().await.unwrap().members()[0].record, first.record());
    assert!(first.token().is_some());
    session.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn displaced_member_never_overwrites_before_it_knows() {
    let memory = TokioClock::memory();
    let store = Store::new(memory.clone());
    let cluster = Members::new(Twisted::store(memory, Mute), &namespace());
    let session = Session::options().clock(TokioClock::new()).open(store.clone()).unwrap();
    let a = join(&cluster, &session, "a").await.unwrap();
    store.put("/shop/nodes/a", r#"{"address":"usurper"}"#).await.unwrap();
    let token = a.token().expect("it does not know yet");
    let changed = a.update(|record| record.state = MemberState::Ready).await;
    assert!(matches!(changed, Err(RegisterError::Held { .. })), "{changed:?}");
    let there = store.get_key("/shop/nodes/a").await.unwrap().unwrap();
    assert_eq!(MemberRecord::decode(&there.value).unwrap().address.as_deref(), Some("usurper"));
    tokio::time::timeout(PATIENCE, a.lost(token)).await.expect("and it knows now");
    session.close().await.unwrap();
}

#[tokio::test]
async fn join_retries_until_its_timeout() {
    let memory = MemoryEngine::new();
    let is_up = Arc::new(AtomicBool::new(false));
    let cluster = Members::new(Twisted::store(memory.clone(), Down(is_up.clone())), &namespace());
    let session = Session::open(Store::new(memory)).unwrap();
    let refused = join(&cluster, &session, "a").timeout(Duration::from_millis(200)).await.unwrap_err();
    assert!(matches!(refused, JoinError::Timeout { .. }), "{refused:?}");
    let mut join = join(&cluster, &session, "a").timeout(PATIENCE).into_future();
    assert!(futures_util::poll!(&mut join).is_pending());
    is_up.store(true, Ordering::Relaxed);
    join.await.unwrap().unregister().await.unwrap();
    session.close().await.unwrap();
}
