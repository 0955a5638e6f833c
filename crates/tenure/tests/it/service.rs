//! The service registry on every engine: registering, watching, picking, and what stays when the store goes away.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tenure::service::{InstanceEvent, Picker, RegisterInstance, Services};
use tenure::session::{RegisterError, RegistrationStatus, Session};
use tenure::store::Store;
use tenure_core::id::{InstanceId, ServiceName};
use tenure_fixture::Etcd;

use crate::membership::{PATIENCE, connect, is_empty, namespace, on_every_engine};

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Weight {
    weight: u32,
}

fn name(text: &str) -> ServiceName {
    ServiceName::parse(text).unwrap()
}

/// Registers an instance with an address, without waiting for another process with the same id.
fn register(services: &Services, session: &Session, service: &ServiceName, id: &str) -> RegisterInstance {
    services.service(session, service).register(id, format!("10.0.0.1:{id}")).try_now()
}

fn enter(store: &Store) -> (Services, Session) {
    (Services::new(store.clone(), &namespace()), Session::open(store.clone()).unwrap())
}

#[tokio::test]
async fn instance_changes_are_watched() {
    on_every_engine(async |store| {
        let (services, session) = enter(&store);
        let web = name("web");
        let mut watch = services.watch(&web);
        let mut next =
            async || tokio::time::timeout(PATIENCE, watch.next()).await.expect("an event").unwrap().unwrap();
        assert!(matches!(next().await, InstanceEvent::Snapshot(nobody) if nobody.is_empty()));
        let heavy = register(&services, &session, &web, "a").metadata(&Weight { weight: 7 }).unwrap();
        let a = heavy.await.unwrap();
        let InstanceEvent::Joined(seen) = next().await else { panic!("it joins") };
        assert_eq!((seen.id.as_str(), seen.token), ("a", a.token().unwrap()));
        assert_eq!(seen.record.address(), Some("10.0.0.1:a"));
        assert_eq!(seen.record.metadata::<Weight>().unwrap(), Weight { weight: 7 });

        a.update(|record| record.address = Some("moved".into())).await.unwrap();
        let InstanceEvent::Updated { now, .. } = next().await else { panic!("it is updated") };
        assert_eq!((now.record.address(), now.token), (Some("moved"), seen.token));

        let (_, other) = enter(&store);
        let refused = register(&services, &other, &web, "a").await.unwrap_err();
        assert!(
            matches!(&refused, RegisterError::Held { by: Some(by) } if by.token == seen.token),
            "{refused:?}"
        );
        assert!(
            refused.to_string().contains("instance a of web is registered by the process with token"),
            "{refused}"
        );
        a.unregister().await.unwrap();
        assert!(matches!(next().await, InstanceEvent::Left { .. }));
        session.close().await.unwrap();
        other.close().await.unwrap();
        is_empty(&store).await;
    })
    .await;
}

#[tokio::test]
async fn services_never_share_instances() {
    on_every_engine(async |store| {
        let (services, session) = enter(&store);
        let mut kept = Vec::new();
        for (service, id) in [("a", "1"), ("a", "b/1"), ("a/b", "1"), ("ab", "1"), ("50%", "x")] {
            kept.push(register(&services, &session, &name(service), id).await.unwrap());
        }
        // A key of `tenure register`, and keys that are no instances.
        store.put("/shop/registry/services/a/plain", "10.0.0.9:80").await.unwrap();
        store.put("/shop/registry/services/a/too/deep", "x").await.unwrap();
        store.put("/shop/registry/other", "x").await.unwrap();
        let ids = async |service: &str| {
            let list = services.instances(&name(service)).await.unwrap();
            list.members().iter().map(|instance| instance.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids("a").await, ["1", "b/1", "plain"]);
        assert_eq!(ids("a/b").await, ["1"]);
        assert_eq!(ids("b").await, Vec::<String>::new(), "an empty service has no instances");
        let names: BTreeMap<String, usize> = services
            .list()
            .await
            .unwrap()
            .into_iter()
            .map(|(name, count)| (name.to_string(), count))
            .collect();
        assert_eq!(
            names,
            [("50%", 1), ("a", 3), ("a/b", 1), ("ab", 1)]
                .map(|(name, count)| (name.to_owned(), count))
                .into()
        );
        let plain = services.instances(&name("a")).await.unwrap();
        let plain = plain.get(&InstanceId::parse("plain").unwrap()).unwrap();
        assert_eq!(plain.record.address(), Some("10.0.0.9:80"));
        let long = register(&services, &session, &name(&"/".repeat(90)), "1").await.unwrap_err();
        assert!(matches!(long, RegisterError::InvalidName(_)), "{long:?}");
        drop(kept);
        session.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn picker_is_fair_and_consistent() {
    let store = Store::memory();
    let (services, session) = enter(&store);
    let web = name("web");
    let picker = Picker::new(services.view(&web));
    assert!(picker.round_robin().is_none() && picker.random().is_none() && picker.for_key("k").is_none());
    let mut registrations = Vec::new();
    for id in ["a", "b", "c", "d"] {
        registrations.push(register(&services, &session, &web, id).await.unwrap());
    }
    let wait = async |count: usize| {
        let mut view = picker.view().clone();
        let seen = tokio::time::timeout(PATIENCE, view.wait_for(|all| all.len() == count)).await;
        seen.expect("the view shows them").unwrap();
    };
    wait(4).await;
    let turns = |count: usize| -> String {
        (0..count).map(|_| picker.round_robin().unwrap().id.to_string()).collect()
    };
    assert_eq!(turns(6), "abcdab");
    let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    let meant =
        || -> Vec<String> { keys.iter().map(|key| picker.for_key(key).unwrap().id.to_string()).collect() };
    let before = meant();
    assert_eq!(before, meant(), "the same key means the same instance");
    registrations.remove(2).unregister().await.unwrap();
    wait(3).await;
    assert_eq!(turns(4), "dabd", "an instance that leaves takes no turn of another");
    for (before, after) in before.iter().zip(meant()) {
        assert!(before == "c" || *before == after, "only what meant the one that went moves");
    }
    let picked = |throw: u64| picker.pick_by(throw).unwrap().id.to_string();
    assert_eq!((picked(0), picked(u64::MAX / 2), picked(u64::MAX)), ("a".into(), "b".into(), "d".into()));
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..3_000 {
        *counts.entry(picker.random().unwrap().id.to_string()).or_default() += 1;
    }
    assert!(counts.len() == 3 && counts.values().all(|count| (800..1_200).contains(count)), "{counts:?}");
    session.close().await.unwrap();
}

#[tokio::test]
async fn marked_instances_are_not_picked() {
    let store = Store::memory();
    let (services, session) = enter(&store);
    let web = name("web");
    let _a = register(&services, &session, &web, "a").await.unwrap();
    let _b = register(&services, &session, &web, "b").await.unwrap();
    let picker = services.service(&session, &web).picker().await.unwrap();
    tokio::time::timeout(PATIENCE, picker.view().clone().wait_for(|all| all.len() == 2))
        .await
        .unwrap()
        .unwrap();
    let (a, b) = (InstanceId::parse("a").unwrap(), InstanceId::parse("b").unwrap());
    picker.mark_down(&a, Duration::from_secs(60));
    let picks = || [picker.round_robin(), picker.random(), picker.for_key("k"), picker.pick_by(0)];
    assert!(picks().into_iter().all(|picked| picked.unwrap().id == b));
    // With every instance marked, a try is better than none.
    picker.mark_down(&b, Duration::from_secs(60));
    assert_eq!(picker.pick_by(0).unwrap().id, a);
    picker.mark_down(&a, Duration::ZERO);
    assert_eq!(picker.pick_by(u64::MAX).unwrap().id, a, "its time has passed");
    assert!(picker.age().is_some());
}

#[tokio::test]
async fn picker_uses_last_snapshot_in_outage() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let services = Services::new(store.clone(), &namespace());
    let session = Session::options().ttl(Duration::from_secs(2)).open(store).unwrap();
    let web = name("web");
    let a = register(&services, &session, &web, "a").await.unwrap();
    let first = a.token().unwrap();
    let mut view = services.view(&web);
    view.ready().await.unwrap();
    let picker = Picker::new(view.clone());
    etcd.member(0).kill();
    tokio::time::timeout(PATIENCE, a.lost(first)).await.expect("the loss is reported");
    while view.is_fresh() {
        tokio::time::timeout(PATIENCE, view.changed()).await.expect("the view knows that it is old").unwrap();
    }
    assert_eq!(picker.round_robin().unwrap().token, first, "the last picture stays");
    etcd.member(0).restart();
    let mut changes = a.status();
    let back = changes.wait_for(|standing| matches!(standing, RegistrationStatus::Member(_)));
    tokio::time::timeout(PATIENCE, back).await.expect("it comes back").unwrap();
    let converged =
        view.wait_for(|all| all.members().first().is_some_and(|seen| Some(seen.token) == a.token()));
    tokio::time::timeout(PATIENCE, converged).await.expect("the view converges").unwrap();
    a.unregister().await.unwrap();
    session.close().await.unwrap();
}
