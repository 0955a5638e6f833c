//! Queues: what locks and elections need of a store, done with plain transactions.
//!
//! A waiter creates a key of its own under the queue's name; the oldest key holds. These cases check that the order, the
//! wait for a predecessor and the fences of a holder work on every engine.

use super::check::{CheckFailure, CheckResult, ensure, equal};
use super::context::LONG;
use super::{Case, TestContext};
use crate::store::{
    Condition, Get, KeyValue, LeaseId, Op, OpReply, Revision, Selection, SortOrder, StoreError, Txn,
    WatchStart,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "Q01",
            "A queue is first come, first served by created revision; the same lease enters once; a release lets exactly the next one hold.",
            |s| Box::pin(first_come_first_served(s)),
        ),
        Case::new(
            "Q03",
            "A leader's proclamation is guarded by its token: a stale one is not written, and a stale resignation changes nothing.",
            |s| Box::pin(a_stale_leader_changes_nothing(s)),
        ),
        Case::new(
            "Q04",
            "If the lease of a waiter ends while it waits, its key is deleted, so its fenced write fails.",
            |s| Box::pin(a_dead_waiter_cannot_claim(s)),
        ),
    ]
}

/// Enters the queue, or finds the key that the same lease made before; returns its create revision.
async fn enter(s: &TestContext, lease: LeaseId) -> CheckResult<Revision> {
    let key = s.key(&format!("queue/{lease}"));
    let txn = Txn::new()
        .when(Condition::absent(key.clone()))
        .then(Op::put_leased(key.clone(), "", lease))
        .otherwise(Op::get(key));
    let reply = s.txn(txn).await?;
    if reply.succeeded {
        return Ok(reply.revision);
    }
    let Some(OpReply::Get(page)) = reply.results.first() else {
        return Err(CheckFailure::new("the get of the other branch has no reply"));
    };
    page.pairs.first().map(|pair| pair.created).ok_or_else(|| CheckFailure::new("neither absent nor there"))
}

/// Returns the key right before the one that was created at this revision.
async fn predecessor(s: &TestContext, entered: Revision) -> Result<Option<KeyValue>, StoreError> {
    let before = Get::new(s.below("queue/"))
        .created_max(entered.previous())
        .order(SortOrder::CreatedDescending)
        .limit(1);
    Ok(s.store.get(before).await?.pairs.pop())
}

/// Returns the lease of the holder: that of the oldest key.
async fn holder(s: &TestContext) -> Result<Option<LeaseId>, StoreError> {
    let oldest = Get::new(s.below("queue/")).order(SortOrder::Created).limit(1);
    Ok(s.store.get(oldest).await?.pairs.pop().and_then(|pair| pair.lease))
}

async fn first_come_first_served(s: &TestContext) -> CheckResult {
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(s.lease(LONG).await?.id);
    }
    // The ids fall while the queue grows, so that key order is not the order of arrival.
    leases.sort_by_key(|lease| std::cmp::Reverse(*lease));
    let mut entered = Vec::new();
    for lease in &leases {
        entered.push(enter(s, *lease).await?);
    }
    ensure(entered.is_sorted_by(|a, b| a < b), || format!("entries do not grow: {entered:?}"))?;
    let revision = s.revision().await?;
    equal("entering again", enter(s, leases[1]).await?, entered[1])?;
    equal("the revision after entering again", s.revision().await?, revision)?;
    equal("the holder", holder(s).await?, Some(leases[0]))?;

    let before_last =
        predecessor(s, entered[3]).await?.ok_or_else(|| CheckFailure::new("the last has no predecessor"))?;
    equal("the predecessor of the last", before_last.lease, Some(leases[2]))?;
    let mut waiting = s.watch(Selection::Key(before_last.key), WatchStart::After(revision)).await?;
    s.store.revoke(leases[2]).await?;
    waiting.changes(1).await?;
    let next = predecessor(s, entered[3]).await?.and_then(|pair| pair.lease);
    equal("the next predecessor of the last", next, Some(leases[1]))?;

    for (leaving, next) in [(0, Some(leases[1])), (1, Some(leases[3])), (3, None)] {
        s.store.revoke(leases[leaving]).await?;
        equal("the next holder", holder(s).await?, next)?;
    }
    Ok(())
}

async fn a_stale_leader_changes_nothing(s: &TestContext) -> CheckResult {
    let (old, new) = (s.lease(LONG).await?.id, s.lease(LONG).await?.id);
    let token = enter(s, old).await?;
    let key = s.key(&format!("queue/{old}"));
    let proclaim = |token: Revision, lease: LeaseId, value: &'static str| {
        let key = s.key(&format!("queue/{lease}"));
        s.store.txn(
            Txn::new()
                .when(Condition::created_at(key.clone(), token))
                .then(Op::put_leased(key, value, lease)),
        )
    };
    equal("a proclamation", proclaim(token, old, "one").await?.succeeded, true)?;
    let leader =
        s.store.get(Get::new(s.below("queue/")).order(SortOrder::Created).limit(1)).await?.pairs.pop();
    equal("its value", leader.map(|pair| (pair.value, pair.created)), Some(("one".into(), token)))?;

    let resign = |token| {
        s.store.txn(Txn::new().when(Condition::created_at(key.clone(), token)).then(Op::delete(key.clone())))
    };
    equal("a resignation", resign(token).await?.succeeded, true)?;
    let new_token = enter(s, new).await?;
    // The deposed leader comes back under the same key, in a new life.
    let third = enter(s, old).await?;
    ensure(third > new_token && new_token > token, || "tokens do not grow".into())?;
    let start = s.revision().await?;
    equal("a stale proclamation", proclaim(token, old, "stale").await?.succeeded, false)?;
    equal("a stale resignation", resign(token).await?.succeeded, false)?;
    equal("the revision", s.revision().await?, start)?;
    equal("the leader", holder(s).await?, Some(new))
}

async fn a_dead_waiter_cannot_claim(s: &TestContext) -> CheckResult {
    let (first, second) = (s.lease(LONG).await?.id, s.lease(LONG).await?.id);
    enter(s, first).await?;
    let entered = enter(s, second).await?;
    let own = s.key(&format!("queue/{second}"));
    let before =
        predecessor(s, entered).await?.ok_or_else(|| CheckFailure::new("the second has no predecessor"))?;
    let mut waiting = s.watch(Selection::Key(before.key), WatchStart::Now).await?;
    s.store.revoke(second).await?;
    s.store.revoke(first).await?;
    waiting.changes(1).await?;
    equal("the predecessor", predecessor(s, entered).await?, None)?;
    equal("the own key", s.store.get_key(own.clone()).await?, None)?;
    let claim = Txn::new().when(Condition::created_at(own, entered)).then(Op::put(s.key("claimed"), "v"));
    equal("the guarded claim", s.txn(claim).await?.succeeded, false)?;
    equal("what was claimed", s.pair("claimed").await?, None)
}
