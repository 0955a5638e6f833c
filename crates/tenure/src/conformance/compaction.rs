//! Compaction: what may be removed, and that every reader below it gets an error.

use super::check::{CheckFailure, CheckResult, ensure, equal, plus, refused};
use super::{Case, TestContext};
use crate::store::{Change, Get, Op, PreviousValues, Revision, StoreError, Txn, WatchError, WatchStart};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "C01",
            "Compaction in the future is refused; it makes no revision; the same, less, and 0 once more are refused as compacted.",
            |s| Box::pin(compaction_goes_forward(s)),
        ),
        Case::new(
            "C02",
            "Reads below the compact revision are refused, at it and above are served; a transaction with such a get writes nothing.",
            |s| Box::pin(reads_below_are_refused(s)),
        ),
        Case::new(
            "C03",
            "A watch from below the compact revision first reports where history begins; a watch after it shows all that follows.",
            |s| Box::pin(watches_from_below_get_compacted(s)),
        ),
        Case::new(
            "C04",
            "A delete exactly at the compact revision is not lost: a watch from before it gets the error that history is compacted.",
            |s| Box::pin(a_delete_at_the_compact_revision(s)),
        ),
        Case::new("C05", "A watch that has seen everything survives compaction.", |s| {
            Box::pin(a_watch_survives(s))
        }),
        Case::new(
            "C06",
            "What was there before a change may be missing only at or below the compact revision.",
            |s| Box::pin(previous_values_above(s)),
        ),
        Case::new("C20", "Compaction leaves what is there now: keys, leases and the latest values.", |s| {
            Box::pin(the_present_stays(s))
        }),
    ]
}

async fn compaction_goes_forward(s: &TestContext) -> CheckResult {
    let first = s.put("a", "1").await?;
    let last = s.put("a", "2").await?;
    let future = s.store.compact(plus(last, 1)).await;
    refused!("the future", future, StoreError::FutureRevision)?;
    s.store.compact(last).await?;
    equal("the revision", s.revision().await?, last)?;
    for again in [last, first, Revision::ZERO] {
        match s.store.compact(again).await {
            Err(StoreError::Compacted { at }) => {
                ensure(at.is_none_or(|at| at == last), || {
                    format!("history begins after {last:?}, but the watch reported {at:?}")
                })?;
            }
            other => return Err(CheckFailure::new(format!("compacting {again:?} again: {other:?}"))),
        }
    }
    Ok(())
}

async fn reads_below_are_refused(s: &TestContext) -> CheckResult {
    let first = s.put("a", "1").await?;
    let second = s.put("a", "2").await?;
    let third = s.put("a", "3").await?;
    s.store.compact(second).await?;
    let below = s.store.get(Get::key(s.key("a")).at(first)).await;
    refused!("below", below, StoreError::Compacted { .. })?;
    for (at, value) in [(second, "2"), (third, "3")] {
        let page = s.store.get(Get::key(s.key("a")).at(at)).await?;
        equal("at it and above", page.pairs.first().map(|pair| &pair.value[..]), Some(value.as_bytes()))?;
    }
    let txn = Txn::new().then(Op::put(s.key("b"), "v")).then(Op::Get(Get::key(s.key("a")).at(first)));
    refused!("a transaction with a get below", s.txn(txn).await, StoreError::Compacted { .. })?;
    equal("the revision", s.revision().await?, third)
}

async fn watches_from_below_get_compacted(s: &TestContext) -> CheckResult {
    let first = s.put("a", "1").await?;
    for value in ["2", "3"] {
        s.put("a", value).await?;
    }
    let compacted = s.put("a", "4").await?;
    let later = s.put("a", "5").await?;
    s.store.compact(compacted).await?;
    for start in [first, plus(first, 1), compacted.previous()] {
        let mut watch = s.watch(s.all(), WatchStart::After(start)).await?;
        match watch.end().await? {
            WatchError::Compacted { at } => equal("where history begins", at, compacted)?,
            WatchError::Lost(error) => {
                return Err(CheckFailure::new(format!("expected Compacted, found {error}")));
            }
        }
    }
    let mut watch = s.watch(s.all(), WatchStart::After(compacted)).await?;
    equal("what follows", watch.batch().await?.0, later)
}

async fn a_delete_at_the_compact_revision(s: &TestContext) -> CheckResult {
    let put = s.put("a", "1").await?;
    s.delete("a").await?;
    let deleted = plus(put, 1);
    s.store.compact(deleted).await?;
    let mut watch = s.watch(s.all(), WatchStart::After(put)).await?;
    match watch.end().await? {
        WatchError::Compacted { at } => equal("where history begins", at, deleted)?,
        WatchError::Lost(error) => {
            return Err(CheckFailure::new(format!("expected Compacted, found {error}")));
        }
    }
    let mut watch = s.watch(s.all(), WatchStart::After(deleted)).await?;
    let next = s.put("b", "v").await?;
    equal("what follows", watch.batch().await?.0, next)
}

async fn a_watch_survives(s: &TestContext) -> CheckResult {
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;
    let mut quiet = s.watch(s.below("quiet/"), WatchStart::Now).await?;
    for n in 0..5 {
        let put = s.put("a", &n.to_string()).await?;
        equal("before", watch.batch().await?.0, put)?;
        s.store.compact(put).await?;
    }
    let put = s.put("a", "last").await?;
    equal("after", watch.batch().await?.0, put)?;
    // One that had nothing to see in all this time has missed nothing either.
    let put = s.put("quiet/a", "v").await?;
    equal("a quiet watch", quiet.batch().await?.0, put)
}

async fn previous_values_above(s: &TestContext) -> CheckResult {
    let mut revisions = Vec::new();
    for n in 0..6 {
        revisions.push(s.put("a", &n.to_string()).await?);
    }
    // This watch is behind at the compaction. It may deliver everything, or end with the error.
    let mut behind = s.watch_with(s.all(), WatchStart::After(revisions[0]), PreviousValues::Included).await?;
    let compacted = revisions[2];
    s.store.compact(compacted).await?;
    let mut after = s.watch_with(s.all(), WatchStart::After(compacted), PreviousValues::Included).await?;
    for revision in &revisions[3..] {
        let (found, changes) = after.batch().await?;
        equal("the revision", found, *revision)?;
        check_previous(&changes[0], compacted)?;
    }
    let mut expected = revisions[1..].iter();
    loop {
        match behind.batch_or_end().await? {
            Ok((revision, changes)) => {
                equal("the revision of the one behind", Some(&revision), expected.next())?;
                check_previous(&changes[0], compacted)?;
                if expected.len() == 0 {
                    return Ok(());
                }
            }
            // A watch that only checked for its start revision reports no more than that this is compacted.
            Err(WatchError::Compacted { at }) => {
                return ensure(revisions[0] < at && at <= compacted, || {
                    format!("history begins after {compacted:?}, not after {at:?}")
                });
            }
            Err(WatchError::Lost(error)) => {
                return Err(CheckFailure::new(format!("the watch was lost: {error}")));
            }
        }
    }
}

fn check_previous(change: &Change, compacted: Revision) -> CheckResult {
    let Change::Put { pair, previous } = change else {
        return Err(CheckFailure::new(format!("expected a put, found {change:?}")));
    };
    match previous {
        Some(previous) => equal("the version before", previous.version, pair.version - 1),
        None => ensure(pair.modified <= compacted, || {
            format!("{:?} has no previous value, history begins after {compacted:?}", pair.modified)
        }),
    }
}

async fn the_present_stays(s: &TestContext) -> CheckResult {
    let lease = s.lease(super::context::LONG).await?.id;
    s.put("a", "1").await?;
    s.put("gone", "1").await?;
    s.delete("gone").await?;
    s.put_leased("b", "2", lease).await?;
    let last = s.put("c", "3").await?;
    let before = s.store.list(s.all()).await?;
    s.store.compact(last).await?;
    equal("the present", s.store.list(s.all()).await?, before)?;
    equal("the present, read in the past", s.store.get(Get::new(s.all()).at(last)).await?.pairs.len(), 3)?;
    s.store.revoke(lease).await?;
    equal("after the lease", s.names().await?, vec!["a".into(), "c".into()])
}
