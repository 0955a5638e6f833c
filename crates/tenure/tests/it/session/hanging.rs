//! Stores that hang, lie about being back, or answer after the end of a lease, in virtual time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::clock::Clock;
use tenure::store::memory::MemoryEngine;
use tenure::store::{
    Cause, Engine, Grant, LeaseChoice, LeaseId, Limits, Op, Renewal, StoreError, Txn, TxnReply,
};
use tenure_core::time::Moment;

use super::*;
use crate::tokio_clock::TokioClock;
use crate::twisted::{Twist, Twisted};

/// Always reports that it is reachable, and grants nothing.
#[derive(Clone, Default)]
struct Liar {
    grants: Arc<AtomicUsize>,
}

impl Twist for Liar {
    async fn grant(&self, _: &MemoryEngine, _: Duration, _: Option<LeaseId>) -> Result<Grant, StoreError> {
        self.grants.fetch_add(1, Ordering::SeqCst);
        Err(StoreError::NoSpace)
    }

    async fn reachable(&self) {}
}

#[tokio::test(start_paused = true)]
async fn false_reachability_never_causes_busy_requests() {
    let liar = Liar::default();
    let session = Session::open(Twisted::store(TokioClock::memory(), liar.clone())).unwrap();
    let answer = session.register_raw("/r/a", "v").timeout(Duration::from_secs(10)).await;
    assert!(matches!(answer, Err(RegisterError::Timeout { .. })), "{answer:?}");
    let grants = liar.grants.load(Ordering::SeqCst);
    assert!((5..=60).contains(&grants), "{grants} grants in 10 s");
    assert!(matches!(session.health().state, SessionState::Lost { why: None }), "{:?}", session.health());
}

/// Takes its time for writes, notes when each was begun, and renews on demand.
#[derive(Clone)]
struct Slow {
    clock: TokioClock,
    takes: Duration,
    renews: Arc<AtomicBool>,
    begun: Arc<Mutex<Vec<(Moment, LeaseId)>>>,
}

impl Slow {
    fn session(takes: Duration) -> (Slow, Session) {
        let clock = TokioClock::new();
        let slow = Slow { clock, takes, renews: Arc::new(AtomicBool::new(true)), begun: Arc::default() };
        let store = Twisted::store(MemoryEngine::with_clock(clock, Limits::EMBEDDED), slow.clone());
        (slow, Session::options().clock(clock).open(store).unwrap())
    }
}

impl Twist for Slow {
    async fn txn(&self, memory: &MemoryEngine, txn: Txn) -> Result<TxnReply, StoreError> {
        let lease = txn.then.iter().find_map(|op| match op {
            Op::Put { lease: LeaseChoice::Attach(lease), .. } => Some(*lease),
            _ => None,
        });
        if let Some(lease) = lease {
            self.begun.lock().unwrap().push((self.clock.now(), lease));
            tokio::time::sleep(self.takes).await;
        }
        Engine::txn(memory, txn).await
    }

    async fn renew(&self, memory: &MemoryEngine, id: LeaseId) -> Result<Renewal, StoreError> {
        match self.renews.load(Ordering::SeqCst) {
            true => Engine::renew(memory, id).await,
            false => Err(StoreError::Unavailable(Cause::new("down"))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_puts_keep_the_lease() {
    let (_, session) = Slow::session(Duration::from_secs(50));
    session.register_raw("/r/a", "v").timeout(Duration::from_secs(60)).await.unwrap();
    assert_eq!(session.incarnation(), 1, "the lease was renewed while the put was in flight");
}

/// Nine hundred keys are eight transactions, four at a time. The lease is over before the second four begin.
#[tokio::test(start_paused = true)]
async fn expired_lease_receives_no_put() {
    let (slow, session) = Slow::session(Duration::from_secs(20));
    slow.renews.store(false, Ordering::SeqCst);
    let wishes = (0..900).map(|n| session.register_raw(format!("/r/{n}"), "v").into_future());
    let _ = futures_util::future::join_all(wishes).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let begun = slow.begun.lock().unwrap().clone();
    let first_of = |lease| begun.iter().find(|(_, on)| *on == lease).unwrap().0;
    assert!(begun.len() >= 8, "it went on under other leases");
    for (at, lease) in &begun {
        // Each lease was granted at most a moment before its first put, and is never renewed.
        let age = at.since(first_of(*lease));
        assert!(age < Duration::from_millis(14_250), "a put was begun {age:?} after its lease was granted");
    }
}

/// A renewal that hangs is no failure yet; the state must not wait for one.
#[tokio::test(start_paused = true)]
async fn hanging_renewal_makes_session_suspect() {
    let (hangs, clock) = (Hangs::default(), TokioClock::new());
    let store = Twisted::store(MemoryEngine::with_clock(clock, Limits::EMBEDDED), hangs.clone());
    let session = Session::options().clock(clock).open(store).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    let begin = clock.now();
    hangs.0.store(true, Ordering::SeqCst);
    let mut state = session.state();
    state.wait_for(|state| matches!(state, SessionState::Suspect { .. })).await.unwrap();
    let after = clock.now().since(begin);
    assert!((8_700..8_800).contains(&after.as_millis()), "{after:?}: a third of 15 s, and then a quarter");
    state.wait_for(|state| matches!(state, SessionState::Lost { why: Some(_) })).await.unwrap();
    let after = clock.now().since(begin);
    assert!((14_200..14_300).contains(&after.as_millis()), "{after:?}: 15 s less the margin");
}

/// Renews nothing, and never replies.
#[derive(Clone, Default)]
struct Hangs(Arc<AtomicBool>);

impl Twist for Hangs {
    async fn renew(&self, memory: &MemoryEngine, id: LeaseId) -> Result<Renewal, StoreError> {
        if self.0.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Engine::renew(memory, id).await
    }
}
