//! One member of three gone: no errors, no long waits. All gone: no hammering, and an answer in time.

use std::pin::pin;
use std::time::{Duration, Instant};

use tenure_etcd::{Client, Config, Error};
use tenure_fixture::{Etcd, Mode, Proxy};

use crate::{connect, get, put, within};

/// Reads in sequence, and the slowest of them. The clusters have fast timers: with etcd's own an election may take
/// two seconds by itself, and no client can read before it is over.
async fn read_times(client: &Client, count: usize) -> Duration {
    let mut slowest = Duration::ZERO;
    for n in 0..count {
        let start = Instant::now();
        if let Err(error) = client.range(get("k")).await {
            panic!("read {n} failed after {:?}: {error:?}", start.elapsed());
        }
        slowest = slowest.max(start.elapsed());
    }
    slowest
}

/// Three proxies before three members, so that a client's member can be broken alone.
fn proxies(etcd: &Etcd) -> Vec<Proxy> {
    etcd.members().iter().map(|member| Proxy::to(member.client_addr())).collect()
}

fn config(proxies: &[Proxy]) -> Config {
    Config::new(proxies.iter().map(Proxy::url))
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_survive_killed_member() {
    for victim in 0..3 {
        let etcd = Etcd::cluster(3);
        let client = connect(&etcd).await;
        client.put(put("k", "v")).await.unwrap();
        etcd.member(victim).kill();
        let slowest = read_times(&client, 1_000).await;
        println!("member {victim} gone: the slowest of 1,000 reads took {slowest:?}");
        assert!(slowest < Duration::from_secs(2), "victim {victim}: {slowest:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_survive_paused_member() {
    for victim in 0..3 {
        let etcd = Etcd::cluster(3);
        let client = connect(&etcd).await;
        client.put(put("k", "v")).await.unwrap();
        etcd.member(victim).pause();
        let slowest = read_times(&client, 1_000).await;
        println!("member {victim} gone: the slowest of 1,000 reads took {slowest:?}");
        assert!(slowest < Duration::from_secs(2), "victim {victim}: {slowest:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_client_finds_live_members() {
    let etcd = Etcd::cluster(3);
    let leader = etcd.leader();
    let follower = (leader + 1) % 3;
    etcd.member(follower).pause();
    for _ in 0..6 {
        let client = within(Duration::from_secs(3), "connecting", connect(&etcd)).await;
        let slowest = read_times(&client, 10).await;
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_leave_black_hole() {
    let etcd = Etcd::cluster(3);
    let proxies = proxies(&etcd);
    let client = Client::connect(config(&proxies)).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
    let used = proxies.iter().position(|proxy| proxy.connections_open() > 0).unwrap();
    proxies[used].set(Mode::BlackHole);
    let start = Instant::now();
    client.range(get("k")).await.unwrap();
    let first = start.elapsed();
    // Half a second, and the answer of another member. Waiting for the watchman would take three times that.
    assert!(first < Duration::from_millis(1_300), "left after {first:?}");
    let slowest = read_times(&client, 100).await;
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_survive_cut_connection() {
    let etcd = Etcd::start();
    let proxies = proxies(&etcd);
    let client = Client::connect(config(&proxies)).await.unwrap();
    for _ in 0..5 {
        read_times(&client, 20).await;
        proxies[0].cut();
    }
    let slowest = read_times(&client, 20).await;
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_server_is_reconnected() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    client.put(put("k", "v")).await.unwrap();
    etcd.member(0).kill();
    let client_too = client.clone();
    let waiting = tokio::spawn(async move { client_too.range(get("k")).await });
    etcd.member(0).restart();
    let reply = within(Duration::from_secs(6), "the read", waiting).await.unwrap().unwrap();
    assert_eq!(reply.count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_cluster_gets_four_connects_a_second() {
    let etcd = Etcd::cluster(3);
    let proxies = proxies(&etcd);
    let client = Client::connect(config(&proxies)).await.unwrap();
    for proxy in &proxies {
        proxy.set(Mode::CutReset);
    }
    let dead_from = Instant::now();
    let users: Vec<_> = (0..8)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                while dead_from.elapsed() < Duration::from_secs(6) {
                    let outcome = if n % 2 == 0 {
                        client.range(get("k")).await.map(drop)
                    } else {
                        client.put(put("k", "v")).await.map(drop)
                    };
                    assert!(
                        matches!(outcome, Err(Error::Unavailable(_) | Error::Ambiguous(_))),
                        "{outcome:?}"
                    );
                }
            })
        })
        .collect();
    for user in users {
        within(Duration::from_secs(20), "a user", user).await.unwrap();
    }
    let dead_for = dead_from.elapsed();
    let mut times: Vec<Instant> = proxies.iter().flat_map(Proxy::accept_times).collect();
    times.retain(|time| *time >= dead_from);
    assert!(times.len() > 5, "a probe must connect: {}", times.len());
    // A busy machine accepts late, and together, what was sent apart: here the whole time counts, and every single second where time is
    // virtual (`choice::tests`).
    let allowed = 4.0 * dead_for.as_secs_f64() + 4.0;
    assert!(times.len() as f64 <= allowed, "{} connects in {dead_for:?}", times.len());
    for proxy in &proxies {
        proxy.set(Mode::Pass);
    }
    within(Duration::from_secs(5), "recovery", client.range(get("k"))).await.unwrap();
}

#[tokio::test]
async fn refused_connection_error_names_address() {
    let start = Instant::now();
    let error = Client::connect(Config::new(["127.0.0.1:20001", "127.0.0.1:20002"])).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5));
    let Error::Unavailable(cause) = &error else { panic!("{error:?}") };
    let text = cause.to_string();
    assert!(text.contains("127.0.0.1:20001") && text.contains("refused"), "{text}");

    let lazy = Client::new(Config::new(["127.0.0.1:20001"]).with_deadline(Duration::from_secs(1))).unwrap();
    let start = Instant::now();
    assert!(matches!(lazy.range(get("k")).await, Err(Error::Unavailable(_))));
    assert!(matches!(lazy.put(put("k", "v")).await, Err(Error::Unavailable(_))), "never left");
    assert!(start.elapsed() < Duration::from_millis(2_500), "{:?}", start.elapsed());
}

/// Connections that were cut and replaced leave nothing behind, and neither does the last one.
#[tokio::test]
async fn close_leaves_no_connection_task() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = Client::connect(Config::new([proxy.url()])).await.unwrap();
    let lease = client.lease_grant(0, Duration::from_secs(60)).await.unwrap().id;
    client.keep_alive_once(lease, Duration::from_secs(1)).await.unwrap();
    let connected = tasks();
    for _ in 0..3 {
        proxy.cut();
        within(Duration::from_secs(10), "recovery", async {
            while client.keep_alive_once(lease, Duration::from_secs(1)).await.is_err() {}
        })
        .await;
    }
    within(Duration::from_secs(5), "the tasks of the connections that were cut", async {
        while tasks() > connected {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The caller of this request has left, and still the request holds the connection.
    proxy.set(Mode::BlackHoleAnswers);
    let mut writing = pin!(client.put(put("k", "v")));
    assert!(futures_util::poll!(&mut writing).is_pending());
    within(Duration::from_secs(3), "closing", client.close()).await;
    assert_eq!(tasks(), 0);
    let outcome = writing.await;
    assert!(matches!(outcome, Err(Error::Ambiguous(_))), "{outcome:?}");
}

#[tokio::test]
async fn closed_client_returns_closed() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    within(Duration::from_secs(2), "closing", client.close()).await;
    assert_eq!(client.range(get("k")).await.unwrap_err(), Error::Closed);
    assert_eq!(client.put(put("k", "v")).await.unwrap_err(), Error::Closed);
}
