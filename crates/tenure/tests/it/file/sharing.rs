//! Several handles and processes on one file: what each sees of the others.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use tenure::clock::{BootClock, Clock};
use tenure::store::file::Retention;
use tenure::store::{
    Change, Engine, Get, LeaseChoice, Op, PreviousValues, Revision, Selection, Store, StoreError, Txn,
    WatchError, WatchItem, WatchStart, WatchStream,
};
use tenure_core::time::Moment;
use tokio::time::timeout;

use super::child::ChildProcess;
use super::{Home, PATIENCE, options};

/// The next revision of a watch.
pub(super) async fn next(watch: &mut WatchStream) -> Result<(Revision, Vec<Change>), WatchError> {
    match timeout(PATIENCE, watch.next()).await.expect("an event comes").expect("the watch goes on")? {
        WatchItem::Batch { revision, changes } => Ok((revision, changes)),
        WatchItem::Progress(revision) => Ok((revision, Vec::new())),
    }
}

pub(super) async fn watch_all(store: &Store, start: WatchStart) -> WatchStream {
    store.watch(Selection::everything(), start, PreviousValues::Omitted).await.unwrap()
}

#[tokio::test]
async fn two_handles_of_process_share_store() {
    let home = Home::new();
    let (one, two) = (home.store().await, home.store().await);
    assert_eq!(one.info().id, two.info().id);
    let mut watch = watch_all(&two, WatchStart::Now).await;
    assert!(one.create("/leader", "one", LeaseChoice::Detach).await.unwrap().is_some());
    assert!(two.create("/leader", "two", LeaseChoice::Detach).await.unwrap().is_none());
    let (_, changes) = next(&mut watch).await.unwrap();
    assert_eq!(changes[0].key(), "/leader");
    one.close().await;
    assert!(matches!(one.get_key("/leader").await, Err(StoreError::Closed)));
    assert_eq!(two.get_key("/leader").await.unwrap().unwrap().value, "one");
}

#[tokio::test]
async fn reopened_store_is_unchanged() {
    let home = Home::new();
    let store = home.store().await;
    let id = store.info().id.clone();
    let first = store.put("/a", "1").await.unwrap();
    let second = store.put("/a", "2").await.unwrap();
    store.close().await;
    let store = home.store().await;
    assert_eq!(store.info().id, id);
    let pair = store.get_key("/a").await.unwrap().unwrap();
    assert_eq!((pair.created, pair.modified, pair.version), (first, second, 2));
    let before = store.get(Get::key("/a").at(first)).await.unwrap();
    assert_eq!(before.pairs[0].value, "1");
    assert_eq!(store.put("/b", "").await.unwrap(), second.next());
    let mut watch = watch_all(&store, WatchStart::After(first)).await;
    assert_eq!(next(&mut watch).await.unwrap().0, second);
}

#[tokio::test]
async fn queued_writes_share_one_commit() {
    let home = Home::new();
    let store = home.store().await;
    let before = store.put("/first", "").await.unwrap();
    let puts = join_all((0..1_000).map(|n| store.put(format!("/n/{n}"), "v"))).await;
    let mut revisions: Vec<i64> = puts.into_iter().map(|revision| revision.unwrap().0).collect();
    revisions.sort_unstable();
    let expected: Vec<i64> = (1..=1_000).map(|n| before.0 + n).collect();
    assert_eq!(revisions, expected);
}

#[tokio::test]
async fn refused_transaction_fails_alone_in_group() {
    let home = Home::new();
    let store = home.store().await;
    let lease = tenure::store::LeaseId::new(7).unwrap();
    let txns = vec![
        Txn::new().then(Op::put("/a", "")),
        Txn::new().then(Op::put("/b", "")).then(Op::put_leased("/c", "", lease)),
        Txn::new().then(Op::put("", "")),
        Txn::new().then(Op::put("/d", "")),
    ];
    let replies = store.batch(txns).await;
    let [Ok(a), Err(StoreError::LeaseNotFound), Err(StoreError::Invalid(_)), Ok(d)] = &replies[..] else {
        panic!("{replies:?}");
    };
    assert_eq!(d.revision, a.revision.next());
    assert!(store.get_key("/b").await.unwrap().is_none());
}

/// X16. The writer finishes or never begins; it never stops in the middle with the lock in its hand.
#[tokio::test]
async fn cancelled_write_is_atomic() {
    let home = Home::new();
    let (one, two) = (home.open().await, home.store().await);
    for n in 0..200 {
        let txn = Txn::new().then(Op::put(format!("/l/{n}"), "")).then(Op::put(format!("/r/{n}"), ""));
        let write = one.txn(txn);
        tokio::pin!(write);
        // Handed over, and dropped before it is answered, now and then a little later.
        let patience = Duration::from_micros(20 * (n % 20));
        let _ = timeout(patience, &mut write).await;
    }
    let began = Instant::now();
    two.put("/after", "").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
    let count = |prefix: &'static str| {
        let two = two.clone();
        async move { two.get(Get::prefix(prefix)).await.unwrap().pairs.len() }
    };
    assert_eq!(count("/l/").await, count("/r/").await);
}

#[tokio::test]
async fn readers_do_not_wait_for_writers() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "1").await.unwrap();
    let mut holder = ChildProcess::start("hold", &home.path());
    holder.expect("holding").await;
    let began = Instant::now();
    assert_eq!(store.get_key("/a").await.unwrap().unwrap().value, "1");
    assert!(began.elapsed() < Duration::from_secs(1));
    let write = tokio::spawn({
        let store = store.clone();
        async move { store.put("/a", "2").await }
    });
    holder.kill().await;
    timeout(PATIENCE, write).await.unwrap().unwrap().unwrap();
}

/// X07. A writer that dies between its commit and the bell rings no bell at all.
#[tokio::test]
async fn commit_without_notification_is_seen_within_100_ms() {
    let home = Home::new();
    let store = home.store().await;
    let mut watch = watch_all(&store, WatchStart::Now).await;
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    let mut late = Vec::new();
    for n in 0..11 {
        let commit = format!(
            "BEGIN IMMEDIATE;
             UPDATE meta SET rev = rev + 1;
             INSERT INTO kv SELECT CAST('/k{n}' AS BLOB), x'', rev, rev, 1, NULL FROM meta;
             INSERT INTO log SELECT rev, 0, CAST('/k{n}' AS BLOB), x'', rev, 1, NULL, 0 FROM meta;
             COMMIT;"
        );
        connection.execute_batch(&commit).unwrap();
        let committed = Instant::now();
        let (_, changes) = next(&mut watch).await.unwrap();
        late.push(committed.elapsed());
        assert_eq!(changes[0].key(), &format!("/k{n}"));
    }
    // The machine may be busy with other tests now and then; not most of the time.
    late.sort_unstable();
    assert!(late[5] < Duration::from_millis(100), "{late:?}");
}

/// X08. All processes see the end of a lease at the same instant, and one of them deletes its keys.
#[tokio::test]
async fn eight_processes_expire_each_lease_once() {
    const LEASES: u64 = 100;
    let home = Home::new();
    let store = home.store().await;
    let mut others: Vec<ChildProcess> = (0..8).map(|_| ChildProcess::start("watch", &home.path())).collect();
    for other in &mut others {
        other.expect("watching").await;
    }
    let mut watch = watch_all(&store, WatchStart::Now).await;
    let mut deadlines = Vec::new();
    for n in 0..LEASES {
        let grant = store.grant(Duration::from_millis(1_000 + n), None).await.unwrap();
        let [one, two] = ["a", "b"].map(|side| Op::put_leased(format!("/{n}/{side}"), "", grant.id));
        store.txn(Txn::new().then(one).then(two)).await.unwrap();
        deadlines.push(grant.asked_at + grant.ttl);
    }
    let mut ended = 0;
    while ended < LEASES {
        let (_, changes) = next(&mut watch).await.unwrap();
        let now = BootClock.now();
        let [Change::Delete { key: one, .. }, Change::Delete { key: two, .. }] = &changes[..] else {
            assert!(matches!(changes[0], Change::Put { .. }), "a lease ends whole: {changes:?}");
            continue;
        };
        let lease_of = |key: &[u8]| -> usize {
            std::str::from_utf8(key).unwrap().split('/').nth(1).unwrap().parse().unwrap()
        };
        assert_eq!(lease_of(one), lease_of(two));
        let deadline = std::mem::replace(&mut deadlines[lease_of(one)], Moment::after_origin(Duration::MAX));
        assert!(now >= deadline, "a lease ended twice, or {:?} early", deadline.since(now));
        ended += 1;
    }
    assert!(store.leases().await.unwrap().is_empty());
}

/// X09, in a process that is alive and in one that comes later.
#[tokio::test]
async fn expired_key_is_hidden_from_first_read() {
    let home = Home::new();
    let store = home.store().await;
    for round in 0..10 {
        let grant = store.grant(Duration::from_millis(5), None).await.unwrap();
        let key = format!("/{round}");
        if store.put_leased(key.clone(), "", grant.id).await.is_err() {
            // A busy machine took longer than the lease.
            continue;
        }
        // Whatever moment the lease ended at, it is before this one.
        let over = BootClock.now() + grant.ttl + Duration::from_millis(1);
        BootClock.sleep_until(over).await;
        assert!(store.get_key(key).await.unwrap().is_none());
        assert!(matches!(store.renew(grant.id).await.unwrap(), tenure::store::Renewal::Gone));
        assert!(store.lease(grant.id).await.unwrap().is_none());
    }
    let mut holder = ChildProcess::start("lease", &home.path());
    let deadline = holder.next_report().await.unwrap().parse().unwrap();
    holder.kill().await;
    store.close().await;
    let deadline = Moment::after_origin(Duration::from_nanos(deadline));
    // The lease began after it was asked for, by at most what a child needed.
    BootClock.sleep_until(deadline + Duration::from_secs(1)).await;
    let store = home.store().await;
    assert!(store.get_key("/held").await.unwrap().is_none());
}

/// X13.
#[tokio::test]
async fn lease_outlives_its_process_by_ttl() {
    let home = Home::new();
    let mut holder = ChildProcess::start("lease", &home.path());
    let deadline =
        Moment::after_origin(Duration::from_nanos(holder.next_report().await.unwrap().parse().unwrap()));
    holder.kill().await;
    let store = home.store().await;
    let revision = store.get(Get::key("/held")).await.unwrap().revision;
    let mut watch = watch_all(&store, WatchStart::After(Revision(revision.0 - 1))).await;
    loop {
        let (_, changes) = next(&mut watch).await.unwrap();
        if matches!(changes[0], Change::Delete { .. }) {
            break;
        }
    }
    let now = BootClock.now();
    assert!(now >= deadline, "{:?} early", deadline.since(now));
    assert!(now.since(deadline) < Duration::from_secs(2), "{:?} late", now.since(deadline));
}

#[tokio::test]
async fn current_watcher_survives_foreign_compaction() {
    let home = Home::new();
    let (one, two) = (home.store().await, home.store().await);
    one.put("/other", "0").await.unwrap();
    let mut watch =
        two.watch(Selection::key("/mine"), WatchStart::Now, PreviousValues::Included).await.unwrap();
    for n in 0..20 {
        let revision = one.put("/other", n.to_string()).await.unwrap();
        one.compact(revision).await.unwrap();
    }
    let revision = one.put("/mine", "").await.unwrap();
    assert_eq!(next(&mut watch).await.unwrap().0, revision);
}

#[tokio::test]
async fn old_history_is_removed_in_steps() {
    let home = Home::new();
    let retention = Retention { revisions: 100, age: Duration::ZERO };
    let store = Store::new(options().retention(retention).open(home.path()).await.unwrap());
    let living = store.put("/living", "v").await.unwrap();
    for _ in 0..6 {
        let txns = (0..500).map(|n| Txn::new().then(Op::put(format!("/{}", n % 10), "v")));
        for reply in store.batch(txns.collect()).await {
            reply.unwrap();
        }
    }
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    let kept = || -> i64 { connection.query_row("SELECT count(*) FROM log", [], |row| row.get(0)).unwrap() };
    let began = Instant::now();
    // Steps are taken after writes.
    while kept() > 1_500 {
        assert!(began.elapsed() < PATIENCE, "{} rows are left", kept());
        store.put("/more", "v").await.unwrap();
    }
    let mut watch = watch_all(&store, WatchStart::After(living)).await;
    assert!(matches!(next(&mut watch).await, Err(WatchError::Compacted { .. })));
    let page = store.get(Get::key("/living")).await.unwrap();
    assert_eq!(page.pairs[0].created, living);
    // What was put long before history begins is still there for a read within it.
    let past = store.get(Get::key("/living").at(Revision(page.revision.0 - 50))).await.unwrap();
    assert_eq!(past.pairs, page.pairs);
}

#[tokio::test]
async fn close_joins_threads_and_drop_ends_them() {
    let home = Home::new();
    let mut other = ChildProcess::start("threads", &home.path());
    other.expect("4 while open").await;
    other.expect("none after close").await;
    other.expect("none after drop").await;
}
