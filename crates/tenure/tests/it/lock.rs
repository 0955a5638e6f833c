//! Locks on every engine: what holders, waiters and onlookers see.

mod barrier;
mod holders;
mod min_hold;
mod paused_member;
mod requests;
mod since;
mod tries;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::LossReason;
use tenure::lock::{LockError, Locks, ReleaseError};
use tenure::session::{Session, SessionState};
use tenure::store::{Op, Selection, Store, Txn};
use tenure_core::id::{LockName, Namespace};
use tenure_fixture::Etcd;

async fn connect(etcd: &Etcd) -> Store {
    Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap()
}

fn namespace() -> Namespace {
    Namespace::parse("t").unwrap()
}

fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

/// A process of its own: a session and its locks.
fn process(store: &Store) -> (Session, Locks) {
    let session = Session::options().ttl(Duration::from_secs(6)).open(store.clone()).unwrap();
    let locks = Locks::new(&session, &namespace());
    (session, locks)
}

async fn keys(store: &Store) -> usize {
    store.list(Selection::prefix("/t/locks/")).await.unwrap().pairs.len()
}

/// Waits for something that must come soon.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what).await.expect("it must come soon")
}

/// Waits until a line has so many places.
async fn wait_for_keys(store: &Store, count: usize) {
    soon(async {
        while keys(store).await != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Runs a claim on memory, on a file and on real etcd.
macro_rules! on_every_engine {
    ($($claim:ident;)+) => {$(
        mod $claim {
            #[tokio::test]
            async fn on_memory() {
                super::claims::$claim(crate::lock::Store::memory()).await;
            }

            #[tokio::test]
            async fn on_a_file() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("file://{}/store.db", folder.path().display());
                super::claims::$claim(crate::lock::Store::open(&url.parse().unwrap()).await.unwrap()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_etcd() {
                let etcd = crate::lock::Etcd::start();
                super::claims::$claim(crate::lock::connect(&etcd).await).await;
            }
        }
    )+};
}

use on_every_engine;

on_every_engine! {
    one_holds_and_the_next_follows;
    tokens_grow_and_holds_never_overlap;
    waiters_of_one_lease_exclude_each_other;
    a_try_that_fails_leaves_nothing_behind;
    a_dropped_acquire_and_a_dropped_guard_leave_nothing_behind;
    waiter_with_revoked_lease_fails_immediately;
    holder_with_revoked_lease_loses_its_hold;
    broken_lock_is_lost_and_released_once;
    foreign_keys_and_similar_names_never_block;
    readers_share_and_writers_do_not;
    permits_are_counted;
    queued_request_reports_its_position;
    work_is_dropped_when_the_lock_is_lost;
    closed_session_leaves_no_queue_key;
    snapshot_shows_holders_and_waiters;
}

mod claims {
    use super::*;

    pub(super) async fn one_holds_and_the_next_follows(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let held = soon(first.lock("x").into_future()).await.unwrap();
        assert!(held.is_valid() && held.remaining() > Duration::from_secs(3));
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        assert!(!waiting.is_finished());
        let token = held.token();
        held.release().await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
        assert_eq!(keys(&store).await, 0);
    }

    /// Two processes with four tasks each: a counter without any other protection is never touched by two.
    /// Each ignores its own earlier keys, and must not ignore the keys of the other waiter, which have the same prefix.
    pub(super) async fn waiters_of_one_lease_exclude_each_other(store: Store) {
        let (session, one) = process(&store);
        let two = Locks::new(&session, &namespace());
        for (holder, other) in [(&one, &two), (&two, &one), (&one, &two)] {
            let guard = soon(holder.lock("x").into_future()).await.unwrap();
            let elsewhere = soon(other.lock("y").into_future()).await.unwrap();
            assert_eq!(guard.lease(), elsewhere.lease());
            elsewhere.release().await.unwrap();
            let refused = soon(other.lock("x").try_now().into_future()).await;
            assert!(matches!(refused, Err(LockError::Held { .. })), "{refused:?}");
            guard.release().await.unwrap();
        }
        assert_eq!(keys(&store).await, 0);
    }

    pub(super) async fn tokens_grow_and_holds_never_overlap(store: Store) {
        let (inside, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        let processes = [process(&store), process(&store)];
        for n in 0..8 {
            let (locks, inside, last) = (processes[n % 2].1.clone(), inside.clone(), last.clone());
            tasks.spawn(async move {
                for _ in 0..10 {
                    let guard = locks.lock("counter").await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                    let token = u64::try_from(guard.token().0.0).unwrap();
                    assert!(last.swap(token, Ordering::SeqCst) < token, "a token did not grow");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
        tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await.expect("no hang");
        assert_eq!(keys(&store).await, 0);
    }

    pub(super) async fn a_try_that_fails_leaves_nothing_behind(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let held = first.lock("x").await.unwrap();
        assert!(matches!(soon(second.lock("x").try_now().into_future()).await, Err(LockError::Held { .. })));
        let waited = second.lock("x").timeout(Duration::from_millis(200)).await;
        assert!(matches!(waited, Err(LockError::Timeout { .. })), "{waited:?}");
        wait_for_keys(&store, 1).await;
        held.release().await.unwrap();
        second.lock("x").try_now().await.unwrap().release().await.unwrap();
    }

    pub(super) async fn a_dropped_acquire_and_a_dropped_guard_leave_nothing_behind(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let held = first.lock("x").await.unwrap();
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        waiting.abort();
        wait_for_keys(&store, 1).await;
        drop(held);
        wait_for_keys(&store, 0).await;
    }

    pub(super) async fn waiter_with_revoked_lease_fails_immediately(store: Store) {
        let ((_a, first), (session, second)) = (process(&store), process(&store));
        let held = first.lock("x").await.unwrap();
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("at once").unwrap();
        assert!(matches!(answer, Err(LockError::Lost(_))), "{answer:?}");
        assert_eq!(keys(&store).await, 1);
        held.release().await.unwrap();
        assert_eq!(keys(&store).await, 0);
    }

    pub(super) async fn holder_with_revoked_lease_loses_its_hold(store: Store) {
        let (session, locks) = process(&store);
        let held = locks.lock("x").await.unwrap();
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        tokio::time::timeout(Duration::from_secs(1), held.lost()).await.expect("within a round trip or two");
        assert!(!held.is_valid() && held.remaining().is_zero());
        assert!(matches!(held.release().await, Err(ReleaseError::Lost(_))));
        // The session recovers, and the lock can be taken again.
        soon(locks.lock("x").into_future()).await.unwrap().release().await.unwrap();
    }

    pub(super) async fn broken_lock_is_lost_and_released_once(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let held = first.lock("x").await.unwrap();
        let holder = first.get(&name("x")).await.unwrap().holders.remove(0);
        assert!(second.break_hold(&name("x"), &holder, "it hangs").await.unwrap());
        assert!(!second.break_hold(&name("x"), &holder, "it hangs").await.unwrap());
        let lost = soon(held.lost()).await;
        assert_eq!(lost.reason, LossReason::Deleted);
        let next = second.lock("x").await.unwrap();
        assert_eq!(held.release().await, Err(ReleaseError::Lost(lost)));
        assert!(next.is_valid());
        next.release().await.expect("a late release keeps the lock of another holder");
    }

    pub(super) async fn foreign_keys_and_similar_names_never_block(store: Store) {
        let (_session, locks) = process(&store);
        store.txn(Txn::new().then(Op::put("/t/locks/a/stranger", "boo"))).await.unwrap();
        let a = soon(locks.lock("a").into_future()).await.unwrap();
        let below = soon(locks.lock("a/b").into_future()).await.unwrap();
        let similar = soon(locks.lock("a1").into_future()).await.unwrap();
        store.txn(Txn::new().then(Op::put("/t/locks/a/another", "boo"))).await.unwrap();
        let waiting = tokio::spawn(locks.lock("a").into_future());
        wait_for_keys(&store, 6).await;
        a.release().await.unwrap();
        soon(waiting).await.unwrap().unwrap().release().await.unwrap();
        below.release().await.unwrap();
        similar.release().await.unwrap();
        for bad in ["", "a\0b", &"x".repeat(300)] {
            assert!(matches!(locks.lock(bad).await, Err(LockError::InvalidName(_))));
        }
    }

    pub(super) async fn readers_share_and_writers_do_not(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let one = soon(first.rw_lock("x").read().into_future()).await.unwrap();
        let two = soon(second.rw_lock("x").read().into_future()).await.unwrap();
        let writer = tokio::spawn(first.lock("x").into_future());
        wait_for_keys(&store, 3).await;
        let late = tokio::spawn(second.rw_lock("x").read().into_future());
        wait_for_keys(&store, 4).await;
        one.release().await.unwrap();
        two.release().await.unwrap();
        let writer = soon(writer).await.unwrap().unwrap();
        assert!(!late.is_finished(), "a reader does not overtake a writer");
        writer.release().await.unwrap();
        soon(late).await.unwrap().unwrap().release().await.unwrap();
    }

    pub(super) async fn permits_are_counted(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let one = soon(first.semaphore("x", 2).acquire().into_future()).await.unwrap();
        let two = soon(second.semaphore("x", 2).acquire().into_future()).await.unwrap();
        let third = tokio::spawn(second.semaphore("x", 2).acquire().into_future());
        wait_for_keys(&store, 3).await;
        assert!(matches!(first.semaphore("x", 2).acquire().try_now().await, Err(LockError::Held { .. })));
        two.release().await.unwrap();
        let third = soon(third).await.unwrap().unwrap();
        one.release().await.unwrap();
        third.release().await.unwrap();
    }

    pub(super) async fn queued_request_reports_its_position(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let held = soon(first.semaphore("x", 2).acquire().into_future()).await.unwrap();
        let other = soon(first.semaphore("x", 2).acquire().into_future()).await.unwrap();
        let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let request = second.semaphore("x", 2).acquire().on_queued(move |queued| {
            report.send(queued.clone()).unwrap();
        });
        let waiting = tokio::spawn(request.into_future());
        let queued = soon(reports.recv()).await.unwrap();
        assert_eq!(queued.ahead, 2);
        assert_eq!(queued.holder.unwrap().pid, std::process::id());
        held.release().await.unwrap();
        soon(waiting).await.unwrap().unwrap().release().await.unwrap();
        assert!(reports.recv().await.is_none(), "one report per request");
        other.release().await.unwrap();
    }

    pub(super) async fn work_is_dropped_when_the_lock_is_lost(store: Store) {
        let (session, locks) = process(&store);
        let held = locks.lock("x").await.unwrap();
        let work = tokio::spawn(async move { held.run(std::future::pending::<()>()).await });
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        assert!(soon(work).await.unwrap().is_err());
    }

    pub(super) async fn closed_session_leaves_no_queue_key(store: Store) {
        let ((_a, first), (session, second)) = (process(&store), process(&store));
        let held = first.lock("x").await.unwrap();
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        session.close().await.unwrap();
        assert!(matches!(soon(waiting).await.unwrap(), Err(LockError::Closed)));
        assert!(matches!(&*session.state().borrow(), SessionState::Closed { .. }));
        wait_for_keys(&store, 1).await;
        held.release().await.unwrap();
        assert!(matches!(second.lock("x").await, Err(LockError::Closed)));
    }

    pub(super) async fn snapshot_shows_holders_and_waiters(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let held = first.lock("x").reason("deploy").await.unwrap();
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        let view = second.get(&name("x")).await.unwrap();
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 1));
        assert_eq!((view.holders[0].token, view.holders[0].record.reason.as_str()), (held.token(), "deploy"));
        assert_eq!(first.list().await.unwrap().locks, [view]);
        held.release().await.unwrap();
        soon(waiting).await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(first.get(&name("x")).await.unwrap().holders.len(), 0);
    }
}
