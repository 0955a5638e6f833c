//! The testing world: each fault has its documented effect, and a world without faults is just a store.

mod process;
mod sessions;

use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tenure::clock::Clock;
use tenure::conformance;
use tenure::feed::{Feed, FeedItem};
use tenure::store::{
    Change, Op, PreviousValues, Renewal, Revision, Selection, Store, StoreError, Txn, WatchError, WatchItem,
    WatchStart, WatchStream,
};
use tenure::testing::{ClockSkew, World};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn watch_all(store: &Store) -> WatchStream {
    store.watch(Selection::everything(), WatchStart::Now, PreviousValues::Omitted).await.unwrap()
}

/// The revisions that a watch can show without waiting.
async fn seen(world: &World, watch: &mut WatchStream) -> Vec<Revision> {
    world.run_until_idle().await;
    let mut seen = Vec::new();
    while let Some(Some(Ok(WatchItem::Batch { revision, .. }))) = watch.next().now_or_never() {
        seen.push(revision);
    }
    seen
}

/// How many deletes a watch can show without waiting.
async fn deletes(world: &World, watch: &mut WatchStream) -> usize {
    world.run_until_idle().await;
    let mut deletes = 0;
    while let Some(Some(Ok(WatchItem::Batch { changes, .. }))) = watch.next().now_or_never() {
        deletes += changes.iter().filter(|change| matches!(change, Change::Delete { .. })).count();
    }
    deletes
}

#[tokio::test(start_paused = true)]
async fn participants_store_passes_the_suite() {
    let world = World::new();
    conformance::run(|| async { world.process("a").store() }).await.assert_passed();
    assert!(
        world.process("a").store().get_key("/k").await.is_ok(),
        "closing one handle closes only that one"
    );
}

#[tokio::test]
async fn store_with_latency_passes_the_suite_too() {
    let world = World::new();
    let store = world.process("a").store();
    world.process("a").set_latency(ms(1));
    conformance::run(|| async { store }).await.assert_passed();
}

#[tokio::test]
async fn time_moves_only_when_awaited() {
    let world = World::new();
    assert_eq!(world.elapsed(), Duration::ZERO);
    world.run_until_idle().await;
    assert_eq!(world.elapsed(), Duration::ZERO);
    for step in [1, 10, 3_333, 60_000] {
        let before = world.elapsed();
        world.advance(ms(step)).await;
        assert_eq!(world.elapsed() - before, ms(step));
    }
    let clock = world.process("a").clock();
    let deadline = clock.now() + Duration::from_micros(2_500);
    let before = world.elapsed();
    clock.sleep_until(deadline).await;
    assert_eq!(world.elapsed() - before, ms(3), "late by less than a millisecond, never early");
}

#[tokio::test]
async fn second_world_shares_paused_time() {
    let (one, other) = (World::new(), World::new());
    one.advance(s(1)).await;
    assert_eq!((one.elapsed(), other.elapsed()), (s(1), s(1)));
    one.process("a").store().put("/k", "v").await.unwrap();
    assert_eq!(other.process("a").store().get_key("/k").await.unwrap(), None, "their stores are two");
}

#[tokio::test]
async fn run_until_idle_runs_task_chain_to_end() {
    let world = World::new();
    let (first, mut last) = tokio::sync::mpsc::unbounded_channel::<u32>();
    for _ in 0..2_000 {
        let (next, receiver) = tokio::sync::mpsc::unbounded_channel();
        let mut previous = std::mem::replace(&mut last, receiver);
        tokio::spawn(async move {
            while let Some(number) = previous.recv().await {
                tokio::task::yield_now().await;
                let _ = next.send(number + 1);
            }
        });
    }
    first.send(0).unwrap();
    world.run_until_idle().await;
    assert_eq!(last.try_recv(), Ok(2_000));
    assert_eq!(world.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn dropped_run_until_idle_leaves_no_thread() {
    let world = World::new();
    assert!(world.run_until_idle().now_or_never().is_none());
    // The runtime waits for its blocking threads when it ends, so this test hangs if there is one.
}

#[tokio::test]
async fn partitioned_write_is_ambiguous_and_not_applied() {
    let world = World::new();
    let (cut, onlooker) = (world.process("cut").store(), world.process("onlooker").store());
    world.process("cut").partition();
    let answer = cut.put("/k", "v").await;
    assert!(matches!(answer, Err(StoreError::Ambiguous(_))), "{answer:?}");
    assert_eq!(world.elapsed(), s(5), "its patience is that of the etcd engine");
    let answer = cut.get_key("/k").await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    world.process("cut").heal();
    world.advance(s(60)).await;
    assert_eq!(onlooker.get_key("/k").await.unwrap(), None, "a request that timed out is not applied later");
}

#[tokio::test]
async fn pending_request_continues_after_heal() {
    let world = World::new();
    let cut = world.process("cut").store();
    world.process("cut").partition();
    let put = tokio::spawn(async move { cut.put("/k", "v").await });
    world.advance(s(4)).await;
    assert!(!put.is_finished());
    world.heal_all();
    world.run_until_idle().await;
    assert!(put.now_or_never().expect("it is answered at once").unwrap().is_ok());
    assert_eq!(world.elapsed(), s(4));
}

#[tokio::test]
async fn lost_write_response_is_ambiguous_and_applied() {
    let world = World::new();
    let (deaf, onlooker) = (world.process("deaf").store(), world.process("onlooker").store());
    world.process("deaf").drop_responses();
    let answer = deaf.put("/k", "v").await;
    assert!(matches!(answer, Err(StoreError::Ambiguous(_))), "{answer:?}");
    assert!(onlooker.get_key("/k").await.unwrap().is_some());
    for answer in
        deaf.batch(vec![Txn::new().then(Op::put("/a", "")), Txn::new().then(Op::put("/b", ""))]).await
    {
        assert!(matches!(answer, Err(StoreError::Ambiguous(_))), "{answer:?}");
    }
    assert_eq!(onlooker.list(Selection::everything()).await.unwrap().pairs.len(), 3);
    assert!(matches!(deaf.get_key("/k").await, Err(StoreError::Unavailable(_))), "a read changes nothing");
}

#[tokio::test]
async fn partition_hits_messages_in_flight() {
    for (cut_after, is_applied) in [(ms(50), false), (ms(150), true)] {
        let world = World::new();
        let (far, onlooker) = (world.process("far").store(), world.process("onlooker").store());
        world.process("far").set_latency(ms(100));
        let put = tokio::spawn(async move { far.put("/k", "v").await });
        world.advance(cut_after).await;
        world.process("far").partition();
        let answer = put.await.unwrap();
        assert!(matches!(answer, Err(StoreError::Ambiguous(_))), "{answer:?}");
        assert_eq!(onlooker.get_key("/k").await.unwrap().is_some(), is_applied, "{cut_after:?}");
    }
}

#[tokio::test]
async fn refused_request_fails_at_once_without_effect() {
    let world = World::new();
    let store = world.process("a").store();
    world.process("a").refuse_connections();
    let answer = store.put("/k", "v").await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    assert_eq!(world.elapsed(), Duration::ZERO);
    let returned = tokio::spawn({
        let store = store.clone();
        async move { store.reachable().await }
    });
    world.run_until_idle().await;
    assert!(!returned.is_finished());
    world.process("a").heal();
    world.run_until_idle().await;
    assert!(returned.is_finished(), "and `reachable` completes");
    assert_eq!(store.get_key("/k").await.unwrap(), None);
}

#[tokio::test]
async fn lease_ends_to_the_millisecond() {
    let world = World::new();
    let store = world.process("a").store();
    let lease = store.grant(s(2), None).await.unwrap();
    store.put_leased("/k", "v", lease.id).await.unwrap();
    world.advance(ms(1_999)).await;
    assert!(store.get_key("/k").await.unwrap().is_some());
    world.advance(ms(1)).await;
    assert_eq!(store.get_key("/k").await.unwrap(), None);
    assert_eq!(store.renew(lease.id).await.unwrap(), Renewal::Gone);
}

#[tokio::test]
async fn watch_continues_after_partition_without_gap() {
    let world = World::new();
    let (cut, writer) = (world.process("cut").store(), world.process("writer").store());
    let mut watch = watch_all(&cut).await;
    let first = writer.put("/k", "1").await.unwrap();
    assert_eq!(seen(&world, &mut watch).await, [first]);
    world.process("cut").partition();
    let mut missed = Vec::new();
    for n in 0..100 {
        missed.push(writer.put("/k", n.to_string()).await.unwrap());
        world.advance(s(1)).await;
    }
    assert_eq!(seen(&world, &mut watch).await, [], "in silence");
    world.process("cut").heal();
    assert_eq!(seen(&world, &mut watch).await, missed);
}

#[tokio::test]
async fn watch_compacted_during_partition_reports_it() {
    let world = World::new();
    let (cut, writer) = (world.process("cut").store(), world.process("writer").store());
    let mut watch = watch_all(&cut).await;
    world.process("cut").partition();
    writer.put("/k", "1").await.unwrap();
    let last = writer.put("/k", "2").await.unwrap();
    // A read of the watch during the partition returns nothing either.
    assert!(watch.next().now_or_never().is_none());
    world.compact(last).unwrap();
    assert!(watch.next().now_or_never().is_none());
    world.process("cut").heal();
    let end = watch.next().await.unwrap();
    assert!(matches!(end, Err(WatchError::Compacted { .. })), "{end:?}");
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn watch_delay_is_the_latency_per_burst() {
    let world = World::new();
    let (far, writer) = (world.process("far").store(), world.process("writer").store());
    let mut watch = watch_all(&far).await;
    world.process("far").set_latency(ms(100));
    for n in 0..50 {
        writer.put("/k", n.to_string()).await.unwrap();
    }
    // A stream makes no progress unless it is read.
    let reader = tokio::spawn(async move {
        for _ in 0..50 {
            watch.next().await.unwrap().unwrap();
        }
    });
    world.advance(ms(99)).await;
    assert!(!reader.is_finished());
    world.advance(ms(1)).await;
    assert!(reader.is_finished());
}

#[tokio::test]
async fn feed_survives_a_partition_and_a_compaction() {
    let world = World::new();
    let (cut, writer) = (world.process("cut").store(), world.process("writer").store());
    writer.put("/n/a", "1").await.unwrap();
    let mut feed = Feed::open(cut, Selection::prefix("/n/")).unwrap();
    while !matches!(feed.next().await, Some(Ok(FeedItem::Synced(_)))) {}
    world.process("cut").partition();
    writer.delete(Selection::key("/n/a")).await.unwrap();
    let last = writer.put("/n/b", "2").await.unwrap();
    world.compact(last).unwrap();
    world.advance(s(60)).await;
    world.process("cut").heal();
    let mut told: Vec<(&str, Bytes)> = Vec::new();
    loop {
        match feed.next().await.unwrap().unwrap() {
            FeedItem::Put(pair) => told.push(("put", pair.key)),
            FeedItem::Delete { key, .. } => told.push(("delete", key)),
            FeedItem::Synced(at) if at >= last => break,
            FeedItem::SnapshotBegin | FeedItem::Synced(_) => {}
        }
    }
    told.sort();
    assert_eq!(told, [("delete", Bytes::from("/n/a")), ("put", Bytes::from("/n/b"))]);
}

/// What an onlooker sees and when, in a world with many sessions and faults.
async fn trace() -> Vec<String> {
    let world = World::new();
    let onlooker = world.process("onlooker").store();
    let mut watch = watch_all(&onlooker).await;
    let names: Vec<String> = (0..8).map(|n| format!("n{n}")).collect();
    for name in &names {
        let (store, clock) = (world.process(name).store(), world.process(name).clock());
        world.process(name).set_latency(ms(7));
        // A holder without jitter: it renews every second, and starts again when its lease has ended.
        let name = name.clone();
        tokio::spawn(async move {
            loop {
                let Ok(lease) = store.grant(s(4), None).await else { continue };
                let _ = store.put_leased(format!("/n/{name}"), lease.id.to_string(), lease.id).await;
                while let Ok(Renewal::Renewed { .. }) = store.renew(lease.id).await {
                    clock.sleep_until(clock.now() + s(1)).await;
                }
            }
        });
    }
    let written = tokio::spawn({
        let world = world.clone();
        async move {
            let mut lines = Vec::new();
            while let Ok(Some(item)) = tokio::time::timeout(s(15), watch.next()).await {
                lines.push(format!("{:?} {item:?}", world.elapsed()));
            }
            lines
        }
    });
    for round in 0..4 {
        for (n, name) in names.iter().enumerate() {
            world.advance(ms(313)).await;
            match (n + round) % 4 {
                0 => world.process(name).partition(),
                1 => world.process(name).drop_responses(),
                2 => world.process(name).pause(),
                _ => world.process(name).set_clock_skew(ClockSkew::Drift { ppm: 700_000 }),
            }
        }
        world.advance(s(10)).await;
        world.heal_all();
        names.iter().for_each(|name| world.process(name).resume());
        world.advance(s(4)).await;
    }
    written.await.unwrap()
}

#[test]
fn same_test_repeats_its_trace() {
    let run = |is_paused: bool| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(is_paused).build();
        runtime.unwrap().block_on(trace())
    };
    let first = run(true);
    assert!(first.len() > 20, "{} lines show little", first.len());
    for is_paused in [true, false, false, false] {
        assert_eq!(run(is_paused), first);
    }
}
