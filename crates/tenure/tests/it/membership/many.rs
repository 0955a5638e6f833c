//! Many nodes: all views show all nodes, and nothing is left when they leave.

use std::time::Instant;

use tenure::member::{MemberSnapshot, MemberView};

use super::*;

/// As many nodes as the contract names.
const NODES: usize = 500;

/// Nodes, each with a session of its own, and views.
async fn all_views_show_all_nodes(nodes: usize, view_count: usize) {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let cluster = Members::new(store.clone(), &namespace());
    let mut views: Vec<MemberView> = (0..view_count).map(|_| cluster.view()).collect();
    for view in &mut views {
        view.ready().await.unwrap();
    }
    let sessions: Vec<Session> = (0..nodes).map(|_| Session::open(store.clone()).unwrap()).collect();
    let joins = sessions.iter().enumerate().map(|(n, session)| {
        let join = join(&cluster, session, &format!("node-{n:03}")).timeout(4 * PATIENCE);
        tokio::spawn(join.into_future())
    });
    let joins: Vec<_> = joins.collect();
    let mut memberships = Vec::new();
    for joined in join_all(joins).await {
        memberships.push(joined.unwrap().unwrap());
    }
    for view in &mut views {
        let full = tokio::time::timeout(4 * PATIENCE, view.wait_for(|members| members.len() == nodes));
        let members = full.await.expect("every view shows all").unwrap();
        for membership in &memberships {
            assert!(members.members().iter().any(|member| Some(member.token) == membership.token()));
        }
    }
    let leaving = memberships.into_iter().map(|membership| tokio::spawn(membership.unregister()));
    for left in join_all(leaving.collect::<Vec<_>>()).await {
        left.unwrap().unwrap();
    }
    for view in &mut views {
        let empty = tokio::time::timeout(4 * PATIENCE, view.wait_for(MemberSnapshot::is_empty));
        empty.await.expect("every view is empty").unwrap();
    }
    for closed in join_all(sessions.iter().map(Session::close)).await {
        closed.unwrap();
    }
    // On a busy machine answers to grants are lost; such a lease has no keys, and ends by its TTL.
    let begin = Instant::now();
    while !store.leases().await.unwrap().is_empty() {
        assert!(begin.elapsed() < 2 * PATIENCE, "leases are left");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    is_empty(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_nodes_are_seen_by_every_view() {
    all_views_show_all_nodes(NODES, 8).await;
}

/// Fifty, and five hundred only when it is asked for: `TENURE_SOAK=1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_views_of_all_nodes_agree() {
    let nodes = if std::env::var_os("TENURE_SOAK").is_some() { NODES } else { 50 };
    all_views_show_all_nodes(nodes, nodes).await;
}

#[tokio::test]
async fn two_hundred_joins_leave_nothing_behind() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let (cluster, session) = enter(&store);
    // The streams of the client are opened by the first and stay for the others.
    let cycle = async || {
        let view = cluster.view();
        let a = join(&cluster, &session, "a").await.unwrap();
        a.unregister().await.unwrap();
        view.close().await;
    };
    cycle().await;
    session.synced().await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..200 {
        cycle().await;
    }
    session.synced().await;
    is_empty(&store).await;
    let begin = Instant::now();
    while tokio::runtime::Handle::current().metrics().num_alive_tasks() > tasks {
        assert!(begin.elapsed() < PATIENCE, "tasks are left");
        tokio::task::yield_now().await;
    }
}
