//! Lease handles: leases of a session for callers that put keys themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tenure::clock::{Clock, VirtualClock};
use tenure::session::LeaseError;
use tenure::store::memory::MemoryEngine;
use tenure::store::{Engine, Grant, LeaseId, Limits, Renewal, StoreError};
use tenure::{CloseError, LossReason};

use super::*;
use crate::tokio_clock::TokioClock;
use crate::twisted::{Twist, Twisted};

/// Counts grants and renewals, and lets renewals hang on demand.
#[derive(Clone, Default)]
struct Watched {
    asked: Arc<AtomicUsize>,
    hangs: Arc<AtomicBool>,
}

impl Twist for Watched {
    async fn grant(
        &self,
        memory: &MemoryEngine,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> Result<Grant, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Engine::grant(memory, ttl, id).await
    }

    async fn renew(&self, memory: &MemoryEngine, id: LeaseId) -> Result<Renewal, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Engine::renew(memory, id).await
    }
}

fn watched(clock: TokioClock) -> (Watched, Store) {
    let watched = Watched::default();
    let store = Twisted::store(MemoryEngine::with_clock(clock, Limits::EMBEDDED), watched.clone());
    (watched, store)
}

#[tokio::test]
async fn existing_lease_needs_no_request() {
    let clock = TokioClock::new();
    let (watched, store) = watched(clock);
    let session = Session::options().clock(clock).open(store.clone()).unwrap();
    let lease = session.register_raw("/r/a", "v").await.unwrap().lease;
    let asked = watched.asked.load(Ordering::SeqCst);
    let loan = session.lease().into_future().now_or_never().expect("nothing is waited for").unwrap();
    assert_eq!((loan.lease(), watched.asked.load(Ordering::SeqCst)), (lease, asked));
    assert!(loan.is_valid() && loan.remaining() > Duration::from_secs(10));
    assert!(session.unregister("/r/a"));
    wait_for_keys(&store, 0, Duration::from_secs(5)).await;
    assert_eq!(store.leases().await.unwrap(), [lease], "the key goes, the lease stays");
    drop(loan.clone());
    assert_eq!(store.leases().await.unwrap(), [lease], "one clone is left");
    drop(loan);
    session.synced().await;
    assert_eq!(store.leases().await.unwrap(), []);
}

/// The validity of a lease handle, and the expiry of its lease, on one virtual clock.
#[tokio::test(start_paused = true)]
async fn lease_handle_lapses_despite_hanging_renewal() {
    let clock = TokioClock::new();
    let (watched, store) = watched(clock);
    let session = Session::options().clock(clock).open(store.clone()).unwrap();
    let loan = session.lease().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(loan.is_valid(), "it is renewed");
    watched.hangs.store(true, Ordering::SeqCst);
    let until = loan.valid_until();
    let end = loan.lost().await;
    assert!(store.lease(loan.lease()).await.unwrap().is_some(), "belief ends before the lease");
    assert_eq!((end.reason, loan.is_valid(), loan.remaining()), (LossReason::Lapsed, false, Duration::ZERO));
    assert!(loan.valid_until() >= until && clock.now() < loan.valid_until() + Duration::from_millis(5));
    watched.hangs.store(false, Ordering::SeqCst);
    let next = session.lease().await.unwrap();
    assert!(next.is_valid() && !loan.is_valid(), "another lease does not bring it back");
    assert_ne!(next.lease(), loan.lease());
}

/// Nothing is awaited between the passing of time and the question, so the session's task cannot have answered it.
#[tokio::test]
async fn lease_handle_lapses_without_driver() {
    let clock = VirtualClock::new();
    let store = Store::new(MemoryEngine::with_clock(clock.clone(), Limits::EMBEDDED));
    let session = Session::options().clock(clock.clone()).open(store).unwrap();
    let loan = session.lease().await.unwrap();
    clock.advance(Duration::from_millis(14_249));
    assert!(loan.is_valid());
    clock.advance(Duration::from_millis(1));
    assert_eq!((loan.loss(), loan.remaining()), (Some(LossReason::Lapsed), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn lease_request_ends_at_its_timeout() {
    let session = Session::open(Twisted::store(TokioClock::memory(), Refuses)).unwrap();
    let answer = session.lease().timeout(Duration::from_secs(3)).await;
    assert!(matches!(answer, Err(LeaseError::Unavailable { .. })), "{answer:?}");
    assert_eq!(session.health().leases, 0);
    session.synced().await;
    assert!(matches!(session.lease().ttl(Duration::from_millis(10)).await, Err(LeaseError::InvalidTtl(_))));
    session.close().await.unwrap();
    assert!(matches!(session.lease().await, Err(LeaseError::Closed)));
}

/// Grants nothing.
struct Refuses;

impl Twist for Refuses {
    async fn grant(&self, _: &MemoryEngine, _: Duration, _: Option<LeaseId>) -> Result<Grant, StoreError> {
        Err(StoreError::RateLimited)
    }
}

#[tokio::test]
async fn close_ends_handles_before_revoking() {
    let store = Store::memory();
    let session = Session::open(store.clone()).unwrap();
    let loan = session.lease().await.unwrap();
    let lease = loan.lease();
    let closing = tokio::spawn({
        let session = session.clone();
        async move { session.close().await }
    });
    assert_eq!(loan.lost().await.reason, LossReason::Closed);
    assert!(store.lease(lease).await.unwrap().is_some(), "the owner of a handle has time to stop");
    drop(loan);
    closing.await.unwrap().unwrap();
    assert_eq!(store.leases().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn lease_with_live_handle_is_not_revoked() {
    let clock = TokioClock::new();
    let store = Store::new(MemoryEngine::with_clock(clock, Limits::EMBEDDED));
    let session = Session::options().clock(clock).open(store.clone()).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    let loan = session.lease().await.unwrap();
    let left = session.close().await.unwrap_err();
    assert!(matches!(&left, CloseError::StillHeld { holds, leases: 1, .. } if holds.is_empty()), "{left}");
    assert!(store.lease(loan.lease()).await.unwrap().is_some());
    assert_eq!(stored(&store).await.len(), 0, "keys without a handle are deleted");
}

#[tokio::test]
async fn revoked_lease_ends_its_handle_on_etcd() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::options().ttl(Duration::from_secs(2)).open(store.clone()).unwrap();
    let loan = session.lease().await.unwrap();
    store.put_leased("/l/a", "mine", loan.lease()).await.unwrap();
    onlooker.revoke(loan.lease()).await.unwrap();
    assert_eq!(loan.lost().await.reason, LossReason::Revoked);
    let next = session.lease().await.unwrap();
    assert_ne!(next.lease(), loan.lease());
    onlooker.revoke(next.lease()).await.unwrap();
    next.lease_not_found();
    assert_eq!(next.loss(), Some(LossReason::Revoked), "a reported loss is immediate");
    drop((loan, next));
    session.close().await.unwrap();
    assert_eq!(onlooker.leases().await.unwrap(), []);
}
