//! Under load: slow watchers, large revisions, abandoned calls.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::timeout;

use super::check::{CheckFailure, CheckResult, ensure, equal, plus};
use super::equivalence::{EquivalenceSize, log_equivalence_in};
use super::{Case, TestContext};
use crate::store::{Change, Op, PreviousValues, StoreError, Txn, WatchError, WatchStart};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "X01",
            "Four writers with 400 mixed operations each: live, reconnecting, late and replaying watchers see the same log, and the log adds up to what is there.",
            |s| Box::pin(log_equivalence_in(s, std::slice::from_ref(&s.store), EquivalenceSize::default())),
        ),
        Case::new(
            "X11",
            "A watcher that pauses through 3,000 revisions and a compaction catches up or ends with the error that history is compacted; there is never a gap.",
            |s| Box::pin(a_slow_watcher_has_no_gap(s)),
        ),
        Case::new("X12", "3,000 deletes in one revision, with what was there before, arrive whole.", |s| {
            Box::pin(a_large_revision_arrives_whole(s))
        }),
        Case::new(
            "X16",
            "Cancelled writes are applied whole or not at all, and leave no open transaction.",
            |s| Box::pin(abandoned_writes_leave_nothing_open(s)),
        ),
    ]
}

/// How many writes are in flight at once where only their number counts.
const IN_FLIGHT: usize = 32;

async fn write_many(s: &TestContext, count: usize, size: usize) -> CheckResult {
    let value = Bytes::from(vec![0x2e; size]);
    let puts = stream::iter((0..count).map(|n| s.store.put(s.key(&format!("{:02}", n % 50)), value.clone())));
    let outcomes: Vec<_> = puts.buffer_unordered(IN_FLIGHT).collect().await;
    for outcome in outcomes {
        outcome?;
    }
    Ok(())
}

async fn a_slow_watcher_has_no_gap(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    let mut paused = s.watch(s.all(), WatchStart::After(start)).await?;
    write_many(s, 1, 10).await?;
    equal("before the pause", paused.batch().await?.0, plus(start, 1))?;
    write_many(s, 1_500, 500).await?;
    s.store.compact(plus(start, 1_000)).await?;
    write_many(s, 1_500, 500).await?;

    let last = plus(start, 3_001);
    let mut next = plus(start, 2);
    while next <= last {
        match paused.batch_or_end().await? {
            Ok((revision, _)) => {
                equal("the next revision", revision, next)?;
                next = next.next();
            }
            Err(WatchError::Compacted { at }) => {
                equal("where history begins", at, plus(start, 1_000))?;
                ensure(next <= at, || format!("reported a gap up to {at:?}, but {next:?} is the next"))?;
                paused = s.watch(s.all(), WatchStart::After(at)).await?;
                next = at.next();
            }
            Err(WatchError::Lost(error)) => {
                return Err(CheckFailure::new(format!("the watch was lost: {error}")));
            }
        }
    }
    let put = s.put("live", "v").await?;
    equal("live again", paused.batch().await?.0, put)
}

async fn a_large_revision_arrives_whole(s: &TestContext) -> CheckResult {
    let count = 3_000;
    let value = Bytes::from(vec![0x2e; 2_048]);
    let puts = (0..count).map(|n| Op::put(s.key(&format!("many/{n:04}")), value.clone()));
    for outcome in s.store.apply_all(puts).await? {
        outcome?;
    }
    let start = s.revision().await?;
    let mut live = s.watch_with(s.all(), WatchStart::Now, PreviousValues::Included).await?;
    equal("deleted", s.store.delete(s.below("many/")).await?, count)?;
    let mut replay = s.watch_with(s.all(), WatchStart::After(start), PreviousValues::Included).await?;
    for watch in [&mut live, &mut replay] {
        let (revision, changes) = watch.batch().await?;
        equal("the revision", revision, plus(start, 1))?;
        equal("changes in one batch", changes.len() as u64, count)?;
        for (n, change) in changes.iter().enumerate() {
            let Change::Delete { key, previous: Some(previous), .. } = change else {
                return Err(CheckFailure::new(format!(
                    "expected a delete with what was there, found {change:?}"
                )));
            };
            equal("the key", s.name(key), format!("many/{n:04}"))?;
            equal("the size that was there", previous.value.len(), value.len())?;
        }
    }
    Ok(())
}

async fn abandoned_writes_leave_nothing_open(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    let names = ["a", "b", "c"];
    let writing =
        |n: usize| names.iter().fold(Txn::new(), |txn, name| txn.then(Op::put(s.key(name), n.to_string())));
    let count = 60;
    for n in 0..count {
        // From "hardly begun" to "surely done": on any engine some of these are dropped in the middle.
        let patience = Duration::from_micros(1 << (n % 14));
        match timeout(patience, s.txn(writing(n))).await {
            // Abandoned, or done, or refused because too many are waiting: all fine, as long as it is all or nothing.
            Err(_) | Ok(Ok(_) | Err(StoreError::Busy(_) | StoreError::RateLimited)) => {}
            Ok(Err(error)) => return Err(error.into()),
        }
    }
    let last = timeout(Duration::from_secs(5), s.txn(writing(count))).await;
    let last =
        last.map_err(|_| CheckFailure::new("after abandoned writes the store does not take another"))??;
    let mut watch = s.watch(s.all(), WatchStart::After(start)).await?;
    loop {
        let (revision, changes) = watch.batch().await?;
        let whole: Vec<String> = changes.iter().map(|change| s.name(change.key())).collect();
        equal("the keys of a revision", whole, names.map(String::from).to_vec())?;
        let values: Vec<_> = changes
            .iter()
            .map(|change| match change {
                Change::Put { pair, .. } => Some(&pair.value),
                Change::Delete { .. } => None,
            })
            .collect();
        ensure(values.iter().all(|value| *value == values[0]), || format!("{revision:?} is of two writes"))?;
        if revision >= last.revision {
            return Ok(());
        }
    }
}
