//! Since when a lock is held: the time in the queue does not count.

use tenure::lock::Holder;
use tenure::testing::World;
use tenure_core::record::Timestamp;

use super::*;

on_every_engine! {
    acquired_time_excludes_the_wait;
    library_lock_names_its_process;
}

/// The first holder, as soon as its record contains when it acquired.
pub(super) async fn recorded(locks: &Locks, lock: &str) -> (Holder, Timestamp) {
    soon(async {
        loop {
            let view = locks.get(&name(lock)).await.unwrap();
            if let Some(holder) = view.holders.first().cloned()
                && let Some(acquired) = holder.record.acquired
            {
                return (holder, acquired);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

mod claims {
    use super::*;

    /// Found by users: A held for 8 s while B waited; once B held, listings counted from when B had queued.
    pub(super) async fn acquired_time_excludes_the_wait(store: Store) {
        let ((_a, first), (_b, second)) = (process(&store), process(&store));
        let held = soon(first.lock("x").into_future()).await.unwrap();
        let (_, at) = recorded(&second, "x").await;
        let waiting = tokio::spawn(second.lock("x").into_future());
        wait_for_keys(&store, 2).await;
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        held.release().await.unwrap();
        let held = soon(waiting).await.unwrap().unwrap();
        let (holder, acquired) = recorded(&first, "x").await;
        assert_eq!(holder.token, held.token(), "the token is the create revision, which stays");
        let waited_ms = acquired.0 - holder.record.queued.0;
        assert!((1_200..5_000).contains(&waited_ms), "{waited_ms} ms in the queue");
        assert!(acquired > at);
        held.release().await.unwrap();
        assert_eq!(keys(&store).await, 0, "what is written in the background restores no key");
    }

    /// Found by users: the error named a process without a name, with pid 0.
    pub(super) async fn library_lock_names_its_process(store: Store) {
        let (_session, locks) = process(&store);
        let _held = soon(locks.lock("x").into_future()).await.unwrap();
        let view = locks.get(&name("x")).await.unwrap();
        let identity = view.holders[0].record.identity();
        assert_eq!(identity, tenure::identity::current());
        assert_eq!(identity.pid, std::process::id());
        for part in [&identity.node, &identity.host, &identity.user, &identity.program] {
            assert!(!part.is_empty(), "{identity:?}");
        }
    }
}

/// One process of a world in virtual time.
fn participant(world: &World, who: &str) -> (Session, Locks) {
    let options = Session::options().ttl(Duration::from_secs(6)).clock(world.process(who).clock());
    let session = options.open(world.process(who).store()).unwrap();
    let locks = Locks::new(&session, &namespace());
    (session, locks)
}

/// Exact to the millisecond: 8 s in the queue and 1.2 s of holding.
#[tokio::test(start_paused = true)]
async fn hold_after_a_wait_counts_from_acquisition() {
    let world = World::seeded(1);
    let ((_a, first), (_b, second)) = (participant(&world, "a"), participant(&world, "b"));
    let held = first.lock("x").await.unwrap();
    let waiting = tokio::spawn(second.lock("x").into_future());
    world.advance(Duration::from_secs(8)).await;
    held.release().await.unwrap();
    let _held = waiting.await.unwrap().unwrap();
    let view = first.get(&name("x")).await.unwrap();
    assert_eq!(view.holders[0].record.acquired, None, "not known yet, and no wrong time before that");
    world.advance(Duration::from_millis(1_200)).await;
    let holder = first.get(&name("x")).await.unwrap().holders.remove(0);
    assert_eq!(holder.record.acquired.unwrap().0 - holder.record.queued.0, 8_000);
    assert_eq!(tenure::clock::wall_time().0 - holder.record.acquired.unwrap().0, 1_200);
}

/// A hold of milliseconds costs no third request, however often it is handed on.
#[tokio::test(start_paused = true)]
async fn short_holds_are_not_recorded() {
    let world = World::seeded(1);
    let ((_a, first), (_b, second)) = (participant(&world, "a"), participant(&world, "b"));
    for _ in 0..20 {
        for locks in [&first, &second] {
            let held = locks.lock("x").await.unwrap();
            world.advance(Duration::from_millis(90)).await;
            held.release().await.unwrap();
        }
    }
    let revision = world.process("a").store().list(Selection::prefix("/t/locks/")).await.unwrap().revision;
    // The store begins at 1; an enter and a leave for each hold.
    assert_eq!(revision, tenure::store::Revision(1 + 2 * 40));
}

/// Another client has written the record since the lock was acquired: its change stays.
#[tokio::test]
async fn recording_keeps_changes_of_others() {
    let store = Store::memory();
    let (_session, locks) = process(&store);
    let held = locks.lock("x").await.unwrap();
    let fence = held.fence();
    let pair = store.get_key(fence.key.clone()).await.unwrap().unwrap();
    let text = String::from_utf8(pair.value.to_vec()).unwrap().replacen('{', r#"{"note":"kept","#, 1);
    let put = Op::Put { key: fence.key.clone(), value: text.into(), lease: tenure::store::LeaseChoice::Keep };
    assert!(store.txn(fence.guard(Txn::new().then(put))).await.unwrap().succeeded);
    let (holder, _) = recorded(&locks, "x").await;
    assert_eq!(holder.record.unknown["note"], "kept");
}

/// A store that does not answer when the time is to be written is asked again.
#[tokio::test(start_paused = true)]
async fn unanswered_recording_is_retried() {
    let world = World::seeded(1);
    let ((_a, locks), (_b, onlooker)) = (participant(&world, "a"), participant(&world, "b"));
    let _held = locks.lock("x").await.unwrap();
    world.process("a").refuse_connections();
    world.advance(Duration::from_millis(500)).await;
    assert_eq!(onlooker.get(&name("x")).await.unwrap().holders[0].record.acquired, None);
    world.process("a").heal();
    world.advance(Duration::from_secs(1)).await;
    let holder = onlooker.get(&name("x")).await.unwrap().holders.remove(0);
    assert_eq!(holder.record.acquired, Some(holder.record.queued), "it counts from the acquisition");
}
