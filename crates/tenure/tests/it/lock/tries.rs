//! Tries of locks that several can hold: a try decides on the complete reply of the store.

use super::*;

on_every_engine! {
    try_takes_free_permit;
    try_takes_shared_lock;
    zero_wait_is_a_try;
    different_permit_count_is_refused;
}

mod claims {
    use super::*;

    fn is_held(refused: &Result<tenure::lock::Guard, LockError>) -> bool {
        matches!(refused, Err(LockError::Held { .. }))
    }

    /// Found by users: the first reply of the store shows a predecessor, and a try took that for a refusal although two permits were free.
    pub(super) async fn try_takes_free_permit(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let one = soon(first.semaphore("x", 3).acquire().into_future()).await.unwrap();
        let two = soon(second.semaphore("x", 3).acquire().try_now().into_future()).await.unwrap();
        // On the session that holds one already.
        let three = soon(first.semaphore("x", 3).acquire().try_now().into_future()).await.unwrap();
        let full = soon(second.semaphore("x", 3).acquire().try_now().into_future()).await;
        assert!(is_held(&full), "{full:?}");
        // Waiters of this process have a snapshot of the queue already; a try beside them needs a newer one.
        let waiter = tokio::spawn(second.semaphore("x", 3).acquire().into_future());
        wait_for_keys(&store, 4).await;
        let full = soon(second.semaphore("x", 3).acquire().try_now().into_future()).await;
        assert!(is_held(&full), "{full:?}");
        for guard in [one, two, three] {
            guard.release().await.unwrap();
        }
        let last = soon(second.semaphore("x", 3).acquire().try_now().into_future()).await.unwrap();
        last.release().await.unwrap();
        soon(waiter).await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(keys(&store).await, 0);
    }

    pub(super) async fn try_takes_shared_lock(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let one = soon(first.rw_lock("x").read().into_future()).await.unwrap();
        let two = soon(second.rw_lock("x").read().try_now().into_future()).await.unwrap();
        let writer = soon(second.lock("x").try_now().into_future()).await;
        assert!(is_held(&writer), "{writer:?}");
        for guard in [one, two] {
            guard.release().await.unwrap();
        }
        let writer = soon(second.lock("x").try_now().into_future()).await.unwrap();
        let reader = soon(first.rw_lock("x").read().try_now().into_future()).await;
        assert!(is_held(&reader), "{reader:?}");
        writer.release().await.unwrap();
        assert_eq!(keys(&store).await, 0);
    }

    /// It held on memory and failed on stores that need a round trip.
    pub(super) async fn zero_wait_is_a_try(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let zero = Duration::ZERO;
        let held = soon(first.lock("x").timeout(zero).into_future()).await.unwrap();
        let refused = soon(second.lock("x").timeout(zero).into_future()).await;
        assert!(is_held(&refused), "{refused:?}");
        held.release().await.unwrap();
        let one = soon(first.semaphore("y", 2).acquire().timeout(zero).into_future()).await.unwrap();
        let two = soon(second.semaphore("y", 2).acquire().timeout(zero).into_future()).await.unwrap();
        drop((one, two));
        wait_for_keys(&store, 0).await;
    }

    /// Three of three were taken, and a caller that counted to five was admitted as the fourth.
    pub(super) async fn different_permit_count_is_refused(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(soon(first.semaphore("x", 3).acquire().into_future()).await.unwrap());
        }
        let fourth = soon(second.semaphore("x", 5).acquire().into_future()).await;
        let Err(error @ LockError::PermitsDiffer { given, stored }) = fourth else { panic!("{fourth:?}") };
        assert_eq!((given.get(), stored.get()), (5, 3));
        assert_eq!(error.to_string(), "requested one of 5 permits, but the name is in use with 3 permits");
        wait_for_keys(&store, 3).await;
        drop(held);
        wait_for_keys(&store, 0).await;
        soon(second.semaphore("x", 5).acquire().into_future()).await.unwrap().release().await.unwrap();
    }
}
