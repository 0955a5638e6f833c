//! The end of a connection: the order in which things end, and what is reported of the rest.

use super::*;
use tenure::worker::WorkerEnd;
use tenure::{CloseError, LeadError, LossReason, NewTask, Outcome, ReleaseError, Task, TaskError};

#[tokio::test]
async fn close_names_live_guard_and_keeps_lease() {
    let world = World::new();
    let builder =
        Tenure::builder().store(world.process("web-1").store()).clock(world.process("web-1").clock());
    let tenure = builder.ttl(Duration::from_secs(15)).connect().await.unwrap();
    let guard = tenure.lock("deploy").await.unwrap();
    let hold = guard.hold();
    let error = tenure.close().await.unwrap_err();
    let message = error.to_string();
    let CloseError::StillHeld { holds, ttl, .. } = error else { panic!("{message}") };
    assert_eq!(holds, ["lock 'deploy'"]);
    assert!(ttl <= Duration::from_secs(15), "{ttl:?}");
    assert!(message.starts_with("lock 'deploy' is still held; expires within"), "{message}");
    assert_eq!(hold.loss(), Some(LossReason::Closed));
    assert!(
        !world.process("onlooker").store().leases().await.unwrap().is_empty(),
        "the lease is not revoked"
    );
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
}

#[tokio::test]
async fn close_deletes_keys_and_keeps_given_store() {
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

/// Its term was still held, so `close` returned an error and left the leader's key until the TTL had passed.
#[tokio::test]
async fn leads_resign_before_the_session_closes() {
    let store = Store::memory();
    let (tenure, other) =
        (Tenure::connect(store.clone()).await.unwrap(), Tenure::connect(store.clone()).await.unwrap());
    let election = tenure.election("scheduler");
    let (began, has_begun) = tokio::sync::oneshot::channel();
    let mut began = Some(began);
    let leading = tokio::spawn({
        let election = election.clone();
        async move {
            let lead = election.lead(|term| {
                began.take().map(|began| began.send(()));
                async move {
                    std::future::pending::<()>().await;
                    drop(term);
                }
            });
            lead.await
        }
    });
    has_begun.await.unwrap();
    let waiting = tokio::spawn({
        let election = other.election("scheduler");
        async move { election.lead(|_| std::future::pending::<()>()).await }
    });
    tenure.close().await.unwrap();
    assert!(matches!(leading.await.unwrap(), Err(LeadError::Closed)));
    assert!(!election.is_leader());
    // The next candidate leads without waiting for a TTL, and a candidate that waits is ended too.
    let third = Tenure::connect(store.clone()).await.unwrap();
    let queued = tokio::spawn({
        let election = third.election("scheduler");
        async move { election.lead(|_| std::future::pending::<()>()).await }
    });
    while other.election("scheduler").snapshot().await.unwrap().candidates.is_empty() {
        tokio::task::yield_now().await;
    }
    third.close().await.unwrap();
    assert!(matches!(queued.await.unwrap(), Err(LeadError::Closed)));
    other.close().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(LeadError::Closed)));
    assert!(store.leases().await.unwrap().is_empty());
}

/// Work that does not stop loses its hold when the bound is over.
#[tokio::test(start_paused = true)]
async fn close_waits_no_longer_than_its_timeout() {
    let tenure = Tenure::connect(Store::memory()).await.unwrap();
    let _running = tenure.election("a").campaign().await.unwrap();
    let closed = tenure.close().timeout(Duration::ZERO).await;
    assert!(matches!(closed, Err(CloseError::StillHeld { .. })), "{closed:?}");
}

/// The tasks stay in the store and are free for others at once, with the checkpoint that the handler stored when it was stopped.
#[tokio::test]
async fn workers_release_their_tasks_before_the_session_closes() {
    let store = Store::memory();
    let tenure = Tenure::connect(store.clone()).await.unwrap();
    let (began, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |task: Task<()>| {
        let began = began.clone();
        async move {
            began.send(()).unwrap();
            task.stopped().await;
            task.save_checkpoint(&7).await?;
            Ok::<_, TaskError>(Outcome::Release)
        }
    };
    let worker = tenure.worker("w").handle("job", handler).start().await.unwrap();
    tenure.submit(NewTask::new("job").id("t")).await.unwrap();
    has_begun.recv().await.unwrap();
    tenure.close().await.unwrap();
    assert!(matches!(worker.finished().await, WorkerEnd::Left { running } if running.is_empty()));
    assert!(store.leases().await.unwrap().is_empty());
    let other = Tenure::connect(store.clone()).await.unwrap();
    let details = other.task("t").details().await.unwrap().unwrap();
    assert!(details.owner().is_none(), "{details:?}");
    let stored = details.summary.state_record.unwrap();
    assert_eq!(stored.checkpoint.as_ref().map(|checkpoint| checkpoint.bytes().as_ref()), Some(&b"7"[..]));
    other.close().await.unwrap();
}
