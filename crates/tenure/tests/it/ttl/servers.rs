//! Elections on real servers that are stopped and killed, and what lies in a store.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure::clock::BootClock;
use tenure::store::{Selection, Store};
use tenure::ttl::{AcquireError, Elections, LossReason, Options, Redis, StoreStorage, Value};
use tenure_core::id::Namespace;
use tenure_core::revision::Token;
use tenure_fixture::Etcd;

use crate::tokio_clock::TokioClock;

const DURATION: Duration = Duration::from_secs(3);

fn key() -> String {
    "boss".to_owned()
}

/// With a margin that is long enough for a task that is not scheduled at once: these tests run on busy machines.
const PATIENT: Duration = Duration::from_secs(4);

fn patient() -> Options {
    Options::new().margin(Duration::from_millis(1_500))
}

async fn on_redis(url: &str) -> Elections<String, Bytes, Redis> {
    Elections::new(Redis::open(url).unwrap(), BootClock)
}

#[tokio::test]
async fn a_redis_that_is_stopped_past_the_ttl_ends_leadership_before_it() {
    let redis = tenure_fixture::Redis::start();
    let storage = Redis::open(&redis.url()).unwrap();
    let (one, two) = (Elections::with(storage, BootClock, patient()).unwrap(), on_redis(&redis.url()).await);
    let leadership = one.acquire(key(), "one".into(), PATIENT).await.unwrap();
    redis.pause();
    let stopped = Instant::now();
    assert_eq!(leadership.lost().await.reason, LossReason::Lapsed);
    // Validity never reaches further than the duration from a request that was answered before the stop.
    assert!(stopped.elapsed() < PATIENT, "{:?}", stopped.elapsed());
    redis.resume();
    let second = two.acquire_wait(key(), "two".into(), DURATION).await.unwrap();
    assert!(second.is_valid() && !leadership.is_valid());
    two.close().await.unwrap();
    assert_eq!(redis.ask(&["EXISTS", "tenure:ttl:boss"]).unwrap(), ":0\r\n");
}

#[tokio::test]
async fn a_redis_that_was_killed_and_came_back_empty_has_no_leader_any_more() {
    let redis = tenure_fixture::Redis::start();
    let elections = on_redis(&redis.url()).await;
    let leadership = elections.acquire(key(), "one".into(), DURATION).await.unwrap();
    redis.restart();
    assert_eq!(leadership.lost().await.reason, LossReason::Replaced);
    let again = elections.acquire(key(), "one".into(), DURATION).await.unwrap();
    assert!(again.is_valid());
    elections.close().await.unwrap();
}

/// Nobody watches over the key, so its deletion is noticed with the next renewal. Until then another may lead beside it: Redis cannot fence.
#[tokio::test]
async fn a_redis_key_that_is_deleted_by_hand_ends_leadership_with_the_next_renewal() {
    let redis = tenure_fixture::Redis::start();
    let (one, two) = (on_redis(&redis.url()).await, on_redis(&redis.url()).await);
    let leadership = one.acquire(key(), "one".into(), DURATION).await.unwrap();
    redis.ask(&["DEL", "tenure:ttl:boss"]).unwrap();
    let second = two.acquire(key(), "two".into(), DURATION).await.unwrap();
    assert_eq!(leadership.lost().await.reason, LossReason::Replaced);
    assert!(second.is_valid(), "and the loser leaves what is not its own");
    second.release().await.unwrap();
    assert_eq!(redis.ask(&["EXISTS", "tenure:ttl:boss"]).unwrap(), ":0\r\n");
}

/// The storage connects anew, and the renewals go on.
#[tokio::test]
async fn redis_is_reconnected_within_one_leadership() {
    let redis = tenure_fixture::Redis::start();
    let elections = on_redis(&redis.url()).await;
    let leadership = elections.acquire(key(), "one".into(), DURATION).await.unwrap();
    // All connections are cut; what is stored stays.
    redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let lost = tokio::time::timeout(DURATION * 2, leadership.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(leadership.is_valid());
    leadership.release().await.unwrap();
}

#[tokio::test]
async fn without_redis_an_acquire_fails_at_once_and_strict_elections_do_not_begin() {
    let redis = tenure_fixture::Redis::start();
    let url = redis.url();
    redis.kill();
    let elections = on_redis(&url).await;
    let refused = elections.acquire(key(), "one".into(), DURATION).await;
    assert!(matches!(refused, Err(AcquireError::Storage(_))), "{refused:?}");
    let strict =
        Elections::<String, Bytes, _>::with(Redis::open(&url).unwrap(), BootClock, Options::new().strict());
    assert!(strict.is_err());
}

#[tokio::test]
async fn what_redis_stores_is_the_value_behind_its_nonce() {
    let redis = tenure_fixture::Redis::start();
    let elections = on_redis(&redis.url()).await;
    let leadership = elections.acquire(key(), "web-1".into(), DURATION).await.unwrap();
    let stored = redis.ask(&["GET", "tenure:ttl:boss"]).unwrap();
    let stored = Bytes::from(stored.lines().nth(1).unwrap().to_owned());
    assert_eq!(stored.unstamped().unwrap().1, "web-1");
    let ttl = redis.ask(&["PTTL", "tenure:ttl:boss"]).unwrap();
    let ttl: u64 = ttl.trim().trim_start_matches(':').parse().unwrap();
    assert!((1..=3_000).contains(&ttl), "{ttl}");
    leadership.release().await.unwrap();
}

fn over(store: &Store) -> StoreStorage {
    StoreStorage::new(store.clone(), &Namespace::parse("shop").unwrap())
}

#[tokio::test(start_paused = true)]
async fn in_a_store_the_token_is_the_create_revision_and_nothing_is_left_behind() {
    let clock = TokioClock::new();
    let store = TokioClock::store();
    let elections = Elections::with(over(&store), clock, Options::new().strict()).unwrap();
    let leadership = elections.acquire("a/b".to_owned(), "web-1".into(), DURATION).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(leadership.is_valid());
    let pairs = store.list(Selection::everything()).await.unwrap().pairs;
    assert_eq!(pairs.len(), 1);
    assert_eq!(pairs[0].key, "/shop/ttl/a%2Fb");
    assert_eq!(pairs[0].value.unstamped().unwrap().1, "web-1");
    assert_eq!(leadership.token(), Some(Token(pairs[0].created)));
    assert_eq!(store.leases().await.unwrap().len(), 1);
    leadership.release().await.unwrap();
    assert!(store.list(Selection::everything()).await.unwrap().pairs.is_empty());
    assert!(store.leases().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_no_store_takes_is_refused() {
    let elections = Elections::new(over(&TokioClock::store()), TokioClock::new());
    for name in [String::new(), "x".repeat(257), "a\nb".to_owned()] {
        let refused = elections.acquire(name, "web-1".into(), DURATION).await;
        assert!(matches!(refused, Err(AcquireError::Storage(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn an_etcd_that_is_stopped_past_the_ttl_ends_leadership_before_it() {
    let etcd = Etcd::start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    let elections = Elections::with(over(&store), BootClock, patient()).unwrap();
    let leadership = elections.acquire(key(), "one".into(), PATIENT).await.unwrap();
    etcd.member(0).pause();
    let stopped = Instant::now();
    assert_eq!(leadership.lost().await.reason, LossReason::Lapsed);
    assert!(stopped.elapsed() < PATIENT, "{:?}", stopped.elapsed());
    etcd.member(0).resume();
    let other = Elections::new(over(&store), BootClock);
    assert!(other.acquire_wait(key(), "two".into(), DURATION).await.unwrap().is_valid());
    other.close().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn an_etcd_that_is_restarted_within_the_ttl_is_led_on() {
    let etcd = Etcd::builder().durable().start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    let elections = Elections::new(over(&store), BootClock);
    let leadership = elections.acquire(key(), "one".into(), Duration::from_secs(12)).await.unwrap();
    let token = leadership.token();
    etcd.member(0).kill();
    etcd.member(0).restart();
    let left = leadership.remaining();
    // It was renewed since, and it is the same key still.
    while leadership.remaining() <= left {
        assert!(leadership.is_valid());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(token, Some(Token(store.get_key("/shop/ttl/boss").await.unwrap().unwrap().created)));
    leadership.release().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_lease_revoked_by_hand_on_etcd_ends_leadership_with_the_next_renewal() {
    let etcd = Etcd::start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    let elections = Elections::new(over(&store), BootClock);
    let leadership = elections.acquire(key(), "one".into(), DURATION).await.unwrap();
    let lease = store.leases().await.unwrap()[0];
    store.revoke(lease).await.unwrap();
    assert_eq!(leadership.lost().await.reason, LossReason::Replaced);
    elections.close().await.unwrap();
    store.close().await;
}
