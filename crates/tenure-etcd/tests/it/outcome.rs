//! Applied, not applied, or nobody knows: what a write says must be true.

use std::time::{Duration, Instant};

use tenure_etcd::{Client, Config, Error};
use tenure_fixture::{Etcd, Mode, Proxy};

use crate::{get, put, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_ambiguous_every_time() {
    let etcd = Etcd::start();
    let direct = crate::connect(&etcd).await;
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let config = Config::new([proxy.url()]).with_deadline(Duration::from_millis(1_200));
    let client = Client::connect(config).await.unwrap();
    for round in 0..6 {
        client.range(get("warm")).await.unwrap();
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
async fn a_request_that_vanishes_is_ambiguous_too_and_early() {
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
async fn a_write_after_an_idle_break_is_sent_on_a_new_connection_and_succeeds() {
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
async fn under_a_storm_of_cuts_every_outcome_is_true() {
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
