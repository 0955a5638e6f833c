//! Invalid input: refused before anything is sent, with a reason; nothing changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::session::InvalidOptions;
use tenure::store::InvalidRequest;
use tenure_fixture::Timers;

use super::flaky::Flaky;
use super::*;

#[tokio::test(start_paused = true)]
async fn invalid_keys_are_refused_before_sending() {
    let (flaky, store, session) = Flaky::session();
    session.register_raw("/r/a", "v").await.unwrap();
    let (lease, writes) = (session.lease_id(), flaky.writes.load(Ordering::SeqCst));

    let empty = session.register_raw("", "v").await;
    assert!(matches!(empty, Err(RegisterError::Invalid(InvalidRequest::EmptyKey))), "{empty:?}");
    let large = session.register_raw("/r/a", vec![0; 2_000_000]).await.unwrap_err();
    assert!(matches!(large, RegisterError::Invalid(InvalidRequest::TooLarge { .. })), "{large:?}");
    assert!(large.to_string().contains("1572864"), "both numbers are named: {large}");
    let short = session.register_raw("/r/a", "w").ttl(Duration::from_millis(900)).await.unwrap_err();
    assert!(matches!(short, RegisterError::InvalidTtl(_)) && short.to_string().contains("900ms"), "{short}");
    let endless = session.register_raw("/r/a", "w").ttl(Duration::MAX).await;
    assert!(
        matches!(endless, Err(RegisterError::Invalid(InvalidRequest::TtlTooLarge { .. }))),
        "{endless:?}"
    );

    session.synced().await;
    assert_eq!((session.lease_id(), flaky.writes.load(Ordering::SeqCst)), (lease, writes));
    assert_eq!(store.get_key("/r/a").await.unwrap().unwrap().value, "v");
    assert_eq!(session.keys(), ["/r/a"]);
    session.close().await.unwrap();
}

/// Close to the limit, so that the requests of a recovery, which carry conditions too, must still fit.
#[tokio::test(start_paused = true)]
async fn largest_accepted_value_can_be_restored() {
    let (_, store, session) = Flaky::session();
    let room = store.info().limits.request_bytes_max;
    let mut largest = room;
    while session.register_raw("/r/a", vec![7; largest]).await.is_err() {
        largest -= 16;
    }
    assert!(largest > room - 1_000);
    store.revoke(session.lease_id().unwrap()).await.unwrap();
    session.state().wait_for(|state| matches!(state, SessionState::Live { incarnation: 2 })).await.unwrap();
    session.synced().await;
    assert_eq!(store.get_key("/r/a").await.unwrap().unwrap().value.len(), largest);
    session.close().await.unwrap();
}

#[tokio::test]
async fn short_ttl_is_raised_and_reported() {
    // The floor is one and a half election time-outs.
    let etcd = Etcd::builder().timers(Timers::Default).arg("--election-timeout=3000").start();
    let store = connect(&etcd).await;
    let session = Session::open(store.clone()).unwrap();
    let registration = session.register_raw("/r/a", "v").ttl(Duration::from_secs(2)).await.unwrap();
    let view = store.lease(registration.lease).await.unwrap().unwrap();
    assert!(
        registration.ttl > Duration::from_secs(2) && registration.ttl == view.granted,
        "{registration:?}"
    );
    assert!(session.remaining() > Duration::from_secs(2), "the granted TTL counts");
    session.close().await.unwrap();
}

#[tokio::test]
async fn invalid_options_are_refused_with_numbers() {
    let short = Session::options().ttl(Duration::from_secs(1)).open(Store::memory()).unwrap_err();
    assert!(matches!(short, InvalidOptions::Ttl(_)) && short.to_string().contains("1s"), "{short}");
}
