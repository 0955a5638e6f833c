//! Keep-alives on real etcd: one stream for all leases, stamps from the sending, and members that do not answer.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tenure_etcd::{Client, Config, Error, Put, Renewal, Secret, boot_time};
use tenure_fixture::{Etcd, Mode, Permission, Proxy};

use crate::observe::{client, client_of, put, until, within};

const PATIENCE: Duration = Duration::from_secs(5);

async fn grant(client: &Client, seconds: u64) -> i64 {
    within("a grant", client.lease_grant(0, Duration::from_secs(seconds))).await.unwrap().id
}

async fn renew(client: &Client, lease: i64) -> Result<Renewal, Error> {
    within("a renewal", client.keep_alive_once(lease, PATIENCE)).await
}

fn stamp(renewal: Result<Renewal, Error>) -> Duration {
    match renewal {
        Ok(Renewal::Renewed { sent_at, .. }) => sent_at,
        other => panic!("not renewed: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_counts_from_its_send() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let lease = grant(&client, 60).await;
    let revision = put(&client, "a", "").await;
    let before = boot_time();
    let Ok(Renewal::Renewed { ttl_s, sent_at }) = renew(&client, lease).await else { panic!("not renewed") };
    assert_eq!(ttl_s, 60);
    assert!(before <= sent_at && sent_at <= boot_time());
    assert_eq!(put(&client, "a", "").await, revision + 1, "a renewal is not a change");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_lease_is_gone() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    assert_eq!(renew(&client, 4_711).await, Ok(Renewal::Gone));
    let lease = grant(&client, 60).await;
    assert!(matches!(renew(&client, lease).await, Ok(Renewal::Renewed { .. })));
    client.lease_revoke(lease).await.unwrap();
    assert_eq!(renew(&client, lease).await, Ok(Renewal::Gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_leases_share_one_stream() {
    let etcd = Etcd::start();
    let client = client(&etcd).await;
    let leases = join_all((0..1_000).map(|_| grant(&client, 60))).await;
    for _ in 0..3 {
        let renewals = join_all(leases.iter().map(|lease| renew(&client, *lease))).await;
        assert!(renewals.iter().all(|renewal| matches!(renewal, Ok(Renewal::Renewed { ttl_s: 60, .. }))));
    }
    let of_stream = |name: &str| etcd.member(0).metric_with(name, "grpc_method=\"LeaseKeepAlive\"");
    assert_eq!(of_stream("grpc_server_started_total"), 1.0);
    assert_eq!(of_stream("grpc_server_msg_received_total"), 3_000.0, "one request for each renewal");
}

/// The delay is far longer than it takes to see that a request has arrived, so its reply is then
/// still in flight. On a slower machine the second renewal is sent later, and the assertion still
/// holds.
#[tokio::test(flavor = "multi_thread")]
async fn in_flight_replies_pair_with_oldest_send() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    let lease = grant(&client, 60).await;
    stamp(renew(&client, lease).await);
    let arrived =
        || etcd.member(0).metric_with("grpc_server_msg_received_total", "grpc_method=\"LeaseKeepAlive\"");
    let before = arrived();
    proxy.set(Mode::Delay(Duration::from_millis(500)));

    let begin = boot_time();
    let (mut between, mut answered) = (Duration::ZERO, Vec::new());
    let first = async { stamp(renew(&client, lease).await) }.boxed();
    let second = async {
        until("the first to arrive", || arrived() > before).await;
        between = boot_time();
        stamp(renew(&client, lease).await)
    };
    let mut asking = FuturesUnordered::from_iter([first, second.boxed()]);
    while let Some(sent_at) = asking.next().await {
        answered.push(sent_at);
    }
    drop(asking);
    assert!(begin <= answered[0] && answered[0] < between, "the first answer is the first send's");
    assert!(between <= answered[1], "and the second the second's");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_callers_keep_others_working() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    let lease = grant(&client, 60).await;
    stamp(renew(&client, lease).await);
    proxy.set(Mode::Delay(Duration::from_millis(20)));
    for _ in 0..50 {
        let before = boot_time();
        let _ = tokio::time::timeout(Duration::from_millis(1), client.keep_alive_once(lease, PATIENCE)).await;
        let sent_at = stamp(renew(&client, lease).await);
        assert!(sent_at >= before, "an answer of an earlier round was taken for this one's");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_leaves_black_hole_in_time() {
    let etcd = Etcd::start();
    let proxies = [0, 1].map(|_| Proxy::to(etcd.member(0).client_addr()));
    let client = client_of(proxies.iter().map(Proxy::url).collect()).await;
    let lease = grant(&client, 60).await;
    stamp(renew(&client, lease).await);
    let used = proxies.iter().find(|proxy| proxy.connections_open() > 0).expect("one is in use");
    for mode in [Mode::BlackHole, Mode::BlackHoleAnswers] {
        used.set(mode);
        let patience = Duration::from_millis(500);
        let (begin, before) = (Instant::now(), boot_time());
        let sent_at = stamp(within("a renewal", client.keep_alive_once(lease, patience)).await);
        let took = begin.elapsed();
        assert!(took < Duration::from_millis(1_500), "{mode:?} was left after {took:?}");
        assert!(sent_at >= before);
        used.set(Mode::Pass);
        // Back to the first one, for the second mode to hit.
        let other = proxies.iter().find(|proxy| proxy.url() != used.url()).expect("there are two");
        other.set(Mode::CutReset);
        within("a renewal over the first again", async {
            while client.keep_alive_once(lease, patience).await.is_err() {}
        })
        .await;
        other.set(Mode::Pass);
    }
}

/// The first answer is lost on the way; what counts is the send that was answered, not the lost one.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_renewal_counts_from_second_send() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    let lease = grant(&client, 60).await;
    stamp(renew(&client, lease).await);
    proxy.set(Mode::BlackHoleAnswers);
    let renewal = tokio::spawn({
        let client = client.clone();
        async move { renew(&client, lease).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let cut_at = boot_time();
    proxy.set(Mode::Pass);
    assert!(stamp(renewal.await.unwrap()) >= cut_at);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_survive_killed_server() {
    let etcd = Etcd::builder().durable().start();
    let client = client(&etcd).await;
    let lease = grant(&client, 60).await;
    stamp(renew(&client, lease).await);
    etcd.member(0).kill();
    let error = client.keep_alive_once(lease, Duration::from_millis(300)).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    etcd.member(0).restart();
    within("a renewal in the end", async { while client.keep_alive_once(lease, PATIENCE).await.is_err() {} })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_every_renewal() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = client_of(vec![proxy.url()]).await;
    let lease = grant(&client, 60).await;
    stamp(renew(&client, lease).await);
    proxy.set(Mode::BlackHole);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { renew(&client, lease).await }
    });
    tokio::task::yield_now().await;
    within("the client to close", client.close()).await;
    assert_eq!(waiting.await.unwrap(), Err(Error::Closed));
    assert_eq!(renew(&client, lease).await, Err(Error::Closed));
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_token_is_renewed_for_keepalives() {
    let etcd = Etcd::builder().auth_token_ttl_s(3).bcrypt_cost(4).start();
    etcd.access().add_root("root").enable();
    let config = Config::new(etcd.client_urls()).with_user("root", Secret::new("root"));
    let client = Client::connect(config).await.unwrap();
    let lease = grant(&client, 60).await;
    stamp(renew(&client, lease).await);
    // The server forgets a token that was unused for three seconds. There is no event for it: only
    // time passes.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    stamp(renew(&client, lease).await);
}

/// Another user can attach a key of its own to this lease. However the server refuses then, other
/// leases must stay renewed.
#[tokio::test(flavor = "multi_thread")]
async fn refused_lease_keeps_other_renewals() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    let access = etcd.access();
    access.add_root("root").add_user("ann", "ann");
    access.add_role("ann").grant("ann", Permission::ReadWrite, "a/").give_role("ann", "ann").enable();
    let sign_in = |name: &'static str| {
        let config = Config::new(etcd.client_urls()).with_user(name, Secret::new(name));
        async move { Client::connect(config).await.unwrap() }
    };
    let (root, ann) = (sign_in("root").await, sign_in("ann").await);
    let (spoilt, sound) = (grant(&ann, 60).await, grant(&ann, 60).await);
    let foreign = Put { key: "b/1".into(), lease: spoilt, ..Put::default() };
    root.put(foreign).await.unwrap();
    for _ in 0..5 {
        let (before, refused, after) =
            tokio::join!(renew(&ann, sound), renew(&ann, spoilt), renew(&ann, sound));
        stamp(before);
        assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
        stamp(after);
    }
}
