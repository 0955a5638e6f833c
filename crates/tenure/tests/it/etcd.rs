//! The etcd engine passes the suite, and what only it can do wrong is right.

use std::time::Duration;

use tenure::conformance::{self, EquivalenceSize};
use tenure::store::etcd::{Config, EtcdEngine};
use tenure::store::{
    Condition, Get, InvalidRequest, LeaseId, Op, PreviousValues, Selection, Store, StoreError, StoreUrl, Txn,
    WatchStart,
};
use tenure_fixture::{Etcd as Server, Mode, Proxy};

async fn open(server: &Server) -> Store {
    Store::new(EtcdEngine::connect(Config::new(server.client_urls())).await.expect("a healthy etcd"))
}

fn claim(n: usize) -> Txn {
    let key = format!("/claim/{n}");
    Txn::new().when(Condition::absent(key.clone())).then(Op::put(key, "mine"))
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_conformance() {
    let server = Server::start();
    conformance::run(|| async { open(&server).await }).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_conformance_on_three_members() {
    let server = Server::cluster(3);
    conformance::run(|| async { open(&server).await }).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_see_one_history() {
    let server = Server::cluster(3);
    let stores = [open(&server).await, open(&server).await, open(&server).await];
    conformance::log_equivalence(&stores, EquivalenceSize::default()).await.unwrap();
}

#[tokio::test]
async fn dead_address_is_reported_on_open() {
    let server = Server::start();
    let url: StoreUrl = format!("etcd://{}", server.endpoints()).parse().unwrap();
    let store = Store::open(&url).await.unwrap();
    store.put("/k", "v").await.unwrap();
    assert_eq!(store.info().kind, "etcd");
    let dead: StoreUrl = "etcd://127.0.0.1:20001".parse().unwrap();
    assert!(matches!(Store::open(&dead).await, Err(StoreError::Unavailable(_))));
}

#[tokio::test]
async fn batch_of_hundred_is_one_request() {
    let server = Server::start();
    let store = open(&server).await;
    store.put("/claim/7", "taken").await.unwrap();
    let before = server.member(0).metric_with("grpc_server_handled_total", "grpc_method=\"Txn\"");
    let outcomes = store.batch((0..100).map(claim).collect()).await;
    let after = server.member(0).metric_with("grpc_server_handled_total", "grpc_method=\"Txn\"");
    assert_eq!(after - before, 1.0);
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.as_ref().unwrap().succeeded, n != 7, "{n}");
    }
}

/// One unknown lease, one key twice, one empty key and one missing key among good ones.
#[tokio::test]
async fn invalid_transaction_fails_alone_in_batch() {
    let server = Server::start();
    let store = open(&server).await;
    let mut txns: Vec<Txn> = (0..40).map(claim).collect();
    txns[3] = Txn::new().then(Op::put_leased("/leased", "v", LeaseId::new(99).unwrap()));
    txns[11] = Txn::new().then(Op::put("", "v"));
    txns[20] = Txn::new().then(Op::get("/claim/1")).then(Op::put("/twice", "a"));
    txns[21] = Txn::new().then(Op::put("/twice", "b"));
    let outcomes = store.batch(txns).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match n {
            3 => assert!(matches!(outcome, Err(StoreError::LeaseNotFound)), "{outcome:?}"),
            11 => {
                assert!(matches!(outcome, Err(StoreError::Invalid(InvalidRequest::EmptyKey))), "{outcome:?}");
            }
            _ => assert!(outcome.as_ref().is_ok_and(|reply| reply.succeeded), "{n}: {outcome:?}"),
        }
    }
    let twice = store.get_key("/twice").await.unwrap().unwrap();
    assert_eq!(twice.version, 2, "transactions on one key are done apart from each other");
    assert_eq!(store.list(Selection::prefix("/claim/")).await.unwrap().pairs.len(), 36);
}

#[tokio::test]
async fn what_selects_nothing_reads_deletes_and_watches_nothing() {
    let server = Server::start();
    let store = open(&server).await;
    let put = store.put("/m", "v").await.unwrap();
    for to in [&b""[..], b"\0", b"/a", b"/m"] {
        let select = Selection::Range("/m".into(), bytes::Bytes::copy_from_slice(to));
        let page = store.get(Get::new(select.clone())).await.unwrap();
        assert_eq!((page.pairs.len(), page.revision), (0, put), "{select:?}");
        assert_eq!(store.delete(select.clone()).await.unwrap(), 0, "{select:?}");
        drop(store.watch(select, WatchStart::Now, PreviousValues::Omitted).await.unwrap());
    }
    let beside = Op::Delete(Selection::Range("/m".into(), "/a".into()));
    store.txn(Txn::new().then(Op::put("/n", "v")).then(beside)).await.unwrap();
    let found = store.list(Selection::everything()).await.unwrap();
    assert_eq!(found.pairs.len(), 2);
}

#[tokio::test]
async fn renewal_counts_from_before_it_was_sent() {
    let server = Server::start();
    let store = open(&server).await;
    let grant = store.grant(Duration::from_secs(5), None).await.unwrap();
    assert!(grant.id.get() > 0);
    match store.renew(grant.id).await.unwrap() {
        tenure::store::Renewal::Renewed { ttl, asked_at } => {
            assert_eq!(ttl, grant.ttl);
            assert!(asked_at > grant.asked_at);
        }
        tenure::store::Renewal::Gone => panic!("it was just granted"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_batch_response_is_ambiguous_for_all() {
    let server = Server::start();
    let direct = open(&server).await;
    let proxy = Proxy::to(server.member(0).client_addr());
    let config = Config::new([proxy.url()]).with_deadline(Duration::from_secs(2));
    let store = Store::new(EtcdEngine::connect(config).await.unwrap());
    store.put("/warm", "v").await.unwrap();
    proxy.set(Mode::BlackHoleAnswers);
    let outcomes = store.batch((0..50).map(claim).collect()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(StoreError::Ambiguous(_)))), "{outcomes:?}");
    let claims = direct.list(Selection::prefix("/claim/")).await.unwrap().pairs;
    assert_eq!(claims.len(), 50);
    assert!(claims.iter().all(|claim| claim.version == 1));
}
