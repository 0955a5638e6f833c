//! After a busy life everything is back where it was: tasks of the runtime, descriptors, keys, leases, and what the server watches.
//!
//! Counts are of the whole process, so they are exact where each test has a process of its own; beside others they may only fail for
//! what those do, never pass for it, because they are waited for.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::election::Elections;
use tenure::lock::Locks;
use tenure::member::Members;
use tenure::session::Session;
use tenure::store::{PreviousValues, Selection, Store, WatchStart};
use tenure::{NewTask, Task, TaskError, Tenure};
use tenure_core::id::{Namespace, TaskId};
use tenure_fixture::{Etcd, EtcdMember};

/// How long tasks may take to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many lives are lived after the first: a leak of one thing in each is far more than any cache.
const LIVES: usize = 12;

/// What the process and the server have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Count {
    tasks: usize,
    descriptors: usize,
    /// Streams of watches may stay open; what is watched on them may not.
    watchers: u64,
}

impl Count {
    fn now(member: Option<&EtcdMember>) -> Count {
        let watchers = member.map_or(0.0, |member| member.metric("etcd_debugging_mvcc_watcher_total"));
        Count {
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            watchers: watchers.to_string().parse().expect("a count of watchers is a whole number"),
        }
    }

    fn is_within(self, other: Count) -> bool {
        self.tasks <= other.tasks && self.descriptors <= other.descriptors && self.watchers <= other.watchers
    }

    /// Waits until no more is left than before. A task that is ending may need a moment.
    async fn returns(self, member: Option<&EtcdMember>, when: &str) {
        let returned = tokio::time::timeout(PATIENCE, async {
            while !Count::now(member).is_within(self) {
                tokio::task::yield_now().await;
            }
        });
        let is_returned = returned.await.is_ok();
        assert!(is_returned, "{when}: {:?} where there was {self:?}", Count::now(member));
    }
}

/// Everything once: registered, seen, locked, waited for in vain, led, observed, worked.
async fn live(store: &Store) {
    let namespace = Namespace::parse("leaks").unwrap();
    let session = Session::options().ttl(Duration::from_secs(10)).open(store.clone()).unwrap();
    session.register_raw("/leaks/r/a", "v").await.unwrap();

    let cluster = Members::new(store.clone(), &namespace);
    let mut view = cluster.view();
    view.ready().await.unwrap();

    let locks = Locks::new(&session, &namespace);
    let held = locks.lock("l").await.unwrap();
    assert!(locks.lock("l").try_now().await.is_err(), "it is held");
    let given_up = tokio::spawn(locks.lock("l").into_future());
    while locks.get(&"l".parse().unwrap()).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    held.release().await.unwrap();
    drop(locks.rw_lock("s").read().await.unwrap());
    locks.semaphore("p", 2).acquire().await.unwrap().release().await.unwrap();

    let election = Elections::new(&session, &namespace).election("e");
    let mut observe = election.observe();
    let term = election.campaign().value("here").await.unwrap();
    while observe.next().await.unwrap().unwrap().leader.is_none() {}
    drop(observe);
    term.resign().await.unwrap();

    let tenure = Tenure::on_session(&session, &namespace).unwrap();
    let complete = async |_: Task| Ok::<_, TaskError>(());
    let node = tenure.worker("n").handle_any(complete).start().await.unwrap();
    for number in 0..3 {
        let id = TaskId::parse(&format!("t{number}")).unwrap();
        let task = tenure.submit(NewTask::new("").id(&id)).await.unwrap();
        task.wait().timeout(PATIENCE).await.unwrap();
        task.forget().await.unwrap();
    }
    node.shutdown().timeout(PATIENCE).await.unwrap();
    drop(tenure);

    view.close().await;
    session.close().await.unwrap();
}

/// Lives many times on a store, and then gives the store up too.
async fn lives_leave_nothing(address: &str, member: Option<&EtcdMember>) {
    let unopened = Count::now(member);
    let store = Store::open(&address.parse().unwrap()).await.unwrap();
    // The first use opens streams and caches, and they stay open for later ones.
    live(&store).await;
    settled(&store).await;
    let before = Count::now(member);
    for _ in 0..LIVES {
        live(&store).await;
    }
    settled(&store).await;
    before.returns(member, "after many lives").await;
    store.close().await;
    drop(store);
    unopened.returns(member, "after the store was closed").await;
}

/// Everything but audit records, which are kept for a week.
fn is_left(pair: &tenure::store::KeyValue) -> bool {
    !pair.key.windows(7).any(|part| part == b"/audit/")
}

/// Waits until neither a key nor a lease is left: the session releases in the background what was dropped.
async fn settled(store: &Store) {
    let left = async || {
        let keys = store.list(Selection::everything()).await.unwrap().pairs;
        (
            keys.into_iter().filter(is_left).map(|pair| pair.key).collect::<Vec<_>>(),
            store.leases().await.unwrap(),
        )
    };
    let gone = tokio::time::timeout(PATIENCE, async {
        while left().await != (Vec::new(), Vec::new()) {
            tokio::task::yield_now().await;
        }
    });
    if gone.await.is_err() {
        panic!("left: {:?}", left().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_leak_nothing_on_etcd() {
    let etcd = Etcd::start();
    lives_leave_nothing(&format!("etcd://{}", etcd.endpoints()), Some(etcd.member(0))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_leak_nothing_on_file() {
    let folder = tempfile::tempdir().unwrap();
    lives_leave_nothing(&format!("file://{}", folder.path().join("store.db").display()), None).await;
}

/// A negative control: something is left on purpose, and it is missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_left_is_counted() {
    let etcd = Etcd::start();
    let member = Some(etcd.member(0));
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    live(&store).await;
    settled(&store).await;
    let before = Count::now(member);
    let session = Session::open(store.clone()).unwrap();
    session.register_raw("/leaks/left", "v").await.unwrap();
    let watch =
        store.watch(Selection::prefix("/leaks/"), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let now = Count::now(member);
    assert!(now.tasks > before.tasks && now.descriptors > before.descriptors, "{now:?} beside {before:?}");
    assert!(now.watchers > before.watchers, "{now:?} beside {before:?}");
    assert_eq!(
        (
            store.leases().await.unwrap().len(),
            store
                .list(Selection::everything())
                .await
                .unwrap()
                .pairs
                .iter()
                .filter(|pair| is_left(pair))
                .count()
        ),
        (1, 1)
    );
    drop((file, watch));
    session.close().await.unwrap();
    before.returns(member, "after it was closed").await;
}
