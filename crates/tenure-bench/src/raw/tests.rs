//! The reference calls do what they claim; a comparison with wrong calls would mean nothing.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_fixture::Etcd;

use super::Raw;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Every wait of a test has an end.
async fn within<T>(limit: Duration, what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, wait).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {limit:?}"),
    }
}

#[tokio::test]
async fn reference_puts_claims_reads_and_watches() {
    let etcd = Etcd::builder().without_auth().start();
    let raw = Raw::connect(&etcd.client_urls()[0]).await.unwrap();
    let mut events = raw.watch(bytes("k")).await.unwrap();
    let first = raw.put(bytes("k"), bytes("v")).await.unwrap();
    let seen = within(Duration::from_secs(5), "the event", events.next()).await;
    assert_eq!(seen.unwrap().unwrap(), first);

    let pair = |n: usize| (bytes(&format!("p/{n}")), bytes("v"));
    assert_eq!(raw.txn_puts((0..10).map(pair).collect(), 0).await.unwrap(), first + 1);
    let won = raw.claims((5..15).map(pair).collect()).await.unwrap();
    assert_eq!(won, [false, false, false, false, false, true, true, true, true, true]);
    assert!(!raw.claim(bytes("p/14"), bytes("v")).await.unwrap());
    assert!(raw.claim(bytes("p/15"), bytes("v")).await.unwrap());
    assert_eq!(raw.range(bytes("p/"), bytes("p0")).await.unwrap(), 16);
}

#[tokio::test]
async fn reference_sees_lease_keys_deleted() {
    let etcd = Etcd::builder().without_auth().start();
    let raw = Raw::connect(&etcd.client_urls()[0]).await.unwrap();
    let mut deletes = raw.watch_deletes(bytes("p/"), bytes("p0")).await.unwrap();
    let lease = raw.grant(60).await.unwrap();
    let keys: Vec<_> = (0..3).map(|n| bytes(&format!("p/{n}"))).collect();
    let pairs = keys.iter().map(|key| (key.clone(), bytes("v"))).collect();
    raw.txn_puts(pairs, lease).await.unwrap();
    raw.revoke(lease).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < keys.len() {
        let batch = within(Duration::from_secs(5), "the deletes", deletes.next()).await;
        seen.extend(batch.unwrap().unwrap());
    }
    seen.sort();
    assert_eq!(seen, keys);
}
