//! The holder, as the error of another caller names it.

use tenure::identity::Identity;
use tenure_fixture::{Mode, Proxy};

use super::*;

on_every_engine! {
    failed_try_names_the_first_holder;
    expired_wait_names_the_first_holder;
    full_permits_and_readers_name_the_oldest_holder;
    unreadable_record_names_no_holder;
}

fn identity(node: &str) -> Identity {
    let text = str::to_owned;
    Identity { node: text(node), host: text(node), pid: 4121, user: text("root"), program: text("deploy") }
}

/// A process that others see under this name.
fn named(store: &Store, node: &str) -> (Session, Locks) {
    let (session, locks) = process(store);
    (session, locks.identity(identity(node)))
}

mod claims {
    use super::*;

    const WAIT: Duration = Duration::from_secs(1);

    fn refused(acquired: Result<tenure::lock::Guard, LockError>) -> Option<Identity> {
        match acquired {
            Err(LockError::Held { subject, by }) => {
                assert_eq!(&*subject, "lock 'x'");
                by
            }
            other => panic!("{other:?} is no refusal"),
        }
    }

    fn expired(acquired: Result<tenure::lock::Guard, LockError>) -> Option<Identity> {
        match acquired {
            Err(LockError::Timeout { subject, after, by }) => {
                assert_eq!((&*subject, after), ("lock 'x'", WAIT));
                by
            }
            other => panic!("{other:?} is no expired wait"),
        }
    }

    pub(super) async fn failed_try_names_the_first_holder(store: Store) {
        let ((_a, first), (_b, second), (_c, third)) =
            (named(&store, "web-1"), named(&store, "web-2"), named(&store, "web-3"));
        let held = soon(first.lock("x").into_future()).await.unwrap();
        let error = soon(third.lock("x").try_now().into_future()).await.unwrap_err();
        assert_eq!(error.to_string(), "lock 'x' is held by web-1, pid 4121");
        assert_eq!(refused(Err(error)), Some(identity("web-1")));
        // The waiter is nearer than the holder. The second try is of the process that waits: it reads no predecessor when it enters.
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        for locks in [&third, &second] {
            let by = refused(soon(locks.lock("x").try_now().into_future()).await);
            assert_eq!(by, Some(identity("web-1")));
        }
        held.release().await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        let by = refused(soon(third.lock("x").try_now().into_future()).await);
        assert_eq!(by, Some(identity("web-2")));
        next.release().await.unwrap();
        assert_eq!(keys(&store).await, 0);
    }

    pub(super) async fn expired_wait_names_the_first_holder(store: Store) {
        let ((_a, first), (_b, second), (_c, third)) =
            (named(&store, "web-1"), named(&store, "web-2"), named(&store, "web-3"));
        let held = soon(first.lock("x").into_future()).await.unwrap();
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        let error = soon(third.lock("x").timeout(WAIT).into_future()).await.unwrap_err();
        assert_eq!(error.to_string(), "timed out after 1s waiting for lock 'x' (held by web-1, pid 4121)");
        assert_eq!(expired(Err(error)), Some(identity("web-1")));
        held.release().await.unwrap();
        // The holder of the end of the wait counts, not that of its beginning.
        let next = soon(waiting).await.unwrap().unwrap();
        let waiting = tokio::spawn(third.lock("x").timeout(WAIT).into_future());
        assert_eq!(expired(soon(waiting).await.unwrap()), Some(identity("web-2")));
        next.release().await.unwrap();
    }

    pub(super) async fn full_permits_and_readers_name_the_oldest_holder(store: Store) {
        let ((_a, first), (_b, second), (_c, third)) =
            (named(&store, "web-1"), named(&store, "web-2"), named(&store, "web-3"));
        let one = soon(first.semaphore("x", 2).acquire().into_future()).await.unwrap();
        let two = soon(second.semaphore("x", 2).acquire().into_future()).await.unwrap();
        let by = refused(soon(third.semaphore("x", 2).acquire().try_now().into_future()).await);
        assert_eq!(by, Some(identity("web-1")));
        one.release().await.unwrap();
        let three = soon(third.semaphore("x", 2).acquire().into_future()).await.unwrap();
        let by = expired(soon(first.semaphore("x", 2).acquire().timeout(WAIT).into_future()).await);
        assert_eq!(by, Some(identity("web-2")));
        two.release().await.unwrap();
        three.release().await.unwrap();
        let one = soon(second.rw_lock("x").read().into_future()).await.unwrap();
        let two = soon(first.rw_lock("x").read().into_future()).await.unwrap();
        let by = refused(soon(third.lock("x").try_now().into_future()).await);
        assert_eq!(by, Some(identity("web-2")));
        one.release().await.unwrap();
        two.release().await.unwrap();
    }

    pub(super) async fn unreadable_record_names_no_holder(store: Store) {
        let ((_a, first), (_b, second)) = (named(&store, "web-1"), named(&store, "web-2"));
        let held = soon(first.lock("x").into_future()).await.unwrap();
        let garbage = Op::put_leased(held.fence().key, "garbage", held.lease());
        store.txn(Txn::new().then(garbage)).await.unwrap();
        let error = soon(second.lock("x").try_now().into_future()).await.unwrap_err();
        assert_eq!(error.to_string(), "lock 'x' is held by another process");
        assert_eq!(refused(Err(error)), None);
        assert_eq!(expired(soon(second.lock("x").timeout(WAIT).into_future()).await), None);
        held.release().await.unwrap();
    }
}

/// The holder cannot be read: the wait ends on time, and as an expired wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_wait_ends_despite_hanging_store_on_etcd() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let near = connect(&etcd).await;
    let far = Store::open(&format!("etcd://{}", proxy.addr()).parse().unwrap()).await.unwrap();
    let ((_a, first), (_b, second)) = (named(&near, "web-1"), named(&far, "web-2"));
    let held = soon(first.lock("x").into_future()).await.unwrap();
    let (wait, begin) = (Duration::from_secs(2), tokio::time::Instant::now());
    let waiting = tokio::spawn(second.lock("x").timeout(wait).into_future());
    wait_for_keys(&near, 2).await;
    // The watch of the predecessor begins within this time; later the store does not reply.
    tokio::time::sleep_until(begin + Duration::from_secs(1)).await;
    proxy.set(Mode::BlackHole);
    let error = soon(waiting).await.unwrap().unwrap_err();
    assert!(begin.elapsed() < wait + Duration::from_millis(900), "{:?}", begin.elapsed());
    assert!(matches!(error, LockError::Timeout { by: None, .. }), "{error:?}");
    proxy.set(Mode::Pass);
    held.release().await.unwrap();
}
