//! A process that is stopped past its TTL: when it goes on, it says that its lease is lost before it writes anything.

use std::time::Duration;

use rustix::process::Signal;
use tenure::store::LeaseId;

use super::child::{Process, TTL};
use super::*;

/// What the store has seen of the child's key: each put with its lease.
async fn puts_since(store: &Store, revision: tenure::store::Revision) -> Vec<Option<LeaseId>> {
    let mut watch =
        store.watch(Selection::prefix("/s/"), Start::After(revision), Previous::Omitted).await.unwrap();
    let end = store.put("/s/end", "").await.unwrap();
    let mut leases = Vec::new();
    while let Some(item) = watch.next().await {
        let WatchItem::Batch { revision, changes } = item.unwrap() else { continue };
        for change in changes {
            if let Change::Put { pair, .. } = change
                && pair.key == "/s/beat"
            {
                leases.push(pair.lease);
            }
        }
        if revision >= end {
            break;
        }
    }
    leases
}

/// It believes for 1.5 s of its 2 s. Stopped for a little longer than it believes, so that the store still has the lease, and for much longer, so that it has not.
#[tokio::test]
async fn a_process_stopped_past_its_ttl_says_lost_before_it_writes_again() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let mut child = Process::start("beats", &etcd);
    let mut wrote = String::new();
    while wrote.is_empty() {
        let said = child.hear().await;
        wrote = said.strip_prefix("wrote ").unwrap_or_default().to_owned();
    }
    let mut alive = 0;
    for stop in [TTL - Duration::from_millis(400), TTL, TTL + Duration::from_millis(300), TTL * 2] {
        // What it has said so far; the last write names the lease.
        while let Ok(said) = tokio::time::timeout(Duration::from_millis(120), child.hear()).await {
            let Some(lease) = said.strip_prefix("wrote ") else { continue };
            let is_new = lease != wrote;
            wrote = lease.to_owned();
            if !is_new {
                break;
            }
        }
        let old = LeaseId::parse_hex(&wrote).unwrap();
        child.signal(Signal::STOP);
        // From here on everything that it had sent is in the store.
        tokio::time::sleep(stop).await;
        let marker = store.put("/s/marker", "").await.unwrap();
        alive += usize::from(store.lease(old).await.unwrap().is_some());
        child.signal(Signal::CONT);
        let mut has_lost = false;
        wrote = loop {
            let said = child.hear().await;
            has_lost |= said == "lost";
            if let Some(lease) = said.strip_prefix("wrote ") {
                if LeaseId::parse_hex(lease) != Some(old) {
                    break lease.to_owned();
                }
                // It may have said so before it was stopped.
                assert!(!has_lost, "it wrote under the lease that it had lost");
            }
        };
        assert!(has_lost, "it has another lease and never said that it lost one");
        let puts = puts_since(&store, marker).await;
        assert!(puts.iter().all(|lease| *lease != Some(old)), "{puts:?} under {old} after {stop:?}");
        assert!(!puts.is_empty());
    }
    assert!(alive > 0, "at least once the store still had the lease that the process gave up");
}
