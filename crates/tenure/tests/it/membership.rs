//! Members, on every engine: joining, leaving, two with one id, restarts, outages, and what other processes see of them.

mod faults;
mod many;
mod races;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use tenure::member::{Join, JoinError, MemberEvent, MemberSnapshot, MemberWatch, Members, Membership};
use tenure::session::{RegisterError, RegistrationStatus, Session};
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

fn id(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

/// Joins with an address, without waiting for another process with the same id.
fn join(members: &Members, session: &Session, id: &str) -> Join {
    members.join(session, id).address(format!("10.0.0.1:{id}")).try_now()
}

/// A handle on the nodes of a store, and a session to join through.
fn enter(store: &Store) -> (Members, Session) {
    (Members::new(store.clone(), &namespace()), Session::open(store.clone()).unwrap())
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
fn short_name(event: &MemberEvent) -> String {
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
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch reports an event").unwrap().unwrap()
}

/// Waits for these events and no others.
async fn hear(watch: &mut MemberWatch, words: &[&str]) {
    for expected in words {
        assert_eq!(short_name(&next(watch).await), *expected);
    }
}

/// Waits until a membership has the status.
async fn wait_for_status(
    membership: &Membership,
    is_wanted: impl Fn(&RegistrationStatus) -> bool,
) -> RegistrationStatus {
    let mut changes = membership.status();
    let standing = tokio::time::timeout(PATIENCE, changes.wait_for(|standing| is_wanted(standing))).await;
    standing.unwrap_or_else(|_| panic!("it stays {membership:?}")).unwrap().clone()
}

#[tokio::test]
async fn join_update_and_leave_are_watched() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let mut watch = cluster.watch();
        hear(&mut watch, &["snapshot of 0"]).await;
        let a = join(&cluster, &session, "a").version("1.2").label("zone", "eu").await.unwrap();
        hear(&mut watch, &["+a"]).await;
        let members = cluster.list().await.unwrap();
        let seen = &members.members()[0];
        assert_eq!((seen.id.as_str(), seen.token, seen.lease), ("a", a.token().unwrap(), session.lease_id()));
        assert_eq!(a.token(), Some(seen.token));
        assert_eq!(seen.record, a.record());
        assert_eq!((seen.record.version.as_str(), &seen.record.labels["zone"]), ("1.2", &"eu".to_owned()));
        assert!(i64::try_from(seen.record.incarnation).unwrap() < seen.token.0.0);
        assert!(members.revision >= seen.modified);

        a.update(|record| record.state = MemberState::Ready).await.unwrap();
        hear(&mut watch, &["a Ready"]).await;
        assert_eq!(a.token(), Some(seen.token), "a change keeps the token");
        a.unregister().await.unwrap();
        hear(&mut watch, &["-a"]).await;
        session.close().await.unwrap();
        drop(watch);
        is_empty(&store).await;
    })
    .await;
}

#[tokio::test]
async fn second_node_with_same_id_is_refused() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let (_, other) = enter(&store);
        let first = join(&cluster, &session, "a").await.unwrap();
        let refused = join(&cluster, &other, "a").address("elsewhere").await.unwrap_err();
        let JoinError::Held { by: alive } = &refused else { panic!("{refused:?}") };
        assert_eq!((alive.address.as_deref(), alive.token), (Some("10.0.0.1:a"), first.token().unwrap()));
        assert_eq!(alive.started, Some(first.record().started));
        let message = refused.to_string();
        let wanted = format!(
            "node a is registered by the process with token {} at 10.0.0.1:a since 20",
            first.token().unwrap()
        );
        assert!(message.starts_with(&wanted), "{message}");
        assert_eq!(other.keys().len(), 0, "nothing of the second is wanted");
        let again = join(&cluster, &session, "a").await.unwrap_err();
        assert!(matches!(again, JoinError::AlreadyJoined), "{again:?}");
        assert_eq!(cluster.list().await.unwrap().members()[0].record, first.record());
        first.unregister().await.unwrap();
        session.close().await.unwrap();
        other.close().await.unwrap();
        is_empty(&store).await;
    })
    .await;
}

/// Twenty at once, each through a session of its own or all through one.
async fn race(store: Store, share: bool) {
    let cluster = Members::new(store.clone(), &namespace());
    let shared = Session::open(store.clone()).unwrap();
    let sessions: Vec<Session> =
        (0..20).map(|_| if share { shared.clone() } else { Session::open(store.clone()).unwrap() }).collect();
    for round in 0..3 {
        let joins = sessions.iter().map(|session| {
            let join = join(&cluster, session, "a").into_future();
            tokio::spawn(join)
        });
        let mut winners = Vec::new();
        for answer in join_all(joins).await {
            match answer.unwrap() {
                Ok(membership) => winners.push(membership),
                Err(JoinError::Held { .. } | JoinError::AlreadyJoined) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "in round {round}");
        let winner = winners.pop().unwrap();
        let members = cluster.list().await.unwrap();
        assert_eq!((members.len(), members.members()[0].token), (1, winner.token().unwrap()));
        winner.unregister().await.unwrap();
    }
    for session in sessions {
        session.close().await.unwrap();
    }
    shared.close().await.unwrap();
    is_empty(&store).await;
}

#[tokio::test]
async fn one_of_twenty_equal_ids_joins() {
    on_every_engine(|store| race(store, false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_twenty_joins_in_one_session() {
    on_every_engine(|store| race(store, true)).await;
}

#[tokio::test]
async fn restarted_node_has_new_token() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let mut watch = cluster.watch();
        hear(&mut watch, &["snapshot of 0"]).await;
        // A former process that was killed: its lease is not renewed any more.
        let lease = store.grant(Duration::from_secs(1), None).await.unwrap().id;
        let born = store.put_leased("/shop/nodes/a", r#"{"address":"old"}"#, lease).await.unwrap();
        hear(&mut watch, &["+a"]).await;
        let refused = join(&cluster, &session, "a").await.unwrap_err();
        assert!(matches!(&refused, JoinError::Held { by: old } if old.token == Token(born)), "{refused:?}");
        let again = join(&cluster, &session, "a").timeout(PATIENCE).await.unwrap();
        assert!(again.token().unwrap() > Token(born));
        hear(&mut watch, &["-a", "+a"]).await;
        let first = again.token().unwrap();
        again.unregister().await.unwrap();
        let third = join(&cluster, &session, "a").await.unwrap();
        assert!(
            third.token().unwrap() > first,
            "a restart is a new incarnation even if the session is the same"
        );
        third.unregister().await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn concurrent_updates_are_all_stored() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let a = join(&cluster, &session, "a").await.unwrap();
        let changes =
            (0..10).map(|n| a.update(move |record| drop(record.labels.insert(n.to_string(), "x".into()))));
        for change in join_all(changes).await {
            change.unwrap();
        }
        let members = cluster.list().await.unwrap();
        assert_eq!(members.members()[0].record.labels.len(), 10);
        assert_eq!(members.members()[0].token, a.token().unwrap());
        // What the store would refuse changes nothing.
        let huge = "x".repeat(2 * 1024 * 1024);
        let refused = a.update(|record| record.address = Some(huge)).await.unwrap_err();
        assert!(matches!(refused, RegisterError::Store(_)), "{refused:?}");
        assert_eq!(a.record().address.as_deref(), Some("10.0.0.1:a"));
        assert_eq!(a.token(), Some(a.token().unwrap()));
        // The identity cannot be changed.
        a.update(|record| record.nonce = "stolen".into()).await.unwrap();
        a.update(|record| record.state = MemberState::Draining).await.unwrap();
        assert_eq!(cluster.list().await.unwrap().members()[0].record.state, MemberState::Draining);
        a.unregister().await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn dropped_join_and_membership_leave_nothing() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        for steps in 0..30 {
            let mut join = join(&cluster, &session, "a").into_future();
            for _ in 0..steps {
                if let std::task::Poll::Ready(joined) = futures_util::poll!(&mut join) {
                    drop(joined.unwrap());
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(join);
            assert_eq!(session.keys().len(), 0, "after {steps} steps");
            tokio::time::timeout(PATIENCE, session.synced()).await.unwrap();
        }
        let mut view = cluster.view();
        let gone = tokio::time::timeout(PATIENCE, view.wait_for(MemberSnapshot::is_empty));
        gone.await.unwrap().unwrap();
        session.close().await.unwrap();
        is_empty(&store).await;
    })
    .await;
}

#[tokio::test]
async fn unreadable_record_is_reported_and_harmless() {
    on_every_engine(async |store| {
        let (cluster, session) = enter(&store);
        let a = join(&cluster, &session, "a").await.unwrap();
        let mut watch = cluster.watch();
        hear(&mut watch, &["snapshot of 1"]).await;
        store.put("/shop/nodes/b", "not JSON").await.unwrap();
        store.put("/shop/nodes/a/commands/0190a000-0000-7000-8000-0123456789ab", "{}").await.unwrap();
        store.put("/shop/nodes/c/what/else", "{}").await.unwrap();
        hear(&mut watch, &["?b"]).await;
        let members = cluster.list().await.unwrap();
        assert_eq!((members.len(), members.set_aside().len()), (1, 1));
        assert_eq!(members.set_aside()[0].why, "not JSON from line 1 column 2 on");
        // A process with an unreadable record has its id all the same.
        let refused = join(&cluster, &session, "b").await.unwrap_err();
        assert!(matches!(&refused, JoinError::Held { by: other } if other.started.is_none()), "{refused:?}");
        a.unregister().await.unwrap();
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn closing_ends_membership_and_watch() {
    let store = Store::memory();
    let (cluster, session) = enter(&store);
    let mut watch = cluster.watch();
    let mut view = cluster.view();
    let a = join(&cluster, &session, "a").await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, view.wait_for(|members| members.len() == 1)).await;
    ended.unwrap().unwrap();
    session.close().await.unwrap();
    wait_for_status(&a, |standing| *standing == RegistrationStatus::Left).await;
    assert_eq!(a.token(), None);
    assert!(matches!(a.update(|record| record.state = MemberState::Ready).await, Err(RegisterError::Closed)));
    assert!(matches!(join(&cluster, &session, "b").await, Err(JoinError::Closed)));
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
