//! TTL elections on real servers that are stopped and killed, and the keys in a store.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure::store::{Selection, Store};
use tenure::ttl::{
    RedisStorage, StoreStorage, TtlCampaignError, TtlElections, TtlElectionsBuilder, TtlStorage, TtlValue,
};
use tenure::{LossReason, Namespace};
use tenure_core::revision::Token;
use tenure_fixture::Etcd;

use crate::tokio_clock::TokioClock;

const DURATION: Duration = Duration::from_secs(3);

fn key() -> String {
    "boss".to_owned()
}

/// The TTL of terms with a margin that is long enough for a busy machine.
const PATIENT: Duration = Duration::from_secs(4);

fn patient<S: TtlStorage>(storage: S) -> TtlElectionsBuilder<S> {
    TtlElections::builder(storage).margin(Duration::from_millis(1_500)).ttl(PATIENT)
}

async fn on_redis(url: &str) -> TtlElections<RedisStorage> {
    TtlElections::new(RedisStorage::open(url).unwrap())
}

#[tokio::test]
async fn paused_redis_ends_term_before_the_ttl() {
    let redis = tenure_fixture::Redis::start();
    let storage = RedisStorage::open(&redis.url()).unwrap();
    let (one, two) = (patient(storage).build().unwrap(), on_redis(&redis.url()).await);
    let term = one.election(key()).campaign("one").ttl(PATIENT).try_now().await.unwrap();
    redis.pause();
    let stopped = Instant::now();
    assert_eq!(term.lost().await.reason, LossReason::Lapsed);
    // Validity never reaches further than the duration from a request that was answered before the stop.
    assert!(stopped.elapsed() < PATIENT, "{:?}", stopped.elapsed());
    redis.resume();
    let second = two.election(key()).campaign("two").ttl(DURATION).await.unwrap();
    assert!(second.is_valid() && !term.is_valid());
    two.close().await.unwrap();
    assert_eq!(redis.command(&["EXISTS", "tenure:ttl:boss"]).unwrap(), ":0\r\n");
}

#[tokio::test]
async fn emptied_redis_replaces_the_term() {
    let redis = tenure_fixture::Redis::start();
    let elections = on_redis(&redis.url()).await;
    let term = elections.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    redis.restart();
    assert_eq!(term.lost().await.reason, LossReason::Replaced);
    let again = elections.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    assert!(again.is_valid());
    elections.close().await.unwrap();
}

/// The key is not watched, so its deletion is noticed at the next renewal. Until then two candidates lead: Redis cannot fence.
#[tokio::test]
async fn deleted_redis_key_ends_term_at_next_renewal() {
    let redis = tenure_fixture::Redis::start();
    let (one, two) = (on_redis(&redis.url()).await, on_redis(&redis.url()).await);
    let term = one.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    redis.command(&["DEL", "tenure:ttl:boss"]).unwrap();
    let second = two.election(key()).campaign("two").ttl(DURATION).try_now().await.unwrap();
    assert_eq!(term.lost().await.reason, LossReason::Replaced);
    assert!(second.is_valid(), "the lost term does not delete the key of another candidate");
    second.release().await.unwrap();
    assert_eq!(redis.command(&["EXISTS", "tenure:ttl:boss"]).unwrap(), ":0\r\n");
}

/// The storage reconnects, and renewals continue.
#[tokio::test]
async fn redis_is_reconnected_within_one_term() {
    let redis = tenure_fixture::Redis::start();
    let elections = on_redis(&redis.url()).await;
    let term = elections.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    // All connections are cut; what is stored stays.
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let lost = tokio::time::timeout(DURATION * 2, term.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(term.is_valid());
    term.release().await.unwrap();
}

#[tokio::test]
async fn missing_redis_fails_the_campaign() {
    let redis = tenure_fixture::Redis::start();
    let url = redis.url();
    redis.kill();
    let elections = on_redis(&url).await;
    let refused = elections.election(key()).campaign("one").ttl(DURATION).try_now().await;
    assert!(matches!(refused, Err(TtlCampaignError::Storage(_))), "{refused:?}");
    let fenced = TtlElections::builder(RedisStorage::open(&url).unwrap()).require_fencing().build();
    assert!(matches!(fenced, Err(TtlCampaignError::NotFenced { .. })), "{fenced:?}");
}

#[tokio::test]
async fn redis_stores_value_with_nonce() {
    let redis = tenure_fixture::Redis::start();
    let elections = on_redis(&redis.url()).await;
    let term = elections.election(key()).campaign("web-1").ttl(DURATION).try_now().await.unwrap();
    let stored = redis.command(&["GET", "tenure:ttl:boss"]).unwrap();
    let stored = Bytes::from(stored.lines().nth(1).unwrap().to_owned());
    assert_eq!(stored.unstamped().unwrap().1, "web-1");
    let ttl = redis.command(&["PTTL", "tenure:ttl:boss"]).unwrap();
    let ttl: u64 = ttl.trim().trim_start_matches(':').parse().unwrap();
    assert!((1..=3_000).contains(&ttl), "{ttl}");
    term.release().await.unwrap();
}

fn over(store: &Store) -> StoreStorage {
    StoreStorage::new(store.clone(), &Namespace::parse("shop").unwrap())
}

#[tokio::test(start_paused = true)]
async fn store_token_is_the_create_revision() {
    let clock = TokioClock::new();
    let store = TokioClock::store();
    let elections = TtlElections::builder(over(&store)).clock(clock).require_fencing().build().unwrap();
    let term = elections.election("a/b".to_owned()).campaign("web-1").ttl(DURATION).try_now().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(term.is_valid());
    let pairs = store.list(Selection::everything()).await.unwrap().pairs;
    assert_eq!(pairs.len(), 1);
    assert_eq!(pairs[0].key, "/shop/ttl/a%2Fb");
    assert_eq!(pairs[0].value.unstamped().unwrap().1, "web-1");
    assert_eq!(term.token(), Some(Token(pairs[0].created)));
    assert_eq!(store.leases().await.unwrap().len(), 1);
    term.release().await.unwrap();
    assert!(store.list(Selection::everything()).await.unwrap().pairs.is_empty());
    assert!(store.leases().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn invalid_name_is_refused_by_a_store() {
    let builder = TtlElections::builder(over(&TokioClock::store()));
    let elections = builder.clock(TokioClock::new()).build().unwrap();
    for name in [String::new(), "x".repeat(257), "a\nb".to_owned()] {
        let refused = elections.election(name).campaign("web-1").ttl(DURATION).try_now().await;
        assert!(matches!(refused, Err(TtlCampaignError::Storage(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn paused_etcd_ends_term_before_the_ttl() {
    let etcd = Etcd::start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    let elections = patient(over(&store)).build().unwrap();
    let term = elections.election(key()).campaign("one").ttl(PATIENT).try_now().await.unwrap();
    etcd.member(0).pause();
    let stopped = Instant::now();
    assert_eq!(term.lost().await.reason, LossReason::Lapsed);
    assert!(stopped.elapsed() < PATIENT, "{:?}", stopped.elapsed());
    etcd.member(0).resume();
    let other = TtlElections::new(over(&store));
    let second = other.election(key()).campaign("two").ttl(DURATION).await.unwrap();
    assert!(second.is_valid());
    other.close().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn restarted_etcd_keeps_the_term() {
    let etcd = Etcd::builder().durable().start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    let elections = TtlElections::new(over(&store));
    let term =
        elections.election(key()).campaign("one").ttl(Duration::from_secs(12)).try_now().await.unwrap();
    let token = term.token();
    etcd.member(0).kill();
    etcd.member(0).restart();
    let left = term.remaining();
    // It was renewed since, and it is the same key still.
    while term.remaining() <= left {
        assert!(term.is_valid());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(token, Some(Token(store.get_key("/shop/ttl/boss").await.unwrap().unwrap().created)));
    term.release().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn revoked_lease_ends_term_on_etcd() {
    let etcd = Etcd::start();
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    let elections = TtlElections::new(over(&store));
    let term = elections.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    let lease = store.leases().await.unwrap()[0];
    store.revoke(lease).await.unwrap();
    assert_eq!(term.lost().await.reason, LossReason::Replaced);
    elections.close().await.unwrap();
    store.close().await;
}
