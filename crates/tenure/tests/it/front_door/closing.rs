//! The end of a connection: the order in which things end, and what is reported of the rest.

use super::*;
use tenure::{CloseError, LossReason, ReleaseError};

#[tokio::test]
async fn a_live_guard_is_named_and_lost_and_its_lease_is_left() {
    let world = World::new();
    let builder =
        Tenure::builder().store(world.process("web-1").store()).clock(world.process("web-1").clock());
    let tenure = builder.ttl(Duration::from_secs(15)).connect().await.unwrap();
    let guard = tenure.lock("deploy").await.unwrap();
    let hold = guard.hold();
    let error = tenure.close().await.unwrap_err();
    let said = error.to_string();
    let CloseError::StillHeld { holds, ttl, .. } = error else { panic!("{said}") };
    assert_eq!(holds, ["lock 'deploy'"]);
    assert!(ttl <= Duration::from_secs(15), "{ttl:?}");
    assert!(said.starts_with("lock 'deploy' is still held; expires within"), "{said}");
    assert_eq!(hold.loss(), Some(LossReason::Closed));
    assert!(
        !world.process("onlooker").store().leases().await.unwrap().is_empty(),
        "the lease is not revoked"
    );
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
}

#[tokio::test]
async fn keys_and_leases_are_gone_before_a_given_store_is_left_open() {
    let store = Store::memory();
    let tenure = Tenure::connect(store.clone()).await.unwrap();
    tenure.register("a", "v").await.unwrap();
    let membership = tenure.join("web-1").await.unwrap();
    tenure.lock("deploy").await.unwrap().release().await.unwrap();
    tenure.close().await.unwrap();
    drop(membership);
    assert!(store.leases().await.unwrap().is_empty());
    assert!(store.get_key("/tenure/registry/a").await.unwrap().is_none());
    tenure.close().await.unwrap();
}

#[tokio::test]
async fn a_store_that_was_opened_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let tenure = connect(&format!("file://{}/store.db", folder.path().display())).await;
    let store = tenure.store().clone();
    tenure.register("a", "v").await.unwrap();
    tenure.close().await.unwrap();
    assert!(store.get_key("a").await.is_err(), "closed");
    let again = connect(&format!("file://{}/store.db", folder.path().display())).await;
    assert!(again.store().get_key("/shop/registry/a").await.unwrap().is_none(), "deleted before");
    again.close().await.unwrap();
}

#[tokio::test]
async fn dropping_the_last_handle_closes_in_the_background() {
    let store = Store::memory();
    let tenure = Tenure::connect(store.clone()).await.unwrap();
    let other = tenure.namespace("other").unwrap();
    tenure.register("a", "v").await.unwrap();
    let states = tenure.session().state();
    drop(tenure);
    assert!(store.get_key("/tenure/registry/a").await.unwrap().is_some(), "a handle is left");
    drop(other);
    let mut states = states;
    let closed = states.wait_for(|state| matches!(state, tenure::session::SessionState::Closed { .. }));
    tokio::time::timeout(MINUTE, closed).await.unwrap().unwrap();
}
