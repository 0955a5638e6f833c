//! A process that is stopped past its TTL: when it continues, it reports the loss of its lease before it writes anything.

use std::time::Duration;

use rustix::process::Signal;
use tenure::store::LeaseId;

use super::child::Process;
use super::*;

/// What the store has seen of the child's key: each put with its lease.
async fn puts_since(store: &Store, revision: tenure::store::Revision) -> Vec<Option<LeaseId>> {
    let mut watch = store
        .watch(Selection::prefix("/s/"), WatchStart::After(revision), PreviousValues::Omitted)
        .await
        .unwrap();
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

/// It believes for 2.5 s of its 3 s. Stopped just after a renewal and for a little longer than it believes, it goes on while the store
/// would still take what it writes; stopped for longer, the store has ended the lease.
#[tokio::test]
async fn stopped_process_reports_loss_before_writing() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let mut child = Process::start("beats", &etcd);
    let mut alive = Vec::new();
    for stop_ms in [2_600, 2_700, 6_000] {
        let old = loop {
            let (lease, remaining_ms) = wrote(&child.hear().await);
            if remaining_ms > 2_400 {
                break lease.expect("it has time left only if it wrote");
            }
        };
        child.signal(Signal::STOP);
        tokio::time::sleep(Duration::from_millis(stop_ms)).await;
        // Everything that it had sent is in the store by now.
        let marker = store.put("/s/marker", "").await.unwrap();
        alive.push(store.lease(old).await.unwrap().is_some());
        child.signal(Signal::CONT);
        let mut has_lost = false;
        let mut lines = 0;
        loop {
            let said = child.hear().await;
            has_lost |= said == "lost";
            match wrote(&said).0 {
                Some(lease) if lease != old => break,
                // It may have reported that before it was stopped.
                Some(_) => assert!(!has_lost, "it wrote under the lease that it had lost"),
                None => {}
            }
            lines += 1;
            assert!(lines < 50, "it goes on after {stop_ms} ms as if nothing had happened");
        }
        assert!(has_lost, "it has another lease and never reported the loss");
        let puts = puts_since(&store, marker).await;
        assert!(puts.iter().all(|lease| *lease != Some(old)), "{puts:?} under {old} after {stop_ms} ms");
        assert!(!puts.is_empty());
    }
    assert!(alive.contains(&true), "the store never had the lost lease: {alive:?}");
}

/// Under which lease the child wrote, and how long it believed in it then.
fn wrote(said: &str) -> (Option<LeaseId>, u64) {
    let mut words = said.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("wrote"), Some(lease), Some(remaining)) => {
            (LeaseId::parse_hex(lease), remaining.parse().unwrap())
        }
        _ => (None, 0),
    }
}
