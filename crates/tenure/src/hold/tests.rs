//! Each method of a validity and of a hold, in virtual time. No test awaits between a change and the call that must see it.

use futures_util::FutureExt;
use tenure_core::id::Namespace;
use tenure_core::keepalive::Timing;
use tenure_core::time::Moment;

use super::*;
use crate::clock::{Clock, VirtualClock};
use crate::lock::{Guard, LockError, Locks};
use crate::session::Session;
use crate::store::Limits;
use crate::store::memory::MemoryEngine;

const TTL: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);

struct LocalProcess {
    clock: VirtualClock,
    store: Store,
    session: Session,
}

impl LocalProcess {
    fn new() -> LocalProcess {
        let clock = VirtualClock::new();
        let store = Store::new(MemoryEngine::with_clock(clock.clone(), Limits::EMBEDDED));
        let session = Session::options().ttl(TTL).clock(clock.clone()).open(store.clone()).unwrap();
        LocalProcess { clock, store, session }
    }

    fn locks(&self) -> Locks {
        Locks::new(&self.session, &Namespace::parse("t").unwrap())
    }

    async fn lock(&self) -> Guard {
        self.locks().lock("x").await.unwrap()
    }
}

fn validity(clock: &VirtualClock) -> (Arc<LeaseCell>, Validity) {
    let cell = Arc::new(LeaseCell::new(clock.now() + SECOND));
    let subject = Subject { kind: "lock", name: "x".into() };
    (cell.clone(), Validity::new(subject, cell, Arc::new(clock.clone()), TTL))
}

/// The current-thread runtime has no chance to run a task between the advance and the calls.
#[tokio::test]
async fn lapse_needs_no_task() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let until = guard.valid_until();
    assert_eq!((until, guard.ttl()), (process.clock.now() + TTL - Timing::margin_of(TTL), TTL));
    assert_eq!(guard.check_for(guard.remaining()), Ok(()));
    process.clock.advance(until.since(process.clock.now()) - Duration::from_millis(1));
    assert!(guard.is_valid() && guard.remaining() == Duration::from_millis(1));
    assert_eq!(guard.check_for(SECOND).unwrap_err().reason, LossReason::Lapsed);
    process.clock.advance(Duration::from_millis(1));
    assert_eq!((guard.is_valid(), guard.remaining()), (false, Duration::ZERO));
    assert_eq!(guard.check().unwrap_err().to_string(), "lock 'x' lost: lease not renewed in time");
}

#[test]
fn renewal_after_the_lapse_revives_nothing() {
    let clock = VirtualClock::new();
    let (cell, validity) = validity(&clock);
    clock.advance(SECOND);
    assert_eq!(validity.loss(), Some(LossReason::Lapsed));
    cell.extend(clock.now() + TTL);
    validity.end(LossReason::Released);
    assert_eq!((validity.loss(), validity.remaining()), (Some(LossReason::Lapsed), Duration::ZERO));
}

#[test]
fn first_reason_stays() {
    let clock = VirtualClock::new();
    let (cell, deleted) = validity(&clock);
    let other = deleted.of_same_lease(Subject { kind: "lock", name: "y".into() });
    deleted.end(LossReason::Deleted);
    deleted.end(LossReason::Released);
    cell.end(LossReason::Revoked);
    assert_eq!((deleted.loss(), other.loss()), (Some(LossReason::Deleted), Some(LossReason::Revoked)));
    other.end(LossReason::Released);
    assert_eq!(other.loss(), Some(LossReason::Revoked));
}

/// An end that was never observed is older than the report that comes after it.
#[test]
fn unseen_lapse_precedes_a_later_reason() {
    let clock = VirtualClock::new();
    let (_cell, validity) = validity(&clock);
    clock.advance(SECOND);
    validity.end(LossReason::Deleted);
    assert_eq!(validity.loss(), Some(LossReason::Lapsed));
}

#[tokio::test]
async fn one_renewal_extends_all_holds() {
    let clock = VirtualClock::new();
    let (cell, one) = validity(&clock);
    let other = one.of_same_lease(Subject { kind: "lock", name: "y".into() });
    let before = one.valid_until();
    let mut renewed = std::pin::pin!(other.renewed());
    assert_eq!(renewed.as_mut().now_or_never(), None);
    cell.extend(before + SECOND);
    assert_eq!(renewed.await, before + SECOND);
    assert_eq!((one.valid_until(), other.valid_until()), (before + SECOND, before + SECOND));
    // A renewal between two calls is not missed.
    assert_eq!(other.renewed_after(before).now_or_never(), Some(before + SECOND));
    assert_eq!(other.renewed().now_or_never(), None);
    other.end(LossReason::Deleted);
    assert_eq!(other.renewed_after(Moment::ORIGIN).now_or_never(), None, "it is lost");
}

#[tokio::test]
async fn lapsed_work_is_dropped_and_never_polled() {
    let clock = VirtualClock::new();
    let (_cell, validity) = validity(&clock);
    assert_eq!(validity.run(async { 7 }).await, Ok(7));
    let mut polls = 0;
    let mut running = Box::pin(validity.run(std::future::poll_fn(|_| {
        polls += 1;
        std::task::Poll::<()>::Pending
    })));
    assert!(running.as_mut().now_or_never().is_none());
    assert!(validity.is_working());
    clock.advance(SECOND);
    assert_eq!(running.await.unwrap_err().reason, LossReason::Lapsed);
    assert_eq!((polls, validity.is_working()), (1, false));
    let failed: Result<(), CommitError> = validity.try_run(async { Ok(()) }).await;
    assert!(matches!(failed, Err(CommitError::Lost(_))));
}

#[tokio::test]
async fn revoked_lease_is_reported() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    process.store.revoke(guard.lease()).await.unwrap();
    let failed = guard.commit(Txn::from(Op::put("/t/a", "1"))).await.unwrap_err();
    assert!(matches!(failed, CommitError::Lost(_)), "{failed}");
    assert!(!guard.is_valid());
    assert_eq!(process.store.get_key("/t/a").await.unwrap(), None);
}

#[tokio::test]
async fn deleted_key_ends_the_hold() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let hold = guard.hold();
    process.store.delete(crate::store::Selection::Key(guard.fence().key)).await.unwrap();
    let failed = hold.commit(Txn::from(Op::put("/t/a", "1"))).await.unwrap_err();
    assert!(matches!(failed, CommitError::Lost(Lost { reason: LossReason::Deleted, .. })), "{failed}");
    assert_eq!(guard.lost().await.reason, LossReason::Deleted);
    assert!(matches!(
        guard.release().await,
        Err(ReleaseError::Lost(Lost { reason: LossReason::Deleted, .. }))
    ));
}

#[tokio::test]
async fn failed_condition_of_the_caller_is_no_loss() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let absent = crate::store::Condition::absent("/t/a");
    let txn = Txn::from(Op::put("/t/a", "1")).when(absent);
    assert!(guard.commit(txn.clone()).await.unwrap().succeeded);
    let reply = guard.commit(txn).await.unwrap();
    assert_eq!((reply.succeeded, reply.results.len(), guard.is_valid()), (false, 0, true));
}

/// Work of a clone in another task is dropped before the store deletes the key.
#[tokio::test]
async fn release_stops_the_work_of_clones_first() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let (hold, key, store) = (guard.hold(), guard.fence().key, process.store.clone());
    let work = tokio::spawn(async move { hold.run(std::future::pending::<()>()).await });
    tokio::task::yield_now().await;
    let validity = guard.validity();
    assert!(validity.is_working());
    let mut releasing = Box::pin(guard.release());
    assert!(releasing.as_mut().now_or_never().is_none());
    assert_eq!(validity.loss(), Some(LossReason::Released));
    assert!(store.get_key(key.clone()).await.unwrap().is_some(), "the work is not dropped yet");
    releasing.await.unwrap();
    assert_eq!(work.await.unwrap().unwrap_err().reason, LossReason::Released);
    assert_eq!(store.get_key(key).await.unwrap(), None);
}

/// Work of a clone in another task, which blocks in its poll until this is dropped.
async fn blocked_work(guard: &Guard) -> std::sync::mpsc::Sender<()> {
    let ((block, blocked), hold) = (std::sync::mpsc::channel::<()>(), guard.hold());
    let (begin, begun) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let work = async move {
            begin.send(()).unwrap();
            blocked.recv().unwrap_err();
        };
        hold.run(work).await
    });
    begun.await.unwrap();
    block
}

/// The lock is still stored after everything that was sent before has been answered, and is released when the work has ended.
async fn assert_stays_until_unblocked(process: &LocalProcess, block: std::sync::mpsc::Sender<()>) {
    process.locks().lock("y").await.unwrap().release().await.unwrap();
    let refused = process.locks().lock("x").try_now().await;
    assert!(matches!(refused, Err(LockError::Held { .. })), "{refused:?}");
    drop(block);
    process.lock().await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_work_keeps_key_after_release() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let block = blocked_work(&guard).await;
    let failed = guard.release().await.unwrap_err();
    assert!(matches!(failed, ReleaseError::StillRunning { .. }), "{failed}");
    assert_eq!(
        failed.to_string(),
        "work under lock 'x' still runs after 5s; it is released when that has ended"
    );
    assert_stays_until_unblocked(&process, block).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_work_keeps_key_after_drop() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let block = blocked_work(&guard).await;
    drop(guard);
    assert_stays_until_unblocked(&process, block).await;
}

#[tokio::test]
async fn clones_keep_nothing_alive() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let (hold, validity) = (guard.hold(), guard.validity());
    drop(guard);
    assert_eq!((hold.loss(), validity.loss()), (Some(LossReason::Released), Some(LossReason::Released)));
    process.session.close().await.unwrap();
    assert_eq!(process.store.leases().await.unwrap(), []);
    assert_eq!(process.store.get_key(hold.fence().key).await.unwrap(), None);
    assert_eq!(hold.loss(), Some(LossReason::Released));
}

#[tokio::test]
async fn closed_session_ends_the_hold() {
    let process = LocalProcess::new();
    let guard = process.lock().await;
    let session = process.session.clone();
    let closing = tokio::spawn(async move { session.close().await });
    assert_eq!(guard.lost().await.reason, LossReason::Closed);
    drop(guard);
    closing.await.unwrap().unwrap();
}
