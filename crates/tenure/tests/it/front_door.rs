//! The front door on every engine, as a program uses it that imports from the root only.

mod closing;
mod leading;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::once::Run;
use tenure::testing::World;
use tenure::{
    CampaignError, ConnectError, Error, JoinError, LockError, LockName, NewTask, RegisterError, Store, Task,
    TaskError, Tenure,
};
use tenure_fixture::Etcd;

const MINUTE: Duration = Duration::from_secs(60);

/// A period that does not end while a test runs.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

async fn connect(url: &str) -> Tenure {
    Tenure::builder().store(url).namespace("shop").identity("web-1").connect().await.unwrap()
}

/// Runs a claim on memory, on a file and on real etcd.
macro_rules! on_every_engine {
    ($($claim:ident;)+) => {$(
        mod $claim {
            #[tokio::test]
            async fn on_memory() {
                super::claims::$claim(super::connect("memory:").await).await;
            }

            #[tokio::test]
            async fn on_a_file() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("file://{}/store.db", folder.path().display());
                super::claims::$claim(super::connect(&url).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_etcd() {
                let etcd = super::Etcd::start();
                super::claims::$claim(super::connect(&format!("etcd://{}", etcd.endpoints())).await).await;
            }
        }
    )+};
}

on_every_engine! {
    locks_and_permits_exclude;
    one_handle_leads_and_all_handles_know;
    registrations_and_members_can_be_read;
    a_submitted_task_is_run_by_a_worker;
    work_runs_once_per_period;
    namespaces_share_the_session_and_nothing_else;
}

mod claims {
    use super::*;

    pub(super) async fn locks_and_permits_exclude(tenure: Tenure) {
        let guard = tenure.lock("deploy").reason("release 4.2").timeout(MINUTE).await.unwrap();
        match tenure.lock("deploy").try_now().await.unwrap_err() {
            LockError::Held { by, .. } => assert_eq!(by.expect("the holder is named").node, "web-1"),
            other => panic!("{other}"),
        }
        let held = tenure.locks().list().await.unwrap();
        assert_eq!(held.locks[0].holders[0].token, guard.token());
        assert_eq!(guard.run(async { 7 }).await, Ok(7));
        guard.release().await.unwrap();

        let config = tenure.rw_lock("config");
        let readers = (config.read().await.unwrap(), config.read().try_now().await.unwrap());
        assert!(matches!(config.write().try_now().await, Err(LockError::Held { .. })));
        drop(readers);
        config.write().timeout(MINUTE).await.unwrap().release().await.unwrap();

        let exports = tenure.semaphore("exports", 2);
        let permits = (exports.acquire().await.unwrap(), exports.acquire().await.unwrap());
        assert!(matches!(exports.acquire().try_now().await, Err(LockError::Held { .. })));
        permits.0.release().await.unwrap();
        permits.1.release().await.unwrap();

        let start = tenure.barrier("start", 2);
        let (one, two) = tokio::join!(start.wait().timeout(MINUTE), start.wait().timeout(MINUTE));
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
        tenure.close().await.unwrap();
    }

    pub(super) async fn one_handle_leads_and_all_handles_know(tenure: Tenure) {
        let (one, two) = (tenure.election("scheduler"), tenure.clone().election("scheduler"));
        assert!(!one.is_leader() && one.leader().await.unwrap().is_none());
        let term = one.campaign().value("10.0.0.7:80").timeout(MINUTE).await.unwrap();
        assert!(one.is_leader() && two.is_leader());
        assert!(!tenure.election("another").is_leader());
        assert!(!tenure.namespace("another").unwrap().election("scheduler").is_leader());
        assert_eq!(two.hold().unwrap().token(), term.token());
        let leader = two.leader().await.unwrap().unwrap();
        assert_eq!((leader.token, leader.record.value.as_str()), (term.token(), "10.0.0.7:80"));
        assert!(matches!(two.campaign().try_now().await, Err(CampaignError::Held { .. })));
        term.resign().await.unwrap();
        assert!(!one.is_leader() && !two.is_leader());

        let saw = two.lead(|_| async { tenure.election("scheduler").is_leader() }).await.unwrap();
        assert!(saw, "the work of a leader sees that it leads");
        assert!(!two.is_leader());
        tenure.close().await.unwrap();
    }

    pub(super) async fn registrations_and_members_can_be_read(tenure: Tenure) {
        let registration = tenure.register("api/web-1", "10.0.0.7:80").timeout(MINUTE).await.unwrap();
        assert_eq!(&registration.key[..], b"/shop/registry/api/web-1");

        let membership = tenure.join("web-1").address("10.0.0.7:80").label("zone", "eu").await.unwrap();
        let members = tenure.members().list().await.unwrap();
        assert_eq!(members.members()[0].record.labels["zone"], "eu");
        assert!(matches!(tenure.join("web-1").try_now().await, Err(JoinError::AlreadyJoined)));
        membership.unregister().await.unwrap();
        assert!(tenure.members().list().await.unwrap().is_empty());

        let web = tenure.service("web");
        let instance = web.register("a", "10.0.0.8:80").metadata(&"eu").unwrap().await.unwrap();
        let picked = web.picker().await.unwrap().random().unwrap();
        assert_eq!(picked.record.address(), Some("10.0.0.8:80"));
        assert_eq!(picked.record.metadata::<String>().unwrap(), "eu");
        assert_eq!(tenure.services().list().await.unwrap().len(), 1);
        instance.unregister().await.unwrap();
        assert!(web.instances().await.unwrap().is_empty());

        tenure.close().await.unwrap();
    }

    pub(super) async fn a_submitted_task_is_run_by_a_worker(tenure: Tenure) {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let handler = move |task: Task| {
            let runs = counted.clone();
            async move {
                task.check()?;
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, TaskError>(())
            }
        };
        let worker = tenure.worker("eu-1").capacity(10).handle("mail", handler).start().await.unwrap();
        let mail = tenure.submit(NewTask::new("mail").id("mail-1")).await.unwrap();
        mail.wait().timeout(MINUTE).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(tenure.snapshot().await.unwrap().members.len(), 1);
        worker.shutdown().await.unwrap();
        tenure.close().await.unwrap();
    }

    pub(super) async fn work_runs_once_per_period(tenure: Tenure) {
        let backup = tenure.once("backup", CENTURY);
        let first = backup.run(|guard| async move { guard.check() }).await.unwrap();
        assert!(matches!(first, Run::Ran(())), "{first:?}");
        let second = tenure.once("backup", CENTURY).run(|_| async { Ok::<_, Error>(()) }).await.unwrap();
        assert!(matches!(second, Run::Skipped { last: Some(_) }), "{second:?}");
        tenure.close().await.unwrap();
    }

    pub(super) async fn namespaces_share_the_session_and_nothing_else(tenure: Tenure) {
        let eu = tenure.namespace("shop/eu").unwrap();
        let guard = tenure.lock("deploy").await.unwrap();
        let other = eu.lock("deploy").try_now().await.unwrap();
        assert_eq!(guard.lease(), other.lease(), "one lease for both");
        assert_eq!(tenure.session().leases().len(), 1);
        assert!(matches!(eu.lock("deploy").try_now().await, Err(LockError::Held { .. })));
        drop((guard, other));
        eu.close().await.unwrap();
        assert!(matches!(tenure.lock("deploy").await, Err(LockError::Closed)), "closed for both");
    }
}

#[tokio::test]
async fn wrong_arguments_are_reported_by_the_request() {
    let tenure = connect("memory:").await;
    assert!(matches!(tenure.lock("a\nb").await, Err(LockError::InvalidName(_))));
    assert!(matches!(tenure.rw_lock("").read().await, Err(LockError::InvalidName(_))));
    assert!(matches!(tenure.semaphore("a", 0).acquire().await, Err(LockError::InvalidPermits)));
    assert!(tenure.barrier("a", 0).wait().await.is_err());
    assert!(matches!(tenure.election("").campaign().await, Err(CampaignError::InvalidName(_))));
    assert!(matches!(tenure.election("").leader().await, Err(Error::InvalidName(_))));
    assert!(!tenure.election("").is_leader());
    assert!(tenure.register("", "v").await.is_err());
    assert!(matches!(tenure.join("").await, Err(JoinError::InvalidName(_))));
    assert!(tenure.service("").register("a", "b").await.is_err());
    let never = |_: Task| async { Ok::<_, TaskError>(()) };
    assert!(matches!(tenure.worker("").handle("a", never).start().await, Err(JoinError::InvalidName(_))));
    assert!(matches!(tenure.worker("a").start().await, Err(JoinError::NoHandler)));
    assert!(tenure.once("", CENTURY).run(|_| async { Ok::<_, Error>(()) }).await.is_err());
    assert!(tenure.namespace("a//b").is_err());
    assert!(tenure.store().leases().await.unwrap().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn every_kind_of_name_is_accepted() {
    let tenure = connect("memory:").await;
    let (text, name) = (String::from("deploy"), LockName::parse("deploy").unwrap());
    for request in [
        tenure.lock("deploy"),
        tenure.lock(&text),
        tenure.lock(text.clone()),
        tenure.lock(&name),
        tenure.lock(name.clone()),
    ] {
        request.try_now().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn no_error_contains_a_password() {
    let secret = "open-sesame";
    let with_user = |url: &str| Tenure::builder().store(url).user("shop", secret);
    let errors = [
        Tenure::connect(format!("etcd://shop:{secret}@127.0.0.1:1")).await.unwrap_err(),
        Tenure::connect(format!("shop:{secret}@127.0.0.1:1")).await.unwrap_err(),
        with_user("memory:").connect().await.unwrap_err(),
        with_user("etcd://127.0.0.1:1").connect().await.unwrap_err(),
    ];
    assert!(matches!(errors[0], ConnectError::InvalidUrl(_)), "{:?}", errors[0]);
    assert!(matches!(errors[2], ConnectError::NoUsers { engine: "memory" }), "{:?}", errors[2]);
    assert!(matches!(errors[3], ConnectError::Store(_)), "{:?}", errors[3]);
    for error in errors {
        let message = format!("{error} {error:?} {:?}", Error::from(error.clone()));
        assert!(!message.contains(secret), "{message}");
    }
    let builder = Tenure::builder().store(format!("etcd://shop:{secret}@a")).user("shop", secret);
    assert!(!format!("{builder:?}").contains(secret), "{builder:?}");
}

#[tokio::test]
async fn short_ttl_and_invalid_namespace_are_refused() {
    let short = Tenure::builder().store(Store::memory()).ttl(Duration::from_millis(1));
    assert!(matches!(short.connect().await, Err(ConnectError::InvalidOptions(_))));
    let wrong = Tenure::builder().store(Store::memory()).namespace("a//b");
    assert!(matches!(wrong.connect().await, Err(ConnectError::InvalidNamespace(_))));
}

#[tokio::test]
async fn if_absent_never_overwrites_a_registered_key() {
    let store = Store::memory();
    let (one, two) =
        (Tenure::connect(store.clone()).await.unwrap(), Tenure::connect(store.clone()).await.unwrap());
    let registration = one.register("leader", "one").await.unwrap();
    assert!(matches!(two.register("leader", "two").if_absent().await, Err(RegisterError::Held { .. })));
    assert_eq!(&store.get_key(registration.key.clone()).await.unwrap().unwrap().value[..], b"one");
    two.register("leader", "two").await.unwrap();
    assert_eq!(&store.get_key(registration.key).await.unwrap().unwrap().value[..], b"two");
}

#[tokio::test]
async fn restarted_process_joins_after_former_key_expires() {
    let world = World::new();
    let process = |name: &'static str| {
        let builder = Tenure::builder().store(world.process(name).store()).clock(world.process(name).clock());
        builder.ttl(Duration::from_secs(10)).connect()
    };
    let (former, restarted) = (process("former").await.unwrap(), process("restarted").await.unwrap());
    let _membership = former.join("web-1").await.unwrap();
    world.process("former").partition();
    let began = world.elapsed();
    assert!(matches!(restarted.join("web-1").try_now().await, Err(JoinError::Held { .. })));
    let membership = restarted.join("web-1").await.unwrap();
    let waited = world.elapsed() - began;
    assert!(waited > Duration::from_secs(5) && waited < Duration::from_secs(15), "{waited:?}");
    membership.unregister().await.unwrap();
}
