//! Who is alive, on every engine: joining, leaving, two of one id, restarts, outages, and what everybody sees of it.

mod faults;
mod many;
mod races;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use tenure::membership::{
    Cluster, JoinError, MemberEvent, MemberWatch, Members, Membership, NewNode, Standing, UpdateError,
};
use tenure::session::Session;
use tenure::store::file::FileEngine;
use tenure::store::{Selection, Store};
use tenure_core::id::{Namespace, NodeId};
use tenure_core::record::MemberState;
use tenure_core::revision::Token;
use tenure_fixture::Etcd;

/// How long anything here may take before it counts as never: far more than a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn connect(etcd: &Etcd) -> Store {
    Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap()
}

pub(crate) fn namespace() -> Namespace {
    Namespace::parse("shop").unwrap()
}

fn node(id: &str) -> NewNode {
    NewNode::new(NodeId::parse(id).unwrap()).address(format!("10.0.0.1:{id}"))
}

/// A handle on the nodes of a store, and a session to join through.
fn enter(store: &Store) -> (Cluster, Session) {
    (Cluster::new(store.clone(), &namespace()), Session::open(store.clone()).unwrap())
}

/// Runs one claim on every engine.
pub(crate) async fn on_every_engine<F: Future<Output = ()>>(claim: impl Fn(Store) -> F) {
    claim(Store::memory()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = Store::new(FileEngine::open(&folder.path().join("store.db")).await.unwrap());
    claim(file.clone()).await;
    file.close().await;
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    claim(store.clone()).await;
    store.close().await;
}

pub(crate) async fn is_empty(store: &Store) {
    let keys = store.list(Selection::everything()).await.unwrap().pairs;
    assert_eq!((keys.len(), store.leases().await.unwrap().len()), (0, 0), "{keys:?}");
}

/// An event in short words, without what the store may choose.
fn word(event: &MemberEvent) -> String {
    match event {
        MemberEvent::Snapshot(members) => format!("snapshot of {}", members.len()),
        MemberEvent::Joined(member) => format!("+{}", member.id),
        MemberEvent::Updated { now, .. } => format!("{} {:?}", now.id, now.record.state),
        MemberEvent::Left { member, .. } => format!("-{}", member.id),
        MemberEvent::Unreadable(aside) => format!("?{}", aside.id),
        MemberEvent::Cleared { id, .. } => format!("!{id}"),
        MemberEvent::Stale { .. } => "stale".to_owned(),
        MemberEvent::Fresh { .. } => "fresh".to_owned(),
    }
}

async fn next(watch: &mut MemberWatch) -> MemberEvent {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch says something").unwrap().unwrap()
}

/// Waits for these events and no others.
async fn hear(watch: &mut MemberWatch, words: &[&str]) {
    for expected in words {
        assert_eq!(word(&next(watch).await), *expected);
    }
}

/// Waits until a member stands as wanted.
async fn stands(membership: &Membership, is_wanted: impl Fn(&Standing) -> bool) -> Standing {
    let mut changes = membership.changes();
    let standing = tokio::time::timeout(PATIENCE, changes.wait_for(|standing| is_wanted(standing))).await;
    standing.unwrap_or_else(|_| panic!("it stays {membership:?}")).unwrap().clone()
}

#[tokio::test]
async fn a_node_joins_changes_and_leaves_and_everybody_sees_it() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let mut watch = cluster.watch();
        hear(&mut watch, &["snapshot of 0"]).await;
        let a = cluster.join(&session, node("a").version("1.2").label("zone", "eu")).await.unwrap();
        hear(&mut watch, &["+a"]).await;
        let members = cluster.members().await.unwrap();
        let seen = &members.members()[0];
        assert_eq!((seen.id.as_str(), seen.token, seen.lease), ("a", a.incarnation(), session.lease_id()));
        assert_eq!(a.token(), Some(seen.token));
        assert_eq!(seen.record, a.record());
        assert_eq!((seen.record.version.as_str(), &seen.record.labels["zone"]), ("1.2", &"eu".to_owned()));
        assert!(i64::try_from(seen.record.incarnation).unwrap() < seen.token.0.0);
        assert!(members.revision >= seen.modified);

        a.set_state(MemberState::Ready).await.unwrap();
        hear(&mut watch, &["a Ready"]).await;
        assert_eq!(a.token(), Some(seen.token), "a change keeps the token");
        a.leave().await.unwrap();
        hear(&mut watch, &["-a"]).await;
        session.close().await.unwrap();
        drop(watch);
        is_empty(&store).await;
    })
    .await;
}

#[tokio::test]
async fn a_second_live_node_is_refused_and_told_who_is_there() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let (_, other) = enter(&store);
        let first = cluster.join(&session, node("a")).await.unwrap();
        let refused = cluster.join(&other, node("a").address("elsewhere")).await.unwrap_err();
        let JoinError::Alive(alive) = &refused else { panic!("{refused:?}") };
        assert_eq!((alive.address.as_deref(), alive.incarnation), (Some("10.0.0.1:a"), first.incarnation()));
        assert_eq!(alive.started, Some(first.record().started));
        let told = refused.to_string();
        let wanted =
            format!("node a is alive already: incarnation {} at 10.0.0.1:a since 20", first.incarnation());
        assert!(told.starts_with(&wanted), "{told}");
        assert_eq!(other.keys().len(), 0, "nothing of the second is wanted");
        let again = cluster.join(&session, node("a")).await.unwrap_err();
        assert!(matches!(again, JoinError::OurOwn(_)), "{again:?}");
        assert_eq!(cluster.members().await.unwrap().members()[0].record, first.record());
        first.leave().await.unwrap();
        session.close().await.unwrap();
        other.close().await.unwrap();
        is_empty(&store).await;
    })
    .await;
}

/// Twenty at once, each through a session of its own or all through one.
async fn race(store: Store, share: bool) {
    let cluster = Cluster::new(store.clone(), &namespace());
    let shared = Session::open(store.clone()).unwrap();
    let sessions: Vec<Session> =
        (0..20).map(|_| if share { shared.clone() } else { Session::open(store.clone()).unwrap() }).collect();
    for round in 0..3 {
        let joins = sessions.iter().map(|session| {
            let join = cluster.join(session, node("a")).into_future();
            tokio::spawn(join)
        });
        let mut winners = Vec::new();
        for answer in join_all(joins).await {
            match answer.unwrap() {
                Ok(membership) => winners.push(membership),
                Err(JoinError::Alive(_) | JoinError::OurOwn(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "in round {round}");
        let winner = winners.pop().unwrap();
        let members = cluster.members().await.unwrap();
        assert_eq!((members.len(), members.members()[0].token), (1, winner.token().unwrap()));
        winner.leave().await.unwrap();
    }
    for session in sessions {
        session.close().await.unwrap();
    }
    shared.close().await.unwrap();
    is_empty(&store).await;
}

#[tokio::test]
async fn of_twenty_with_one_id_exactly_one_joins() {
    on_every_engine(|store| race(store, false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_twenty_with_one_id_in_one_session_exactly_one_joins() {
    on_every_engine(|store| race(store, true)).await;
}

#[tokio::test]
async fn a_restarted_node_is_a_new_incarnation() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let mut watch = cluster.watch();
        hear(&mut watch, &["snapshot of 0"]).await;
        // A former life that was killed: nobody renews its lease any more.
        let lease = store.grant(Duration::from_secs(1), None).await.unwrap().id;
        let born = store.put_leased("/shop/nodes/a", r#"{"address":"old"}"#, lease).await.unwrap();
        hear(&mut watch, &["+a"]).await;
        let refused = cluster.join(&session, node("a")).await.unwrap_err();
        assert!(matches!(&refused, JoinError::Alive(old) if old.incarnation == Token(born)), "{refused:?}");
        let again = cluster.join(&session, node("a")).wait_up_to(PATIENCE).await.unwrap();
        assert!(again.incarnation() > Token(born));
        hear(&mut watch, &["-a", "+a"]).await;
        let first = again.incarnation();
        again.leave().await.unwrap();
        let third = cluster.join(&session, node("a")).await.unwrap();
        assert!(
            third.incarnation() > first,
            "a restart is a new incarnation even if the session is the same"
        );
        third.leave().await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn changes_made_at_once_are_all_there_in_the_end() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let a = cluster.join(&session, node("a")).await.unwrap();
        let changes =
            (0..10).map(|n| a.update(move |record| drop(record.labels.insert(n.to_string(), "x".into()))));
        for change in join_all(changes).await {
            change.unwrap();
        }
        let members = cluster.members().await.unwrap();
        assert_eq!(members.members()[0].record.labels.len(), 10);
        assert_eq!(members.members()[0].token, a.incarnation());
        // What the store would refuse changes nothing.
        let huge = "x".repeat(2 * 1024 * 1024);
        let refused = a.set_address(huge).await.unwrap_err();
        assert!(matches!(refused, UpdateError::Refused(_)), "{refused:?}");
        assert_eq!(a.record().address.as_deref(), Some("10.0.0.1:a"));
        assert_eq!(a.token(), Some(a.incarnation()));
        // Who it is cannot be changed.
        a.update(|record| record.nonce = "stolen".into()).await.unwrap();
        a.set_state(MemberState::Draining).await.unwrap();
        assert_eq!(cluster.members().await.unwrap().members()[0].record.state, MemberState::Draining);
        a.leave().await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_dropped_join_and_a_dropped_member_leave_nothing_behind() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        for steps in 0..30 {
            let mut join = cluster.join(&session, node("a")).into_future();
            for _ in 0..steps {
                if let std::task::Poll::Ready(joined) = futures_util::poll!(&mut join) {
                    drop(joined.unwrap());
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(join);
            assert_eq!(session.keys().len(), 0, "after {steps} steps");
            tokio::time::timeout(PATIENCE, session.settled()).await.unwrap();
        }
        let mut view = cluster.view();
        let gone = tokio::time::timeout(PATIENCE, view.wait_for(Members::is_empty));
        gone.await.unwrap().unwrap();
        session.close().await.unwrap();
        is_empty(&store).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_no_record_is_listed_as_such_and_harms_nobody() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let a = cluster.join(&session, node("a")).await.unwrap();
        let mut watch = cluster.watch();
        hear(&mut watch, &["snapshot of 1"]).await;
        store.put("/shop/nodes/b", "not JSON").await.unwrap();
        store.put("/shop/nodes/a/commands/0190a000-0000-7000-8000-0123456789ab", "{}").await.unwrap();
        store.put("/shop/nodes/c/what/else", "{}").await.unwrap();
        hear(&mut watch, &["?b"]).await;
        let members = cluster.members().await.unwrap();
        assert_eq!((members.len(), members.set_aside().len()), (1, 1));
        assert_eq!(members.set_aside()[0].why, "not JSON from line 1 column 2 on");
        // One who cannot be read is there all the same.
        let refused = cluster.join(&session, node("b")).await.unwrap_err();
        assert!(matches!(&refused, JoinError::Alive(other) if other.started.is_none()), "{refused:?}");
        a.leave().await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_closed_session_ends_the_membership_and_a_closed_store_the_watch() {
    let store = Store::memory();
    let (cluster, session) = enter(&store);
    let mut watch = cluster.watch();
    let mut view = cluster.view();
    let a = cluster.join(&session, node("a")).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, view.wait_for(|members| members.len() == 1)).await;
    ended.unwrap().unwrap();
    session.close().await.unwrap();
    stands(&a, |standing| *standing == Standing::Left).await;
    assert_eq!(a.token(), None);
    assert!(matches!(a.set_state(MemberState::Ready).await, Err(UpdateError::Left)));
    assert!(matches!(cluster.join(&session, node("b")).await, Err(JoinError::Closed)));
    store.close().await;
    loop {
        match tokio::time::timeout(PATIENCE, watch.next()).await.unwrap() {
            Some(Ok(_)) => {}
            Some(Err(_)) => break,
            None => panic!("the watch ended without a reason"),
        }
    }
    assert!(watch.next().await.is_none());
    while tokio::time::timeout(PATIENCE, view.changed()).await.unwrap().is_ok() {}
    assert!(view.snapshot().is_some(), "the last picture stays");
}
