//! Stores that go away and come back, leases and keys that are taken from us.

use std::time::{Duration, Instant};

use tenure::store::LeaseId;
use tenure_core::backoff::{Backoff, Growth, Jitter};

use super::flaky::{Flaky, Weather};
use super::observing::Log;
use super::*;

#[tokio::test]
async fn soak_short_etcd_restart_changes_no_key() {
    let (ttl, outage) = if is_soak() { (15, 10) } else { (8, 4) };
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::options().ttl(Duration::from_secs(ttl)).open(store).unwrap();
    register_many(&session, 20).await;
    let begin = WatchStart::After(onlooker.list(Selection::prefix("/r/")).await.unwrap().revision);
    etcd.member(0).kill();
    tokio::time::sleep(Duration::from_secs(outage)).await;
    etcd.member(0).restart();
    wait_for_state(&session, |state| matches!(state, SessionState::Live { .. })).await;
    tokio::time::timeout(Duration::from_secs(10), session.synced()).await.unwrap();
    // The whole history since before the outage, as a watch reads it afterwards.
    let mut watch = onlooker.watch(Selection::prefix("/"), begin, PreviousValues::Omitted).await.unwrap();
    assert_eq!(deletes_so_far(&onlooker, &mut watch).await, 0);
    assert_eq!((stored(&onlooker).await.len(), session.incarnation()), (21, 1));
    session.close().await.unwrap();
}

#[tokio::test]
async fn soak_etcd_leader_loss_changes_no_key() {
    let (ttl, outage) = if is_soak() { (15, 10) } else { (8, 4) };
    let etcd = Etcd::cluster(3);
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::options().ttl(Duration::from_secs(ttl)).open(store).unwrap();
    register_many(&session, 20).await;
    let mut watch =
        onlooker.watch(Selection::prefix("/"), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    let leader = etcd.leader();
    etcd.member(leader).kill();
    tokio::time::sleep(Duration::from_secs(outage)).await;
    assert!(matches!(*session.state().borrow(), SessionState::Live { .. }), "two of three go on");
    etcd.member(leader).restart();
    tokio::time::sleep(Duration::from_secs(ttl / 2)).await;
    assert_eq!(deletes_so_far(&onlooker, &mut watch).await, 0);
    assert_eq!((stored(&onlooker).await.len(), session.incarnation()), (21, 1));
    session.close().await.unwrap();
}

#[tokio::test]
async fn revoked_leases_are_restored_within_a_second() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::open(store).unwrap();
    register_many(&session, 10_000).await;
    // The middle one of three: a neighbour that takes the machine for a moment must not decide.
    let mut took = Vec::new();
    for _ in 0..3 {
        let leases = session.leases();
        assert_eq!(leases.len(), 10);
        let revoked = leases.iter().map(|&lease| onlooker.revoke(lease));
        for answer in futures_util::future::join_all(revoked).await {
            answer.unwrap();
        }
        let began = Instant::now();
        took.push(back_under_new_leases(&onlooker, &session, &leases, 10_000, began).await);
    }
    eprintln!("10,000 keys back {took:?} after the last revocation");
    took.sort();
    assert!(took[1] < Duration::from_secs(1), "{took:?}");
    session.close().await.unwrap();
    assert_eq!(onlooker.leases().await.unwrap().len(), 0);
}

/// The leases lapse while etcd is away, and etcd, when it is back, gives each its whole TTL again: so all keys have to move.
#[tokio::test]
async fn long_outage_is_recovered_within_two_seconds() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::options().ttl(Duration::from_secs(3)).open(store).unwrap();
    register_many(&session, 10_000).await;
    let leases = session.leases();
    etcd.member(0).kill();
    wait_for_state(&session, |state| matches!(state, SessionState::Lost { .. })).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    etcd.member(0).spawn();
    // Ready is when another client's write goes through.
    while onlooker.put("/ready", "").await.is_err() {}
    let began = Instant::now();
    let took = back_under_new_leases(&onlooker, &session, &leases, 10_001, began).await;
    eprintln!("10,000 keys back {took:?} after etcd was ready");
    assert!(took < Duration::from_secs(2), "{took:?}");
    session.close().await.unwrap();
}

/// Waits until all keys are stored, none of them under a former lease. Returns how long after `began` the session had put the last one.
async fn back_under_new_leases(
    store: &Store,
    session: &Session,
    old: &[LeaseId],
    count: usize,
    began: Instant,
) -> Duration {
    loop {
        // The session's own word first, because looking costs more than being done.
        let settled = tokio::time::timeout(Duration::from_millis(20), session.synced()).await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{:?}", session.health());
        if settled.is_err() || session.incarnation() < 2 {
            continue;
        }
        let keys = store.list(Selection::everything()).await.unwrap().pairs;
        let is_old = |lease: LeaseId| old.contains(&lease);
        if keys.len() == count && !keys.iter().any(|pair| pair.lease.is_some_and(is_old)) {
            return took;
        }
    }
}

/// How long a session waited after each grant that failed, from the log.
fn waits(log: &Log, after: usize) -> Vec<String> {
    let lines = log.lines("what=Grant");
    let next = |line: &String| line.split_once("next=").unwrap().1.split(' ').next().unwrap().to_owned();
    lines[after..].iter().map(next).collect()
}

#[tokio::test(start_paused = true)]
async fn each_outage_begins_with_the_first_step() {
    let (log, _guard) = Log::begin();
    let retry = Backoff { jitter: Jitter::None, ..Backoff::DEFAULT };
    let (flaky, _, session) = Flaky::session_with(|options| options.retry(retry));
    session.register_raw("/r/a", "v").await.unwrap();
    let mut seen = 0;
    for incarnation in 2..4 {
        flaky.turn(Weather::Down);
        tokio::time::sleep(Duration::from_secs(60)).await;
        flaky.turn(Weather::Works);
        session.state().wait_for(|state| matches!(state, SessionState::Live { .. })).await.unwrap();
        assert_eq!(session.incarnation(), incarnation);
        let waits = waits(&log, seen);
        assert_eq!(waits[..5], ["1s", "2s", "4s", "8s", "8s"], "{waits:?}");
        seen += waits.len();
        tokio::time::sleep(retry.healthy_after).await;
    }
    session.close().await.unwrap();
}

/// A grant without a reply takes the whole deadline of the client, so this test only waits for the first step.
#[tokio::test]
async fn backoff_restarts_with_each_outage() {
    let (log, _guard) = Log::begin();
    let etcd = Etcd::start();
    let retry = Backoff {
        growth: Growth::Linear,
        initial: Duration::from_millis(300),
        jitter: Jitter::None,
        healthy_after: Duration::from_secs(1),
        ..Backoff::DEFAULT
    };
    let options = Session::options().ttl(Duration::from_secs(2)).retry(retry);
    let session = options.open(connect(&etcd).await).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    let mut seen = 0;
    for _ in 0..2 {
        etcd.member(0).kill();
        while waits(&log, seen).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        etcd.member(0).restart();
        wait_for_state(&session, |state| matches!(state, SessionState::Live { .. })).await;
        session.synced().await;
        let waits = waits(&log, seen);
        assert_eq!(waits[0], "300ms", "{waits:?}");
        seen += waits.len();
        tokio::time::sleep(retry.healthy_after).await;
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn long_outage_restores_each_key() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::options().ttl(Duration::from_secs(2)).open(store).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    session.register_raw("/r/b", "v").await.unwrap();
    etcd.member(0).kill();
    wait_for_state(&session, |state| matches!(state, SessionState::Lost { .. })).await;
    session.unregister("/r/a");
    etcd.member(0).restart();
    wait_for_state(&session, |state| matches!(state, SessionState::Live { incarnation: 2.. })).await;
    wait_until(&onlooker, Duration::from_secs(4), |keys| keys == ["/r/b"]).await;
    session.close().await.unwrap();
}

#[tokio::test]
async fn key_deleted_by_operator_is_restored() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::open(store).unwrap();
    session.register_raw("/r/a", "v").await.unwrap();
    onlooker.txn(Txn::new().then(Op::delete("/r/a"))).await.unwrap();
    wait_for_keys(&onlooker, 1, Duration::from_secs(2)).await;
    session.close().await.unwrap();
}

#[tokio::test]
async fn timed_out_registration_is_stored_later() {
    let etcd = Etcd::start();
    let (store, onlooker) = (connect(&etcd).await, connect(&etcd).await);
    let session = Session::open(store).unwrap();
    etcd.member(0).kill();
    let answer = session.register_raw("/r/a", "v").timeout(Duration::from_millis(300)).await;
    assert!(matches!(answer, Err(RegisterError::Timeout { .. })), "{answer:?}");
    etcd.member(0).restart();
    wait_for_keys(&onlooker, 1, Duration::from_secs(5)).await;
    session.close().await.unwrap();
}
