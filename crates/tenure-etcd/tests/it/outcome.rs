//! Applied, not applied, or unknown: the outcome of a write must be true.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_etcd::{Client, Config, Error};
use tenure_fixture::{Etcd, Mode, Proxy, Timers};
use tokio::sync::Barrier;

use crate::{get, put, within};

#[tokio::test(flavor = "multi_thread")]
async fn lost_commit_reply_is_ambiguous() {
    let etcd = Etcd::start();
    let direct = crate::connect(&etcd).await;
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let config = Config::new([proxy.url()]).with_deadline(Duration::from_millis(1_200));
    let client = Client::connect(config).await.unwrap();
    for round in 0..6 {
        within(Duration::from_secs(10), "recovery", async {
            while client.range(get("warm")).await.is_err() {}
        })
        .await;
        let key = format!("lost/{round}");
        proxy.set(Mode::BlackHoleAnswers);
        let writing = tokio::spawn({
            let (client, key) = (client.clone(), key.clone());
            async move { client.put(put(&key, "v")).await }
        });
        within(Duration::from_secs(5), "the commit", async {
            while direct.range(get(&key)).await.unwrap().count == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        if round % 2 == 0 {
            // The connection breaks after the commit, instead of staying silent.
            proxy.cut();
        }
        let outcome = within(Duration::from_secs(5), "the outcome", writing).await.unwrap();
        assert!(matches!(outcome, Err(Error::Ambiguous(_))), "round {round}: {outcome:?}");
        let version = direct.range(get(&key)).await.unwrap().kvs[0].version;
        assert_eq!(version, 1, "a lost answer must not be sent again");
        proxy.set(Mode::Pass);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vanished_request_is_ambiguous_early() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = Client::connect(Config::new([proxy.url()])).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
    proxy.set(Mode::BlackHole);
    let start = Instant::now();
    let outcome = client.put(put("k", "w")).await;
    assert!(matches!(outcome, Err(Error::Ambiguous(_))), "{outcome:?}");
    let took = start.elapsed();
    assert!(took < Duration::from_millis(3_500), "the watchman should have found out: {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn write_after_idle_break_succeeds() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = Client::connect(Config::new([proxy.url()])).await.unwrap();
    for round in 0..5 {
        proxy.cut();
        within(Duration::from_secs(5), "the break", async {
            while proxy.connections_open() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // The break has to arrive at our side too before it can be known.
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.put(put("k", &round.to_string())).await.unwrap();
    }
    assert_eq!(client.range(get("k")).await.unwrap().kvs[0].version, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_true_under_cuts() {
    let etcd = Etcd::start();
    let direct = crate::connect(&etcd).await;
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = Client::connect(Config::new([proxy.url()])).await.unwrap();
    let start = Instant::now();
    let (mut applied, mut unknown, mut refused) = (0, 0, 0);
    let mut n = 0;
    while start.elapsed() < Duration::from_secs(4) {
        let key = format!("storm/{n}");
        let writing = tokio::spawn({
            let (client, key) = (client.clone(), key.clone());
            async move { client.put(put(&key, "v")).await }
        });
        if n % 3 == 0 {
            proxy.cut();
        }
        let outcome = within(Duration::from_secs(10), "a write", writing).await.unwrap();
        let there = direct.range(get(&key)).await.unwrap().kvs;
        assert!(there.iter().all(|kv| kv.version == 1), "{key} was written twice");
        match outcome {
            Ok(_) => {
                applied += 1;
                assert_eq!(there.len(), 1, "{key} was promised");
            }
            Err(Error::Ambiguous(_)) => unknown += 1,
            Err(error) => {
                refused += 1;
                assert!(there.is_empty(), "{key} was denied by {error:?} and is there");
            }
        }
        n += 1;
    }
    assert!(applied > 5 && n > 10, "{applied} applied, {unknown} unknown, {refused} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_true_while_leader_paused() {
    let etcd = Etcd::builder().members(3).timers(Timers::Default).start();
    let client = crate::connect(&etcd).await;
    client.put(put("warm", "v")).await.unwrap();
    let leader = etcd.leader();
    let start = Instant::now();
    let all_write = Arc::new(Barrier::new(5));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (client, all_write) = (client.clone(), all_write.clone());
            tokio::spawn(async move {
                let mut outcomes = Vec::new();
                while start.elapsed() < Duration::from_secs(7) {
                    let key = format!("w{writer}/{}", outcomes.len());
                    let sent = Instant::now();
                    let outcome = client.put(put(&key, "v")).await;
                    let took = sent.elapsed();
                    assert!(took < Duration::from_millis(5_500), "{outcome:?} took {took:?}");
                    outcomes.push((key, outcome));
                    if outcomes.len() == 1 {
                        all_write.wait().await;
                    }
                }
                outcomes
            })
        })
        .collect();
    within(Duration::from_secs(6), "all clients to write", all_write.wait()).await;
    etcd.member(leader).pause();
    let mut all = Vec::new();
    for writer in writers {
        all.extend(within(Duration::from_secs(20), "a writer", writer).await.unwrap());
    }
    assert!(all.last().unwrap().1.is_ok(), "writing goes on with the others: {:?}", all.last());
    etcd.member(leader).resume();
    let (mut applied, mut unknown) = (0, 0);
    for (key, outcome) in &all {
        let there = client.range(get(key)).await.unwrap().kvs;
        assert!(there.iter().all(|kv| kv.version == 1), "{key} was written twice");
        match outcome {
            Ok(_) => {
                applied += 1;
                assert_eq!(there.len(), 1, "{key} was promised");
            }
            Err(Error::Ambiguous(_)) => unknown += 1,
            Err(error) => assert!(there.is_empty(), "{key} was denied by {error:?} and is there"),
        }
    }
    assert!(applied > 100 && unknown <= 40, "{applied} applied, {unknown} unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_quorum_end_in_time() {
    let etcd = Etcd::cluster(3);
    let client = crate::connect(&etcd).await;
    client.put(put("k", "v")).await.unwrap();
    etcd.member(0).kill();
    etcd.member(1).kill();
    let start = Instant::now();
    let (read, written) = tokio::join!(client.range(get("k")), client.put(put("k", "w")));
    assert!(start.elapsed() < Duration::from_millis(5_500), "{:?}", start.elapsed());
    assert!(matches!(read, Err(Error::Unavailable(_))), "{read:?}");
    assert!(matches!(written, Err(Error::Unavailable(_) | Error::Ambiguous(_))), "{written:?}");
}
