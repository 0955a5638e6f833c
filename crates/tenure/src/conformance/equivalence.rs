//! Log equivalence: however a watcher follows the store, it reads the same log, and the log is the store.
//!
//! Writers with mixed operations run against watchers that are live, that reconnect all the time, that come late, and that
//! replay everything in the end. Their lists must be the same change for change; each change must follow from the one before; and the
//! changes must add up to what a listing shows.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tokio::task::JoinSet;

use super::TestContext;
use super::check::{CheckFailure, CheckResult, ensure, equal};
use super::context::LONG;
use super::watching::Watching;
use crate::store::{
    Change, Condition, KeyValue, LeaseId, Op, OpReply, PreviousValues, Revision, Selection, Store,
    StoreError, Txn, WatchStart,
};

/// How much is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EquivalenceSize {
    /// The number of concurrent writers.
    pub writers: usize,
    /// The operations of each writer.
    pub ops: usize,
}

impl Default for EquivalenceSize {
    fn default() -> EquivalenceSize {
        EquivalenceSize { writers: 4, ops: 400 }
    }
}

/// Checks log equivalence on several handles of one store: writers and watchers are spread over them.
///
/// # Cancellation
///
/// Dropping the future stops all writers and watchers, and leaves keys and leases of a minute behind.
pub async fn log_equivalence(stores: &[Store], size: EquivalenceSize) -> CheckResult {
    let first = stores.first().ok_or_else(|| CheckFailure::new("there is no store to check"))?;
    let context = TestContext::new(first.clone(), "X01");
    let result = log_equivalence_in(&context, stores, size).await;
    context.tidy().await;
    result
}

/// One revision as a watcher saw it.
type LogEntry = (Revision, Vec<Change>);

/// The put of this key is the end of the log for every watcher.
const LAST: &str = "log/~last";

pub(super) async fn log_equivalence_in(
    s: &TestContext,
    stores: &[Store],
    size: EquivalenceSize,
) -> CheckResult {
    let store = |n: usize| stores[n % stores.len()].clone();
    let start = s.revision().await?;
    let select = s.below("log/");
    let last = s.key(LAST);
    let watcher = |store: Store, mode: FollowMode| follow(store, select.clone(), start, last.clone(), mode);

    let mut watchers = JoinSet::new();
    watchers.spawn(watcher(store(0), FollowMode::Live));
    watchers.spawn(watcher(store(1), FollowMode::Live));
    watchers.spawn(watcher(store(2), FollowMode::Reconnecting));

    let mut writers = JoinSet::new();
    for n in 0..size.writers {
        let lease = s.lease(LONG).await?.id;
        writers.spawn(write(store(n), s.key("log/"), n as u64, size.ops / 2, lease));
    }
    let mut acknowledged = joined(&mut writers).await?;
    watchers.spawn(watcher(store(1), FollowMode::Live));
    for n in 0..size.writers {
        let lease = s.lease(LONG).await?.id;
        writers.spawn(write(store(n + 1), s.key("log/"), (n + size.writers) as u64, size.ops / 2, lease));
    }
    acknowledged.extend(joined(&mut writers).await?);
    store(2).put(last.clone(), "").await?;
    watchers.spawn(watcher(store(0), FollowMode::Live));
    watchers.spawn(watcher(store(2), FollowMode::Reconnecting));

    let mut logs = joined(&mut watchers).await?.into_iter();
    let log = logs.next().ok_or_else(|| CheckFailure::new("there was no watcher"))?;
    for other in logs {
        same(&log, &other)?;
    }
    let there = s.store.list(s.below("log/")).await?;
    adds_up(&log, start, &there.pairs)?;
    for (revision, key) in acknowledged.into_iter().flatten() {
        let index = usize::try_from(revision.0 - start.0 - 1).unwrap_or(usize::MAX);
        let entry = log.get(index).map(|(_, changes)| changes);
        let found = entry.is_some_and(|changes| changes.iter().any(|change| *change.key() == key));
        ensure(found, || format!("{key:?} was written at {revision:?}, but the log does not contain it"))?;
    }
    Ok(())
}

async fn joined<T: Send + 'static>(tasks: &mut JoinSet<CheckResult<T>>) -> CheckResult<Vec<T>> {
    let mut results = Vec::new();
    while let Some(task) = tasks.join_next().await {
        results.push(task.map_err(|panic| CheckFailure::new(panic.to_string()))??);
    }
    Ok(results)
}

/// How a watcher follows the log.
#[derive(Clone, Copy)]
enum FollowMode {
    /// With one watch from beginning to end.
    Live,
    /// With a new watch after every few revisions.
    Reconnecting,
}

/// Reads the log up to its last key.
async fn follow(
    store: Store,
    select: Selection,
    start: Revision,
    last: Bytes,
    mode: FollowMode,
) -> CheckResult<Vec<LogEntry>> {
    let mut log: Vec<LogEntry> = Vec::new();
    let mut after = start;
    loop {
        let stream = store.watch(select.clone(), WatchStart::After(after), PreviousValues::Included).await?;
        let mut watch = Watching::new(stream, select.clone(), WatchStart::After(after));
        let reconnect_after = match mode {
            FollowMode::Live => usize::MAX,
            // Longer and longer, because some stores take a tenth of a second for each look back.
            FollowMode::Reconnecting => 1 + log.len() / 4,
        };
        for _ in 0..reconnect_after {
            let entry = watch.batch().await?;
            let is_last = entry.1.iter().any(|change| *change.key() == last);
            log.push(entry);
            if is_last {
                return Ok(log);
            }
        }
        after = watch.delivered();
    }
}

/// Does mixed operations on keys shared with other writers; returns what was certainly written and when.
async fn write(
    store: Store,
    under: Bytes,
    seed: u64,
    ops: usize,
    first_lease: LeaseId,
) -> CheckResult<Vec<(Revision, Bytes)>> {
    let key =
        |name: u64| Bytes::from([&under[..], format!("{}/{}", name % 3, name % 12).as_bytes()].concat());
    let prefix =
        |name: u64| Selection::Prefix([&under[..], format!("{}/", name % 3).as_bytes()].concat().into());
    let mut random = OpRandom(seed);
    let mut lease = first_lease;
    let mut written = Vec::new();
    for n in 0..ops {
        let name = random.next();
        let value = format!("{seed}.{n}");
        match random.next() % 16 {
            0..=5 => written.push((store.put(key(name), value).await?, key(name))),
            6..=8 => written.push((store.put_leased(key(name), value, lease).await?, key(name))),
            9 | 10 => {
                store.delete(Selection::Key(key(name))).await?;
            }
            11 => {
                store.delete(prefix(name)).await?;
            }
            12 | 13 => {
                let txn =
                    (0..3).fold(Txn::new(), |txn, step| txn.then(Op::put(key(name + step), value.clone())));
                let revision = store.txn(txn).await?.revision;
                written.extend((0..3).map(|step| (revision, key(name + step))));
            }
            14 => {
                if let Some(revision) = replace(&store, key(name), value).await? {
                    written.push((revision, key(name)));
                }
            }
            _ => {
                // The revision is not recorded: if all keys of the lease were overwritten, the revoke changes nothing.
                store.revoke(lease).await?;
                lease = store.grant(LONG, None).await?.id;
            }
        }
        tokio::task::yield_now().await;
    }
    store.revoke(lease).await?;
    Ok(written)
}

/// Reads a key and replaces it if it is still the same, as optimistic callers do.
async fn replace(store: &Store, key: Bytes, value: String) -> Result<Option<Revision>, StoreError> {
    let modified = store.get_key(key.clone()).await?.map_or(Revision::ZERO, |pair| pair.modified);
    tokio::task::yield_now().await;
    let txn = Txn::new()
        .when(Condition::modified_at(key.clone(), modified))
        .then(Op::put(key.clone(), value))
        .otherwise(Op::get(key));
    let reply = store.txn(txn).await?;
    match (reply.succeeded, reply.results.first()) {
        (true, _) => Ok(Some(reply.revision)),
        (false, Some(OpReply::Get(_))) => Ok(None),
        (false, _) => Err(StoreError::Corrupt("the reply to a get has another type".into())),
    }
}

/// Requires that two watchers saw the same.
fn same(one: &[LogEntry], other: &[LogEntry]) -> CheckResult {
    for (one, other) in one.iter().zip(other) {
        equal("one revision as two watchers saw it", other, one)?;
    }
    equal("how many revisions two watchers saw", other.len(), one.len())
}

/// Requires that each change follows from those before it, that no revision is missing, and that all of them add up to the listing.
fn adds_up(log: &[LogEntry], start: Revision, there: &[KeyValue]) -> CheckResult {
    let mut state: BTreeMap<Bytes, KeyValue> = BTreeMap::new();
    let mut expected = start;
    for (revision, changes) in log {
        expected = expected.next();
        equal("the revisions of the log", *revision, expected)?;
        let mut touched = BTreeSet::new();
        for change in changes {
            ensure(touched.insert(change.key()), || {
                format!("{revision:?} changes a key twice: {changes:?}")
            })?;
            match change {
                Change::Put { pair, previous } => {
                    let before = state.insert(pair.key.clone(), pair.clone());
                    equal("what was there before a put", previous.as_ref(), before.as_ref())?;
                    let version = before.as_ref().map_or(1, |before| before.version + 1);
                    let created = before.as_ref().map_or(*revision, |before| before.created);
                    let found = (pair.version, pair.created, pair.modified);
                    equal("version, created and modified", found, (version, created, *revision))?;
                }
                Change::Delete { key, previous, .. } => {
                    let before = state.remove(key);
                    equal("what was there before a delete", previous.as_ref(), before.as_ref())?;
                    ensure(before.is_some(), || {
                        format!("{revision:?} deletes {key:?}, which was not there")
                    })?;
                }
            }
        }
    }
    equal("what the log adds up to", state.into_values().collect::<Vec<_>>(), there.to_vec())
}

/// Numbers that look random and are the same in every run: a failure can be seen again.
struct OpRandom(u64);

impl OpRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}
