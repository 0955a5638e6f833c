//! Faults: expired leases, outages of the store, partitions, and other processes with the same id.

use std::time::Instant;

use tenure::store::etcd::{Config, EtcdEngine};
use tenure::store::{Op, Txn};
use tenure_fixture::{Mode, Proxy};

use super::*;

async fn through(proxy: &Proxy) -> Store {
    Store::new(EtcdEngine::connect(Config::new([proxy.url()])).await.unwrap())
}

#[tokio::test]
async fn lost_lease_gives_node_a_new_token() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let a = join(&cluster, &session, "a").await.unwrap();
        let first = a.token().unwrap();
        let mut watch = cluster.watch();
        hear(&mut watch, &["snapshot of 1"]).await;
        store.revoke(session.lease_id().unwrap()).await.unwrap();
        tokio::time::timeout(PATIENCE, a.lost(first)).await.expect("the loss is reported");
        let RegistrationStatus::Member(second) = wait_for_status(
            &a,
            |standing| matches!(standing, RegistrationStatus::Member(token) if *token > first),
        )
        .await
        else {
            unreachable!("that was waited for")
        };
        hear(&mut watch, &["-a", "+a"]).await;
        assert_eq!((a.token(), a.token().unwrap()), (Some(second), second));
        // A key that an operator deletes is a loss too.
        store.txn(Txn::new().then(Op::delete("/shop/nodes/a"))).await.unwrap();
        wait_for_status(
            &a,
            |standing| matches!(standing, RegistrationStatus::Member(token) if *token > second),
        )
        .await;
        hear(&mut watch, &["-a", "+a"]).await;
        a.unregister().await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn displaced_member_leaves_other_record_alone() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let a = join(&cluster, &session, "a").await.unwrap();
        let usurper = store.put("/shop/nodes/a", r#"{"address":"usurper"}"#).await.unwrap();
        let standing =
            wait_for_status(&a, |standing| matches!(standing, RegistrationStatus::Displaced(_))).await;
        let RegistrationStatus::Displaced(other) = standing else { unreachable!("that was waited for") };
        assert_eq!(other.value(), r#"{"address":"usurper"}"#);
        assert_eq!(a.token(), None);
        assert!(matches!(
            a.update(|record| record.state = MemberState::Ready).await,
            Err(RegisterError::Held { .. })
        ));
        assert_eq!(session.keys().len(), 0, "it does not come back when the other leaves");
        a.unregister().await.unwrap();
        session.close().await.unwrap();
        let key = store.get_key("/shop/nodes/a").await.unwrap().unwrap();
        assert_eq!(key.modified, usurper, "the key of the other process is unchanged");
    })
    .await;
}

#[tokio::test]
async fn replaced_member_learns_it_after_partition() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let (near, far) = (connect(&etcd).await, through(&proxy).await);
    let cluster = Members::new(far.clone(), &namespace());
    let session = Session::options().ttl(Duration::from_secs(2)).open(far).unwrap();
    let victim = join(&cluster, &session, "a").await.unwrap();
    let (here, other) = enter(&near);
    let first = victim.token().unwrap();
    proxy.set(Mode::BlackHole);
    let heir = join(&here, &other, "a").address("heir").timeout(PATIENCE).await.unwrap();
    assert_eq!(victim.token(), None, "it is no member before another process can join");
    assert!(heir.token().unwrap() > first);
    proxy.set(Mode::Pass);
    let standing =
        wait_for_status(&victim, |standing| matches!(standing, RegistrationStatus::Displaced(_))).await;
    let RegistrationStatus::Displaced(successor) = standing else { unreachable!("that was waited for") };
    assert_eq!(successor.token(), heir.token().unwrap());
    assert_eq!(session.keys().len(), 0, "it does not come back when the other leaves");
    session.close().await.unwrap();
    let members = here.list().await.unwrap();
    assert_eq!((members.len(), members.members()[0].token), (1, heir.token().unwrap()));
    heir.unregister().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test]
async fn view_keeps_snapshot_and_age_in_outage() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let (near, far) = (connect(&etcd).await, through(&proxy).await);
    let (cluster, session) = enter(&near);
    let a = join(&cluster, &session, "a").await.unwrap();
    let b = join(&cluster, &session, "b").await.unwrap();
    let onlooker = Members::new(far, &namespace());
    let (mut view, mut watch) = (onlooker.view(), onlooker.watch());
    view.ready().await.unwrap();
    hear(&mut watch, &["snapshot of 2"]).await;
    assert!(view.is_fresh());

    proxy.set(Mode::BlackHole);
    let cut_off = Instant::now();
    hear(&mut watch, &["stale"]).await;
    while view.is_fresh() {
        tokio::time::timeout(PATIENCE, view.changed()).await.expect("the view knows that it is old").unwrap();
    }
    // Meanwhile one node leaves, one restarts, one joins, and that history is compacted.
    a.unregister().await.unwrap();
    let former = b.token().unwrap();
    b.unregister().await.unwrap();
    let b = join(&cluster, &session, "b").await.unwrap();
    let c = join(&cluster, &session, "c").await.unwrap();
    near.compact(cluster.list().await.unwrap().revision).await.unwrap();
    let shown = view.snapshot().unwrap();
    assert_eq!(shown.len(), 2, "the last picture stays");
    assert_eq!(shown.get(&id("b")).unwrap().token, former);
    let age = view.age().unwrap();
    assert!(age + Duration::from_millis(50) >= cut_off.elapsed(), "{age:?} of {:?}", cut_off.elapsed());

    proxy.set(Mode::Pass);
    hear(&mut watch, &["-a", "-b", "+b", "+c", "fresh"]).await;
    let converged = view.wait_for(|members| members.get(&id("c")).is_some());
    let shown = tokio::time::timeout(PATIENCE, converged).await.unwrap().unwrap();
    let ids: Vec<&str> = shown.members().iter().map(|member| member.id.as_str()).collect();
    assert_eq!(ids, ["b", "c"]);
    assert_eq!(shown.get(&id("b")).unwrap().token, b.token().unwrap());
    assert!(view.is_fresh() && view.age().unwrap() < cut_off.elapsed());
    b.unregister().await.unwrap();
    c.unregister().await.unwrap();
    session.close().await.unwrap();
}

#[tokio::test]
async fn unregister_during_outage_is_bounded_and_fails() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let cluster = Members::new(store.clone(), &namespace());
    let session = Session::options().ttl(Duration::from_secs(3)).open(store).unwrap();
    let a = join(&cluster, &session, "a").await.unwrap();
    etcd.member(0).kill();
    let change = tokio::time::timeout(PATIENCE, a.update(|record| record.state = MemberState::Ready))
        .await
        .expect("bounded");
    assert!(matches!(change, Err(RegisterError::Timeout { .. })), "{change:?}");
    let left = tokio::time::timeout(PATIENCE, a.unregister()).await.expect("bounded");
    assert!(left.is_err(), "it is unknown whether the key is deleted");
    let join = join(&cluster, &session, "b").timeout(Duration::from_millis(500));
    let refused = tokio::time::timeout(PATIENCE, join.into_future()).await.expect("bounded").unwrap_err();
    assert!(matches!(refused, JoinError::Timeout { .. } | JoinError::Store(_)), "{refused:?}");
    assert_eq!(session.keys().len(), 0, "nothing is wanted any more");
    etcd.member(0).restart();
    let mut view = cluster.view();
    let gone = tokio::time::timeout(PATIENCE, view.wait_for(MemberSnapshot::is_empty));
    gone.await.expect("what was left ends by itself").unwrap();
    drop(session);
}

#[tokio::test]
async fn update_during_outage_is_stored_later() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let (cluster, session) = enter(&store);
    let a = join(&cluster, &session, "a").await.unwrap();
    let mut view = cluster.view();
    view.ready().await.unwrap();
    etcd.member(0).kill();
    let change = a.update(|record| record.state = MemberState::Draining).await;
    assert!(matches!(change, Err(RegisterError::Timeout { .. })), "{change:?}");
    etcd.member(0).restart();
    let is_draining = view
        .wait_for(|members| members.members().iter().any(|node| node.record.state == MemberState::Draining));
    tokio::time::timeout(PATIENCE, is_draining).await.expect("the change is made").unwrap();
    a.unregister().await.unwrap();
    session.close().await.unwrap();
}
