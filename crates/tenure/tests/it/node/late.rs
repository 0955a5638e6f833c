//! A claim with a reply that arrives after the loss of its session: never run, released, and reported.

use tenure::worker::WorkerEvent;
use tenure_core::balance::WorkerLoads;
use tenure_core::record::{MemberRecord, MemberState};
use tenure_core::time::Moment;
use tenure_fixture::{Etcd, Mode, Proxy};

use super::*;
use crate::membership::connect;

/// Nodes that do nothing. Each of them has a head start of a quarter of a second for what it ranks first for.
const SILENT: [&str; 4] = ["s0", "s1", "s2", "s3"];

/// A task id for which all peers rank before `a`, so that `a` claims it a second after it has read it.
fn name_for_the_last() -> String {
    let node = |id: &str| NodeId::parse(id).unwrap();
    let mut crowd = WorkerLoads::new();
    for id in SILENT.iter().chain(&["a"]) {
        crowd.set(&node(id), tenure_core::balance::Load::default(), Moment::ORIGIN);
    }
    let names = (0..10_000).map(|n| format!("t{n}"));
    let mut last = names.filter(|name| crowd.rank(&node("a"), &task(name)) == SILENT.len());
    last.next().expect("one in five names")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_acknowledged_after_session_loss_is_released() {
    let etcd = Etcd::start();
    let shop = Shop::new(connect(&etcd).await);
    for id in SILENT {
        let mut record = MemberRecord::decode(b"{}").unwrap();
        record.state = MemberState::Ready;
        shop.store.put(shop.key(&Key::Node(NodeId::parse(id).unwrap())), record.encode()).await.unwrap();
    }
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let far = Shop {
        store: Store::open(&format!("etcd://{}", proxy.addr()).parse().unwrap()).await.unwrap(),
        ..shop.clone()
    };
    let worker = far.join("a").await;
    let mut notices = worker.node.events();
    let name = name_for_the_last();
    shop.submit(&name).await;
    // The worker has read the task and waits for the nodes that rank before it.
    until("it has seen the task", async || worker.node.stats().changes > 0).await;
    proxy.set(Mode::HoldAnswers);
    assert_eq!(worker.node.stats().claims_sent, 0, "a machine so busy that a second passes like nothing");
    until("the claim is in the store", async || shop.owner(&name).await.is_some()).await;
    let (_, token) = shop.owner(&name).await.unwrap();
    until("the session is lost", async || !worker.node.status().borrow().is_member).await;
    assert_eq!(shop.ledger.runs().len(), 0, "no handler runs before the claim is acknowledged");
    proxy.set(Mode::Pass);
    until("it runs under another claim", async || shop.ledger.running().len() == 1).await;
    assert!(shop.ledger.runs().iter().all(|run| run.token > token), "{:?} {token}", shop.ledger.runs());
    let given_back = async {
        loop {
            match notices.next().await.expect("the node lives") {
                WorkerEvent::LateClaimReleased { token: given, .. } if given == token => break,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, given_back).await.expect("the release of the late claim is reported");
    assert!(shop.store.get_key(shop.key(&Key::Task(task(&name)))).await.unwrap().is_some());
    assert_eq!(shop.state(&name).await, StateRecord::default(), "nothing was written about it");
    worker.end().await;
    shop.ledger.check();
}
